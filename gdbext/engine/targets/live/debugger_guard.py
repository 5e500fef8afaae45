"""A helper process that outlives a killed debugger, removes its breakpoints from the process and resumes that.

A debugger that is killed while its process runs leaves its breakpoint instructions there: its own in the dynamic
loader, the user's, and ours. SIGTRAP kills the process when a thread reaches one. And a thread that it was about to
stop gets the SIGSTOP that it had sent, which stops the process forever (ptrace_signal, kernel/signal.c: a signal that
the tracer has not fetched by wait(2) is delivered at its death). The guard restores the files' bytes and continues the
process.

LLDB's tracer is a server. The guard has LLDB's end of the connection to it, too, so the server survives when LLDB is
killed, fetches the stops of the threads, and detaches when the guard tells it to.
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
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from gdbext.engine import libc
from gdbext.engine.arch import architectures
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.live.proc_checks import parent, thread_states, tracer
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_maps, start_survivor, stat_fields
from gdbext.engine.targets.system.socket_table import SocketTables
from gdbext.errors import GdbextError

PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY, _STOPPED = 8, "T"
_ANONYMOUS = bytes(int(byte & 0xE0 in (0x80, 0x40)) for byte in range(256))
"""1 for an anonymous page, as one that was written to is, by the last byte of its entry in /proc/PID/pagemap: bit 63
present, 62 swapped, 61 a page of the file (admin-guide/mm/pagemap.rst). Few pages need to be read for that."""
_CHUNK_PAGES = 1 << 16
"""Pages that are asked for at once: 256 MB of code."""
_MAX_PAGES = 1 << 23
"""Pages of code that are asked for in one search: 32 GB. More were mapped to delay us."""
_ANSWER_SECONDS = 2.0


class DebuggerGuards:
    """The guard of one debugger, for the process that it resumed last."""

    def __init__(self) -> None:
        self._pid = 0
        self._child = 0  # PID of the guard's own process, 0 for none
        self._has_server = False
        self._mutex: RobustMutex | None = None
        """Locked since the first guard began. It must outlive the thread that holds it: the C library and the kernel
        follow a list of a thread's robust mutexes."""

    def watch_over(self, pid: int) -> None:
        """Guard that process, which is stopped or not traced yet, until close(), until it is detached from, or until we
        have exited. Nothing is done without permission to write to it."""
        if self._pid != pid or not self.is_alive:
            self.close()
            atexit.register(self.close)
            self._start(pid)

    def _start(self, pid: int) -> None:
        """Start the guard of a process in a process of its own, which has the memory of this one open."""
        self._pid, files = pid, []
        self._socket, theirs = socket.socketpair()
        own = architectures.own()
        with theirs, contextlib.suppress(OSError):
            for name, how in (("mem", os.O_RDWR), ("pagemap", os.O_RDONLY)) if own else ():
                files.append(os.open(f"/proc/{pid}/{name}", how | os.O_CLOEXEC))
            if own:
                healer = Healer(own.breakpoint_code, pid, *files)
                server = tracer(pid, pid)
                if server in (0, os.getpid()):
                    healer.note_existing()  # LLDB leaves its breakpoints there while the process is stopped
                if not self._mutex:
                    self._mutex = RobustMutex()
                    self._mutex.lock()
                connection = ServerConnection(connection_to(server) if server and parent(pid) != server else -1)
                self._has_server = connection.descriptor >= 0
                watch = partial(_watch, healer, theirs, self._mutex, connection)
                keep = (*files, theirs.fileno(), connection.descriptor)
                self._child = start_survivor(watch, "gdbext-guard", keep)
        for descriptor in files:
            os.close(descriptor)

    @property
    def is_alive(self) -> bool:
        """The guard's own process still watches."""
        try:
            return bool(self._child) and self._socket.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def has_server(self) -> bool:
        """Killing the debugger does no harm even if breakpoints are set: its server outlives it, and the guard can tell
        it to detach."""
        return self._has_server and self.is_alive

    def close(self) -> None:
        """Call this when the debugger has detached; also called at exit. Breakpoints that appear from now on are
        another tool's: probes of the next command at the same addresses, for example. A guard whose process we still
        trace watches on until we detach, or exit. Idempotent."""
        if self._pid:
            if self._is_needed():
                self._socket.detach()  # open until we exit, which tells the guard
            elif self._child:
                with contextlib.suppress(OSError):
                    self._socket.send(b"x")
                with contextlib.suppress(ChildProcessError):  # the debugger may have waited for it
                    os.waitpid(self._child, 0)
            self._socket.close()
            self._pid, self._child, self._has_server = 0, 0, False
            atexit.unregister(self.close)

    def _is_needed(self) -> bool:
        """True if this process still traces that one, itself or by a server, as where gdb exits although it cannot
        detach (quit_force, gdb/top.c): the kernel then detaches, and leaves the breakpoints."""
        holder = tracer(self._pid, self._pid)
        return self.is_alive and holder > 0 and os.getpid() in (holder, parent(holder))


class RobustMutex:
    """A lock that another process gets when the thread that holds it dies, before its tracees are detached
    (exit_mm_release comes before exit_notify in do_exit, kernel/exit.c): long before its fds are closed."""

    def __init__(self) -> None:
        """A mutex in shared memory, so that a child has it, too."""
        self._memory = mmap.mmap(-1, PAGE)
        self._address = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        attributes = ctypes.create_string_buffer(64)  # more than the type has on any platform
        libc.function("pthread_mutexattr_init")(attributes)
        libc.function("pthread_mutexattr_setpshared")(attributes, 1)  # PTHREAD_PROCESS_SHARED (pthread.h of glibc)
        libc.function("pthread_mutexattr_setrobust")(attributes, 1)  # PTHREAD_MUTEX_ROBUST
        libc.function("pthread_mutex_init")(self._address, attributes)

    def lock(self) -> bool:
        """Take the lock; True if its owner has died."""
        return bool(libc.function("pthread_mutex_lock")(self._address) == errno.EOWNERDEAD)


def _watch(healer: Healer, debugger: socket.socket, mutex: RobustMutex, server: ServerConnection) -> None:
    """The work of the guard's own process: heal when the debugger has exited without telling us, or its helper that
    traces the process (LLDB's server). ``debugger``: our end of a pair of sockets, which it closes at its exit."""
    pid = healer.pid
    tracer_pid = tracer(pid, pid)

    if tracer_pid == os.getppid():
        # lock() returns True once the tracing thread is about to exit
        threading.Thread(target=lambda: healer.heal() if mutex.lock() else None, daemon=True).start()
    waits = [debugger.fileno()]
    if tracer_pid and hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):  # it has exited meanwhile: the first check shows it
            waits.append(os.pidfd_open(tracer_pid))
    while not (exited := select.select(waits, [], [], 0.5)[0]):
        now = tracer(pid, pid)
        tracer_pid = tracer_pid or now
        if now != tracer_pid:
            if not _is_exiting(tracer_pid):
                return  # it detached
            break
        healer.find_early()
    tracer_pid = tracer_pid or tracer(pid, pid)
    if debugger.fileno() in exited and debugger.recv(1):
        return
    with server.stopped():
        healer.heal()
    # Once the process is not traced, new breakpoint instructions that the kernel knows of are another tool's.
    end = time.monotonic() + _ANSWER_SECONDS
    while tracer(pid, pid) in (0, tracer_pid) and time.monotonic() < end:  # else another tracer has it
        is_free = not tracer(pid, pid)
        healer.heal()
        if is_free:
            healer.forget()
            if thread_states(pid).get(pid) == _STOPPED:
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)


class ServerConnection:
    """The end that a killed LLDB had of its connection to the server that traces the process (gdb manual, Remote
    Protocol). The server reports a stop when it has fetched all stops by wait(2)."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: the fd of that end, -1 if there is no server."""
        self.descriptor = descriptor

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The process is stopped inside, and detached from afterwards; no effect if no server answers."""
        # \x03 interrupts a process that runs, and "?" asks about one that is stopped: one of them is answered
        self._ask(b"\x03$?#3f", rb"\$[TSWX][0-9a-f]{2}")
        yield
        self._ask(b"$D#44", rb"\$(OK|E)")
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _ask(self, request: bytes, answer: bytes) -> None:
        """Send the request, and wait for text that matches ``answer``."""
        ours, received, end = [self.descriptor], b"", time.monotonic() + _ANSWER_SECONDS
        with contextlib.suppress(OSError):
            os.write(self.descriptor, request)
            while not re.search(answer, received) and select.select(ours, [], [], max(0, end - time.monotonic()))[0]:
                data = os.read(self.descriptor, PAGE)
                if not data:
                    return
                received += data


def connection_to(server: int) -> int:
    """The fd of this process that is one of a pair of sockets whose other one our child ``server`` has; -1 for none."""
    if server == 0 or parent(server) != os.getpid():
        return -1
    server_inodes, tables = {*_socket_fds(server).values()}, SocketTables(os.getpid())
    sockets = ((fd, tables.find(inode)) for fd, inode in _socket_fds(os.getpid()).items())
    return next((fd for fd, end in sockets if end and end.peer in server_inodes), -1)


def _socket_fds(pid: int) -> dict[int, int]:
    """Fd → inode, of all sockets of a process. Raises OSError."""
    inodes, folder = {}, f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - pathlib is slow to import
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{name}").partition(":")  # noqa: PTH115
            if kind == "socket":
                inodes[int(name)] = int(inode[1:-1])
    return inodes


def _is_exiting(pid: int) -> bool:
    """The process is exiting, or has exited: its first thread has PF_EXITING (include/linux/sched.h)."""
    with contextlib.suppress(OSError):
        return bool(int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[6]) & 4)
    return True


def _page_with_probes(file: int, offset: int, size: int) -> bytes:
    """A page of a file as a process sees it that maps the file as code: with the breakpoint instructions of all kernel
    probes that are for every process (uprobe_mmap, kernel/events/uprobes.c). b"" if it cannot be mapped."""
    try:
        with mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC, offset=offset) as mapped:
            return mapped[:]
    except (OSError, ValueError):
        return b""


def foreign_breakpoints(pid: int) -> list[int]:
    """The addresses of breakpoint instructions in a process's code that are not in its files. Raises OSError."""
    own = architectures.own()
    if not own:
        return []
    with open(f"/proc/{pid}/mem", "rb") as memory, open(f"/proc/{pid}/pagemap", "rb") as pages:
        healer = Healer(own.breakpoint_code, pid, memory.fileno(), pages.fileno())
        return sorted(address for address, _ in healer.breakpoints())


def state_after_detach(pid: int) -> str:
    """What became of a process that a debugger of ours has detached from: a sentence without its full stop. That its
    code is intact is said only after a comparison with its files."""
    state = ""
    with contextlib.suppress(OSError):
        state = thread_states(pid).get(pid, "")
    if state in ("", "Z", "X"):
        return f"process {pid} has exited"
    if holder := tracer(pid, pid):
        return f"process {pid} is still traced, by process {holder}"
    if state == _STOPPED:
        return f"process {pid} is stopped; kill -CONT {pid} resumes it"
    try:
        left = len(foreign_breakpoints(pid))
    except PermissionError:
        return f"process {pid} was resumed; whether its code is intact could not be read"
    except OSError:
        return f"process {pid} has exited"
    if left:
        return (
            f"{left} breakpoint instructions are left in the code of process {pid}: a thread that reaches one is killed"
        )
    return f"process {pid} was resumed"


# The breakpoint instructions of kernel probes look like those of a debugger, but the kernel removes them itself, and
# would not notice if we did.
_NEXT_LINK, _LINK_BY_ID, _LINK_INFO = 31, 30, 15
"""The numbers of BPF_LINK_GET_NEXT_ID, BPF_LINK_GET_FD_BY_ID and BPF_OBJ_GET_INFO_BY_FD (include/uapi/linux/bpf.h)."""
_PERF_LINK, _PROBES_LINK = 7, 12
"""Numbers of BPF_LINK_TYPE_PERF_EVENT and BPF_LINK_TYPE_UPROBE_MULTI (enum bpf_link_type)."""
_INFO, _LONGEST_PATH = 256, 4096
_PROBE_LINE = re.compile(r"[pr]\S*\s+(.+?):(0x[0-9a-fA-F]+)")
_PROBE_LINES = ("/sys/kernel/tracing/uprobe_events", "/sys/kernel/debug/tracing/uprobe_events")
"""Probes that perf probe has defined (Documentation/trace/uprobetracer.rst)."""


def listed_probes(pid: int) -> set[tuple[int, int, int]]:
    """(device, inode, file offset) of each probe that the kernel lists and that is not for another process than
    ``pid``: in links of BPF since Linux 6.8, 6.6 for single ones, and in tracefs. Needs CAP_SYS_ADMIN."""
    probes: set[tuple[int, int, int]] = set()
    own = architectures.own()
    files = [*_bpf_probes(own.probing.bpf_call, pid)] if own and own.probing else []
    for name in _PROBE_LINES:
        with contextlib.suppress(OSError), open(name, errors="surrogateescape") as file:
            lines = map(_PROBE_LINE.match, file)
            files += [(line[1], [int(line[2], 16)]) for line in lines if line]
    for path, offsets in files:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)  # noqa: PTH116 - pathlib is slow to import
            probes.update((status.st_dev, status.st_ino, offset) for offset in offsets)
    return probes


def _bpf_probes(number: int, pid: int) -> Iterator[tuple[str, list[int]]]:
    """(path, file offsets) of each link of BPF that has probes for process ``pid`` or for all; ``number`` is the number
    of bpf(2)."""
    system_call, link_id = libc.function("syscall"), bytes(4)
    while True:
        attributes = ctypes.create_string_buffer(link_id + bytes(8), 12)
        if system_call(number, _NEXT_LINK, attributes, 12) != 0:
            return
        link_id = attributes.raw[4:8]
        link = system_call(number, _LINK_BY_ID, ctypes.create_string_buffer(link_id + bytes(8), 12), 12)
        if link >= 0:  # else it was removed meanwhile
            try:
                yield from _probes_of_link(partial(_link_info, system_call, number, link), pid)
            finally:
                os.close(link)


def _link_info(system_call: Callable[..., int], number: int, link: int, given: bytes) -> bytes:
    """The kernel's ``struct bpf_link_info`` of a link; ``given`` are its first bytes in the request. b"" if refused."""
    info = ctypes.create_string_buffer(given, _INFO)
    attributes = ctypes.create_string_buffer(struct.pack("<IIQ", link, _INFO, ctypes.addressof(info)), 16)
    return info.raw if system_call(number, _LINK_INFO, attributes, len(attributes)) == 0 else b""


def _probes_of_link(describe: Callable[[bytes], bytes], pid: int) -> Iterator[tuple[str, list[int]]]:
    """(path, file offsets) of a link that has probes: its members uprobe_multi and perf_event.uprobe. ``describe`` is
    _link_info for that link."""
    path = ctypes.create_string_buffer(_LONGEST_PATH)
    first = describe(b"")
    kind = int.from_bytes(first[:4], "little")
    if kind == _PROBES_LINK and int.from_bytes(first[60:64], "little") in (0, pid):
        count = int.from_bytes(first[52:56], "little")
        offsets = (ctypes.c_uint64 * count)()
        where = (ctypes.addressof(path), ctypes.addressof(offsets), 0, 0, _LONGEST_PATH, count)
        if describe(struct.pack("<16xQQQQII", *where)):
            yield os.fsdecode(path.value), [*offsets]
    elif kind == _PERF_LINK:
        second = describe(struct.pack("<24xQI", ctypes.addressof(path), _LONGEST_PATH))
        if int.from_bytes(second[16:20], "little") in (1, 2):  # BPF_PERF_EVENT_UPROBE, BPF_PERF_EVENT_URETPROBE
            yield os.fsdecode(path.value), [int.from_bytes(second[36:40], "little")]


class Healer:
    """Restores a process's code from its files, at breakpoint instructions that appeared after note_existing()."""

    def __init__(self, code: bytes, pid: int, memory: int, pages: int) -> None:
        """``code`` is the breakpoint instruction; ``memory`` and ``pages`` are open /proc/PID/mem and pagemap."""
        self.pid = pid
        self._code = code
        self._memory = memory
        self._pages = pages
        self._existing: set[int] = set()  # addresses at which breakpoint instructions are left alone
        self._early: dict[int, bytes] = {}  # address → bytes of the file, of those found by find_early()

    def note_existing(self) -> None:
        """Leave alone the breakpoint instructions that are there now. Raises OSError."""
        self._existing = {address for address, _ in self.breakpoints()}

    def find_early(self) -> None:
        """Find breakpoint instructions while the debugger is alive, so that heal() is quick. Raises OSError."""
        self._early.update(self.breakpoints())

    def forget(self) -> None:
        """The debugger's breakpoints are gone: leave alone kernel probes that appear at the same addresses now."""
        self._early.clear()

    def heal(self) -> None:
        """Restore the files' bytes, first at the addresses of find_early(). Raises OSError."""
        for address, original in (*self._early.items(), *self.breakpoints()):
            if address not in self._existing and os.pread(self._memory, len(self._code), address) == self._code:
                os.pwrite(self._memory, original, address)

    def breakpoints(self) -> Iterator[tuple[int, bytes]]:
        """(address, bytes of the file) of each breakpoint instruction that is not in the file. Not those of kernel
        probes that are for all processes, or that the kernel lists: the kernel removes them."""
        mappings = parse_maps(proc_files.text(f"/proc/{self.pid}/maps"))
        code = [
            mapping for mapping in mappings if mapping.permissions == "r-xp" and mapping.inode and not mapping.deleted
        ]
        listed = lru_cache(partial(listed_probes, self.pid))  # read on demand, once
        room = _MAX_PAGES
        for mapping in sorted(code, key=lambda mapping: mapping.end - mapping.start):
            with contextlib.suppress(OSError, GdbextError):
                pages = self._file_pages(mapping)
                room -= pages
                if room < 0:
                    return
                for address, original, probe in self._breakpoints_in(mapping, pages):
                    if address in self._early or probe not in listed():
                        yield address, original

    def _file_pages(self, mapping: MemoryMapping) -> int:
        """Number of pages of a mapping; of a large one only those that its file has: no others can be written to."""
        pages = (mapping.end - mapping.start) // PAGE
        if pages <= _CHUNK_PAGES:
            return pages
        file = self._open(mapping)
        try:
            return max(0, min(pages, -((mapping.offset - os.fstat(file).st_size) // PAGE)))
        finally:
            os.close(file)

    def _open(self, mapping: MemoryMapping) -> int:
        return ForeignFiles.of_process(self.pid).open(mapping.path, LARGEST_LIBRARY)

    def _breakpoints_in(self, mapping: MemoryMapping, pages: int) -> Iterator[tuple[int, bytes, tuple[int, int, int]]]:
        """(address, bytes of the file, its (device, inode, file offset)) of each breakpoint instruction in the first
        ``pages`` pages of a mapping that is neither in the file nor that of a kernel probe for all processes."""
        changed = self._changed_pages(mapping.start, pages)
        if not changed:
            return
        file = self._open(mapping)
        try:
            status = os.fstat(file)
            for page in changed:
                offset = page - mapping.start + mapping.offset
                present, original = os.pread(self._memory, PAGE, page), os.pread(file, PAGE, offset)
                index, probed = present.find(self._code), b""
                while 0 <= index <= len(original) - len(self._code):
                    replaced = original[index : index + len(self._code)]
                    if replaced != self._code:
                        probed = probed or _page_with_probes(file, offset, len(original))
                        if probed[index : index + len(self._code)] != self._code:
                            yield page + index, replaced, (status.st_dev, status.st_ino, offset + index)
                    index = present.find(self._code, index + 1)
        finally:
            os.close(file)

    def _changed_pages(self, start: int, count: int) -> list[int]:
        """The addresses of the pages that were written to, among ``count`` pages from ``start`` on."""
        changed = []
        for done in range(0, count, _CHUNK_PAGES):
            first = start + done * PAGE
            entries = os.pread(self._pages, min(count - done, _CHUNK_PAGES) * _ENTRY, first // PAGE * _ENTRY)
            is_anonymous = entries[_ENTRY - 1 :: _ENTRY].translate(_ANONYMOUS)
            index = is_anonymous.find(1)
            while index >= 0:
                changed.append(first + index * PAGE)
                index = is_anonymous.find(1, index + 1)
        return changed
