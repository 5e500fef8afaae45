"""Interpreters and thread states as they are listed in memory: PyInterpreterState and PyThreadState."""

from __future__ import annotations

from gdbext.model.record import Record


class Interpreter(Record):
    """One PyInterpreterState: ``id`` is 0 for the main interpreter."""

    address: int
    id: int


class ThreadState(Record):
    """One PyThreadState.

    ``ident`` is threading.get_ident(), the thread's pthread_t; ``native_id`` the kernel's thread id as the
    process itself sees it (in its own PID namespace, and stale in a forked child of some versions), None where the
    version does not keep it.
    """

    address: int
    interpreter: Interpreter
    ident: int
    native_id: int | None
