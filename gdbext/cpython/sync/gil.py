"""The global interpreter lock: where it is, who holds it, and how to recognise who waits for it.

struct _gil_runtime_state (Include/internal/pycore_gil.h, the same from 3.8 to 3.13) is at ``_PyRuntime.ceval.gil``, or
each interpreter points to the one it uses (``ceval.gil``), which is its own or the main interpreter's. The protocol is
that of Python/ceval_gil.h (ceval_gil.c since 3.12): ``mutex`` protects ``locked`` and ``last_holder``; a waiter waits
on ``cond`` for 5 ms at a time; with FORCE_SWITCHING one that drops the GIL on request waits on ``switch_cond`` until
another thread has taken it.
"""

from __future__ import annotations

from enum import Enum

from gdbext.cpython.abi.python_abi import GilPlace
from gdbext.cpython.threads.frame_reader import Interpreter
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.engine.glibc.sync_objects import recorded_owner
from gdbext.engine.record import Record
from gdbext.errors import BadData

_MAX_INTERVAL = 3_600_000_000
"""Microseconds; sys.setswitchinterval(3600) is already absurd."""


class GilPart(Enum):
    """A part of a GIL that a thread can wait for; the value is the name of its field."""

    COND = "cond"
    MUTEX = "mutex"
    SWITCH_COND = "switch_cond"
    SWITCH_MUTEX = "switch_mutex"


class GilState(Record):
    """One GIL as it is at this moment.

    ``holder_tid`` and ``holder`` (a PyThreadState*) are set only while the GIL is locked and its fields are at
    rest; ``last_holder`` stays after a release. ``mutex_owner`` is the tid of a thread that is changing the fields
    right now (it takes or drops the GIL). Ranges are half-open, in bytes; None where this build has no such field.
    """

    address: int
    interpreter: int
    interpreters: tuple[int, ...]
    locked: bool
    holder: int | None
    holder_tid: int | None
    last_holder: int | None
    mutex_owner: int | None
    interval: int
    cond_range: tuple[int, int]
    mutex_range: tuple[int, int]
    switch_cond_range: tuple[int, int]
    switch_mutex_range: tuple[int, int]

    def part_at(self, address: int) -> GilPart | None:
        """The part that an address (of a futex, a condvar, a mutex) is in, None when it is in none of them."""
        for part, (start, end) in (
            (GilPart.COND, self.cond_range),
            (GilPart.MUTEX, self.mutex_range),
            (GilPart.SWITCH_COND, self.switch_cond_range),
            (GilPart.SWITCH_MUTEX, self.switch_mutex_range),
        ):
            if start <= address < end:
                return part
        return None


def read_gils(runtime: PythonRuntime) -> list[GilState]:
    """All GILs, the main interpreter's first; none of a free-threaded build, unless something enabled it there
    (PYTHON_GIL=1, an extension that needs it). Raises BadData where one cannot be what it should be, MemoryFault."""
    users: dict[int, list[Interpreter]] = {}
    for interpreter in sorted(runtime.interpreters(), key=lambda each: each.id):
        address = _gil_of(runtime, interpreter)
        if address and _is_enabled(runtime, address):
            users.setdefault(address, []).append(interpreter)
    return [_read(runtime, address, interpreters) for address, interpreters in users.items()]


def touch_gils(runtime: PythonRuntime) -> None:
    """Read the memory of all GILs, and nothing of threads. Raises BadData, MemoryFault."""
    size = runtime.layout.size("_gil_runtime_state")
    for interpreter in runtime.interpreters():
        address = _gil_of(runtime, interpreter)
        if address:
            runtime.memory.read(address, size)


def _gil_of(runtime: PythonRuntime, interpreter: Interpreter) -> int:
    """Address of the GIL an interpreter uses; 0 where it has none (start-up)."""
    layout = runtime.layout
    if layout.abi.gil is GilPlace.RUNTIME:
        return runtime.address + layout.offset("_PyRuntimeState", "ceval.gil")
    return runtime.memory.u64(interpreter.address + layout.offset("PyInterpreterState", "ceval.gil"))


def _is_enabled(runtime: PythonRuntime, address: int) -> bool:
    """``enabled`` is a member of free-threaded builds only: INT_MAX for ever, 0, or how many wanted it for a while."""
    enabled_at = runtime.layout.find("_gil_runtime_state", "enabled")
    return enabled_at is None or runtime.memory.i32(address + enabled_at) != 0


def _read(runtime: PythonRuntime, address: int, users: list[Interpreter]) -> GilState:
    layout, memory = runtime.layout, runtime.memory

    def at(field: str) -> int:
        return address + layout.offset("_gil_runtime_state", field)

    locked, interval = memory.i32(at("locked")), memory.u64(at("interval"))
    if locked not in (-1, 0, 1) or not 0 < interval <= _MAX_INTERVAL:
        raise BadData(f"no GIL at {address:#x}: locked is {locked}, interval {interval} us")
    last = memory.u64(at("last_holder")) or None
    changing = recorded_owner(memory, at("mutex")) or None
    holder = last if locked == 1 and changing is None else None
    state = next((each for each in runtime.thread_states() if each.address == holder), None) if holder else None
    cond, mutex = at("cond"), at("mutex")
    switch_cond, switch_mutex = at("switch_cond"), at("switch_mutex")
    return GilState(
        address=address,
        interpreter=users[0].id,
        interpreters=tuple(user.id for user in users),
        locked=locked == 1,
        holder=holder,
        holder_tid=runtime.proven_tid(state) if state else None,
        last_holder=last,
        mutex_owner=changing,
        interval=interval,
        cond_range=(cond, mutex),
        mutex_range=(mutex, switch_cond),
        switch_cond_range=(switch_cond, switch_mutex),
        switch_mutex_range=(switch_mutex, address + layout.size("_gil_runtime_state")),
    )
