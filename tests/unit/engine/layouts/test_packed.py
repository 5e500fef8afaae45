"""Layouts that share their parts: nothing is lost, nothing is there twice, and nothing of another file is believed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine import layouts
from gdbext.engine.layouts import store, validate
from gdbext.errors import LayoutError
from gdbext.torch.measure.pack import pack

SHARED = layouts.shared_file("torch")
DOCUMENT = store.read_layout(Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json", whole=True)


def other(version: str, size: int) -> dict[str, Any]:
    """A release in which one class has grown."""
    document = copy.deepcopy(DOCUMENT)
    document["id"] = f"torch-{version}-cxx11"
    document["provenance"]["version"] = version
    document["structs"]["c10::Dispatcher"]["size"] = size
    return document


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    documents = [other("2.14.0", 40_000), DOCUMENT, other("2.9.1", 30_000)]
    pack(documents, tmp_path)
    for document in documents:
        assert store.read_layout(tmp_path / f"{document['id']}.json", whole=True) == document
        assert store.load(tmp_path / f"{document['id']}.json", full=True).id == document["id"]


def test_the_same_layouts_make_the_same_files(tmp_path: Path) -> None:
    documents = [DOCUMENT, other("2.9.1", 30_000), other("2.14.0", 40_000)]
    for name, order in (("one", documents), ("two", documents[::-1])):
        pack(order, tmp_path / name)
    texts = [{path.name: path.read_text() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert texts[0] == texts[1]
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
    shared.unlink()
    with pytest.raises(LayoutError, match="No such file"):
        store.load(path)


@pytest.mark.parametrize("parts", [None, {}, ["1"], [0], [10**9], [-1]])
def test_numbers_of_nothing(parts: object, tmp_path: Path) -> None:
    pack([DOCUMENT], tmp_path)
    path = tmp_path / f"{DOCUMENT['id']}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "parts": parts}))
    with pytest.raises(LayoutError, match="parts"):
        store.load(path)


@pytest.mark.parametrize(
    "value", ["[8]", "[8,7]", "[8,-9]", "8", "{}", "null", "[8,2]", "[8,3]", "[8,4]", "[8,5]", "[8,6]", "[8,1]"]
)
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
