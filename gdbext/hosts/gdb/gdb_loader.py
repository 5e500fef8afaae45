"""Breakpoints in the code of a running process: gdb's own one is kept out of it, and ours are kept in it.

gdb's own breakpoint in the dynamic loader is kept out of it while a command of ours lets the process run.

gdb hears of libraries by a breakpoint that the loader runs into (enable_break, gdb/solib-svr4.c), for each one that
comes or goes. No setting of gdb's is without it. A thread that stands there when gdb is killed goes on with its SIGTRAP
and ends the process (ptrace_signal, kernel/signal.c); in a job that loads libraries all the time that was every second
kill. So the instruction is put back as soon as gdb has taken it away, and gdb reads the list of libraries anew when the
process has stopped again. gdb takes no notice: at a stop it writes the original instruction once more.

Ours are kept in it. Where the last kernel probe at a place of a file ends, the kernel puts the file's instruction back
in all processes that map the file and had probes once (register_for_each_vma, kernel/events/uprobes.c), and does not
ask who wrote the breakpoint instruction that it finds there: a trace of one rank takes out the breakpoints that gdb has
in another one. gdb would not notice, and nobody would stop there any more.

And what an editor asks of gdb's DAP server meanwhile: that handles one request after the other, and would handle none
before the command has ended (Server.main_loop of gdb's package gdb.dap, in gdb 18).
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import gdb

from gdbext.engine.arch import architectures
from gdbext.engine.targets.live.proc_checks import ends_with_tracer, thread_states
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_maps, signals_held
from gdbext.errors import TargetError
from gdbext.hosts.gdb.gdb_target import connection_type, execute, interrupt_all, is_running, post_whole
from gdbext.log import logger

_log = logger(__name__)
_PAUSE, _AWAITED, _FIRST = 0.002, 0.1, -20
"""Seconds between two looks: gdb puts its breakpoint back whenever it lets the process go on. And those in which it is
awaited without a pause, when the process is about to run; and the thread's niceness (setpriority(2))."""
_HEADER = re.compile(r"-?\d+ +(\S.*?) +(?:keep|del|dis|dstp) +[yn] +(0x[0-9a-f]+|<\w+>)?")
_LOCATION = re.compile(r"-?\d+\.\d+ +\S+ +(0x[0-9a-f]+)")
_LOADER = "shlib events"
"""The type of such breakpoints in ``maint info breakpoints`` (bptype_description, gdb/breakpoint.c)."""
_LISTENS = re.compile(r"<PENDING>|catchpoint .*load of ")
"""A user's breakpoint that waits for a library, and his catchpoints for the loading of some."""


@contextmanager
def loader_unwatched() -> Iterator[Callable[[], None]]:
    """gdb hears of no library while the process runs, and of all of them at the end. Nothing is done for a process that
    ends together with gdb, or where the user waits for a library. What it gives is to be called before each
    ``continue``."""
    pid, own = gdb.selected_inferior().pid, architectures.own()
    places = _places(pid, len(own.breakpoint_code)) if own else {}
    memory = _memory(pid) if places else -1
    if not own or memory < 0:
        yield _nothing
        return
    before, keeper = _libraries(pid), _Keeper(memory, own.breakpoint_code, places)
    try:
        with signals_held():  # or it could get a Ctrl+C that is gdb's
            keeper.start()
        yield keeper.expect
    finally:
        keeper.end()
        os.close(memory)
        if _libraries(pid) != before:
            _read_libraries()


def _places(pid: int, size: int) -> Mapping[int, bytes]:
    """Address → original bytes, that many, of the instructions that gdb replaces in the loader."""
    if not pid or connection_type(gdb.selected_inferior()) != "native" or ends_with_tracer(pid):
        return {}
    try:
        listed = execute("maint info breakpoints")
        if gdb.parameter("stop-on-solib-events") or _LISTENS.search(listed):
            return {}
        return {place: bytes(gdb.selected_inferior().read_memory(place, size)) for place in loader_places(listed)}
    except (TargetError, gdb.error, OverflowError) as error:
        _log.info("gdb's breakpoint in the loader stays: %s", error)
        return {}


def loader_places(listed: str) -> set[int]:
    """The addresses where gdb has breakpoints in the loader and nothing else, by its list of all breakpoints."""
    kind, found, others = "", set[int](), set[int]()
    for line in listed.splitlines():
        header = _HEADER.match(line)
        kind = header[1] if header else kind
        place = _LOCATION.match(line) or header
        address = place[place.lastindex or 0] if place else ""
        if address.startswith("0x"):
            (found if kind == _LOADER else others).add(int(address, 16))
    return found - others


def _memory(pid: int) -> int:
    """A descriptor of the memory of the program that the process executes now: after an exec it leads nowhere. -1 where
    that is refused."""
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1


def _nothing() -> None:
    """Expect nothing where nothing is kept out."""


class _Keeper(threading.Thread):
    """Puts the original bytes back wherever the breakpoint instruction, ``code``, stands."""

    def __init__(self, memory: int, code: bytes, places: Mapping[int, bytes]) -> None:
        super().__init__(daemon=True)
        self._memory = memory
        self._code = code
        self._places = places
        self._awaited = 0.0
        self._over, self._expected = threading.Event(), threading.Event()

    def expect(self) -> None:
        """gdb is about to let the process run: its breakpoint comes now."""
        self._awaited = time.monotonic() + _AWAITED
        self._expected.set()

    def end(self) -> None:
        """The process stands still for good."""
        self._over.set()
        self._expected.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Look until it is over, before others have their turn: on a busy machine that makes the difference."""
        with suppress(OSError):  # it takes root, as probes do
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FIRST)
        while not self._over.is_set():
            for address, original in self._places.items():
                with suppress(OSError):  # the process has ended
                    if os.pread(self._memory, len(original), address) == self._code:
                        os.pwrite(self._memory, original, address)
                        self._awaited = 0.0
            if time.monotonic() > self._awaited:
                self._expected.clear()
                self._expected.wait(_PAUSE)


_LOOK, _TRACED, _WRITES_RUNNING = 1.0, "t", 12
"""Seconds between two looks; the state of a thread that gdb has stopped; the first gdb that writes to the memory of a
process that runs."""


_Breakpoint = TypeVar("_Breakpoint", bound=gdb.Breakpoint)


class BreakpointKeeper:
    """Has gdb put breakpoints of ours back that were taken out of the code while the process runs.

    A thread of ours looks once a second, as long as there are any; gdb's own thread does the rest."""

    def __init__(self) -> None:
        self._kept: list[tuple[weakref.ref[gdb.Breakpoint], int]] = []
        self._lock = threading.Lock()
        """Guards the list, which both threads change, and whether there is a thread that looks."""
        self._is_watched = False
        self._pid = 0
        self._code = b""

    def keep(self, breakpoint: _Breakpoint, address: int) -> _Breakpoint:
        """The breakpoint, which is kept in the code of the process that gdb has now until it is deleted."""
        pid = gdb.selected_inferior().pid
        if pid != self._pid:
            self._pid, self._code = pid, _code_written_to(pid)
        if not self._code:
            return breakpoint
        with self._lock:
            self._kept.append((weakref.ref(breakpoint), address))
            begins, self._is_watched = not self._is_watched, True
        if begins:
            with signals_held():  # or it could get a Ctrl+C that is gdb's
                threading.Thread(target=self._watch, daemon=True).start()
        return breakpoint

    def _watch(self) -> None:
        while self._some_are_left():
            with suppress(OSError):  # the process has ended, or nobody may look
                if _TRACED not in thread_states(self._pid).values() and self._missing():
                    gdb.post_event(self._put_back)
            time.sleep(_LOOK)

    def _some_are_left(self) -> bool:
        with self._lock:
            self._kept = [each for each in self._kept if each[0]() is not None]
            self._is_watched = bool(self._kept)
            return self._is_watched

    def _missing(self) -> set[int]:
        """The addresses where no breakpoint instruction is. Raises OSError."""
        size = len(self._code)
        with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
            there = {address: os.pread(memory.fileno(), size, address) for _, address in [*self._kept]}
        return {address for address, code in there.items() if code != self._code}

    def _put_back(self) -> None:
        """Switch those off and on that are missing: gdb writes a breakpoint where it is switched on."""
        with self._lock:
            self._kept = [each for each in self._kept if (one := each[0]()) is not None and one.is_valid()]
            ours = [(each(), address) for each, address in self._kept]
        if gdb.selected_inferior().pid != self._pid or not is_running():
            return
        with suppress(OSError, gdb.error):
            missing = self._missing()
            for each, address in ours:
                if address in missing and each is not None and each.enabled:
                    _log.info("a breakpoint at %#x was taken out of the code: put back", address)
                    each.enabled = False
                    each.enabled = True


def _code_written_to(pid: int) -> bytes:
    """The breakpoint instruction, where gdb writes it into a process of this machine also while that runs; else b""."""
    own = architectures.own()
    writes = int(gdb.VERSION.partition(".")[0]) >= _WRITES_RUNNING
    is_here = bool(pid) and writes and connection_type(gdb.selected_inferior()) == "native"
    return own.breakpoint_code if own and is_here else b""


def program_of(pid: int) -> str:
    """A value that is different in every program that a process executes; "" where that is unknown (remote)."""
    try:
        return proc_files.read(f"/proc/{pid}/auxv").hex()  # the addresses of its program headers and entry
    except OSError:
        return ""


def _libraries(pid: int) -> set[tuple[str, int]]:
    """The files that are mapped as code, and where; none of a process that is gone."""
    with suppress(OSError):
        mappings = parse_maps(proc_files.text(f"/proc/{pid}/maps"))
        return {(each.path, each.start) for each in mappings if "x" in each.permissions and each.inode}
    return set()


def _read_libraries() -> None:
    """Have gdb look which libraries there are: it does where it is told its sysroot once more
    (reload_shared_libraries, gdb/solib.c), and reads those that are new."""
    if gdb.selected_inferior().pid:
        with suppress(gdb.error):
            gdb.execute(f"set sysroot {gdb.parameter('sysroot')}", False, True)


_QUEUES = ("_read_queue", "read_queue")
"""The member of gdb's DAP server where the requests wait that it has read; its name in gdb 18, and before."""
_CANCELLER, _IN_FLIGHT, _CANCEL = "canceller", "in_flight_gdb_thread", "cancel"
"""Its member that cancels requests; there the number of the one that gdb's thread handles; and the function."""
_ENDS_RUN = frozenset({"pause", "disconnect", "terminate"})
"""The requests of DAP that are not to wait until the process stops by itself."""


@contextmanager
def editor_heard() -> Iterator[Callable[[], bool]]:
    """Interrupt the process as soon as an editor wants it stopped, or is gone; what it gives says whether that has
    come."""
    server = getattr(sys.modules.get("gdb.dap.server"), "_server", None)
    name = next((each for each in _QUEUES if hasattr(server, each)), "")
    if not name:
        yield _never
        return
    queue, canceller = getattr(server, name), getattr(server, _CANCELLER, None)
    heard = HeardQueue(queue, canceller, lambda: post_whole(interrupt_all, interrupt_all))
    setattr(server, name, heard)
    is_cancelled = hasattr(canceller, _IN_FLIGHT)
    if is_cancelled:
        setattr(canceller, _CANCEL, heard.cancel)
    try:
        heard.look()
        yield lambda: heard.came
    finally:
        if is_cancelled:
            delattr(canceller, _CANCEL)
        setattr(server, name, queue)
        heard.end()


def _never() -> bool:
    """Say that nothing has come, where there is no such editor."""
    return False


class HeardQueue:
    """The queue of requests, which another thread fills and nobody empties while a command runs.

    A cancel of the command gets a road of its own: gdb.interrupt(), by which gdb 18 cancels, was lost, or had gdb
    abort, in 3 of 8 of dispatch-values by probes.
    """

    def __init__(self, queue: Any, canceller: Any, interrupt: Callable[[], None]) -> None:
        """``interrupt`` is called from that thread."""
        self._queue = queue
        self._canceller = canceller
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._is_over = False
        self.came = False
        """There is a request that is to end the run."""

    def put(self, request: Any) -> None:
        """Take a request in, None for the end of all, and look at it."""
        self._queue.put(request)
        if _ends_run(request):
            self._end_run()

    def get(self) -> Any:
        """Give the next request out, as the queue does."""
        return self._queue.get()

    def cancel(self, number: int) -> None:
        """Cancel a request: the command that runs, or another one as gdb does."""
        with self._canceller.lock:
            if number != getattr(self._canceller, _IN_FLIGHT):
                getattr(type(self._canceller), _CANCEL)(self._canceller, number)
                return
        self._end_run()

    def _end_run(self) -> None:
        with self._lock:
            if not self.came and not self._is_over:
                self._interrupt()
            self.came = True

    def look(self) -> None:
        """Look at the requests that were there before."""
        for _ in range(self._queue.qsize()):
            request = self._queue.get()
            self._queue.put(request)
            self.came = self.came or _ends_run(request)

    def end(self) -> None:
        """The process has stopped: nobody is interrupted any more."""
        with self._lock:
            self._is_over = True


def _ends_run(request: Any) -> bool:
    return request is None or (isinstance(request, dict) and request.get("command") in _ENDS_RUN)
