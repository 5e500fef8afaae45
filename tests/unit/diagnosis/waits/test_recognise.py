"""The order in which waits are recognised."""

from __future__ import annotations

from gdbext.diagnosis.waits import (
    gil_waits,
    mutex_waits,
    pthread_waits,
    python_waits,
    recognise,
    syscall_waits,
    torch_waits,
)


def test_what_proves_more_comes_first():
    order = {recogniser: rank for rank, recogniser in enumerate(recognise.RECOGNISERS)}
    assert order[gil_waits.gil_wait] < order[pthread_waits.condvar_wait]
    assert order[mutex_waits.mutex_wait] < order[torch_waits.classify] < order[pthread_waits.condvar_wait]
    assert order[python_waits.classify] < order[pthread_waits.condvar_wait]
    assert recognise.RECOGNISERS[-1] is syscall_waits.unknown_futex
