"""Breakpoint instructions in the code of a running process: removes gdb's own one from the dynamic loader, and restores
ours.

gdb learns of loaded libraries by a breakpoint in the loader (enable_break, gdb/solib-svr4.c), which no setting avoids.
If gdb is killed while a thread is there, the thread gets the SIGTRAP and the process dies (ptrace_signal,
kernel/signal.c): every second kill, in a job that loads libraries all the time. So the original instruction is restored
as soon as gdb has replaced it, and gdb reads the list of libraries when the process has stopped again. gdb does not
notice: at a stop it writes the original instruction once more.

When the last kernel probe at an address of a file is removed, the kernel restores the file's instruction in all
processes that map the file and had probes once (register_for_each_vma, kernel/events/uprobes.c): a trace of one rank
removes the breakpoints that gdb has in another one, without gdb noticing.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

import gdb

from gdbext.engine.arch import architectures
from gdbext.engine.targets.live.proc_checks import is_killed_with_tracer, thread_states
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_maps, signals_blocked
from gdbext.errors import TargetError
from gdbext.hosts.gdb.gdb_target import connection_type, execute, is_running, quietly
from gdbext.log import logger

_log = logger(__name__)


@contextmanager
def loader_unwatched() -> Iterator[Callable[[], None]]:
    """Remove gdb's breakpoint from the loader, and have gdb read the libraries at the end if they changed. Yields a
    function to call before each ``continue``. Does nothing for a process that is killed together with gdb, or if the
    user has breakpoints that wait for a library."""
    pid, own = gdb.selected_inferior().pid, architectures.own()
    originals = _loader_instructions(pid, len(own.breakpoint_code)) if own else {}
    memory = -1
    with suppress(OSError):  # refused
        # the fd is of the program that the process executes now, and of no use after an exec
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC) if originals else -1
    if not own or memory < 0:
        yield lambda: None
        return
    before, restorer = _libraries(pid), _Restorer(memory, own.breakpoint_code, originals)
    try:
        with signals_blocked():  # or it could get a Ctrl+C that is gdb's
            restorer.start()
        yield restorer.expect
    finally:
        restorer.end()
        os.close(memory)
        if _libraries(pid) != before and gdb.selected_inferior().pid:
            # told its sysroot once more, gdb reads new libraries (reload_shared_libraries, gdb/solib.c)
            quietly(f"set sysroot {gdb.parameter('sysroot')}")


def _loader_instructions(pid: int, size: int) -> Mapping[int, bytes]:
    """Address → original bytes, ``size`` of them, of the instructions that gdb replaces in the loader."""
    if not pid or connection_type(gdb.selected_inferior()) != "native" or is_killed_with_tracer(pid):
        return {}
    try:
        listing = execute("maint info breakpoints")
        # a user's breakpoint that waits for a library, and catchpoints for the loading of some
        if gdb.parameter("stop-on-solib-events") or re.search(r"<PENDING>|catchpoint .*load of ", listing):
            return {}
        inferior = gdb.selected_inferior()
        return {address: bytes(inferior.read_memory(address, size)) for address in loader_addresses(listing)}
    except (TargetError, gdb.error, OverflowError) as error:
        _log.info("gdb's breakpoint in the loader stays: %s", error)
        return {}


_HEADER = re.compile(r"-?\d+ +(\S.*?) +(?:keep|del|dis|dstp) +[yn] +(0x[0-9a-f]+|<\w+>)?")
_LOCATION = re.compile(r"-?\d+\.\d+ +\S+ +(0x[0-9a-f]+)")


def loader_addresses(listing: str) -> set[int]:
    """The addresses in gdb's list of all breakpoints where only its breakpoints in the loader are."""
    kind, loader, others = "", set[int](), set[int]()
    for line in listing.splitlines():
        header = _HEADER.match(line)
        kind = header[1] if header else kind
        location = _LOCATION.match(line) or header
        address = location[location.lastindex or 0] if location else ""
        if address.startswith("0x"):
            # bptype_description, gdb/breakpoint.c
            (loader if kind == "shlib events" else others).add(int(address, 16))
    return loader - others


class _Restorer(threading.Thread):
    """Restores the original bytes wherever the breakpoint instruction, ``code``, is."""

    def __init__(self, memory: int, code: bytes, originals: Mapping[int, bytes]) -> None:
        super().__init__(daemon=True)
        self._memory = memory
        self._code = code
        self._originals = originals
        self._busy_until = 0.0
        self._over, self._expected = threading.Event(), threading.Event()

    def expect(self) -> None:
        """Check without a pause for 0.1 s, or until gdb has written its breakpoint: it will resume the process."""
        self._busy_until = time.monotonic() + 0.1
        self._expected.set()

    def end(self) -> None:
        """End the thread: the process is not resumed again."""
        self._over.set()
        self._expected.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Check every 2 ms, or without a pause after ``expect``."""
        with suppress(OSError):  # it takes root, as probes do; on a busy machine it makes the difference
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while not self._over.is_set():
            for address, original in self._originals.items():
                with suppress(OSError):  # the process has exited
                    if os.pread(self._memory, len(original), address) == self._code:
                        os.pwrite(self._memory, original, address)
                        self._busy_until = 0.0
            if time.monotonic() > self._busy_until:
                self._expected.clear()
                self._expected.wait(0.002)  # gdb writes its breakpoint again whenever it resumes the process


_Breakpoint = TypeVar("_Breakpoint", bound=gdb.Breakpoint)


class BreakpointKeeper:
    """Has gdb restore breakpoints of ours that were removed from the code while the process runs: a thread of ours
    checks once a second while there are any, and gdb's own thread writes them."""

    def __init__(self) -> None:
        self._breakpoints: list[tuple[weakref.ref[gdb.Breakpoint], int]] = []  # breakpoint, address
        self._lock = threading.Lock()  # guards the list and ``_is_watched``
        self._is_watched = False  # the thread that checks exists
        self._pid = 0
        self._code = b""

    def keep(self, breakpoint: _Breakpoint, address: int) -> _Breakpoint:
        """Watch the breakpoint, in the process that gdb has now, until it is deleted; returns it."""
        pid = gdb.selected_inferior().pid
        if pid != self._pid:
            # gdb 12 and later write breakpoints while the process runs
            own, writes = architectures.own(), int(gdb.VERSION.partition(".")[0]) >= 12
            is_here = bool(pid) and writes and connection_type(gdb.selected_inferior()) == "native"
            self._pid, self._code = pid, own.breakpoint_code if own and is_here else b""
        if not self._code:
            return breakpoint
        with self._lock:
            self._breakpoints.append((weakref.ref(breakpoint), address))
            begins, self._is_watched = not self._is_watched, True
        if begins:
            with signals_blocked():  # or it could get a Ctrl+C that is gdb's
                threading.Thread(target=self._watch, daemon=True).start()
        return breakpoint

    def _watch(self) -> None:
        """Check once a second, in a thread of its own, until all breakpoints are deleted."""
        while True:
            with self._lock:
                self._breakpoints = [row for row in self._breakpoints if row[0]() is not None]
                self._is_watched = bool(self._breakpoints)
                if not self._is_watched:
                    return
            with suppress(OSError):  # the process has exited, or its memory may not be read
                is_stopped_by_gdb = "t" in thread_states(self._pid).values()
                if not is_stopped_by_gdb and self._missing():
                    gdb.post_event(self._restore)
            time.sleep(1.0)

    def _missing(self) -> set[int]:
        """The addresses where no breakpoint instruction is. Raises OSError."""
        size = len(self._code)
        with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
            codes = {address: os.pread(memory.fileno(), size, address) for _, address in [*self._breakpoints]}
        return {address for address, code in codes.items() if code != self._code}

    def _restore(self) -> None:
        """Disable and enable the missing breakpoints: gdb writes a breakpoint when it is enabled."""
        with self._lock:
            rows = [(reference, reference(), address) for reference, address in self._breakpoints]
            valid = [row for row in rows if row[1] is not None and row[1].is_valid()]
            self._breakpoints = [(reference, address) for reference, _, address in valid]
        if gdb.selected_inferior().pid != self._pid or not is_running():
            return
        with suppress(OSError, gdb.error):
            missing = self._missing()
            for _, breakpoint, address in valid:
                if address in missing and breakpoint is not None and breakpoint.enabled:
                    _log.info("a breakpoint at %#x was taken out of the code: put back", address)
                    breakpoint.enabled = False
                    breakpoint.enabled = True


def program_of(pid: int) -> str:
    """A text that identifies the program that a process executes now; "" if that is unknown (remote)."""
    with suppress(OSError):
        return proc_files.read(f"/proc/{pid}/auxv").hex()  # the addresses of its program headers and entry
    return ""


def _libraries(pid: int) -> set[tuple[str, int]]:
    """(path, address) of the files that are mapped as code; empty for a process that is gone."""
    with suppress(OSError):
        mappings = parse_maps(proc_files.text(f"/proc/{pid}/maps"))
        return {(row.path, row.start) for row in mappings if "x" in row.permissions and row.inode}
    return set()
