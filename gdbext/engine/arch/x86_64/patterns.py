"""Short patterns of x86-64 code: calls, prologues, linkage stubs, addresses relative to rip, thread-local accessors.

Encodings: Intel SDM, volume 2; linkage tables: System V ABI, AMD64 supplement 1.0, 5.2.

Accessors load from an object of the running thread, as GCC compiles them for shared libraries. libgomp's getters
(libgomp/icv.c, gomp_icv) are such: the offset of a thread-local structure comes from the global offset table (the model
"initial exec" of the ABI for thread-local storage), a pointer in that structure leads to the object, and a conditional
move chooses the global one where the pointer is null.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.engine.arch import AddressUse, LoadedMember, ThreadsOrGlobal
from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction
from gdbext.engine.arch.x86_64.decode import instructions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ENDBR64 = b"\xf3\x0f\x1e\xfa"
"""The instruction that a function, or any other target of an indirect branch, may begin with."""
PADDING = (b"\x90", b"\x66\x90", b"\x0f\x1f", b"\x66\x0f\x1f", b"\x66\x2e", b"\x66\x66", b"\xcc")
BREAKPOINT = b"\xcc"

_LONGEST_INDIRECT_CALL = 7  # without prefixes: ff, ModRM, SIB, disp32
_FRAME_SETUP = (b"\x48\x89\xe5", b"\x48\x8b\xec")  # both encodings of mov %rsp, %rbp
_WINDOW = 1 << 13
_displacement = struct.Struct("<i").unpack_from
_STUB_SIZE = 16
_STUB_JUMP = rb"\xff\x25(....)"
"""``jmp *slot(%rip)``: the heart of a stub."""
_ADDRESSES = rb"[\x48\x4c](?:\x8d|\x8b)[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
"""``lea disp(%rip), reg`` and ``mov disp(%rip), reg`` (from the global offset table), up to the displacement."""
_LOAD = 0x8B
_RETURN = b"\xc3"
_UNSIGNED_LOADS = {b"\x0f\xb6": 1, b"\x0f\xb7": 2, b"\x8b": 4, b"\x48\x8b": 8}
"""``movzx`` from a byte and from two, ``mov`` of 32 bits, which clears the upper half, and of 64, by their bytes."""
_RAX_FROM_RDI = {0x07: 0, 0x47: 1, 0x87: 4}
"""ModRM bytes of ``disp(%rdi)`` into rax or eax, by how many bytes the displacement has."""


def keeps_vectors(code: bytes) -> bool:
    """Instructions of SSE have an opcode of two bytes (0f), with or without a prefix; those of AVX begin with a prefix
    of their own (c4, c5, 62; AMD's XOP with 8f). ``endbr64`` and ``nop`` are of two bytes, too."""
    plain = code.lstrip(bytes((0x66, 0xF2, 0xF3)))
    plain = plain[1:] if plain[:1] and plain[0] & 0xF0 == 0x40 else plain  # REX
    if code.startswith(ENDBR64) or plain[:2] == b"\x0f\x1f":
        return True
    return bool(plain) and plain[0] not in (0x0F, 0xC4, 0xC5, 0x62, 0x8F)


def follows_call(before: bytes) -> bool:
    """The last bytes of ``before`` can be ``call rel32`` (e8) or any form of ``call r/m64`` (ff /2)."""
    return (len(before) >= 5 and before[-5] == 0xE8) or follows_call_by_pointer(before)


def follows_call_by_pointer(before: bytes) -> bool:
    """The last bytes of ``before`` can be ``call r/m64`` (ff /2)."""
    return any(
        len(before) >= size and before[-size] == 0xFF and _is_indirect_call(before[-size:])
        for size in range(2, _LONGEST_INDIRECT_CALL + 1)
    )


def _is_indirect_call(code: bytes) -> bool:
    """True when ``code`` (ff, ModRM, …) is one complete ``call r/m64``."""
    modrm = code[1]
    mode, operation, base = modrm >> 6, modrm >> 3 & 7, modrm & 7
    if operation != 2:
        return False
    size = 2
    if mode == 3:
        return len(code) == size
    if base == 4:
        if len(code) < 3:
            return False
        size += 1
        base = code[2] & 7
    if mode == 0:
        size += 4 if base == 5 else 0
    else:
        size += 1 if mode == 1 else 4
    return len(code) == size


def called(before: bytes, returns_to: int) -> int:
    """The target of the ``call rel32`` that ends ``before``; 0 for any other code."""
    if len(before) < 5 or before[-5] != 0xE8:
        return 0
    return returns_to + int.from_bytes(before[-4:], "little", signed=True)


def called_slot(before: bytes, returns_to: int) -> int:
    """The slot through which the ``call *slot(%rip)`` that ends ``before`` goes (an import, with -fno-plt); 0 for any
    other code."""
    if len(before) < 6 or before[-6:-4] != _SLOT_CALL:
        return 0
    return returns_to + int.from_bytes(before[-4:], "little", signed=True)


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
    """The slot that ``jmp *slot(%rip)`` takes its target from, where that is all the code does; else 0."""
    for found in instructions(code[:_STUB_SIZE], address):
        if found.kind == "jmp":
            return found.fixed_operand
        if found.kind != "other":
            break
    return 0


def stubs(table: bytes, address: int) -> Iterator[tuple[int, int]]:
    """(stub, slot) of each stub of a .plt, .plt.sec or .plt.got, which are 16 bytes long."""
    for match in re.finditer(_STUB_JUMP, table, re.DOTALL):
        jump = match.start()
        slot = address + match.end() + int.from_bytes(match.group(1), "little", signed=True)
        yield address + jump - jump % _STUB_SIZE, slot


@lru_cache(maxsize=1 << 10)
def _calls_with(lows: tuple[int, ...]) -> re.Pattern[bytes]:
    """The shape of calls whose displacement, without its lowest byte, is one of these or up to a window more."""
    each = set()
    for low in lows:
        values = [low + more for more in range((_WINDOW >> 8) + 1)]
        seconds, highest = ({value >> shift & 0xFF for value in values} for shift in (0, 16))
        each.add(b"." + _one_of(seconds) + b"." + _one_of(highest))
    return re.compile(b"\xe8(?=" + b"|".join(sorted(each)) + b")", re.DOTALL)


def _one_of(values: Collection[int]) -> bytes:
    return b"[" + re.escape(bytes(sorted(values))) + b"]"


def direct_calls(code: bytes, targets: Collection[int]) -> Iterator[tuple[int, int]]:
    """(offset, target) of each ``call rel32`` (E8) that leads to one of ``targets``, which are offsets, too.

    Within a small window of code the second byte of the displacement has few values, and the highest one or two, so a
    plain search finds the candidates: among calls of other stubs of the same table, too, which differ in low bytes
    only. What is between decides where the highest byte changes (a carry), and is left out where it does not.
    """
    ends = frozenset(target - 5 for target in targets)
    order = sorted(ends)
    for first in range(0, len(code) if ends else 0, _WINDOW):
        last = first + _WINDOW
        lows = tuple([_low(end - last >> 8) for end in order])
        for match in _calls_with(lows).finditer(code, first, last + 4):
            at = match.start()
            end = at + _displacement(code, at + 1)[0]
            if end in ends and at < last:
                yield at, end + 5


def _low(value: int) -> int:
    """The value, less the bits that do not matter to a window from there on."""
    return value & 0xFFFFFF if value + (_WINDOW >> 8) >> 16 != value >> 16 else value & 0xFF00FF


def slot_calls(code: bytes, slots: Collection[int]) -> Iterator[tuple[int, int]]:
    """(offset, slot) of each ``call *slot(%rip)`` (FF 15) through one of ``slots``, which are offsets, too."""
    at = code.find(_SLOT_CALL) if slots else -1
    while at >= 0:
        end = at + len(_SLOT_CALL) + 4
        slot = end + int.from_bytes(code[end - 4 : end], "little", signed=True)
        if slot in slots and end <= len(code):
            yield at, slot
        at = code.find(_SLOT_CALL, at + 1)


_SLOT_CALL = b"\xff\x15"
_ADD_TO_RAX = b"\x48\x05"


def table_accesses(code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
    """Offsets of ``lea displacement(base,index), reg`` (gcc), and of ``add $displacement, reg`` (clang), with a
    ``shr $shift`` not far before."""
    wanted = displacement.to_bytes(4, "little")
    shifts = re.compile(b"\xc1[\xe8-\xef]" + re.escape(bytes((shift,))), re.DOTALL)
    # One byte, then the others: a search for all four would stop at every zero.
    for match in re.finditer(re.escape(wanted[:1]) + b"(?=" + re.escape(wanted[1:]) + b")", code, re.DOTALL):
        at = match.start()
        is_lea = at >= 4 and code[at - 4] & 0xF8 == 0x48 and code[at - 3] == 0x8D and code[at - 2] & 0xC7 == 0x84
        is_add = at >= 3 and code[at - 3] & 0xFE == 0x48 and code[at - 2] == 0x81 and code[at - 1] & 0xF8 == 0xC0
        is_add |= at >= 2 and code[at - 2 : at] == _ADD_TO_RAX
        if (is_lea or is_add) and shifts.search(code, max(0, at - within), at):
            yield at - (4 if is_lea else 3 if code[at - 2] == 0x81 else 2)


def address_uses(code: bytes, address: int) -> Iterator[AddressUse]:
    """The ``lea`` and ``mov`` of 64 bits whose operand is relative to rip."""
    for match in re.finditer(_ADDRESSES, code, re.DOTALL):
        end = match.end() + 4
        used = address + end + int.from_bytes(code[match.end() : end], "little", signed=True)
        yield AddressUse(address + match.start(), used, match.group()[1] == _LOAD)


def loaded_member(code: bytes) -> LoadedMember | None:
    """The member that ``mov disp(%rdi), %rax; ret`` loads, and the like for other sizes, with or without
    ``endbr64``."""
    code = code.removeprefix(ENDBR64)
    for opcode, size in _UNSIGNED_LOADS.items():
        after = len(opcode) + 1
        width = _RAX_FROM_RDI.get(code[after - 1]) if code.startswith(opcode) and len(code) >= after else None
        if width is not None and code[after + width : after + width + 1] == _RETURN:
            return LoadedMember(int.from_bytes(code[after : after + width], "little", signed=True), size)
    return None


_BEGINNING = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?\x48\x8b\x05(?P<slot>....)"  # mov slot(%rip), %rax
    rb"\x64\x48\x8b(?:\x50(?P<short>.)|\x90(?P<long>....))",  # mov %fs:displacement(%rax), %rdx
    re.DOTALL,
)
_POINTER, _RESULT = "rdx", "rax"
_LONGEST = 64
_TEST, _MOVE_IF = b"\x48\x85\xd2", (b"\x48\x0f\x44", b"\x48\x0f\x45")
"""``test %rdx, %rdx``; ``cmove`` and ``cmovne`` of 64 bits."""


def threads_or_global(code: bytes, address: int) -> ThreadsOrGlobal | None:
    """The word that a function loads which does nothing else; None for any other function."""
    found = _BEGINNING.match(code)
    if not found:
        return None
    slot = address + found.end("slot") + _signed(found["slot"])
    rest, at = code[found.end() : _LONGEST], address + found.end()
    parts = _two_addresses(rest, at)
    if not parts:
        return None
    return ThreadsOrGlobal(slot, _signed(found["short"] or found["long"]), *parts)


def _two_addresses(code: bytes, start: int) -> tuple[int, int] | None:
    """(offset from the pointer, global address): the two that a conditional move chooses between, and then loads."""
    member, otherwise, loaded = None, 0, False
    for one in instructions(code, start):
        raw = code[one.address - start :]
        if one.kind == "lea" and one.memory and one.memory.base == _POINTER and member is None:
            member = one.memory.displacement
        elif one.kind == "lea" and one.memory and one.memory.base == PC_RELATIVE and not otherwise:
            otherwise = one.fixed_operand
        elif _loads_result(one):
            loaded = True
        elif one.kind == "ret" and loaded and member is not None and otherwise:
            return member, otherwise
        elif not raw.startswith((_TEST, *_MOVE_IF)) or loaded:
            return None
    return None


def _loads_result(one: Instruction) -> bool:
    memory = one.memory
    if one.kind != "mov" or one.destination != _RESULT or not memory:
        return False
    return (memory.base, memory.index_register, memory.displacement) == (_RESULT, "", 0)


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)
