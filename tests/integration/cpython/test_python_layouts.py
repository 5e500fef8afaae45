"""Every offset that gdbext.cpython uses against the debug information of CPython builds that have it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from gdbext.cpython.abi import PythonAbi, python_structures
from gdbext.cpython.abi.python_layout import PythonLayout, layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.engine.layouts.declarations import Struct
from support.installed import pythons

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]

ASK = """
import gdb, json
found = []
for struct, path in PAIRS:
    try:
        try:
            kind = gdb.lookup_type(struct)
        except gdb.error:
            kind = gdb.lookup_type("struct " + struct)
        bits, kind = 0, kind.strip_typedefs()
        for name in path.split(".") if path else ():
            bits += kind[name].bitpos
            kind = kind[name].type.strip_typedefs()
        found.append([struct, path, bits // 8 if path else kind.sizeof])
    except (gdb.error, KeyError):
        continue
print("FOUND" + json.dumps(found))
"""


def used(layout: PythonLayout) -> dict[tuple[str, str], int | None]:
    """(structure, member), "" for the size, to what we take it to be; None where this version does not have it."""
    pairs: dict[tuple[str, str], int | None] = {}
    own = vars(python_structures).values()
    for each in (each for each in own if isinstance(each, type) and issubclass(each, Struct) and each.OF):
        outer, _, inner = each.OF.partition(".")
        for member in each.members():
            if member.owner == each.OF:
                start = layout.struct(outer).fields[inner].offset if inner and member.is_in(layout) else 0
                at = member.find(layout)
                pairs[outer, f"{inner}.{member.path}".lstrip(".")] = None if at is None else start + at
        if not inner and (each.SIZE or layout.table.has_struct(each.OF)):
            pairs[outer, ""] = layout.size(each)
    return pairs


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_offsets_are_those_of_the_compiler(abi: PythonAbi, tmp_path: Path) -> None:
    """Of libpython, and of _queue, an extension module; a library without debug information has none of them."""
    text = abi.text
    libraries = [found for each in pythons.prefixes(text) for found in each.glob(f"lib/libpython{text}.so.1.0")]
    if not libraries:
        pythons.lacking(text, f"no shared CPython {text} on this machine (pyenv install {text}, --enable-shared)")
    (lock,) = abi.lock_types_named("_queue.SimpleQueue")
    pairs = used(layout_for(abi))
    queue = {("simplequeueobject", field): at for (struct, field), at in pairs.items() if struct == lock.struct.OF}
    pairs = {pair: at for pair, at in pairs.items() if pair[0] not in ("simplequeueobject", lock.struct.OF)} | queue
    assert len(pairs) > 80
    script = tmp_path / "ask.py"
    script.write_text(f"PAIRS = {sorted(pairs)!r}\n{ASK}")
    queues = libraries[-1].parent.glob(f"python{text}/lib-dynload/_queue.*.so")
    truth: dict[tuple[str, str], int] = {}
    for library in (*queues, libraries[-1]):
        command = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x", str(script), str(library)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        answer = next(line for line in output.splitlines() if line.startswith("FOUND"))
        truth.update({(struct, field): offset for struct, field, offset in json.loads(answer[len("FOUND") :])})
    if len(truth) < 60:
        pytest.skip(f"{libraries[-1]} has no debug information")
    assert {pair: pairs[pair] for pair in truth} == truth
    unknown = {struct for struct, field in pairs.keys() - truth.keys() if field and pairs[struct, field] is not None}
    assert [struct for struct in unknown if not OWN_NAMES.fullmatch(struct)] == []


OWN_NAMES = re.compile(
    "simplequeueobject|parkingqueueobject|mutexlockobject|mutexrlockobject|wait_entry|deque block|PyTryBlock|"
    "PyMemberDescrObject|FutureObj|futureiterobject|SemLockObject"
)
"""Structures of extension modules, and forms of other versions: another name, or none, in libpython's debug
information."""
