"""The signal by which probes stop a thread does nothing to a process that nobody traces."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.arch import architectures
from gdbext.errors import ProbesRefused
from gdbext.tools.probes import thread_stopper
from gdbext.tools.probes.thread_stopper import harmless_signal


@pytest.fixture(autouse=True)
def default_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the two signals, for one test, in whatever namespace it runs."""
    monkeypatch.setattr(thread_stopper, "_INITIAL_NAMESPACE", str(Path("/proc/self/ns/pid").readlink()))
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGURG, signal.SIGWINCH)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_one_that_the_program_has_no_handler_for_and_no_thread_blocks() -> None:
    assert harmless_signal(os.getpid()) == signal.SIGURG
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    try:
        assert harmless_signal(os.getpid()) == signal.SIGWINCH
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    signal.signal(signal.SIGURG, lambda *_: None)
    assert harmless_signal(os.getpid()) == signal.SIGWINCH
    signal.signal(signal.SIGWINCH, lambda *_: None)
    with pytest.raises(ProbesRefused, match="both signals"):
        harmless_signal(os.getpid())


def test_a_container_has_other_thread_ids_than_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_stopper, "_INITIAL_NAMESPACE", "pid:[1]")
    with pytest.raises(ProbesRefused, match="PID namespace"):
        harmless_signal(os.getpid())


def test_instructions_that_leave_vector_registers_alone() -> None:
    keeps = architectures.by_name("x86_64").keeps_vectors
    kept = ("55", "f30f1efa", "488b07", "e811223344", "0f1f4000")  # push, endbr64, mov, call, nop
    # movsd 0x8(%rsp),%xmm0; movq %rax,%xmm0; vxorps %xmm0,%xmm0,%xmm0; one of AVX-512; nothing
    others = ("f20f10442408", "66480f6ec0", "c5f857c0", "62f17c48effc", "")
    assert [keeps(bytes.fromhex(code)) for code in (*kept, *others)] == [True] * 5 + [False] * 5
