"""The decoder against capstone: boundaries, operands, targets and effects, in libc."""

from __future__ import annotations

from collections.abc import Iterator

import capstone
from capstone import x86

from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction, MemoryOperand
from gdbext.engine.arch.x86_64.conventions import BY_ENCODING as REGISTERS
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.formats.eh_frame import SearchTable
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import PT_GNU_EH_FRAME
from support.installed.machine import own_libc

_MODE = capstone.CS_ARCH_X86, capstone.CS_MODE_64

PARTS = {name: name for name in REGISTERS}
for _old, _new in zip(("ax", "cx", "dx", "bx", "sp", "bp", "si", "di"), REGISTERS):
    PARTS.update({_old: _new, "e" + _old: _new, _old[0] + "l" if _old[1] == "x" else _old + "l": _new})
PARTS.update({"ah": "rax", "ch": "rcx", "dh": "rdx", "bh": "rbx"})
PARTS.update({f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")})

INVENTED = {"test": {"rax"}, "cqo": {"rax"}, "cdq": {"rax"}, "cwd": {"rax"}}
"""Registers that capstone 5 counts as written, though the instruction only reads them (Intel SDM, volume 2)."""


def functions(image: ElfImage) -> Iterator[tuple[int, bytes]]:
    segment = next(each for each in image.segments if each.type == PT_GNU_EH_FRAME)
    table = SearchTable(image.read, segment.vaddr)
    for index in range(table.count):
        fde = table.entries.fde(table.address(index, 1))
        yield fde.start, image.read(fde.start, fde.end - fde.start) or b""


def test_boundaries_operands_and_effects() -> None:
    brief, detailed = capstone.Cs(*_MODE), capstone.Cs(*_MODE)
    detailed.detail = True
    seen: set[tuple[str, bytes]] = set()
    wrong: dict[str, str] = {}
    for start, code in functions(ElfImage.open(own_libc())):
        ours = list(instructions(code, start))
        lengths = [(address, size) for address, size, _, _ in brief.disasm_lite(code, start)]
        assert [(one.address, one.length) for one in ours] == lengths, hex(start)
        for one in ours:
            at = one.address - start
            raw = code[at : at + one.length]
            key = (one.kind, raw[: -4 if one.target and one.length > 4 else None])
            if key in seen:
                continue
            seen.add(key)
            theirs = next(detailed.disasm(raw, one.address))
            found = _targets(one, theirs) or _memory(one, theirs) or _writes(one, theirs) or _moves(one, theirs)
            if found:
                wrong[f"{theirs.mnemonic}: {found}"] = f"{raw.hex()} {theirs.mnemonic} {theirs.op_str}"
    assert not wrong
    assert len(seen) > 5_000


def _targets(ours: Instruction, theirs: capstone.CsInsn) -> str:
    immediate = next((each.imm for each in theirs.operands if each.type == x86.X86_OP_IMM), 0)
    jump = "jmp" if theirs.mnemonic.endswith("jmp") else "jcc"  # xbegin, too, jumps or does not
    for group, kind in ((capstone.CS_GRP_CALL, "call"), (capstone.CS_GRP_JUMP, jump), (capstone.CS_GRP_RET, "ret")):
        if group in theirs.groups:
            target = 0 if kind == "ret" else immediate
            return "" if (ours.kind, ours.target) == (kind, target) else f"no such {kind}"
    return f"it is no {ours.kind}" if ours.kind in ("call", "jmp", "jcc", "ret") else ""


def _memory(ours: Instruction, theirs: capstone.CsInsn) -> str:
    operand = next((each for each in theirs.operands if each.type == x86.X86_OP_MEM), None)
    if operand is None or ours.memory is None:
        return ""
    name = theirs.reg_name
    base = name(operand.mem.base) if operand.mem.base else ""
    expected = MemoryOperand(
        PC_RELATIVE if base == "rip" else base,
        name(operand.mem.index) if operand.mem.index else "",
        operand.mem.scale,
        operand.mem.disp,
    )
    evex = theirs.bytes[0] == 0x62
    if evex and ours.memory == MemoryOperand("", "", ours.memory.scale, 0):
        return ""  # somewhere: the unit of its displacement is not known to us
    return "" if ours.memory == expected else f"memory {ours.memory} is {expected}"


def _vectors(theirs: capstone.CsInsn, registers: list[int]) -> set[str]:
    """Vector registers by their narrowest names; those beyond 15 exist in AVX-512 only."""
    if theirs.mnemonic == "vzeroupper":
        return set()  # it writes what lies above them
    names = [theirs.reg_name(each) for each in registers]
    return {f"xmm{name[3:]}" for name in names if name[1:3] == "mm" and name[0] in "xyz" and int(name[3:]) < 16}


def _moves(ours: Instruction, theirs: capstone.CsInsn) -> str:
    """What moves less than a general register, and numbers."""
    if ours.kind not in ("low", "fmov", "fzero"):
        return ""
    if not theirs.mnemonic.startswith("mov" if ours.kind != "fzero" else ("xorp", "pxor")):
        return f"it is no {ours.kind}"
    into, *_, source = theirs.operands
    for name, operand in ((ours.destination, into), (ours.source, source)):
        given = theirs.reg_name(operand.reg) if operand.type == x86.X86_OP_REG else ""
        if ours.kind != "fzero" and name != PARTS.get(given, given):
            return f"{name} is {given}"
    if ours.kind == "low" and ours.immediate != source.size:
        return f"moves {source.size} bytes, not {ours.immediate}"
    return "" if not ours.stored or ours.stored == into.size else f"stores {into.size} bytes, not {ours.stored}"


def _writes(ours: Instruction, theirs: capstone.CsInsn) -> str:
    registers = theirs.regs_access()[1]
    written = {PARTS[name] for name in map(theirs.reg_name, registers) if name in PARTS}
    if ours.kind != "call":
        stack = {"rsp"} if ours.kind in ("ret", "trap") else set()
        missed = written - ours.writes - INVENTED.get(theirs.mnemonic, set()) - stack
        missed |= _vectors(theirs, registers) - ours.float_writes
        if missed:
            return f"writes {sorted(missed)}, too"
    memory = [each for each in theirs.operands if each.type == x86.X86_OP_MEM and each.access & capstone.CS_AC_WRITE]
    stored = max((each.size for each in memory), default=0)
    if stored > ours.stored and ours.memory is not None:
        return f"stores {stored} bytes, not {ours.stored}"
    if ours.kind in ("mov", "lea", "zero", "add", "and", "shr", "push", "pop") and ours.writes - written:
        return f"does not write {sorted(ours.writes - written)}"
    return ""
