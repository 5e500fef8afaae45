"""Runs the C or C++ compiler over a translation unit that names the wanted types, and reads what it laid out.

Each want stands on a line of its own. A line that does not compile (a type that this version lacks) is dropped
and recorded as absent, so that one table serves many versions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdbext.errors import LayoutError
from gdbext.layouts.measure import dwarf
from gdbext.layouts.measure.extract import StructReader

_ERROR = re.compile(r"^wants:(\d+):(?:\d+:)? *(?:fatal )?error", re.MULTILINE)
_FROM = re.compile(r"^ *wants:(\d+):(?:\d+:)? +required from here", re.MULTILINE)
_ROUNDS = 6


@dataclass(frozen=True)
class Wants:
    """What to ask the compiler for.

    ``structs`` and ``enums`` map the name in the document to a type expression ("" means: the same as the
    name), ``constants`` to an integral constant expression.
    """

    prologue: str
    structs: Mapping[str, str]
    enums: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """What the compiler laid out; ``absent`` are the wants that did not compile."""

    structs: dict[str, Any]
    enums: dict[str, dict[str, int]]
    constants: dict[str, int]
    absent: list[str]
    compiler: str


def find_compiler(candidates: Sequence[str]) -> str:
    """The first of ``candidates`` on PATH. Raises LayoutError."""
    for name in candidates:
        path = shutil.which(name)
        if path:
            return path
    raise LayoutError(
        f"no compiler found ({', '.join(candidates)})",
        why="a layout is measured by compiling the installed headers",
        help="install g++ (apt-get install g++), or generate the layout on another machine with the same "
        "torch: scripts/gen_layouts.py --torch /path/to/site-packages/torch",
    )


def compiler_version(compiler: str) -> str:
    """First line of ``compiler --version``."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def measure(wants: Wants, compiler: str, flags: Sequence[str], folder: Path, cplusplus: bool = True) -> Measured:
    """Compile ``wants`` in ``folder`` and read sizes, offsets, enumerators and constants. Raises LayoutError."""
    lines = _lines(wants, cplusplus)
    dropped: set[int] = set()
    source = folder / ("wants.cpp" if cplusplus else "wants.c")
    library = folder / "wants.so"
    command = [compiler, *flags, "-g", "-O0", "-fPIC", "-shared", "-w", "-gz=none",
               "-fdiagnostics-color=never", str(source), "-o", str(library)]  # fmt: skip
    for _ in range(_ROUNDS):
        source.write_text(_text(wants, lines, dropped))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return _read(lines, dropped, library, compiler_version(compiler), cplusplus)
        bad = {int(n) - 1 for pattern in (_ERROR, _FROM) for n in pattern.findall(done.stderr)} - dropped
        if not bad:
            break
        dropped |= bad
    raise LayoutError(
        "the headers do not compile: " + _first_error(done.stderr),
        why="the compiler may be too old for this torch, or headers are missing",
        help=f"try by hand: {' '.join(command)}",
    )


def _first_error(text: str) -> str:
    for line in text.splitlines():
        if "error" in line:
            return line[:300]
    return text[:300] or "no message"


def _lines(wants: Wants, cplusplus: bool) -> list[tuple[str, str, str]]:
    """(kind, name, source line) of each want, in the order of the source."""
    found = []
    extern = 'extern "C" ' if cplusplus else ""
    for index, (kind, name, expression) in enumerate(
        [("struct", n, e or n) for n, e in wants.structs.items()]
        + [("enum", n, e or n) for n, e in wants.enums.items()]
        + [("constant", n, e or n) for n, e in wants.constants.items()]
    ):
        if kind == "constant":
            qualifier = "constexpr" if cplusplus else "const"
            line = f"{extern}{qualifier} long long want_{index} __attribute__((used)) = (long long)({expression});"
            line = line.replace('"C" constexpr', '"C" const constexpr')
        else:
            line = (
                f"typedef {expression} want_t_{index}; char want_s_{index}[sizeof(want_t_{index})]; "
                f"want_t_{index} *want_{index};"
            )
        found.append((kind, name, line))
    return found


def _text(wants: Wants, lines: Sequence[tuple[str, str, str]], dropped: set[int]) -> str:
    body = "\n".join("" if i in dropped else line for i, (_kind, _name, line) in enumerate(lines))
    return f'{wants.prologue}\n#line 1 "wants"\n{body}\n'


def _read(
    lines: Sequence[tuple[str, str, str]], dropped: set[int], library: Path, version: str, cplusplus: bool
) -> Measured:
    file = dwarf.DwarfFile(library)
    unit = dwarf.Unit(file)
    reader = StructReader(unit)
    objects = file.symbols()
    variables = {d.name: d for d in unit.root.children() if d.tag == dwarf.TAG_VARIABLE and d.name.startswith("want_")}
    result = Measured({}, {}, {}, [lines[i][1] for i in sorted(dropped)], version)
    nested: list[dwarf.Die] = []
    for index, (kind, name, _line) in enumerate(lines):
        if index in dropped:
            continue
        if kind == "constant":
            result.constants[name] = int.from_bytes(objects[f"want_{index}"], "little", signed=True)
            continue
        die = _pointee(reader, variables[f"want_{index}"])
        if die is None or die.get(dwarf.AT_DECLARATION):
            result.absent.append(name)
        elif kind == "enum":
            result.enums[name] = reader.enum(die)
        else:
            # C has no namespace to tell the telling classes from the rest: all are opened, none is followed.
            result.structs[name] = reader.struct(die, None if cplusplus else True)
            nested.append(die)
    if cplusplus:
        _close(reader, nested, result)
    return result


def _pointee(reader: StructReader, variable: dwarf.Die) -> dwarf.Die | None:
    pointer = reader.strip(variable.type())
    return None if pointer is None else reader.strip(pointer.type())


def _close(reader: StructReader, pending: list[dwarf.Die], result: Measured) -> None:
    """Add the classes that wanted classes hold by value, and so on."""
    seen = {die.offset for die in pending}
    while pending:
        for die in reader.nested(pending.pop()):
            name = reader.type_name(die)
            if die.offset in seen or die.get(dwarf.AT_DECLARATION):
                continue
            seen.add(die.offset)
            pending.append(die)
            if name not in result.structs:
                result.structs[name] = reader.struct(die)
