"""Places and keeps probes in a helper process, so that killing the tool cannot interrupt that.

A task with a fatal signal cannot write to another one's memory (__get_user_pages, mm/gup.c). If it is killed while the
kernel places or removes its probes, their breakpoint instructions stay in the code (uprobe_unregister_nosync,
kernel/events/uprobes.c: "leaking uprobe"). So the helper, which is not killed together with the tool, places the
probes, and its exit removes them: an exiting task has no fatal signal any more (get_signal, kernel/signal.c).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_blocked, start_survivor
from gdbext.errors import GdbextError, ProbesRefused
from gdbext.tools.probes.bpf.bpf_kernel import HASH, LINK_CREATE, PER_CPU_ARRAY, Bpf, ProbePlace, refusal
from gdbext.tools.probes.bpf.place_program import MAX_PLACES, TracePlace, cookie


def attach_one_by_one(kernel: Bpf, program: int, path: str, places: Sequence[ProbePlace], pid: int) -> Iterator[int]:
    """Place a probe at each place, as a perf event of its own, because kernels before 6.6 have no links for many;
    yields the fd of each link (BPF_LINK_TYPE_PERF_EVENT with a cookie, Linux 5.15). ``struct perf_event_attr``:
    include/uapi/linux/perf_event.h. The event is one thread's, but the program runs wherever its process hits the probe
    (__uprobe_perf_func, kernel/trace/trace_uprobe.c). Raises OSError."""
    with open("/sys/bus/event_source/devices/uprobe/type") as file:
        kind = int(file.read())
    name = ctypes.create_string_buffer(os.fsencode(path))
    size = 128  # PERF_ATTR_SIZE_VER7
    for place in places:
        # Type and size; config to flags; wakeup_events, bp_type; config1: the path, config2: the offset.
        packed = struct.pack("<II5QIIQQ", kind, size, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), place.offset)
        attributes = ctypes.create_string_buffer(packed, size)
        event = kernel.system_call(kernel.perf_call, attributes, pid, -1, -1, 8)  # PERF_FLAG_FD_CLOEXEC
        try:
            yield kernel(LINK_CREATE, struct.pack("<4IQ", program, event, 41, 0, place.cookie))  # 41: BPF_PERF_EVENT
        finally:
            os.close(event)  # the link keeps it


def attach(kernel: Bpf, program: int, path: str, places: Sequence[ProbePlace], pid: int) -> Iterator[int]:
    """Run the program at each place of the file, in that process only; yields the fd of each link. The kernel would
    resolve the path with our rights, out of a container and through any link, so it gets the path of an fd that was
    opened safely. Raises OSError."""
    file = ForeignFiles.of_process(pid).open(path, LARGEST_LIBRARY)
    try:
        opened = f"/proc/self/fd/{file}"
        if kernel.has_many:
            yield kernel.attach(program, opened, places, pid)
        else:
            yield from attach_one_by_one(kernel, program, opened, places, pid)
    finally:
        os.close(file)


_MESSAGE = struct.Struct("<Ii")
"""An answer of the helper: the number of a file (_ALL: the last answer), errno (0 with an fd)."""
_COUNT, _PLACE = struct.Struct("<Q"), struct.Struct("<QQ")
"""A request for more places: their number, then offset and cookie of each, then the path."""
_LONGEST_REQUEST, _PLACES_AT_ONCE = 1 << 16, 1 << 11
_ALL = 1 << 31
INTERRUPTS = (signal.SIGINT, signal.SIGALRM, *ENDING_SIGNALS)
"""Signals whose handlers may raise an exception anywhere. They are blocked while a ProbeKeeper is made and registered;
otherwise the links that it has received would stay open, and the probes with them."""


class ProbeKeeper:
    """Probes at places of one process, until close() or until the tool exits in any way. The tool has the fds of all
    links, too, so that the probes survive the helper."""

    def __init__(self, kernel: Bpf, program: int, pid: int, places: Mapping[str, Sequence[ProbePlace]]) -> None:
        """Run the program at these places, by file. Raises ProbesRefused, and then leaves no probe behind."""
        self._links: list[int] = []
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child = 0

        def keep() -> None:
            """The helper's main function: place the probes, and more on request, until the tool exits."""
            self._socket.close()
            number = 0
            try:  # hand the links over to the tool, with the number of the file or the error
                for number, (path, file_places) in enumerate(places.items()):
                    for link in attach(kernel, program, path, file_places, pid):
                        socket.send_fds(other_end, [_MESSAGE.pack(number, 0)], [link])
                other_end.send(_MESSAGE.pack(_ALL, 0))
            except OSError as error:
                other_end.send(_MESSAGE.pack(number, error.errno or errno.EIO))
            links: list[int] = []
            while request := other_end.recv(_LONGEST_REQUEST):
                failure = 0
                try:
                    end = _COUNT.size + _COUNT.unpack_from(request)[0] * _PLACE.size
                    more = [ProbePlace(*fields) for fields in _PLACE.iter_unpack(request[_COUNT.size : end])]
                    links += attach(kernel, program, os.fsdecode(request[end:]), more, pid)
                except (OSError, GdbextError) as error:
                    failure = getattr(error, "errno", 0) or errno.EIO
                other_end.send(_MESSAGE.pack(0 if failure else _ALL, failure))

        try:
            with other_end:
                try:
                    self._child = start_survivor(keep, "gdbext-probes")  # at most 15 characters (TASK_COMM_LEN)
                except OSError as error:
                    raise ProbesRefused(
                        f"no process can be started to place the probes: {error.strerror}",
                        why="there are too many processes (ulimit -u; pids.max of the cgroup), or too little memory",
                        help="kill others, or trace by breakpoints: dispatch-trace OP --engine breakpoints",
                    ) from error
            self._receive([*places])
        except BaseException:
            self.close()
            raise

    def add(self, path: str, places: Sequence[ProbePlace]) -> None:
        """Place more probes, without fds in the tool: their number may exceed its limit. Raises ProbesRefused."""
        for start in range(0, len(places), _PLACES_AT_ONCE):
            part = places[start : start + _PLACES_AT_ONCE]
            packed = b"".join(_PLACE.pack(place.offset, place.cookie) for place in part)
            self._socket.send(_COUNT.pack(len(part)) + packed + os.fsencode(path))
            self._receive([path])

    def _receive(self, paths: Sequence[str]) -> None:
        """Receive the fds of the links. ``paths``: the files of the request. Raises ProbesRefused."""
        number = 0
        while number != _ALL:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE.size, 1)
            self._links += descriptors
            if not data:
                raise ProbesRefused(
                    f"the process that places the probes, {self._child}, has exited",
                    why="it was killed, or the kernel killed it for lack of memory",
                    help="run the command again",
                )
            number, error = _MESSAGE.unpack(data)
            if error:
                raise refusal(f"no probe can be placed in {paths[number]}", OSError(error, os.strerror(error)))

    def close(self) -> None:
        """Remove the probes; idempotent."""
        while self._links:
            os.close(self._links.pop())
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # processes that were forked later have the socket, too
        if self._child:
            with contextlib.suppress(ChildProcessError):  # a debugger that we are part of may have waited for it
                os.waitpid(self._child, 0)
        self._child = 0


class ProbeRun(contextlib.ExitStack):
    """The maps, programs and probes of one run: all are removed by close(), or when this process exits."""

    def __init__(self, architecture: Architecture, pid: int) -> None:
        """Raises ProbesRefused on an architecture without probes."""
        super().__init__()
        self.kernel = Bpf.of(architecture)
        self.architecture = architecture
        self.pid = pid
        self.keepers: list[ProbeKeeper] = []

    def own(self, descriptor: int) -> int:
        """Register an fd that close() closes, too; returns it."""
        self.callback(os.close, descriptor)
        return descriptor

    def attach(self, program: int, places: Mapping[str, Sequence[ProbePlace]]) -> None:
        """Run the program at these places, by file: one link for each file. Raises ProbesRefused."""
        count = sum(map(len, places.values()))
        if not self.kernel.has_many and count > 250:  # removing them would take longer than 20 seconds
            raise ProbesRefused(
                f"this needs {count} probes, and this kernel can only place them one at a time",
                why="Linux before 6.6 cannot place many probes at once, and takes 0.08 s to remove a single one",
                help="name the operators: dispatch-top mm; or trace by breakpoints: "
                "dispatch-trace OP --engine breakpoints",
            )
        with signals_blocked(INTERRUPTS):
            keeper = ProbeKeeper(self.kernel, program, self.pid, places)
            self.callback(keeper.close)
        self.keepers.append(keeper)


class ProbeSet(ProbeRun):
    """Probes at ``places``, all of which run one program."""

    def __init__(self, architecture: Architecture, pid: int) -> None:
        """Make the maps. Raises ProbesRefused."""
        super().__init__(architecture, pid)
        self.places: list[TracePlace] = []
        self._program = -1
        self.lost_counter = self.own(self.kernel.memory(PER_CPU_ARRAY, 4, 8, 1))
        """The fd of the map in which the program counts dispatches that it could not record."""
        self.wanted = self.own(self.kernel.memory(HASH, 8, 8, 1 << 14))
        """The fd of the map of the OperatorEntries that filtered places show."""

    def want(self, operators: Iterable[int]) -> None:
        """Make filtered places show the operators with these OperatorEntries, too. Raises OSError."""
        for address in operators:
            self.kernel.put(self.wanted, struct.pack("<Q", address), bytes(8))

    def start(self, places: Sequence[TracePlace], code: bytes) -> None:
        """Load the program, and run it at the places. Raises ProbesRefused."""
        self._program = self.own(self.kernel.program(code))
        self.add(places)

    def add(self, places: Sequence[TracePlace]) -> None:
        """Run the program of start() at these places, too. Raises ProbesRefused."""
        first = len(self.places)
        self.places += places[: MAX_PLACES - first]
        by_file: dict[str, list[ProbePlace]] = {}
        for number, place in enumerate(self.places[first:], first):
            value = cookie(self.architecture, number, place)
            by_file.setdefault(place.path, []).append(ProbePlace(place.site.offset, value))
        self.attach(self._program, by_file)

    def lost(self) -> int:
        """Number of dispatches that were seen and not recorded for lack of room. Raises OSError."""
        return sum(count for _, count in self.kernel.totals(self.lost_counter, 4))
