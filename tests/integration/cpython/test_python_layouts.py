"""Every offset that gdbext.cpython uses against the debug information of CPython builds that have it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from gdbext.cpython.abi import PythonAbi, python_structures
from gdbext.cpython.abi.python_layout import PythonLayout, layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.engine.layouts.declarations import Struct
from support.installed import pythons

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]

ASK = """
import gdb, json, sys
pairs = json.load(open(sys.argv[1] if len(sys.argv) > 1 else PAIRS))
found = []
for struct, path in pairs:
    try:
        kind = gdb.lookup_type(struct)
    except gdb.error:
        try:
            kind = gdb.lookup_type("struct " + struct)
        except gdb.error:
            continue
    kind = kind.strip_typedefs()
    if path == "":
        found.append([struct, path, kind.sizeof])
        continue
    bits = 0
    try:
        for name in path.split("."):
            field = kind[name]
            bits += field.bitpos
            kind = field.type.strip_typedefs()
    except KeyError:
        continue
    found.append([struct, path, bits // 8])
print("FOUND" + json.dumps(found))
"""


def declared() -> Iterator[type[Struct]]:
    own = vars(python_structures).values()
    yield from (each for each in own if isinstance(each, type) and issubclass(each, Struct) and each.OF)


def used(layout: PythonLayout) -> dict[tuple[str, str], int | None]:
    """(structure, member), "" for the size, to what we take it to be; None where this version does not have it."""
    pairs: dict[tuple[str, str], int | None] = {}
    for each in declared():
        outer, _, inner = each.OF.partition(".")
        for member in each.members():
            if member.owner == each.OF:
                start = layout.struct(outer).fields[inner].offset if inner and member.is_in(layout) else 0
                at = member.find(layout)
                pairs[outer, f"{inner}.{member.path}".lstrip(".")] = None if at is None else start + at
        if not inner and (each.SIZE or layout.table.has_struct(each.OF)):
            pairs[outer, ""] = layout.size(each)
    return pairs


def dwarf_offsets(library: Path, pairs: Collection[tuple[str, str]], folder: Path) -> dict[tuple[str, str], int]:
    """What gdb reads from the debug information; empty without any."""
    wanted = folder / "pairs.json"
    wanted.write_text(json.dumps(sorted(pairs)))
    script = folder / "ask.py"
    script.write_text(f"PAIRS = {str(wanted)!r}\n{ASK}")
    command = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x", str(script), str(library)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer = next(line for line in output.splitlines() if line.startswith("FOUND"))
    return {(struct, field): offset for struct, field, offset in json.loads(answer[len("FOUND") :])}


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_offsets_are_those_of_the_compiler(abi: PythonAbi, tmp_path: Path) -> None:
    text = abi.text
    libraries = [found for each in pythons.prefixes(text) for found in each.glob(f"lib/libpython{text}.so.1.0")]
    if not libraries:
        pythons.lacking(text, f"no shared CPython {text} on this machine (pyenv install {text}, --enable-shared)")
    layout = layout_for(abi)
    pairs = used(layout)
    assert len(pairs) > 80
    truth = dwarf_offsets(libraries[-1], pairs, tmp_path)
    if len(truth) < 60:
        pytest.skip(f"{libraries[-1]} has no debug information")
    for pair, offset in truth.items():
        assert pairs[pair] == offset, pair
    for struct, field in set(pairs) - set(truth):
        known = field and pairs[struct, field] is not None
        assert not known or struct in OWN_NAMES, (struct, field)


OWN_NAMES = {
    "simplequeueobject",
    "parkingqueueobject",
    "mutexlockobject",
    "mutexrlockobject",
    "wait_entry",
    "deque block",
    "PyTryBlock",
    "PyMemberDescrObject",
    "FutureObj",
    "futureiterobject",
    "SemLockObject",
}
"""Structures of extension modules, and forms of other versions: another name, or none, in libpython's debug
information."""


def test_simplequeue_is_that_of_the_extension(tmp_path: Path) -> None:
    """_queue is a shared library of its own."""
    checked = 0
    for abi in SUPPORTED:
        (lock,) = abi.lock_types_named("_queue.SimpleQueue")
        pattern = f"lib/python{abi.text}/lib-dynload/_queue.*.so"
        for library in (found for each in pythons.prefixes(abi.text) for found in each.glob(pattern)):
            known = {field: at for (name, field), at in used(layout_for(abi)).items() if name == lock.struct.OF}
            truth = dwarf_offsets(library, [("simplequeueobject", field) for field in known], tmp_path)
            for (_, field), offset in truth.items():
                assert known[field] == offset
                checked += 1
    if not checked:
        pytest.skip("no _queue with debug information here")
