"""The decoder against objdump, on code that compilers and assembly programmers wrote."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.arch.x86_64.conventions import BY_ENCODING as REGISTERS
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.formats.elf import ElfImage
from support.installed.machine import own_libc, torch_library

pytestmark = pytest.mark.compiler

NAMES = {name: name for name in REGISTERS}
for _old, _new in zip(("ax", "cx", "dx", "bx", "sp", "bp", "si", "di"), REGISTERS):
    NAMES.update({_old: _new, "e" + _old: _new, _old[0] + "l" if _old[1] == "x" else _old + "l": _new})
NAMES.update({"ah": "rax", "ch": "rcx", "dh": "rdx", "bh": "rbx"})
NAMES.update({f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")})

READS_ONLY = re.compile(
    r"(cmp[bwlq]?|test[bwlq]?|push[wlq]?|bt[wlq]?|call|jmp|j\w+|nop[wl]?|mul[bwlq]?|i?div[bwlq]?|imul[bwlq]?|prefetch\w*"
    r"|out|wrfsbase|wrgsbase|incssp[dq]|clflush\w*|clwb|cldemote|rex\S*|xrstor\w*|fxrstor\w*|ldmxcsr|vldmxcsr|f\w+"
    r"|umonitor|umwait|tpause|verr|verw|lldt|ltr|lmsw|invlpg|senduipi|xrelease|mov\w* +%\w+,%[cdefgs]s)$"
)
"""Mnemonics whose last operand in AT&T order is not written (or is implied: x87, one-operand mul and div)."""


class Line(NamedTuple):
    address: int
    text: str


def disassemble(path: str, *options: str) -> Iterator[list[Line]]:
    """Functions as objdump sees them; those with bytes that it cannot decode are left out."""
    command = ["objdump", "-d", "-w", "--no-show-raw-insn", *options, path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    function: list[Line] = []
    for line in text.splitlines():
        if line.endswith(">:"):
            if function and not any("(bad)" in one.text or ".byte" in one.text for one in function):
                yield function
            function = []
            continue
        head, colon, rest = line.partition(":\t")
        if colon:
            function.append(Line(int(head, 16), rest.strip()))


def pieces(path: str) -> Iterator[list[Line]]:
    """The whole library, or random parts of a large one."""
    image = ElfImage.open(path)
    text = image.sections[".text"]
    if text.size < 1 << 23:
        yield from disassemble(path)
        return
    generator = random.Random(path)
    for _ in range(12):
        start = text.address + generator.randrange(text.size - (1 << 16))
        functions = list(disassemble(path, f"--start-address={start}", f"--stop-address={start + (1 << 16)}"))
        yield from functions[1:-1]  # the first and the last are cut


TORCH = [pytest.param(name, marks=pytest.mark.torch) for name in ("libc10.so", "libtorch_cpu.so")]


@pytest.fixture(scope="module", params=["libc", *TORCH])
def decoded(request: pytest.FixtureRequest) -> list[tuple[list[Line], list[Instruction]]]:
    path = own_libc() if request.param == "libc" else torch_library(request.param)
    image = ElfImage.open(path)
    found = []
    for function in pieces(path):
        start, last = function[0].address, function[-1].address
        code = image.read(start, last - start + 15)
        assert code is not None
        ours = [one for one in instructions(code, start) if one.address <= last]
        found.append((function, ours))
    return found


def test_lengths(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    wrong = []
    for theirs, ours in decoded:
        if [one.address for one in ours] != [one.address for one in theirs]:
            known = {one.address for one in ours}
            wrong.append(next(line for line in theirs if line.address not in known))
    assert not wrong, f"{len(wrong)} of {len(decoded)} functions, missing: {wrong[:5]}"
    assert sum(len(ours) for _, ours in decoded) > 30_000


def last_operand(text: str) -> tuple[str, str]:
    """(mnemonic, last operand) of an AT&T line, comments and symbols cut off."""
    text = re.sub(r" +#.*| +<.*", "", text)
    text = re.sub(r"^((lock|rep\w*|bnd|notrack|data16|cs|ds|es|ss|addr32|rex\.\S+) +)+", "", text)
    mnemonic, _, operands = text.partition(" ")
    return mnemonic, re.split(r",(?![^(]*\))", operands.strip())[-1]


def missed_write(line: Line, ours: Instruction) -> str:
    mnemonic, operand = last_operand(line.text)
    if re.match(r"xchg +%ax,%ax", line.text):
        return ""  # a nop
    if READS_ONLY.match(mnemonic) and not re.match(r"(imul|fnst|fst|fist|fbst)", mnemonic):
        return ""
    if mnemonic.startswith("imul") and "," not in line.text:
        return "" if {"rax"} <= ours.writes else "rax"
    if operand.startswith("%"):
        name = NAMES.get(operand[1:])
        return name if name and name not in ours.writes else ""
    if "(" in operand and "{" not in operand[:1]:
        return "" if ours.stored or mnemonic.startswith(("lea", "pop")) else "memory"
    return ""


def test_no_write_is_missed(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    missed: Counter[str] = Counter()
    examples = {}
    for theirs, ours in decoded:
        for line, one in zip(theirs, ours):
            what = missed_write(line, one)
            if what:
                mnemonic = line.text.split()[0]
                missed[f"{mnemonic} {what}"] += 1
                examples.setdefault(mnemonic, line)
    assert not missed, f"{missed.most_common(20)} {list(examples.values())[:20]}"


def test_few_writes_are_invented(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    """Moves, arithmetic and loads name exactly what they write; loads do not count as stores."""
    simple = re.compile(r"(mov[a-z]*|add|sub|and|or|xor|lea|shl|shr|imul|cmov\w+|set\w+|test|cmp)[bwlq]?$")
    invented: Counter[str] = Counter()
    for theirs, ours in decoded:
        for line, one in zip(theirs, ours):
            mnemonic, operand = last_operand(line.text)
            if not simple.match(mnemonic) or mnemonic.startswith(("movs", "imul", "movabs", "movbe")):
                continue
            name = NAMES.get(operand[1:]) if operand.startswith("%") else None
            expected = {name} if name and not mnemonic.startswith(("test", "cmp")) else set()
            if one.writes - expected or (re.fullmatch(r"%\w+", operand) and one.stored):
                invented[line.text] += 1
    assert not invented, invented.most_common(20)


def test_targets(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    wrong = []
    for theirs, ours in decoded:
        for line, one in zip(theirs, ours):
            match = re.match(r"(?:bnd |notrack |data16 |rex.W )*(call|jmp|j\w+|loop\w*) +([0-9a-f]+) ", line.text)
            if match:
                kind = match[1] if match[1] in ("call", "jmp") else "jcc"
                if (one.kind, one.target) != (kind, int(match[2], 16)):
                    wrong.append((line, one))
            elif one.kind == "call" and one.target is not None:
                wrong.append((line, one))
    assert not wrong, wrong[:5]
