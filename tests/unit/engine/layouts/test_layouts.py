"""Layout files: what is shipped is sound, parts are shared and none is lost, and what is not sound is refused."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.engine import layouts
from gdbext.engine.arch import architectures
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import Layout, store, validate
from gdbext.errors import LayoutError
from gdbext.torch import layout_choice
from gdbext.torch.measure.compiler import shorten
from scripts.lib.packed_layouts import pack

FILES = sorted([*Path(store.DATA).glob("torch-*.json"), *Path(store.DATA).glob("cpython-*.json")])
TORCH = Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json"
DOCUMENT = store.read_layout(TORCH, whole=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_file_is_valid(path: Path) -> None:
    layout = store.load(path, full=True)
    assert layout.id == path.stem
    assert layout.provenance["compiler"]


def test_index_is_up_to_date() -> None:
    layouts = {path.name: store.load(path) for path in sorted(Path(store.DATA).glob("torch-*.json"))}
    assert store.index()["torch"] == {name: layout.version for name, layout in layouts.items()}
    library = store.TORCH_LIBRARY
    measured = {name: layout.build_ids[library] for name, layout in layouts.items() if library in layout.build_ids}
    assert store.index()["build_ids"] == {build_id: name for name, build_id in measured.items()}


def test_a_layout_of_another_architecture_is_not_tried() -> None:
    """By its version it would fit, and so it would by a table of CPython's."""
    (known,) = architectures.names()
    assert store.of_release("2.13.0", store.data_of(known))
    other = store.data_of("aarch64")
    assert store.of_release("2.13.0", other) == store.nearest_older("99.0", other) == []
    assert store.by_build_id("b7066ed94f422786bd205cd2743c2722b5f366fd", other) is None
    assert store.member_offsets("saved-members", "2.13.0", folder=other) == {}
    assert store.nccl_release("2.27.5", other) is None
    with pytest.raises(LayoutError, match="aarch64/cpython-3"):
        layout_for(next(abi for abi in SUPPORTED if abi.text == "3.12"), "aarch64")


def test_the_layout_is_of_the_process_s_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_choice, "torch_version", lambda _: "2.13.0")
    library = SimpleNamespace(build_id=store.load(TORCH).build_ids[store.TORCH_LIBRARY])
    modules: Any = SimpleNamespace(named=lambda _: library, files=SimpleNamespace(stored_text=lambda _: ""))
    ours, other = (SimpleNamespace(architecture=SimpleNamespace(name=name)) for name in ("x86_64", "aarch64"))
    choose: Any = layout_choice.torch_layout
    assert choose(modules, ours, None, lambda: 0).match == "exact"
    with pytest.raises(LayoutError, match="none of this minor version is shipped"):
        choose(modules, other, None, lambda: 0)


def _with(value: object, *path: Any) -> dict[str, Any]:
    """The document with one value replaced, or removed; what is not on the way to it is shared with the original."""
    changed = copy.copy(DOCUMENT)
    place: Any = changed
    for step in path[:-1]:
        place[step] = copy.copy(place[step])
        place = place[step]
    if value is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


REMOVED = object()
ENTRY = ("structs", "c10::impl::OperatorEntry")
BAD = {
    "no object": [],
    "another schema": _with("gdbext-layout/3", "schema"),
    "no id": _with("", "id"),
    "no provenance": _with(REMOVED, "provenance", "compiler"),
    "no structs": _with(REMOVED, "structs"),
    "key names cut short": _with(DOCUMENT["dispatch"]["key_names"][:-1], "dispatch", "key_names"),
    "offsets cut short": _with(DOCUMENT["dispatch"]["offsets_and_masks"][:-1], "dispatch", "offsets_and_masks"),
    "a key without a name": _with(None, "dispatch", "key_names", 5),
    "an offset beyond any table": _with([1 << 20, 0], "dispatch", "offsets_and_masks", 3),
    "a build-id that is no text": _with(5, "build_ids", "libc10.so"),
    "absent things that are no list": _with(None, "absent"),
    "no enumeration of keys": _with(REMOVED, "enums", "c10::DispatchKey"),
    **{f"text {text[:4]!r}": text for text in ("", "{", "[" * 100_000, "\x00", '{"schema": "gdbext-layout/1"}')},
}


@pytest.mark.parametrize("document", BAD.values(), ids=BAD.keys())
def test_unsound_document_is_refused(document: object, tmp_path: Path) -> None:
    path = tmp_path / "torch-bad.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(LayoutError, match="torch-bad") as caught:
        store.load(path)
    assert caught.value.help


UNREADABLE = {
    "a size of zero": _with(0, *ENTRY, "size"),
    "a size that is no number": _with("6048", *ENTRY, "size"),
    "a huge size": _with(1 << 40, *ENTRY, "size"),
    "a member outside": _with(6040, *ENTRY, "fields", "dispatchTable_", "offset"),
    "a negative offset": _with(-8, *ENTRY, "fields", "name_", "offset"),
    "an offset that is true": _with(True, *ENTRY, "fields", "name_", "offset"),
    "bits outside": _with(1 << 16, *ENTRY, "fields", "name_", "bit_size"),
    "a missing struct": _with(REMOVED, *ENTRY),
    "a missing member": _with(REMOVED, *ENTRY, "fields", "dispatchTable_"),
    "a member that is too small": _with(4, "structs", "c10::BoxedKernel", "fields", "functor_", "size"),
    "another number of entries": _with(136, "constants", "num_runtime_entries"),
}


@pytest.mark.parametrize("document", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_a_dispatcher_cannot_be_read_with_is_refused(document: dict[str, Any]) -> None:
    """Of a whole document that somebody else made, and of a shipped one, piece by piece."""
    with pytest.raises(LayoutError, match="not a usable layout") as caught:
        layout_choice.complete(Layout(document))
    assert caught.value.help


MISTYPED = {
    "data types that are a text": _with("abc", "dispatch", "scalar_types"),
    "a data type without a size": _with(["Byte"], "dispatch", "scalar_types", 0),
    "indices that are texts": _with(["1"], "dispatch", "table_index"),
    "more indices than keys": _with([0] * 999, "dispatch", "table_index"),
    "alias keys in a list": _with(["Autograd"], "dispatch", "runtime_keysets"),
    "an alias key of text": _with("0x1", "dispatch", "runtime_keysets", "Autograd"),
    "autograd's backends in a list": _with([], "dispatch", "backends_of_autograd"),
    "a constant beyond 64 bits": _with(1 << 64, "constants", "num_backends"),
    "an enumeration that is a list": _with([1], "enums", "c10::BackendComponent"),
}


@pytest.mark.parametrize("document", MISTYPED.values(), ids=MISTYPED.keys())
def test_each_member_has_its_type(document: dict[str, Any]) -> None:
    """What a recording or a cache brings along is refused as a whole."""
    with pytest.raises(LayoutError, match="not a usable layout"):
        store.parse(json.dumps(document), "a recording", "generated")


def test_files_that_are_none(tmp_path: Path) -> None:
    for data in (b"", b"\x7fELF\x02" + b"\xff" * 100, b"#!/bin/sh\n"):
        (tmp_path / "file").write_bytes(data)
        assert build_id_of_file(tmp_path / "file") is None
    with pytest.raises(LayoutError, match="No such file"):
        store.load(tmp_path / "none.json")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(64 << 20)
    with pytest.raises(LayoutError, match="larger"):
        store.load(huge)


def test_versions_in_order_of_nearness(tmp_path: Path) -> None:
    names = {"a.json": "2.13.1+cpu", "b.json": "2.13.0+cu126", "c.json": "2.12.0+cpu", "d.json": "2.13.0+cpu"}
    names |= {"e.json": "2.9.0+cu126", "f.json": "2.13.1+cu126"}
    (tmp_path / "index.json").write_text(json.dumps({"build_ids": {}, "torch": names}))
    found = [Path(path).name for path, _ in store.by_version("2.13.0+cu126", tmp_path)]
    assert found == ["b.json", "d.json", "a.json", "f.json"]
    assert store.by_version("3.0.0", tmp_path) == []
    assert store.by_version("", tmp_path) == []
    assert [Path(path).name for path in store.nearest_older("2.14.0", tmp_path)] == ["a.json", "f.json"]
    for version in ("2.13.2", "2.12.9", "2.10.0", ""):  # of a minor version that is known, or older than the newest
        assert store.nearest_older(version, tmp_path) == []


def test_release() -> None:
    found = [store.release(text) for text in ("2.13.0+cpu", "2.13.0a0+git12", "2.13", "", "nightly")]
    assert found == [(2, 13, 0), (2, 13, 0), (2, 13), (), ()]


def test_another_release_s_file_under_a_name(tmp_path: Path) -> None:
    """Neither believed for its name nor for the index."""
    build_id = "ab" * 20
    path = tmp_path / "torch-2.12.1+cpu-cxx11.json"
    path.write_text(json.dumps(DOCUMENT))
    names = {"build_ids": {build_id: path.name}, "torch": {path.name: "2.12.1+cpu"}}
    (tmp_path / store.INDEX).write_text(json.dumps(names))
    with pytest.raises(LayoutError, match=r"2\.12\.1.* holds the layout of another build, torch-2\.13\.0") as raised:
        store.by_build_id(build_id, tmp_path)
    assert "install" in raised.value.help
    with pytest.raises(LayoutError, match="another build"):
        store.shipped(path)


def test_cached_layout_must_be_of_that_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(store.layout_cache())
    folder.mkdir(parents=True)
    build_id = "ab" * 20
    path = folder / f"{build_id}.json"
    path.write_text(json.dumps(DOCUMENT))
    assert store.by_build_id(build_id) is None, "measured on another build"
    path.write_text(json.dumps(_with({"libtorch_cpu.so": build_id}, "build_ids")))
    found = store.by_build_id(build_id)
    assert found.match == "generated"
    path.write_text("{")
    assert store.by_build_id(build_id) is None, "damaged"
    assert store.by_build_id("../../etc/passwd") is None
    assert store.by_build_id(None) is None


def test_shorten() -> None:
    for name, short in {
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >": "std::string",
        "std::vector<std::pair<int, B>, std::allocator<std::pair<int, B> > >": "std::vector<std::pair<int, B>>",
        "std::unique_ptr<c10::X, std::default_delete<c10::X> >": "std::unique_ptr<c10::X>",
        "c10::Dispatcher": "c10::Dispatcher",
    }.items():
        assert shorten(name) == short


SHARED = layouts.shared_file("torch")


def other(version: str, size: int) -> dict[str, Any]:
    """A release in which one class has grown."""
    document = copy.deepcopy(DOCUMENT)
    document["id"] = f"torch-{version}-cxx11"
    document["provenance"]["version"] = version
    document["structs"]["c10::Dispatcher"]["size"] = size
    return document


def test_the_same_layouts_make_the_same_files(tmp_path: Path) -> None:
    documents = [DOCUMENT, other("2.9.1", 30_000), other("2.14.0", 40_000)]
    for name, order in (("one", documents), ("two", documents[::-1])):
        pack(order, tmp_path / name)
    texts = [{path.name: path.read_text() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert texts[0] == texts[1]
    for document in documents:
        assert store.read_layout(tmp_path / "one" / f"{document['id']}.json", whole=True) == document
    for kind in validate.KINDS:
        shipped = sorted(Path(store.DATA).glob(f"{kind}-*.json"))
        pack([store.read_layout(path, whole=True) for path in shipped], tmp_path)
        shared = layouts.shared_file(kind)
        assert (tmp_path / shared).read_text() == (Path(store.DATA) / shared).read_text()


def test_another_release_s_parts_are_refused(tmp_path: Path) -> None:
    """An update that was cut short: offsets of the one release must not be read by the names of another."""
    pack([DOCUMENT], tmp_path / "old")
    pack([other("2.9.1", 30_000), DOCUMENT], tmp_path / "new")
    head = f"{DOCUMENT['id']}.json"
    (tmp_path / "new" / head).write_text((tmp_path / "old" / head).read_text())
    with pytest.raises(LayoutError, match="do not belong together"):
        store.load(tmp_path / "new" / head)


def test_damage_is_refused(tmp_path: Path) -> None:
    pack([DOCUMENT], tmp_path)
    path, shared = tmp_path / f"{DOCUMENT['id']}.json", tmp_path / SHARED
    whole = shared.read_bytes()
    generator = random.Random(3)
    for _ in range(50):
        at = generator.randrange(2, len(whole) - 3)
        shared.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << generator.randrange(7)]) + whole[at + 1 :])
        with pytest.raises(LayoutError):
            store.load(path, full=True)
    shared.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayoutError):
        store.load(path, full=True)
    shared.write_bytes(whole)
    head = json.loads(path.read_text())
    for parts in (None, {}, ["1"], [0], [10**9], [-1]):
        path.write_text(json.dumps({**head, "parts": parts}))
        with pytest.raises(LayoutError, match="parts"):
            store.load(path)
    for kind in ("../torch", None, 3):
        path.write_text(json.dumps({**head, "kind": kind}))
        with pytest.raises(LayoutError, match="kind"):
            store.read_layout(path)
    path.write_text(json.dumps(head))
    shared.unlink()
    with pytest.raises(LayoutError, match="No such file"):
        store.load(path)


@pytest.mark.parametrize("value", ["[8]", "[8,-9]", "8", "{}", "null", *(f"[8,{line}]" for line in range(1, 8))])
def test_a_structure_of_another_shape(value: str) -> None:
    lines = [
        f'["structs","A",{value}]',
        '["structs","A",0]',
        '[["a",0]]',
        '[["a","0",8,"T"]]',
        '[["a",0,8,"T",0,0,0]]',
        '[["a",0,8,"T",5]]',
        '[[0,"Base","6"]]',
    ]
    section = layouts.LayoutSection({"A": lines[0]}, lines, "somewhere")
    with pytest.raises(LayoutError, match="somewhere"):
        section["A"]
