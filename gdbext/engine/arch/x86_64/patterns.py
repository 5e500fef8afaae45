"""Short patterns of x86-64 code: calls, prologues, linkage stubs, addresses relative to rip, thread-local accessors.

Encodings: Intel SDM, volume 2; linkage tables: System V ABI, AMD64 supplement 1.0, 5.2.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.engine.arch import AddressUse, LoadedMember, ThreadsOrGlobal
from gdbext.engine.arch.instruction import PC_RELATIVE, MemoryOperand
from gdbext.engine.arch.x86_64.conventions import ARGUMENTS
from gdbext.engine.arch.x86_64.decode import instructions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ENDBR64 = b"\xf3\x0f\x1e\xfa"
"""The instruction that a function, or any other target of an indirect branch, may begin with."""
PADDING = (b"\x90", b"\x66\x90", b"\x0f\x1f", b"\x66\x0f\x1f", b"\x66\x2e", b"\x66\x66", b"\xcc")

_FRAME_SETUP = (b"\x48\x89\xe5", b"\x48\x8b\xec")  # both encodings of mov %rsp, %rbp
_WINDOW = 1 << 13  # bytes of code that direct_calls searches at once
_STUB_SIZE = 16
_UNSIGNED_LOADS = {b"\x0f\xb6": 1, b"\x0f\xb7": 2, b"\x8b": 4, b"\x48\x8b": 8}
"""Opcode → bytes loaded: ``movzx`` of one and two, ``mov`` of 32 bits (clears the upper half) and of 64."""
_RAX_FROM_RDI = {0x07: 0, 0x47: 1, 0x87: 4}  # ModRM byte of ``disp(%rdi)`` into rax or eax → bytes of the displacement


def keeps_vectors(code: bytes) -> bool:
    """True if ``code``'s first instruction changes no vector register: SSE instructions have an opcode of two bytes
    (0f ..), AVX instructions begin with c4, c5 or 62 (AMD's XOP with 8f)."""
    plain = code.lstrip(bytes((0x66, 0xF2, 0xF3)))
    if plain[:1] and plain[0] & 0xF0 == 0x40:  # REX
        plain = plain[1:]
    is_exception = code.startswith(ENDBR64) or plain[:2] == b"\x0f\x1f"  # endbr64 and nop are 0f .., too
    return is_exception or (bool(plain) and plain[0] not in (0x0F, 0xC4, 0xC5, 0x62, 0x8F))


def follows_call(before: bytes) -> bool:
    """True if ``before`` can end with ``call rel32`` (e8) or any form of ``call r/m64`` (ff /2)."""
    return (len(before) >= 5 and before[-5] == 0xE8) or follows_call_by_pointer(before)


def follows_call_by_pointer(before: bytes) -> bool:
    """True if ``before`` can end with ``call r/m64`` (ff /2), which has 2 to 7 bytes."""
    for size in range(2, 8):
        code = before[-size:]
        insn = next(instructions(code, 0), None) if len(code) == size and code[0] == 0xFF else None
        if insn and insn.is_call and insn.length == size:
            return True
    return False


def call_target(before: bytes, returns_to: int) -> int:
    """The target of the ``call rel32`` at the end of ``before``; 0 for any other code."""
    return returns_to + _signed(before[-4:]) if len(before) >= 5 and before[-5] == 0xE8 else 0


def call_slot(before: bytes, returns_to: int) -> int:
    """The slot of the ``call *slot(%rip)`` at the end of ``before`` (an import, with -fno-plt); 0 for other code."""
    return returns_to + _signed(before[-4:]) if len(before) >= 6 and before[-6:-4] == _SLOT_CALL else 0


def return_address_offset(at: bytes, before: bytes) -> int | None:
    """Offset of the return address from rsp, if pc is at the edge of a function or in a jump stub.

    Known are the prologue ``push %rbp; mov %rsp,%rbp``, ``ret``, and the stubs of a procedure linkage table
    (``jmp *GOT``, ``push $index; jmp PLT0``, PLT0 itself), all with or without ``endbr64`` and ``bnd``.
    """
    code = at[4:] if at.startswith(ENDBR64) else at
    if code[:1] == b"\x55" and code[1:4] in _FRAME_SETUP:
        return 0
    if before[-1:] == b"\x55" and at[:3] in _FRAME_SETUP:
        return 8
    bare = code[1:] if code[:1] == b"\xf2" else code
    if bare[:2] == b"\xff\x25":
        return 16 if before[-6:-4] == b"\xff\x35" else 0
    if bare[:2] == b"\xff\x35":
        return 8
    if code[:1] == b"\x68" and code[5:].lstrip(b"\xf2")[:1] == b"\xe9":
        return 0
    if bare[:1] == b"\xe9" and before[-5:-4] == b"\x68":
        return 8
    return 0 if code[:1] == b"\xc3" else None


def stub_slot(code: bytes, address: int) -> int:
    """The slot of ``jmp *slot(%rip)`` if ``code`` does nothing else; else 0."""
    for insn in instructions(code[:_STUB_SIZE], address):
        if insn.kind == "jmp":
            return insn.fixed_operand
        if insn.kind != "other":
            break
    return 0


def stubs(table: bytes, address: int) -> Iterator[tuple[int, int]]:
    """(address of the stub, its slot) for each stub of a .plt, .plt.sec or .plt.got at ``address``."""
    for match in re.finditer(rb"\xff\x25(....)", table, re.DOTALL):  # jmp *slot(%rip)
        jump = match.start()
        yield address + jump - jump % _STUB_SIZE, address + match.end() + _signed(match.group(1))


@lru_cache(maxsize=1 << 10)
def _call_pattern(lows: tuple[int, ...]) -> re.Pattern[bytes]:
    """Matches calls whose displacement, without its lowest byte, is one of ``lows`` or up to a window more."""
    shapes = set()
    for low in lows:
        values = [low + more for more in range((_WINDOW >> 8) + 1)]
        seconds, highest = (re.escape(bytes(sorted({value >> shift & 0xFF for value in values}))) for shift in (0, 16))
        shapes.add(b".[" + seconds + b"].[" + highest + b"]")
    return re.compile(b"\xe8(?=" + b"|".join(sorted(shapes)) + b")", re.DOTALL)


def direct_calls(code: bytes, targets: Collection[int]) -> Iterator[tuple[int, int]]:
    """(offset in ``code``, target) of each ``call rel32`` (E8) to one of ``targets``, which are offsets, too.

    Within a small window of code the second byte of the displacement has few values, and the highest byte one or two,
    so a search by pattern finds the candidates, even among calls of other stubs of the same table. The third byte
    matters only if the highest one changes in the window (a carry).
    """
    ends = frozenset(target - 5 for target in targets)
    order = sorted(ends)
    for first in range(0, len(code) if ends else 0, _WINDOW):
        last = first + _WINDOW
        lows = tuple([_relevant_bits(end - last >> 8) for end in order])
        for match in _call_pattern(lows).finditer(code, first, last + 4):
            at = match.start()
            end = at + _signed(code[at + 1 : at + 5])
            if end in ends and at < last:
                yield at, end + 5


def _relevant_bits(value: int) -> int:
    """``value``, without its middle byte unless the highest byte changes within a window from ``value`` on."""
    return value & 0xFFFFFF if value + (_WINDOW >> 8) >> 16 != value >> 16 else value & 0xFF00FF


def slot_calls(code: bytes, slots: Collection[int]) -> Iterator[tuple[int, int]]:
    """(offset, slot) of each ``call *slot(%rip)`` (FF 15) with one of ``slots``, which are offsets, too."""
    at = code.find(_SLOT_CALL) if slots else -1
    while at >= 0:
        end = at + len(_SLOT_CALL) + 4
        slot = end + _signed(code[end - 4 : end])
        if slot in slots and end <= len(code):
            yield at, slot
        at = code.find(_SLOT_CALL, at + 1)


_SLOT_CALL = b"\xff\x15"


def table_accesses(code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
    """Offsets of ``lea displacement(base,index), reg`` (gcc) and ``add $displacement, reg`` (clang) that come at most
    ``within`` bytes behind a ``shr $shift``."""
    wanted = displacement.to_bytes(4, "little")
    shifts = re.compile(b"\xc1[\xe8-\xef]" + re.escape(bytes((shift,))), re.DOTALL)
    # One byte, then the others: a search for all four would stop at every zero.
    for match in re.finditer(re.escape(wanted[:1]) + b"(?=" + re.escape(wanted[1:]) + b")", code, re.DOTALL):
        at = match.start()
        is_lea = at >= 4 and code[at - 4] & 0xF8 == 0x48 and code[at - 3] == 0x8D and code[at - 2] & 0xC7 == 0x84
        is_add = at >= 3 and code[at - 3] & 0xFE == 0x48 and code[at - 2] == 0x81 and code[at - 1] & 0xF8 == 0xC0
        is_add |= at >= 2 and code[at - 2 : at] == b"\x48\x05"  # to rax
        if (is_lea or is_add) and shifts.search(code, max(0, at - within), at):
            yield at - (4 if is_lea else 3 if code[at - 2] == 0x81 else 2)


def address_uses(code: bytes, address: int) -> Iterator[AddressUse]:
    """Each 64-bit ``lea disp(%rip), reg`` and ``mov disp(%rip), reg`` (from the global offset table) in ``code``."""
    for match in re.finditer(rb"[\x48\x4c](?:\x8d|\x8b)[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]", code, re.DOTALL):
        end = match.end() + 4
        used = address + end + _signed(code[match.end() : end])
        yield AddressUse(address + match.start(), used, match.group()[1] == 0x8B)


def loaded_member(code: bytes) -> LoadedMember | None:
    """The member that ``mov disp(%rdi), %rax; ret`` loads; other sizes, and ``endbr64`` in front, are recognized,
    too."""
    code = code.removeprefix(ENDBR64)
    for opcode, size in _UNSIGNED_LOADS.items():
        after = len(opcode) + 1
        width = _RAX_FROM_RDI.get(code[after - 1]) if code.startswith(opcode) and len(code) >= after else None
        if width is not None and code[after + width : after + width + 1] == b"\xc3":  # ret
            return LoadedMember(_signed(code[after : after + width]), size)
    return None


_BEGINNING = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?\x48\x8b\x05(?P<slot>....)"  # mov slot(%rip), %rax
    rb"\x64\x48\x8b(?:\x50(?P<short>.)|\x90(?P<long>....))",  # mov %fs:displacement(%rax), %rdx
    re.DOTALL,
)


def threads_or_global(code: bytes, address: int) -> ThreadsOrGlobal | None:
    """The result of a function that is compiled as one of libgomp's getters (libgomp/icv.c, gomp_icv); else None.

    The offset of a thread-local structure comes from the global offset table (the model "initial exec" of the ABI for
    thread-local storage), a pointer in that structure (rdx) leads to the object, and a conditional move chooses the
    global one if the pointer is null.
    """
    beginning = _BEGINNING.match(code)
    if not beginning:
        return None
    slot = address + beginning.end("slot") + _signed(beginning["slot"])
    rest, start = code[beginning.end() : 64], address + beginning.end()
    member, otherwise, is_loaded = None, 0, False
    for insn in instructions(rest, start):
        operand = insn.memory
        base = operand.base if operand else ""
        if insn.kind == "lea" and operand and base == "rdx" and member is None:
            member = operand.displacement
        elif insn.kind == "lea" and base == PC_RELATIVE and not otherwise:
            otherwise = insn.fixed_operand
        elif insn.kind == "mov" and insn.destination == "rax" and operand == _AT_RAX:
            is_loaded = True
        elif insn.kind == "ret" and is_loaded and member is not None and otherwise:
            return ThreadsOrGlobal(slot, _signed(beginning["short"] or beginning["long"]), member, otherwise)
        elif is_loaded or not rest.startswith(_CHOICE, insn.address - start):
            return None
    return None


_AT_RAX = MemoryOperand("rax", index_register="", scale=1, displacement=0)
_CHOICE = (b"\x48\x85\xd2", b"\x48\x0f\x44", b"\x48\x0f\x45")
"""``test %rdx, %rdx``; ``cmove`` and ``cmovne`` of 64 bits."""


def probe_offset(code: bytes, argument_count: int) -> int | None:
    """Offset of the first instruction that the kernel emulates for a probe instead of stepping over a copy, while the
    first ``argument_count`` arguments are in their registers and the stack pointer is unchanged; None if there is none.

    Linux 6.18, arch/x86/kernel/uprobes.c: ``push_setup_xol_ops`` takes ``push r64`` with or without a REX prefix,
    ``branch_setup_xol_ops`` nops, direct jumps and calls, conditional jumps. Any other costs a second trap.
    """
    arguments = frozenset((*ARGUMENTS[:argument_count], "rsp"))
    for insn in instructions(code, 0):
        raw = code[insn.address : insn.end]
        bare = raw[1:] if 0x40 <= raw[0] <= 0x4F else raw
        if insn.kind in ("call", "jmp", "jcc"):
            return insn.address if insn.target else None
        is_push = 0x50 <= bare[0] <= 0x57
        if len(bare) == 1 if is_push else bare == b"\x90" or bare[:2] == b"\x0f\x1f":
            return insn.address
        if insn.kind in ("ret", "trap") or insn.writes & arguments:
            return None
    return None


def _signed(raw: bytes) -> int:
    """The little-endian number in ``raw``, such as a displacement."""
    return int.from_bytes(raw, "little", signed=True)


def illegal_instruction(code: bytes) -> str:
    """What the instruction at the start of ``code`` is, by its prefixes (Intel SDM volume 2, 2.3, 2.7 and appendix
    A)."""
    if code.startswith((b"\x0f\x0b", b"\x0f\xb9", b"\x0f\xff")):
        return "a trap in the program (ud2), as compilers put where code must not be reached"
    if code.startswith(b"\x62"):  # EVEX
        return "an AVX-512 instruction, which this CPU or its hypervisor lacks"
    if code.startswith((b"\xc4", b"\xc5")) and len(code) > 3:  # VEX
        is_tile = code[0] == 0xC4 and code[1] & 0x1F == 2 and code[3] in (0x49, 0x4B, 0x5C, 0x5E, 0x6C)
        return f"an {'AMX' if is_tile else 'AVX'} instruction, which this CPU or its hypervisor lacks"
    return ""
