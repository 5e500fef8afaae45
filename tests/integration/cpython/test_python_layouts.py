"""Every offset that gdbext.cpython uses against the debug information of CPython builds that have it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from gdbext import cpython
from gdbext.cpython.abi import python_layout
from gdbext.cpython.abi.python_abi import InterpreterFrames, PythonAbi
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from support.installed import pythons

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]

SOURCES = Path(cpython.__file__).parent
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


def used(abi: PythonAbi) -> set[tuple[str, str]]:
    """(structure, field) as they are written in the sources, and those of the tables of a version."""
    pairs: set[tuple[str, str]] = set()
    for source in SOURCES.rglob("*.py"):
        pairs.update(re.findall(r'(?:offset|find|put)\(\s*"(\w+)",\s*"([\w.]+)"', source.read_text()))
        pairs.update((name, "") for name in re.findall(r'size\("(\w+)"\)', source.read_text()))
    for name, (_, fields) in python_layout.UNPUBLISHED.items():
        pairs |= {(name, field) for field in fields} | {(name, "")}
    for name, published in abi.debug_offsets:
        pairs |= {(name, field) for field in published if field not in ("", "size")}
    pairs |= {("PyInterpreterState", abi.first_thread), ("PyInterpreterState", abi.modules)}
    pairs |= {("PyCodeObject", name) for name in (abi.code_name, *abi.local_names)}
    if isinstance(abi.frames, InterpreterFrames):
        pairs |= {("_PyInterpreterFrame", name) for name in (abi.frames.code, abi.frames.instruction)}
    return pairs


def dwarf_offsets(library: Path, pairs: set[tuple[str, str]], folder: Path) -> dict[tuple[str, str], int]:
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
    pairs = used(abi)
    assert len(pairs) > 80
    truth = dwarf_offsets(libraries[-1], pairs, tmp_path)
    if len(truth) < 60:
        pytest.skip(f"{libraries[-1]} has no debug information")
    layout = layout_for(abi)
    for (struct, field), offset in truth.items():
        ours = layout.find(struct, field) if field else layout.size(struct)
        assert ours == offset, (struct, field)
    for struct, field in pairs - set(truth):
        known = field and layout.find(struct, field) is not None
        assert not known or struct in OWN_NAMES, (struct, field)


OWN_NAMES = {"simplequeueobject", "parkingqueueobject", "mutexlockobject", "mutexrlockobject", "wait_entry"}
"""Structures of extension modules, and forms of later versions: another name, or none, in libpython's debug
information."""


def test_simplequeue_is_that_of_the_extension(tmp_path: Path) -> None:
    """_queue is a shared library of its own."""
    checked = 0
    for abi in SUPPORTED:
        (lock,) = abi.lock_types_named("_queue.SimpleQueue")
        pattern = f"lib/python{abi.text}/lib-dynload/_queue.*.so"
        for library in (found for each in pythons.prefixes(abi.text) for found in each.glob(pattern)):
            wanted = {("simplequeueobject", field) for field in ("", *python_layout.UNPUBLISHED[lock.struct][1])}
            truth = dwarf_offsets(library, wanted, tmp_path)
            for (_, field), offset in truth.items():
                layout = layout_for(abi)
                assert (layout.find(lock.struct, field) if field else layout.size(lock.struct)) == offset
                checked += 1
    if not checked:
        pytest.skip("no _queue with debug information here")
