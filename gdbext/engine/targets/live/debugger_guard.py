"""A process of ours that outlives a debugger that is killed, and heals what that leaves in the process it held.

A debugger that is killed while its process runs leaves its breakpoint instructions there: its own in the dynamic
loader, the user's, and ours. Whoever gets to one is ended by SIGTRAP. And a thread that it was about to stop gets the
SIGSTOP that it had sent: the process stands still for ever (ptrace_signal, kernel/signal.c: a signal that the tracer
has not fetched by wait(2) is delivered at its death). The guard puts the files' bytes back, and continues the process.

A page of a file that somebody has written to is an anonymous one (/proc/PID/pagemap, admin-guide/mm/pagemap.rst): so it
looks at few pages of hundreds of thousands.

LLDB's tracer is a server. The guard has LLDB's end of the connection to it, too: so it lives on when LLDB is killed,
fetches what the threads have got to, and lets them go as the guard tells it to.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import mmap
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

from gdbext.engine import libc
from gdbext.engine.arch import architectures
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.live.kernel_probes import listed_probes
from gdbext.engine.targets.live.proc_checks import parent, thread_states, tracer
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_maps, start_survivor, stat_fields
from gdbext.engine.targets.system.socket_table import SocketTables
from gdbext.errors import GdbextError

PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY, _STOPPED = 8, "T"
_ANONYMOUS = bytes(int(byte & 0xE0 in (0x80, 0x40)) for byte in range(256))
"""The kind of a page, by the last byte of an entry of pagemap: bit 63 present, 62 swapped, 61 a page of the file."""
_FEW_PAGES = 1 << 16
"""Pages that are asked for at once: 256 MB of code."""
_MOST_PAGES = 1 << 23
"""Pages of code that are asked for in one look: 32 GB. Whoever maps more has made them to hold us up."""
_SECONDS, _PAUSE = 2.0, 0.02
_LOOK = 0.5
"""Seconds between two looks while the debugger lives."""
_NAME = "gdbext-guard"


class DebuggerGuard:
    """Watches over one process that this one traces: until close(), until it is let go, or until we have ended."""

    def __init__(self, pid: int) -> None:
        """The process stands still, or nobody traces it yet. Without the right to write to it nothing is done."""
        self.pid = pid
        self.has_server = False
        """The guard can tell the server that traces the process to let it go."""
        self._mutex = RobustMutex()
        self._socket, theirs = socket.socketpair()
        self._child, files = 0, []
        own = architectures.own()
        with theirs, contextlib.suppress(OSError):
            if not own:
                return
            for name, how in (("mem", os.O_RDWR), ("pagemap", os.O_RDONLY)):
                files.append(os.open(f"/proc/{pid}/{name}", how | os.O_CLOEXEC))
            healer = Healer(own.breakpoint_code, pid, *files)
            server = tracer(pid, pid)
            if server in (0, os.getpid()):
                healer.note()  # LLDB leaves its breakpoints there while the process stands still
            self._mutex.lock()
            connection = ServerConnection(connection_to(server) if server and parent(pid) != server else -1)
            keep = (*files, theirs.fileno(), connection.descriptor)
            self.has_server = connection.descriptor >= 0
            self._child = start_survivor(lambda: _Watch(healer, theirs, self._mutex, connection).run(), _NAME, keep)
        for descriptor in files:
            os.close(descriptor)

    @property
    def is_there(self) -> bool:
        """The guard's process still watches over the other one."""
        try:
            return bool(self._child) and self._socket.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Let the guard go; idempotent."""
        if self._child:
            with contextlib.suppress(OSError):
                self._socket.send(b"x")
            with contextlib.suppress(ChildProcessError):  # the debugger may have waited for it
                os.waitpid(self._child, 0)
        self._child = 0
        self._socket.close()


class DebuggerGuards:
    """The guard of one debugger: over the process that it has let run last."""

    def __init__(self) -> None:
        self._guard: DebuggerGuard | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """The debugger has let the process go, or ends in its own way: what it leaves there from now on is another
        tool's, the probes of the next command at the same places for example. Idempotent."""
        if self._guard:
            self._guard.close()
            self._guard = None

    def watch_over(self, pid: int) -> None:
        """Guard that process, which stands still, until it is let go."""
        if not self._guard or self._guard.pid != pid or not self._guard.is_there:
            self.close()
            self._guard = DebuggerGuard(pid)

    @property
    def has_server(self) -> bool:
        """A kill of the debugger does no harm even where breakpoints are: its server outlives it."""
        return bool(self._guard and self._guard.has_server and self._guard.is_there)


class RobustMutex:
    """A lock that another process gets when the thread that has it dies, before its tracees are let go (exit_mm_release
    comes before exit_notify in do_exit, kernel/exit.c): long before its descriptors are closed."""

    _SHARED, _ROBUST, _SIZE = 1, 1, 64
    """PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST (pthread.h of glibc); more than the types of any platform take."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PAGE)
        self._address = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        attributes = ctypes.create_string_buffer(self._SIZE)
        libc.function("pthread_mutexattr_init")(attributes)
        libc.function("pthread_mutexattr_setpshared")(attributes, self._SHARED)
        libc.function("pthread_mutexattr_setrobust")(attributes, self._ROBUST)
        libc.function("pthread_mutex_init")(self._address, attributes)

    def lock(self) -> bool:
        """Take the lock; True where its owner has died."""
        return bool(libc.function("pthread_mutex_lock")(self._address) == errno.EOWNERDEAD)


class _Watch:
    """The work of the guard's own process."""

    def __init__(self, healer: Healer, debugger: socket.socket, mutex: RobustMutex, server: ServerConnection) -> None:
        self._server = server
        self._healer = healer
        self._pid = healer.pid
        self._debugger = debugger
        self._mutex = mutex
        self._tracer = tracer(healer.pid, healer.pid)
        self._parent = os.getppid()

    def run(self) -> None:
        """Heal when the debugger has ended without a word, or its helper that traces the process (LLDB's server)."""
        if self._tracer == self._parent:
            threading.Thread(target=self._wait_for_death, daemon=True).start()
        waits = [self._debugger.fileno()]
        if self._tracer and hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile: the first look shows it
                waits.append(os.pidfd_open(self._tracer))
        while not (ended := select.select(waits, [], [], _LOOK)[0]):
            now = tracer(self._pid, self._pid)
            self._tracer = self._tracer or now
            if now != self._tracer:
                if not _is_ending(self._tracer):
                    return  # it was let go
                break
            self._healer.look()
        self._tracer = self._tracer or tracer(self._pid, self._pid)
        if self._debugger.fileno() not in ended or not self._debugger.recv(1):
            with self._server.stopped():
                self._healer.heal()
            self._heal()

    def _wait_for_death(self) -> None:
        """Heal as soon as the thread that traces is about to end."""
        if self._mutex.lock():
            self._healer.heal()

    def _heal(self) -> None:
        """Once nobody traces the process, what is put into its code is another tool's, where the kernel knows of it."""
        end = time.monotonic() + _SECONDS
        while tracer(self._pid, self._pid) in (0, self._tracer) and time.monotonic() < end:  # else another one has it
            is_free = not tracer(self._pid, self._pid)
            self._healer.heal()
            if is_free:
                self._healer.forget()
                if thread_states(self._pid).get(self._pid) == _STOPPED:
                    os.kill(self._pid, signal.SIGCONT)
            time.sleep(_PAUSE)


class ServerConnection:
    """The end that a killed LLDB had of its connection to the server that traces the process (gdb manual, Remote
    Protocol). That says that the process stands still when it has fetched all stops by wait(2)."""

    _STOP, _STOPPED = b"\x03$?#3f", re.compile(rb"\$[TSWX][0-9a-f]{2}")
    """An interrupt is answered by who lets the process run, the question by who does not."""
    _DETACH, _DONE = b"$D#44", re.compile(rb"\$(OK|E)")

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: -1 where there is no server."""
        self.descriptor = descriptor

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The process stands still meanwhile, and is let go: in vain where no server answers."""
        self._ask(self._STOP, self._STOPPED)
        yield
        self._ask(self._DETACH, self._DONE)
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _ask(self, request: bytes, answer: re.Pattern[bytes]) -> None:
        """Write that, and wait for what answers it."""
        ours, said, end = [self.descriptor], b"", time.monotonic() + _SECONDS
        with contextlib.suppress(OSError):
            os.write(self.descriptor, request)
            while not answer.search(said) and select.select(ours, [], [], max(0, end - time.monotonic()))[0]:
                data = os.read(self.descriptor, PAGE)
                if not data:
                    return
                said += data


def connection_to(server: int) -> int:
    """The descriptor of this process whose other end a child of ours has, by a pair of sockets; -1 for none."""
    if server == 0 or parent(server) != os.getpid():
        return -1
    theirs, tables = {*_sockets(server).values()}, SocketTables(os.getpid())
    peers = ((descriptor, tables.find(inode)) for descriptor, inode in _sockets(os.getpid()).items())
    return next((descriptor for descriptor, found in peers if found and found.peer in theirs), -1)


def _sockets(pid: int) -> dict[int, int]:
    """Descriptor → inode, of all sockets of a process. Raises OSError."""
    found, folder = {}, f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - pathlib is slow to import
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{name}").partition(":")  # noqa: PTH115
            if kind == "socket":
                found[int(name)] = int(inode[1:-1])
    return found


def _is_ending(pid: int) -> bool:
    """The process is about to end, or has ended: its first thread has PF_EXITING (include/linux/sched.h)."""
    try:
        return bool(int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[6]) & 4)
    except OSError:
        return True


def _as_probed(file: int, offset: int, size: int) -> bytes:
    """A page of a file as a process has it that maps the file as code: with the breakpoint instructions of all kernel
    probes that are for every process (uprobe_mmap, kernel/events/uprobes.c). b"" where it cannot be mapped."""
    try:
        with mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC, offset=offset) as mapped:
            return mapped[:]
    except (OSError, ValueError):
        return b""


def foreign_breakpoints(pid: int) -> list[int]:
    """The addresses of breakpoint instructions in a process's code that its files have not. Raises OSError."""
    own = architectures.own()
    if not own:
        return []
    descriptors: list[int] = []
    try:
        for name in ("mem", "pagemap"):
            descriptors.append(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC))
        return sorted(address for address, _ in Healer(own.breakpoint_code, pid, *descriptors).traps())
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def state_after_detach(pid: int) -> str:
    """What became of a process that a debugger of ours has detached from: a sentence without its full stop. That its
    code is whole is stated only after a comparison with its files."""
    try:
        state = thread_states(pid).get(pid, "")
    except OSError:
        state = ""
    if state in ("", "Z", "X"):
        return f"process {pid} has exited"
    if holder := tracer(pid, pid):
        return f"process {pid} is still traced, by process {holder}"
    if state == _STOPPED:
        return f"process {pid} is stopped; kill -CONT {pid} resumes it"
    try:
        left = len(foreign_breakpoints(pid))
    except PermissionError:
        return f"process {pid} was let go; whether its code is whole could not be read"
    except OSError:
        return f"process {pid} has exited"
    if left:
        return (
            f"{left} breakpoint instructions are left in the code of process {pid}: a thread that reaches one is killed"
        )
    return f"process {pid} was resumed"


class Healer:
    """Puts a process's code back as its files have it, where breakpoint instructions have come since note()."""

    def __init__(self, code: bytes, pid: int, memory: int, pages: int) -> None:
        """``code`` is the breakpoint instruction; ``memory`` and ``pages`` are open /proc/PID/mem and pagemap."""
        self.pid = pid
        self._code = code
        self._memory = memory
        self._pages = pages
        self._before: set[int] = set()
        self._known: dict[int, bytes] = {}

    def note(self) -> None:
        """Leave alone what is there now. Raises OSError."""
        self._before = {address for address, _ in self.traps()}

    def look(self) -> None:
        """Find the places beforehand, while the debugger lives. Raises OSError."""
        self._known.update(self.traps())

    def forget(self) -> None:
        """The debugger's breakpoints are gone: who has the kernel put a probe at such a place from now on is let."""
        self._known.clear()

    def heal(self) -> None:
        """Put the files' bytes back: first where they are known to be missing. Raises OSError."""
        for address, original in (*self._known.items(), *self.traps()):
            if address not in self._before and os.pread(self._memory, len(self._code), address) == self._code:
                os.pwrite(self._memory, original, address)

    def traps(self) -> Iterator[tuple[int, bytes]]:
        """The address of each breakpoint instruction that the file has not, and what the file has there. Not those of
        kernel probes that are for all processes, or that the kernel lists: the kernel takes them away."""
        listed: set[tuple[int, int, int]] | None = None
        for address, original, place in self._changed_places():
            if address not in self._known:
                listed = listed_probes(self.pid) if listed is None else listed
                if place in listed:
                    continue
            yield address, original

    def _changed_places(self) -> Iterator[tuple[int, bytes, tuple[int, int, int]]]:
        """The same with the device, the inode and the offset, also of probes for this process alone."""
        mappings = parse_maps(proc_files.text(f"/proc/{self.pid}/maps"))
        code = [each for each in mappings if each.permissions == "r-xp" and each.inode and not each.deleted]
        room = _MOST_PAGES
        for mapping in sorted(code, key=lambda each: each.end - each.start):
            with contextlib.suppress(OSError, GdbextError):
                pages = self._file_pages(mapping)
                room -= pages
                if room < 0:
                    return
                yield from self._traps_in(mapping, pages)

    def _file_pages(self, mapping: MemoryMapping) -> int:
        """The pages of a mapping, of a large one only as far as its file has any: no others can be written to."""
        pages = (mapping.end - mapping.start) // PAGE
        if pages <= _FEW_PAGES:
            return pages
        file = self._open(mapping)
        try:
            return max(0, min(pages, -((mapping.offset - os.fstat(file).st_size) // PAGE)))
        finally:
            os.close(file)

    def _open(self, mapping: MemoryMapping) -> int:
        return ForeignFiles.of_process(self.pid).open(mapping.path, LARGEST_LIBRARY)

    def _traps_in(self, mapping: MemoryMapping, pages: int) -> Iterator[tuple[int, bytes, tuple[int, int, int]]]:
        changed = self._changed_pages(mapping.start, pages)
        file = self._open(mapping) if changed else -1
        try:
            status = os.fstat(file) if changed else None
            for page in changed:
                offset = page - mapping.start + mapping.offset
                theirs, original = os.pread(self._memory, PAGE, page), os.pread(file, PAGE, offset)
                place, probed = theirs.find(self._code), b""
                while 0 <= place <= len(original) - len(self._code):
                    meant = original[place : place + len(self._code)]
                    if meant != self._code:
                        probed = probed or _as_probed(file, offset, len(original))
                        if status and probed[place : place + len(self._code)] != self._code:
                            yield page + place, meant, (status.st_dev, status.st_ino, offset + place)
                    place = theirs.find(self._code, place + 1)
        finally:
            if file >= 0:
                os.close(file)

    def _changed_pages(self, start: int, count: int) -> list[int]:
        """The addresses of the pages that somebody has written to, of so many from ``start`` on."""
        found = []
        for done in range(0, count, _FEW_PAGES):
            first = start + done * PAGE
            entries = os.pread(self._pages, min(count - done, _FEW_PAGES) * _ENTRY, first // PAGE * _ENTRY)
            kinds = entries[_ENTRY - 1 :: _ENTRY].translate(_ANONYMOUS)
            place = kinds.find(1)
            while place >= 0:
                found.append(first + place * PAGE)
                place = kinds.find(1, place + 1)
        return found
