"""A process of ours that places probes and keeps them, so that a kill of the tool never comes in the middle of that.

A task with a fatal signal cannot write to another one's memory (__get_user_pages, mm/gup.c): when it is killed while
the kernel places probes for it, or takes them away for its close(2), their breakpoint instructions stay in the code
(uprobe_unregister_nosync, kernel/events/uprobes.c: "leaking uprobe"). A task that exits already has no fatal signal
(get_signal, prepare_signal, kernel/signal.c). So the probes are placed by a process that is not killed together with
the tool, and are taken away by its exit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from gdbext.arch.base import Architecture
from gdbext.errors import ProbesRefused
from gdbext.probes.bpf.attaching import attach
from gdbext.probes.bpf.kernel import Bpf, Place
from gdbext.probes.bpf.refusal import refused

_MESSAGE = struct.Struct("<Ii")
"""The number of a file, errno: 0 where a descriptor comes along; _ALL: there is no more."""
_ALL = 1 << 31
_NAME = "gdbext-probes"
"""What ps shows, at most 15 characters (TASK_COMM_LEN, include/linux/sched.h)."""


class ProbeKeeper:
    """Probes at places of one process, until close() or until the tool has ended in any way.

    The tool has the descriptors of all links, too: it goes on measuring where somebody ends the other process.
    """

    def __init__(
        self, kernel: Bpf, architecture: Architecture, program: int, pid: int, places: Mapping[str, Sequence[Place]]
    ) -> None:
        """The program runs at these places, by file. Raises ProbesRefused; nothing is left then."""
        def placed(path: str) -> Iterable[int]:
            return attach(kernel, architecture, program, path, places[path], pid)

        paths = [*places]
        self._links: list[int] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child = 0
        try:
            with theirs:
                self._child = _forked(lambda: _keep(theirs, self._socket, paths, placed))
            self._receive(paths)
        except BaseException:
            self.close()
            raise

    def _receive(self, paths: Sequence[str]) -> None:
        """The links. Raises ProbesRefused."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE.size, 1)
            self._links += descriptors
            if not data:
                raise ProbesRefused(
                    f"the process that places the probes, {self._child}, has ended",
                    why="somebody killed it, or the kernel did, short of memory", help="try it again",
                )  # fmt: skip
            number, error = _MESSAGE.unpack(data)
            if error:
                raise refused(f"no probe can be placed in {paths[number]}", OSError(error, os.strerror(error)))
            if number == _ALL:
                return

    def close(self) -> None:
        """Take the probes away; idempotent."""
        while self._links:
            os.close(self._links.pop())
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # processes that were forked later have the socket, too
        if self._child:
            with contextlib.suppress(ChildProcessError):  # a debugger that we are part of may have waited for it
                os.waitpid(self._child, 0)
        self._child = 0


def _forked(work: Callable[[], None]) -> int:
    """The id of a process that does this and ends, and that no signal reaches but SIGKILL. Raises ProbesRefused."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
        if not child:
            _work(work)
        return child
    except OSError as error:
        raise ProbesRefused(
            f"no process can be started that places the probes: {error.strerror}",
            why="there are too many processes (ulimit -u; pids.max of the control group), or too little memory",
            help="end others, or trace by breakpoints: dispatch-trace OP --engine breakpoints",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[[], None]) -> NoReturn:
    """In the new process: what belongs to the tool's own end, as to flush its files, is not for us."""
    try:
        os.setsid()  # kill -9 of the tool's process group does not reach us
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):  # whoever reads what the tool writes is not to wait for our end
            os.dup2(nowhere, descriptor)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write(_NAME)
        work()
    finally:
        os._exit(0)


def _keep(
    tool: socket.socket, tools: socket.socket, paths: Sequence[str], placed: Callable[[str], Iterable[int]]
) -> None:
    """Place the probes, hand them over, and wait for the tool's end; the exit of this process takes them away."""
    tools.close()
    number = 0
    try:
        for number, path in enumerate(paths):
            for link in placed(path):
                socket.send_fds(tool, [_MESSAGE.pack(number, 0)], [link])
        tool.send(_MESSAGE.pack(_ALL, 0))
    except OSError as error:
        tool.send(_MESSAGE.pack(number, error.errno or errno.EIO))
    tool.recv(1)
