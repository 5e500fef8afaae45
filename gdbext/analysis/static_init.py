"""Waits for a function-local static's initialiser: __cxa_guard_acquire of libstdc++ (libsupc++/guard.cc).

The guard is a 64-bit variable; the futex is its first word: bit 0 done, bit 8 initialisation pending, bit 16 with
waiters. It records no owner. The thread that runs the initialiser is found by its stack: a frame of the very function
that contains the static, which has called something else than __cxa_guard_acquire.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.analysis.facts import Owner, Resource, Wait
from gdbext.analysis.futex import futex_wait
from gdbext.analysis.look import ThreadLook
from gdbext.process.symbols import Function, demangle, without_clone_suffix

_PENDING = 1 << 8
_GUARD_PREFIX = "guard variable for "
_DEEP = 20_000
"""Frames of another thread that are searched for the function."""


def classify(thread: ThreadLook) -> Wait | None:
    """The wait of a thread inside __cxa_guard_acquire."""
    level = thread.first("guard", within=6)
    futex = futex_wait(thread.syscall)
    if level is None or futex is None:
        return None
    guard = futex.address
    variable = _variable(thread, guard, level)
    raw = thread.process.memory.try_read(guard, 4)
    if raw is not None and not int.from_bytes(raw, "little") & _PENDING:
        return Wait(Resource("static-init", guard, variable), handover=True, evidence=("the guard is not pending",))
    found = list(_initialisers(thread, level + 1))
    resource = Resource("static-init", guard, variable)
    if not found:
        return Wait(resource, evidence=(f"guard {guard:#x} records no owner; no other stack is in its function",))
    owner, return_address = found[0]
    evidence = f"guard {guard:#x} records no owner; thread {owner.tid} has returned from it to {return_address:#x}"
    certainty = "inferred" if len(found) == 1 else "unknown"
    return Wait(resource, owner if len(found) == 1 else None, certainty, evidence=(evidence,))


def _variable(thread: ThreadLook, guard: int, level: int) -> str:
    """The variable's name: by the guard's symbol, else by the function that waits for it."""
    for name in thread.process.names.names_at(guard):
        text = demangle(name)
        if text.startswith(_GUARD_PREFIX):
            return text[len(_GUARD_PREFIX) :]
    function = thread.stack.function(level + 1) if level + 1 < len(thread.frames) else None
    return f"a static variable of {function.demangled[0]}" if function is not None else ""


def _initialisers(thread: ThreadLook, level: int) -> Iterator[tuple[Owner, int]]:
    """Threads inside the function that contains the static, past the guard; with their address in it."""
    waiting_in = thread.stack.function(level) if level < len(thread.frames) else None
    if waiting_in is None:
        return
    for other in thread.process.threads:
        if other is thread:
            continue
        for at in range(1, min(len(other.frames), _DEEP)):
            frame = other.frames[at]
            if "guard" in other.marks(at - 1) or not _near(frame.pc, waiting_in):
                continue
            function = other.stack.function(at)
            if function is not None and _is_same(function, waiting_in):
                yield Owner(other.tid), frame.pc
                break


def _near(pc: int, function: Function) -> bool:
    """A cheap refusal: another module is never the same function (its cold part is in the same module)."""
    return function.module.start <= pc < function.module.end


def _is_same(one: Function, other: Function) -> bool:
    """The same function, or its cold part."""
    if one.start == other.start:
        return True
    return without_clone_suffix(one.names[0]) == without_clone_suffix(other.names[0])
