"""Waits for a function-local static's initialiser: __cxa_guard_acquire of libstdc++ (libsupc++/guard.cc).

The guard is a 64-bit variable; the futex is its first word: bit 0 done, bit 8 initialisation pending, bit 16 with
waiters. It records no owner. The thread that runs the initialiser is found by its stack: a frame of a function
that contains the static, which has called something else than __cxa_guard_acquire.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.diagnosis.report.wait import Owner, OwnerCertainty, Resource, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
from gdbext.diagnosis.waits.syscall_waits import futex_wait
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function, demangle, without_clone_suffix

_PENDING = 1 << 8
_GUARD_PREFIX = "guard variable for "
_LONGEST = 1 << 20
"""Bytes of a function's code that are searched."""
_DEEP = 20_000
"""Frames of another thread that are searched for the function."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside __cxa_guard_acquire."""
    level = thread.first(FunctionTag.STATIC_GUARD, within=6)
    futex = futex_wait(thread.syscall)
    if level is None or futex is None:
        return None
    guard = futex.address
    variable = _variable(thread, guard, level)
    raw = thread.process.memory.try_read(guard, 4)
    if raw is not None and not int.from_bytes(raw, "little") & _PENDING:
        return Wait(
            Resource(WaitKind.STATIC_INIT, guard, variable), being_released=True, evidence=("the guard is not pending",)
        )
    found = _initialisers(thread, guard, level + 1)
    resource = Resource(WaitKind.STATIC_INIT, guard, variable)
    if not found:
        return Wait(resource, evidence=(f"guard {guard:#x} records no owner; no other stack is in its function",))
    owner, return_address = found[0]
    evidence = f"guard {guard:#x} records no owner; thread {owner.tid} has returned from it to {return_address:#x}"
    certainty = OwnerCertainty.INFERRED if len(found) == 1 else OwnerCertainty.UNKNOWN
    return Wait(resource, owner if len(found) == 1 else None, certainty, evidence=(evidence,))


def _variable(thread: ThreadSnapshot, guard: int, level: int) -> str:
    """The variable's name: by the guard's symbol, else by the function that waits for it."""
    for name in thread.process.names.names_at(guard):
        text = demangle(name)
        if text.startswith(_GUARD_PREFIX):
            return text[len(_GUARD_PREFIX) :]
    function = thread.stack.function(level + 1) if level + 1 < len(thread.frames) else None
    return f"a static variable of {function.demangled[0]}" if function is not None else ""


def _initialisers(thread: ThreadSnapshot, guard: int, level: int) -> list[tuple[Owner, int]]:
    """Threads that run the initialiser, with their address in the function that contains the static.

    The guard's address is kept in a register from __cxa_guard_acquire to __cxa_guard_release, or is made again for the
    latter: then the code between these uses is the initialiser. Both are true also in another copy of an inlined
    function. Where neither tells, it is a thread inside the same function, past the guard.
    """
    waiting_in = thread.stack.function(level) if level < len(thread.frames) else None
    if waiting_in is None:
        return []
    proven: list[tuple[Owner, int]] = []
    likely: list[tuple[Owner, int]] = []
    for other in thread.process.threads:
        first = level + 1 if other is thread else 1
        for at in range(first, min(len(other.frames), _DEEP)):
            frame = other.frames[at]
            if FunctionTag.STATIC_GUARD in other.tags(at - 1) or not _near(frame.pc, waiting_in):
                continue
            function = other.stack.function(at)
            if function is None:
                continue
            if guard in frame.registers.values() or between_uses(other.process.memory, function, guard, frame.pc):
                proven.append((Owner(other.tid), frame.pc))
                break
            if _is_same(function, waiting_in) and likely[-1:] != [(Owner(other.tid), frame.pc)]:
                likely.append((Owner(other.tid), frame.pc))
    return proven or list({owner: (owner, pc) for owner, pc in reversed(likely)}.values())


def between_uses(memory: Memory, function: Function, guard: int, pc: int) -> bool:
    """The function's code has an address of the guard before ``pc`` and after it."""
    code = memory.try_read(function.start, min(function.size, _LONGEST)) if function.size else None
    uses = list(_uses(memory, code, function.start, guard)) if code is not None else []
    return any(at < pc for at in uses) and any(at >= pc for at in uses)


def _uses(memory: Memory, code: bytes, start: int, guard: int) -> Iterator[int]:
    for use in memory.architecture.address_uses(code, start):
        if use.address == guard or (use.loads and memory.try_u64(use.address) == guard):
            yield use.instruction


def _near(pc: int, function: Function) -> bool:
    """A cheap refusal: another module is never the same function (its cold part is in the same module)."""
    return function.module.start <= pc < function.module.end


def _is_same(one: Function, other: Function) -> bool:
    """The same function, or its cold part."""
    if one.start == other.start:
        return True
    return without_clone_suffix(one.names[0]) == without_clone_suffix(other.names[0])
