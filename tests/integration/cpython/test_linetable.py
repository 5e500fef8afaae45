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
@pytest.mark.parametrize("name", pythons.SUPPORTED)
def test_every_instruction_has_the_interpreter_s_line(name: str) -> None:
    output = subprocess.run([pythons.need(name), "-c", DUMP], check=True, capture_output=True, text=True).stdout
    minor = int(name.split(".")[1])
    codes = json.loads(output)
    assert len(codes) > 500
    for first_line, table, size, expected in codes:
        ranges = code.parse(ABIS[name].line_table, bytes.fromhex(table), first_line)
        ours = [code.line_at(ranges, offset) for offset in range(0, size, 2)]
        assert ours == (theirs_of_starts(expected, size) if minor < 10 else theirs_of_ranges(expected, size))


def theirs_of_starts(starts: list[list[int]], size: int) -> list[int]:
    lines = []
    position = 0
    for offset in range(0, size, 2):
        while position + 1 < len(starts) and starts[position + 1][0] <= offset:
            position += 1
        lines.append(starts[position][2])
    return lines


def theirs_of_ranges(ranges: list[list[int]], size: int) -> list[int | None]:
    lines: list[int | None] = [None] * (size // 2)
    for start, end, line in ranges:
        for unit in range(start // 2, min(end // 2, len(lines))):
            lines[unit] = line
    return lines
