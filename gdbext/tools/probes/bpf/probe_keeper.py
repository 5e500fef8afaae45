"""A process of ours that places probes and keeps them, so that a kill of the tool never comes in the middle of that.

A task with a fatal signal cannot write to another one's memory (__get_user_pages, mm/gup.c): when it is killed while
the kernel places probes for it, or takes them away for its close(2), their breakpoint instructions stay in the code
(uprobe_unregister_nosync, kernel/events/uprobes.c: "leaking uprobe"). A task that exits already has no fatal signal
(get_signal, prepare_signal, kernel/signal.c). So the probes are placed by a process that is not killed together with
the tool, and are taken away by its exit.

Probes one by one, for kernels before 6.6, which have none on many places: each is a perf event of its own.

``struct perf_event_attr``: include/uapi/linux/perf_event.h; the type of such events is in sysfs
(Documentation/ABI/testing/sysfs-bus-event_source-devices). The link is a BPF_LINK_TYPE_PERF_EVENT with a cookie, since
Linux 5.15. The event is one thread's, but the program runs wherever its process hits the probe
(kernel/trace/trace_uprobe.c, __uprobe_perf_func). To take one away takes the kernel 0.08 s, one after the other.

Places probes: many at once, or one by one where the kernel cannot do that (bpf_kernel.py).

Probes at many places of one process, all running one BPF program.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_held, start_survivor
from gdbext.errors import GdbextError, ProbesRefused
from gdbext.tools.probes.bpf import probe_keeper
from gdbext.tools.probes.bpf.bpf_kernel import HASH, PER_CPU_ARRAY, Bpf, CounterMap, ProbePlace, refused
from gdbext.tools.probes.bpf.place_program import MAX_PLACES, TracePlace, cookie

MOST = 250
"""Probes; more would take longer than 20 seconds to take away."""
_TYPE = "/sys/bus/event_source/devices/uprobe/type"
_LINK_CREATE, _PERF_EVENT = 28, 41
"""Numbers of the commands BPF_LINK_CREATE and BPF_PERF_EVENT."""
_ATTRIBUTES = struct.Struct("<II5QIIQQ")
"""Type and size; config to flags; wakeup_events, bp_type; config1: the path, config2: the offset."""
_SIZE = 128
"""The size of perf_event_attr, in bytes: PERF_ATTR_SIZE_VER7."""
_CLOSE_ON_EXEC = 8
"""The flag to close it on exec: PERF_FLAG_FD_CLOEXEC."""


def check(count: int) -> None:
    """Raises ProbesRefused for too many places."""
    if count > MOST:
        raise ProbesRefused(
            f"this needs {count} probes, and the kernel can only place them one by one",
            why="probes on many places at once came with Linux 6.6; to take a single one away lasts 0.08 s",
            help="name the operators: dispatch-top mm; or trace by breakpoints: dispatch-trace OP --engine breakpoints",
        )


def attach_one_by_one(
    kernel: Bpf, architecture: Architecture, program: int, path: str, places: Sequence[ProbePlace], pid: int
) -> Iterator[int]:
    """The descriptor of a link for each place, when it is there. Raises OSError."""
    call = architecture.probing.perf_call if architecture.probing else 0
    with open(_TYPE) as file:
        kind = int(file.read())
    name = ctypes.create_string_buffer(os.fsencode(path))
    for place in places:
        numbers = (kind, _SIZE, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), place.offset)
        attributes = ctypes.create_string_buffer(_ATTRIBUTES.pack(*numbers), _SIZE)
        event = kernel.system_call(call, attributes, pid, -1, -1, _CLOSE_ON_EXEC)
        try:
            yield kernel(_LINK_CREATE, struct.pack("<4IQ", program, event, _PERF_EVENT, 0, place.cookie))
        finally:
            os.close(event)  # the link keeps it


def attach(
    kernel: Bpf, architecture: Architecture, program: int, path: str, places: Sequence[ProbePlace], pid: int
) -> Iterator[int]:
    """The descriptors of links, when they are there: the program runs at each place of the file, in that process alone.

    The kernel looks a path up with our rights, out of a container and through any link: so the file is opened as all
    that the process names, and the kernel gets the descriptor. Raises OSError.
    """
    file = ForeignFiles.of_process(pid).open(path, LARGEST_LIBRARY)
    try:
        opened = f"/proc/self/fd/{file}"
        if kernel.has_many:
            yield kernel.attach(program, opened, places, pid)
        else:
            yield from attach_one_by_one(kernel, architecture, program, opened, places, pid)
    finally:
        os.close(file)


_MESSAGE, _COUNT, _LATER = struct.Struct("<Ii"), struct.Struct("<Q"), struct.Struct("<QQ")
"""The number of a file, errno: 0 where a descriptor comes along; _ALL: there is no more. For places that come later:
their number, then offset and cookie of each, then the path."""
_LONGEST, _PLACES_AT_ONCE = 1 << 16, 1 << 11
_ALL = 1 << 31
_Placed = Callable[..., Iterable[int]]
_NAME = "gdbext-probes"
"""The name that ps shows, at most 15 characters (TASK_COMM_LEN, include/linux/sched.h)."""


INTERRUPTS = (signal.SIGINT, signal.SIGALRM, *ENDING_SIGNALS)
"""The signals that may raise an exception anywhere: held while a ProbeKeeper is made and noted, for the links that it
has received would be left open, and the probes with them."""


class ProbeKeeper:
    """Probes at places of one process, until close() or until the tool has ended in any way.

    The tool has the descriptors of all links, too: it goes on measuring where somebody ends the other process.
    """

    def __init__(
        self,
        kernel: Bpf,
        architecture: Architecture,
        program: int,
        pid: int,
        places: Mapping[str, Sequence[ProbePlace]],
    ) -> None:
        """The program runs at these places, by file. Raises ProbesRefused; nothing is left then."""

        def placed(path: str, more: Sequence[ProbePlace] = ()) -> Iterable[int]:
            return attach(kernel, architecture, program, path, more or places[path], pid)

        paths = [*places]
        self._links: list[int] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child = 0
        try:
            with theirs:
                self._child = _started(lambda: _keep(theirs, self._socket, paths, placed))
            self._receive(paths)
        except BaseException:
            self.close()
            raise

    def add(self, path: str, places: Sequence[ProbePlace]) -> None:
        """More places, of which the tool has no descriptor: there may be more than it may have open. Raises
        ProbesRefused."""
        for start in range(0, len(places), _PLACES_AT_ONCE):
            some = places[start : start + _PLACES_AT_ONCE]
            packed = b"".join(_LATER.pack(place.offset, place.cookie) for place in some)
            self._socket.send(_COUNT.pack(len(some)) + packed + os.fsencode(path))
            self._receive([path])

    def _receive(self, paths: Sequence[str]) -> None:
        """Receive the descriptors of the links. Raises ProbesRefused."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE.size, 1)
            self._links += descriptors
            if not data:
                raise ProbesRefused(
                    f"the process that places the probes, {self._child}, has ended",
                    why="somebody killed it, or the kernel did, short of memory",
                    help="try it again",
                )
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


def _started(work: Callable[[], None]) -> int:
    """The id of a process that does this, and ends. Raises ProbesRefused."""
    try:
        return start_survivor(work, _NAME)
    except OSError as error:
        raise ProbesRefused(
            f"no process can be started that places the probes: {error.strerror}",
            why="there are too many processes (ulimit -u; pids.max of the control group), or too little memory",
            help="end others, or trace by breakpoints: dispatch-trace OP --engine breakpoints",
        ) from error


def _keep(tool: socket.socket, tools: socket.socket, paths: Sequence[str], placed: _Placed) -> None:
    """Place the probes, hand them over, and place more until the tool's end; the exit of this process takes them
    away."""
    tools.close()
    number = 0
    try:
        for number, path in enumerate(paths):
            for link in placed(path):
                socket.send_fds(tool, [_MESSAGE.pack(number, 0)], [link])
        tool.send(_MESSAGE.pack(_ALL, 0))
    except OSError as error:
        tool.send(_MESSAGE.pack(number, error.errno or errno.EIO))
    kept: list[int] = []
    while data := tool.recv(_LONGEST):
        failure = 0
        try:
            end = _COUNT.size + _COUNT.unpack_from(data)[0] * _LATER.size
            places = [ProbePlace(*each) for each in _LATER.iter_unpack(data[_COUNT.size : end])]
            kept += placed(os.fsdecode(data[end:]), places)
        except (OSError, GdbextError) as error:
            failure = getattr(error, "errno", 0) or errno.EIO
        tool.send(_MESSAGE.pack(0 if failure else _ALL, failure))


_MAX_OPERATORS = 1 << 14


class ProbeSet:
    """The probes of one run, kept in place; when it is closed, or this process ends, all are gone.

    ``lost`` counts what was seen and found no room; ``wanted`` is the map of operators that filtered places show.
    """

    def __init__(self, kernel: Bpf, architecture: Architecture) -> None:
        """Place the probes. Raises ProbesRefused."""
        self.kernel = kernel
        self._architecture = architecture
        self._descriptors: list[int] = []
        self._keepers: list[ProbeKeeper] = []
        self._program = -1
        self.lost: CounterMap = kernel.map(PER_CPU_ARRAY, 4, 1)
        self.own(self.lost.descriptor)
        self.wanted = self.own(kernel.memory(HASH, 8, 8, _MAX_OPERATORS))

    def own(self, descriptor: int) -> int:
        """Close it together with the rest."""
        self._descriptors.append(descriptor)
        return descriptor

    def want(self, operators: Iterable[int]) -> None:
        """Filtered places show the operators with these OperatorEntries from now on, too. Raises OSError."""
        for address in operators:
            self.kernel.put(self.wanted, struct.pack("<Q", address), bytes(8))

    def place(self, pid: int, places: Sequence[TracePlace], code: Callable[[], bytes]) -> None:
        """One link for each file. Raises ProbesRefused."""
        self._program = self.own(self.kernel.program(code()))
        self.add(pid, places)

    def add(self, pid: int, places: Sequence[TracePlace], first: int = 0) -> None:
        """More places for the program of place(), numbered from ``first`` on. Raises ProbesRefused."""
        by_file: dict[str, list[ProbePlace]] = {}
        for number, place in enumerate(places[: MAX_PLACES - first], start=first):
            value = cookie(self._architecture, number, place)
            by_file.setdefault(place.path, []).append(ProbePlace(place.site.offset, value))
        self._attach(pid, by_file, self._program)

    def attach(self, pid: int, places: Mapping[str, Sequence[ProbePlace]], code: bytes) -> None:
        """The same for places of any kind, by file. Raises ProbesRefused."""
        self._attach(pid, places, self.own(self.kernel.program(code)))

    def _attach(self, pid: int, places: Mapping[str, Sequence[ProbePlace]], program: int) -> None:
        if not self.kernel.has_many:
            probe_keeper.check(sum(map(len, places.values())))
        with signals_held(INTERRUPTS):
            self._keepers.append(ProbeKeeper(self.kernel, self._architecture, program, pid, places))

    def total_lost(self) -> int:
        """Number of dispatches that were seen and found no room. Raises OSError."""
        return sum(count for _, count in self.lost.totals())

    def close(self) -> None:
        """Take all probes away; idempotent."""
        while self._keepers:
            self._keepers.pop().close()
        while self._descriptors:
            os.close(self._descriptors.pop())
