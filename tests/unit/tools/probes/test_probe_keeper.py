"""The process that keeps probes outlives a kill of the tool until they are placed; stopping threads is harmless."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from gdbext.engine.arch import architectures
from gdbext.errors import ProbesRefused
from gdbext.tools.probes import thread_stopper
from gdbext.tools.probes.bpf.bpf_kernel import Bpf, ProbePlace
from gdbext.tools.probes.bpf.probe_keeper import ProbeKeeper, attach
from gdbext.tools.probes.thread_stopper import harmless_signal

X86_64 = architectures.by_name("x86_64")
FILES = [os.path.realpath(file) for file in (sys.executable, __file__)]
PLACES = dict(zip(FILES, ([ProbePlace(1, 2)], [ProbePlace(3, 4)])))
PATIENCE = 60


class Kernel:
    """Places a probe by opening a pipe for writing: whoever reads it sees when the last holder of the probe is gone."""

    has_many = True

    def __init__(self, write: int, refuses: str = "", wait: Callable[[], object] = lambda: None) -> None:
        self._write, self._refuses, self._wait = write, refuses, wait

    def attach(self, _program: int, path: str, _places: Sequence[ProbePlace], _pid: int) -> int:
        self._wait()
        if os.path.realpath(path) == self._refuses:
            raise OSError(errno.EOPNOTSUPP, "")
        return os.dup(self._write)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def keeper(kernel: Kernel, places: Mapping[str, Sequence[ProbePlace]] = PLACES) -> ProbeKeeper:
    return ProbeKeeper(cast("Bpf", kernel), 0, os.getpid(), places)


def is_gone(read: int) -> bool:
    """Nobody holds a probe any more; waits for it, or for a word that somebody does."""
    assert select.select([read], [], [], PATIENCE)[0]
    return not os.read(read, 1)


def test_places_that_come_later_go_with_the_rest(pipe: tuple[int, int]) -> None:
    """As many as one likes, without a descriptor of the tool's for each; one that is refused is said."""
    read, write = pipe
    kept = keeper(Kernel(write, refuses=FILES[1]), {FILES[0]: PLACES[FILES[0]]})
    os.close(write)
    assert not select.select([read], [], [], 0)[0]
    gc.collect()  # nothing that an earlier test has left is closed meanwhile
    before = len([*Path("/proc/self/fd").iterdir()])
    kept.add(FILES[0], [ProbePlace(number, number) for number in range(5000)])
    with pytest.raises(ProbesRefused, match=f"in {FILES[1]}: Operation not supported"):
        kept.add(FILES[1], [ProbePlace(1, 2)])
    kept.add(FILES[0], [ProbePlace(1, 2)])
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    kept.close()
    assert select.select([read], [], [], 0)[0], "close() has waited for it"
    assert is_gone(read)
    kept.close()


def test_the_kernel_gets_the_file_that_was_opened_and_not_its_name(tmp_path: Path) -> None:
    """Whoever exchanges the name meanwhile leads the kernel nowhere."""
    library = tmp_path / "lib.so"
    library.write_bytes(b"library")
    (tmp_path / "other").write_bytes(b"other")
    seen: list[bytes] = []

    class Exchanging(Kernel):
        def attach(self, _program: int, path: str, _places: Sequence[ProbePlace], _pid: int) -> int:
            library.unlink()
            library.symlink_to("other")
            seen.append(Path(path).read_bytes())
            return -1

    links = [*attach(cast("Bpf", Exchanging(-1)), 0, str(library), [ProbePlace(1, 2)], os.getpid())]
    assert links == [-1]
    assert seen == [b"library"]


def test_a_pipe_in_place_of_the_library_never_gets_to_the_kernel(tmp_path: Path, pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.mkfifo(tmp_path / "lib.so")
    with pytest.raises(ProbesRefused, match=r"lib\.so: Invalid argument"):
        keeper(Kernel(write), {str(tmp_path / "lib.so"): [ProbePlace(1, 2)]})
    os.close(write)
    assert is_gone(read)


def test_a_refusal_or_the_end_of_the_process_is_said_and_nothing_is_left(pipe: tuple[int, int]) -> None:
    read, write = pipe
    with pytest.raises(ProbesRefused, match="has exited"):
        keeper(Kernel(write, wait=lambda: os.kill(os.getpid(), signal.SIGKILL)))
    with pytest.raises(ProbesRefused, match=f"in {FILES[1]}: Operation not supported"):
        keeper(Kernel(write, refuses=FILES[1]))
    os.close(write)
    assert is_gone(read)


def test_a_tool_that_is_killed_meanwhile_does_not_interrupt_it(pipe: tuple[int, int]) -> None:
    """It begins to place when the tool is dead, holds the probe after that, and takes it away by its end."""
    read, write = pipe
    (went, go), (began, begin) = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(begin, b"b")
        os.read(went, 1)
        os.write(write, b"placed")

    tool = os.fork()
    if not tool:
        os.setpgid(0, 0)
        keeper(Kernel(write, wait=wait))
        os._exit(1)
    os.close(write)
    assert os.read(began, 1)
    os.killpg(tool, signal.SIGKILL)
    assert os.waitpid(tool, 0)[1] == signal.SIGKILL
    os.write(go, b"gg")
    assert os.read(read, 6) == b"placed"
    while not is_gone(read):
        pass
    for descriptor in (went, go, began, begin):
        os.close(descriptor)


@pytest.fixture
def default_handlers() -> Iterator[None]:
    """Of the two signals, for one test."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGURG, signal.SIGWINCH)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_handlers")
def test_a_signal_that_the_program_has_no_handler_for_and_no_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_stopper, "_INITIAL_NAMESPACE", str(Path("/proc/self/ns/pid").readlink()))
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
    monkeypatch.setattr(thread_stopper, "_INITIAL_NAMESPACE", "pid:[1]")  # thread ids are others than the kernel's
    with pytest.raises(ProbesRefused, match="PID namespace"):
        harmless_signal(os.getpid())


def test_instructions_that_leave_vector_registers_alone() -> None:
    kept = ("55", "f30f1efa", "488b07", "e811223344", "0f1f4000")  # push, endbr64, mov, call, nop
    # movsd 0x8(%rsp),%xmm0; movq %rax,%xmm0; vxorps %xmm0,%xmm0,%xmm0; one of AVX-512; nothing
    others = ("f20f10442408", "66480f6ec0", "c5f857c0", "62f17c48effc", "")
    assert [X86_64.keeps_vectors(bytes.fromhex(code)) for code in (*kept, *others)] == [True] * 5 + [False] * 5
