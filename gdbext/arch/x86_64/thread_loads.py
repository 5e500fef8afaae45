"""Functions that load from an object of the running thread, as GCC compiles them for shared libraries.

libgomp's getters (libgomp/icv.c, gomp_icv) are such: the offset of a thread-local structure comes from the global
offset table (the model "initial exec" of the ABI for thread-local storage), a pointer in that structure leads to the
object, and a conditional move chooses the global one where the pointer is null.
"""

from __future__ import annotations

import re

from gdbext.arch.base import ThreadsOrGlobal
from gdbext.arch.instruction import PC_RELATIVE, Instruction
from gdbext.arch.x86_64.decode import instructions

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
    """What is loaded by a function that does nothing else; None for any other function."""
    found = _BEGINNING.match(code)
    if found is None:
        return None
    slot = address + found.end("slot") + _signed(found["slot"])
    rest, at = code[found.end() : _LONGEST], address + found.end()
    parts = _two_addresses(rest, at)
    if parts is None:
        return None
    return ThreadsOrGlobal(slot, _signed(found["short"] or found["long"]), *parts)


def _two_addresses(code: bytes, start: int) -> tuple[int, int] | None:
    """(offset from the pointer, global address): the two that a conditional move chooses between, and then loads."""
    member = otherwise = loaded = None
    for one in instructions(code, start):
        raw = code[one.address - start :]
        if one.kind == "lea" and one.memory is not None and one.memory.base == _POINTER and member is None:
            member = one.memory.displacement
        elif one.kind == "lea" and one.memory is not None and one.memory.base == PC_RELATIVE and otherwise is None:
            otherwise = one.fixed_operand
        elif _loads_result(one):
            loaded = True
        elif one.kind == "ret" and loaded and member is not None and otherwise is not None:
            return member, otherwise
        elif not raw.startswith((_TEST, *_MOVE_IF)) or loaded:
            return None
    return None


def _loads_result(one: Instruction) -> bool:
    memory = one.memory
    if one.kind != "mov" or one.destination != _RESULT or memory is None:
        return False
    return (memory.base, memory.index_register, memory.displacement) == (_RESULT, None, 0)


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)
