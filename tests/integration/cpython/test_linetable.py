"""Line tables of every version, decoded by us and by the interpreter that made them."""

from __future__ import annotations

import json
import subprocess

import pytest

from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.cpython.objects import code
from support.installed import pythons

ABIS = {abi.text: abi for abi in SUPPORTED}

DUMP = """
import dis, json, sys, types, os
found = []
def walk(code):
    table = getattr(code, "co_linetable", None)
    if sys.version_info < (3, 10):
        table, ranges = code.co_lnotab, [[start, None, line] for start, line in dis.findlinestarts(code)]
    else:
        ranges = list(code.co_lines())
    found.append([code.co_firstlineno, table.hex(), len(code.co_code), ranges])
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            walk(constant)
for name in ("threading", "argparse", "asyncio.base_events", "dataclasses", "typing", "difflib"):
    path = os.path.join(os.path.dirname(os.__file__), *name.split(".")) + ".py"
    walk(compile(open(path, encoding="utf-8").read(), path, "exec"))
walk(compile("def f():\\n" + "\\n" * 1000 + "    a = 1\\n" * 5 + "    x = " + " + ".join(["a"] * 500) + "\\n    try:\\n"
             "        return a\\n    finally:\\n        b = 2\\n", "made up", "exec"))
print(json.dumps(found))
"""


@pytest.mark.pythons
@pytest.mark.parametrize("name", ["3.8", "3.10", "3.11", "3.13"])
def test_every_instruction_has_the_interpreter_s_line(name: str) -> None:
    """One version of each form of the table, and the newest."""
    output = subprocess.run([pythons.need(name), "-c", DUMP], check=True, capture_output=True, text=True).stdout
    codes = json.loads(output)
    assert len(codes) > 500
    for first_line, table, size, ranges in codes:
        decoded = code.parse(ABIS[name].line_table, bytes.fromhex(table), first_line)
        theirs: list[int | None] = [None] * (size // 2)
        for start, end, line in ranges:  # without an end: up to where the next one starts
            last = len(theirs) if end is None else end // 2
            theirs[start // 2 : last] = [line] * (last - start // 2)
        assert [code.line_at(decoded, offset) for offset in range(0, size, 2)] == theirs
