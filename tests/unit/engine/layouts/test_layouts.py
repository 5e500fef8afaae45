"""Layout files: what is shipped is sound, and what is not sound is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.engine.arch import architectures
from gdbext.engine.layouts import Layout, store, validate
from gdbext.engine.layouts.declarations import required_in
from gdbext.errors import LayoutError
from gdbext.torch import layout_choice, structures
from gdbext.torch.measure.measured import shorten
from gdbext.torch.values import value_structures
from support.programs.work import lines_run

FILES = sorted([*Path(store.DATA).glob("torch-*.json"), *Path(store.DATA).glob("cpython-*.json")])
TORCH = Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json"
DOCUMENT = store.read_layout(TORCH, whole=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_file_is_valid(path: Path) -> None:
    layout = store.load(path, full=True)
    assert layout.id == path.stem
    assert layout.provenance["compiler"]


def test_shipped_versions() -> None:
    assert {p.stem for p in FILES} >= {f"cpython-3.{minor}" for minor in range(8, 14)} | {TORCH.stem}


def test_index_is_up_to_date() -> None:
    assert store.index() == store.make_index()


def homeless(data: Path) -> list[str]:
    """Shipped files that are in no folder of a known architecture: offsets are true of one only."""
    files = (path.relative_to(data) for path in data.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if path.parent.name not in architectures.names() or len(path.parts) != 2)


def test_each_shipped_file_is_of_an_architecture() -> None:
    assert homeless(Path(store.DATA).parent) == []


def test_one_of_no_architecture_is_found(tmp_path: Path) -> None:
    for name in ("torch-2.13.0.json", "vax/torch-2.13.0.json", f"{architectures.names()[0]}/torch-2.13.0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert homeless(tmp_path) == ["torch-2.13.0.json", "vax/torch-2.13.0.json"]


def test_a_layout_of_another_architecture_is_not_tried() -> None:
    """By its version it would fit, and so it would by a table of CPython's."""
    (known,) = architectures.names()
    assert store.of_release("2.13.0", store.data_of(known))
    other = store.data_of("aarch64")
    assert store.of_release("2.13.0", other) == store.nearest_older("99.0", other) == []
    assert store.by_build_id("b7066ed94f422786bd205cd2743c2722b5f366fd", other) is None
    assert store.saved_members("2.13.0", folder=other) == {}
    assert store.nccl_release("2.27.5", other) is None
    with pytest.raises(LayoutError, match="aarch64/cpython-3"):
        layout_for(next(abi for abi in SUPPORTED if abi.text == "3.12"), "aarch64")


@pytest.mark.parametrize(("name", "found"), [("x86_64", "exact"), ("aarch64", "")])
def test_the_layout_is_of_the_process_s_architecture(name: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_choice, "torch_version", lambda _: "2.13.0")
    library = SimpleNamespace(build_id=store.load(TORCH).build_ids[store.TORCH_LIBRARY])
    modules: Any = SimpleNamespace(named=lambda _: library, files=SimpleNamespace(kept=lambda _: ""))
    memory: Any = SimpleNamespace(architecture=SimpleNamespace(name=name))
    symbolizer: Any = None
    if found:
        assert layout_choice.torch_layout(modules, memory, symbolizer, lambda: 0).match == found
    else:
        with pytest.raises(LayoutError, match="none of this minor version is shipped"):
            layout_choice.torch_layout(modules, memory, symbolizer, lambda: 0)


def test_measured_facts_of_the_wheel() -> None:
    """Figures that were read from the wheel's machine code, independently of its headers (shared/facts.md)."""
    layout = store.load(TORCH)
    entry, kernel = layout.struct("c10::impl::OperatorEntry"), layout.struct("c10::KernelFunction")
    assert (entry.size, entry.offset("dispatchTable_"), kernel.size) == (6048, 248, 40)
    assert layout.constant("num_runtime_entries") == 137
    boxed = layout.struct("c10::BoxedKernel")
    at = kernel.offset("boxed_kernel_func_")
    assert [at + boxed.offset("functor_"), at + boxed.offset("boxed_kernel_func_")] == [0, 8]
    assert [kernel.offset("unboxed_kernel_func_"), kernel.offset("sym_unboxed_kernel_func_")] == [16, 24]


def test_table_indices_follow_from_offsets_and_masks() -> None:
    layout = store.load(TORCH)
    keys = layout.enum("c10::DispatchKey")
    functionalities = layout.dispatch("offsets_and_masks")
    backends = layout.constant("num_backends")
    index = layout.dispatch("table_index")
    assert sorted(i for i in index if i > 0) == list(range(1, layout.constant("num_runtime_entries")))
    for functionality, start in (
        ("Dense", "StartOfDenseBackends"),
        ("Sparse", "StartOfSparseBackends"),
        ("AutogradFunctionality", "StartOfAutogradFunctionalityBackends"),
    ):
        offset, mask = functionalities[keys[functionality]]
        assert mask == layout.constant("full_backend_mask")
        found = [index[keys[start] + 1 + backend] for backend in range(backends)]
        assert found == list(range(offset, offset + backends))


OF_SETTINGS = (
    "at::Context",
    "at::CPUGeneratorImpl",
    "at::RecordFunctionCallback",
    "c10::ThreadLocalDebugInfo",
    "torch::profiler::impl::ProfilerConfig",
)


def test_settings_of_each_release() -> None:
    """Debian's 1.13 has none: its headers are the distribution's."""
    lacking = {
        path.stem: {name for name in OF_SETTINGS if not store.load(path).has_struct(name)}
        for path in Path(store.DATA).glob("torch-2*.json")
    }
    assert {name: absent for name, absent in lacking.items() if absent} == {}


def test_each_alias_has_keys() -> None:
    """getRuntimeDispatchKeySet of torch 2.0 to 2.6 has none for FuncTorchBatchedDecomposition; it is asked per key."""
    for path in Path(store.DATA).glob("torch-*.json"):
        layout = store.load(path)
        keysets = layout.dispatch("runtime_keysets")
        assert all(keysets.values()), path.stem
        batched = layout.enum("c10::DispatchKey")["FuncTorchBatched"]
        expected = 1 << layout.constant("num_backends") + batched - 1  # c10/core/DispatchKeySet.h: backends come first
        assert keysets.get("FuncTorchBatchedDecomposition", expected) == expected, path.stem  # 1.13 has no such alias


def test_loading_is_cheap() -> None:
    """What is not asked for is not made: no line for each of its thousands of members."""
    assert lines_run(lambda: store.load(TORCH).struct("c10::impl::OperatorEntry")) < 10_000


def test_missing_names_say_which() -> None:
    layout = store.load(TORCH)
    with pytest.raises(LayoutError, match="Nonesuch"):
        layout.struct("c10::Nonesuch")
    with pytest.raises(LayoutError, match="nonesuch"):
        layout.constant("nonesuch")
    with pytest.raises(LayoutError, match="nonesuch_"):
        layout.struct("c10::Dispatcher").offset("nonesuch_")
    assert not layout.has_struct("c10::Nonesuch")


def _without(*path: str) -> dict[str, Any]:
    changed, place = _way_to(path)
    del place[path[-1]]
    return changed


def _with(value: object, *path: Any) -> dict[str, Any]:
    """The document with one value replaced."""
    changed, place = _way_to(path)
    place[path[-1]] = value
    return changed


def _way_to(path: Sequence[Any]) -> tuple[dict[str, Any], Any]:
    """A document, and the place in it that may be changed: what is not on the way to it is shared with the original."""
    changed = copy.copy(DOCUMENT)
    place: Any = changed
    for step in path[:-1]:
        place[step] = copy.copy(place[step])
        place = place[step]
    return changed, place


ENTRY = ("structs", "c10::impl::OperatorEntry")
BAD = {
    "no object": [],
    "another schema": _with("gdbext-layout/3", "schema"),
    "another kind": _with(["torch"], "kind"),
    "no id": _with("", "id"),
    "no provenance": _without("provenance", "compiler"),
    "no structs": _without("structs"),
    "key names cut short": _with(DOCUMENT["dispatch"]["key_names"][:-1], "dispatch", "key_names"),
    "no dispatch facts": _without("dispatch"),
    "offsets cut short": _with(DOCUMENT["dispatch"]["offsets_and_masks"][:-1], "dispatch", "offsets_and_masks"),
    "a key without a name": _with(None, "dispatch", "key_names", 5),
    "a backend without a name": _with(7, "dispatch", "backend_names", 1),
    "an offset beyond any table": _with([1 << 20, 0], "dispatch", "offsets_and_masks", 3),
    "a build-id that is no text": _with(5, "build_ids", "libc10.so"),
    "absent things that are no list": _with(None, "absent"),
    "no enumeration of keys": _without("enums", "c10::DispatchKey"),
}


@pytest.mark.parametrize("document", BAD.values(), ids=BAD.keys())
def test_unsound_document_is_refused(document: object, tmp_path: Path) -> None:
    path = tmp_path / "torch-bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(LayoutError, match="torch-bad") as caught:
        store.load(path)
    assert caught.value.help


UNSOUND_STRUCTURES = {
    "a size of zero": _with(0, *ENTRY, "size"),
    "a size that is no number": _with("6048", *ENTRY, "size"),
    "a huge size": _with(1 << 40, *ENTRY, "size"),
    "a member outside": _with(6040, *ENTRY, "fields", "dispatchTable_", "offset"),
    "a negative offset": _with(-8, *ENTRY, "fields", "name_", "offset"),
    "an offset that is true": _with(True, *ENTRY, "fields", "name_", "offset"),
    "bits outside": _with(1 << 16, *ENTRY, "fields", "name_", "bit_size"),
}
INCOMPLETE = {
    "a missing struct": _without(*ENTRY),
    "a missing member": _without(*ENTRY, "fields", "dispatchTable_"),
    "a member that is too small": _with(4, "structs", "c10::BoxedKernel", "fields", "functor_", "size"),
    "another number of entries": _with(136, "constants", "num_runtime_entries"),
}


@pytest.mark.parametrize(
    "document", [*UNSOUND_STRUCTURES.values(), *INCOMPLETE.values()], ids=[*UNSOUND_STRUCTURES, *INCOMPLETE]
)
def test_what_a_dispatcher_cannot_be_read_with_is_refused(document: dict[str, Any]) -> None:
    """Of a whole document that somebody else made, and of a shipped one, piece by piece."""
    with pytest.raises(LayoutError, match="not a usable layout") as caught:
        layout_choice.complete(Layout(document))
    assert caught.value.help


@pytest.mark.parametrize("document", UNSOUND_STRUCTURES.values(), ids=UNSOUND_STRUCTURES.keys())
def test_an_unsound_structure_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="not a usable layout"):
        validate.check_all(document, "damaged")


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


def test_what_is_asked_for_has_its_type() -> None:
    """A shipped layout is read piece by piece: a piece is looked at when it is asked for."""
    layout = Layout(_with("abc", "dispatch", "scalar_types"))
    with pytest.raises(LayoutError, match="scalar_types"):
        layout.dispatch("scalar_types")
    with pytest.raises(LayoutError, match="num_backends"):
        Layout(_with("16", "constants", "num_backends")).constant("num_backends")
    with pytest.raises(LayoutError, match=r"OperatorEntry\.name_"):
        Layout(_with("8", *ENTRY, "fields", "name_", "offset")).struct("c10::impl::OperatorEntry")


def test_what_is_asked_for_often_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = store.load(TORCH)
    first = layout.enum("c10::DeviceType")
    monkeypatch.setattr("gdbext.engine.layouts.validate.check_part", lambda *_: pytest.fail("it was checked before"))
    assert layout.enum("c10::DeviceType") == first


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00", '{"schema": "gdbext-layout/1"}'])
def test_broken_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(LayoutError, match="broken"):
        store.load(path)


def test_missing_and_oversized_file(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="No such file"):
        store.load(tmp_path / "none.json")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(64 << 20)
    with pytest.raises(LayoutError, match="larger"):
        store.load(huge)


JUNK = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.text("aé☃", max_size=4), st.just([]))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever one value is replaced by: LayoutError, or a document whose required members still lie inside."""
    path: list[Any] = []
    place: Any = DOCUMENT
    while isinstance(place, (dict, list)) and place and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))))
        place = place[path[-1]]
    document = _with(data.draw(JUNK), *path)
    try:
        validate.check_all(document, "damaged")
        layout = layout_choice.complete(Layout(document))
    except LayoutError:
        return
    for member in required_in(structures, value_structures):
        found, whole = member.field(layout), layout.struct(member.owner)
        assert 0 <= found.offset <= found.offset + found.size <= whole.size


def test_versions_in_order_of_nearness(tmp_path: Path) -> None:
    names = {"a.json": "2.13.1+cpu", "b.json": "2.13.0+cu126", "c.json": "2.12.0+cpu", "d.json": "2.13.0+cpu"}
    (tmp_path / "index.json").write_text(json.dumps({"build_ids": {}, "torch": names}))
    found = [Path(path).name for path, _ in store.by_version("2.13.0+cu126", tmp_path)]
    assert found == ["b.json", "d.json", "a.json"]
    assert store.by_version("3.0.0", tmp_path) == []
    assert store.by_version("", tmp_path) == ()


def test_the_newest_layout_is_the_nearest_one_of_a_newer_release(tmp_path: Path) -> None:
    names = {"a.json": "2.13.1+cpu", "b.json": "2.9.0+cu126", "c.json": "2.13.1+cu126", "d.json": "2.13.0+cpu"}
    (tmp_path / "index.json").write_text(json.dumps({"build_ids": {}, "torch": names}))
    assert [Path(path).name for path in store.nearest_older("2.14.0", tmp_path)] == ["a.json", "c.json"]
    assert store.nearest_older("2.13.2", tmp_path) == [], "of a minor version that is known"
    assert store.nearest_older("2.10.0", tmp_path) == []
    assert store.nearest_older("", tmp_path) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.13.0a0+git12", (2, 13, 0)), ("2.13", (2, 13)), ("", ()), ("nightly", ())],
)
def test_release(text: str, numbers: tuple[int, ...]) -> None:
    assert store.release(text) == numbers


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
    assert found is not None
    assert found.match == "generated"
    path.write_text("{")
    assert store.by_build_id(build_id) is None, "damaged"
    assert store.by_build_id("../../etc/passwd") is None
    assert store.by_build_id(None) is None


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02" + b"\xff" * 100, b"#!/bin/sh\n"])
def test_no_build_id(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert store.build_id_of_file(path) is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"),
        ("std::vector<std::pair<int, B>, std::allocator<std::pair<int, B> > >", "std::vector<std::pair<int, B>>"),
        ("std::unique_ptr<c10::X, std::default_delete<c10::X> >", "std::unique_ptr<c10::X>"),
        ("c10::Dispatcher", "c10::Dispatcher"),
    ],
)
def test_shorten(name: str, short: str) -> None:
    assert shorten(name) == short
