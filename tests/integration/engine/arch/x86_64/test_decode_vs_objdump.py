"""The decoder against objdump, on code that compilers and assembly programmers wrote."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.arch.x86_64.conventions import BY_ENCODING as REGISTERS
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.formats.eh_frame import SearchTable
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import PT_GNU_EH_FRAME
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


def objdump(*words: str) -> list[str]:
    command = ["objdump", "-w", "--no-show-raw-insn", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def is_known(function: list[Line]) -> bool:
    """objdump can decode all of its bytes."""
    return bool(function) and not any("(bad)" in one.text or ".byte" in one.text for one in function)


def disassemble(path: str) -> Iterator[list[Line]]:
    """Functions as objdump sees them."""
    function: list[Line] = []
    for line in objdump("-d", path):
        if line.endswith(">:"):
            if is_known(function):
                yield function
            function = []
            continue
        head, colon, rest = line.partition(":\t")
        if colon:
            function.append(Line(int(head, 16), rest.strip()))


def pieces(image: ElfImage) -> Iterator[tuple[int, bytes]]:
    """(address, code) of the functions in random parts of a large library, as far as they have unwind information."""
    segment = next(each for each in image.segments if each.type == PT_GNU_EH_FRAME)
    table = SearchTable(image.read, segment.vaddr)
    generator = random.Random("parts")
    for _ in range(12):
        index, size = generator.randrange(table.count - 1000), 0
        while size < 1 << 16:
            fde = table.entries.fde(segment.vaddr + table.entry(index)[1])
            yield fde.start, image.read(fde.start, fde.end - fde.start) or b""
            index, size = index + 1, size + fde.end - fde.start


BRANCH = re.compile(r"((?:\S+ )*(?:call|j\w+|loop\w*)) +0x([0-9a-f]+)$")


def disassemble_pieces(functions: list[tuple[int, bytes]], file: Path) -> Iterator[list[Line]]:
    """The same of functions that stand one behind the other in a file: objdump need not read all symbols of the
    library, half a million, for each part of it. Its targets are made those of the functions' own places."""
    file.write_bytes(b"".join(code for _, code in functions))
    lines = (line.partition(":\t") for line in objdump("-D", "-b", "binary", "-m", "i386:x86-64", str(file)))
    texts = {int(head, 16): text.strip() for head, colon, text in lines if colon}
    at = 0
    for start, code in functions:
        places = (place for place in range(at, at + len(code)) if place in texts)
        function = [moved(Line(place, texts[place]), start - at) for place in places]
        at += len(code)
        if is_known(function):
            yield function


def moved(line: Line, by: int) -> Line:
    def target(match: re.Match[str]) -> str:
        return f"{match[1]} {int(match[2], 16) + by & (1 << 64) - 1:x} "

    return Line(line.address + by, BRANCH.sub(target, line.text))


TORCH = [pytest.param(name, marks=pytest.mark.torch) for name in ("libc10.so", "libtorch_cpu.so")]


@pytest.fixture(scope="module", params=["libc", *TORCH])
def decoded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[list[Line], list[Instruction]]]:
    """The whole library, or random parts of a large one."""
    path = own_libc() if request.param == "libc" else torch_library(request.param)
    image = ElfImage.open(path)
    if image.sections[".text"].size < 1 << 23:
        functions = disassemble(path)
    else:
        functions = disassemble_pieces([*pieces(image)], tmp_path_factory.mktemp("pieces") / "code")
    found = []
    for function in functions:
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


@cache
def last_operand(text: str) -> tuple[str, str]:
    """(mnemonic, last operand) of an AT&T line, comments and symbols cut off."""
    text = re.sub(r" +#.*| +<.*", "", text)
    text = re.sub(r"^((lock|rep\w*|bnd|notrack|data16|cs|ds|es|ss|addr32|rex\.\S+) +)+", "", text)
    mnemonic, _, operands = text.partition(" ")
    return mnemonic, re.split(r",(?![^(]*\))", operands.strip())[-1]


@cache
def missed_write(text: str, writes: frozenset[str], stored: int) -> str:
    mnemonic, operand = last_operand(text)
    if re.match(r"xchg +%ax,%ax", text):
        return ""  # a nop
    if READS_ONLY.match(mnemonic) and not re.match(r"(imul|fnst|fst|fist|fbst)", mnemonic):
        return ""
    if mnemonic.startswith("imul") and "," not in text:
        return "" if {"rax"} <= writes else "rax"
    if operand.startswith("%"):
        name = NAMES.get(operand[1:])
        return name if name and name not in writes else ""
    if "(" in operand and "{" not in operand[:1]:
        return "" if stored or mnemonic.startswith(("lea", "pop")) else "memory"
    return ""


def test_no_write_is_missed(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    missed: Counter[str] = Counter()
    examples = {}
    for theirs, ours in decoded:
        for line, one in zip(theirs, ours):
            what = missed_write(line.text, one.writes, one.stored)
            if what:
                mnemonic = line.text.split()[0]
                missed[f"{mnemonic} {what}"] += 1
                examples.setdefault(mnemonic, line)
    assert not missed, f"{missed.most_common(20)} {list(examples.values())[:20]}"


SIMPLE = re.compile(r"(mov[a-z]*|add|sub|and|or|xor|lea|shl|shr|imul|cmov\w+|set\w+|test|cmp)[bwlq]?$")


@cache
def invents(text: str, writes: frozenset[str], stored: int) -> bool:
    mnemonic, operand = last_operand(text)
    if not SIMPLE.match(mnemonic) or mnemonic.startswith(("movs", "imul", "movabs", "movbe")):
        return False
    name = NAMES.get(operand[1:]) if operand.startswith("%") else None
    expected = {name} if name and not mnemonic.startswith(("test", "cmp")) else set()
    return bool(writes - expected or (re.fullmatch(r"%\w+", operand) and stored))


def test_few_writes_are_invented(decoded: list[tuple[list[Line], list[Instruction]]]) -> None:
    """Moves, arithmetic and loads name exactly what they write; loads do not count as stores."""
    invented: Counter[str] = Counter()
    for theirs, ours in decoded:
        for line, one in zip(theirs, ours):
            if invents(line.text, one.writes, one.stored):
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
