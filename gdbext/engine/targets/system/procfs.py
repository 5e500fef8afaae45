"""Reads /proc about a live process besides its memory: fds, children, files that it names. Linux."""

from __future__ import annotations

import os
import stat
import time
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import (
    command_text,
    signal_name,
    signals_in,
    split_stat,
    stat_fields,
)
from gdbext.engine.targets.system.machine import Machine
from gdbext.engine.targets.system.peer import ChildProcess, PipeWait, ProcessState
from gdbext.engine.targets.system.proc_files import all_fds, file_text, link_target, status_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.engine.targets.base_target import MemoryMapping
    from gdbext.engine.targets.host_files import AnyFact
    from gdbext.engine.targets.system.peer import Peer
    from gdbext.engine.targets.system.peers import Peers

_MAX_CHILDREN = 4096
_MAX_DESCRIPTORS = 4096
_STATES = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.TRACED,
    "Z": ProcessState.ENDED,
    "D": ProcessState.UNINTERRUPTIBLE,
}
"""State letters of proc_pid_stat(5) that explain why a process does not answer."""
_PARENT, _START_TIME, _EXIT_CODE = 4 - 3, 22 - 3, 52 - 3
"""ppid, starttime (ticks since boot) and exit_code of proc_pid_stat(5), counted from the state, its third field."""
_ADDRESSES = (26 - 3, 28 - 3, 47 - 3)
"""startcode, startstack and start_brk, counted likewise."""
_COMMON_SIGNALS = frozenset({2, 4, 6, 7, 8, 11, 31, 32, 33})
"""SIGINT, which Python itself handles; SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which report faults; the
two signals that glibc keeps for its threads (nptl/internaltypes.h)."""


def started_at(pid: int) -> float | None:
    """When a process of this machine started, in seconds since the epoch; None if that cannot be read."""
    try:
        ticks = int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


class ProcFs:
    """Reads /proc/PID of a process on this machine; unknown answers are empty, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, syscall_names: Mapping[int, str]) -> None:
        """``syscall_names``: those of the process's architecture."""
        self._pid = pid
        self._syscall_names = syscall_names
        self._files = files
        self._links: dict[tuple[int, int], str] = {}  # (pid, fd) → what it is open on

    @cached_property
    def machine(self) -> Machine:
        """File systems and cgroups of the process."""
        return Machine(self._pid, self._files, self.process)

    @cached_property
    def peers(self) -> Peers:
        """Other ends of the fds."""
        from gdbext.engine.targets.system.peers import Peers  # and socket: 4 ms, which few inspections need

        return Peers(self._pid, self._files, self.process)

    # --- fds -------------------------------------------------------------------------------------

    def descriptor(self, fd: int) -> str:
        """The target of an fd of this process: ``pipe:[77]``, ``socket:[5]``, a path; "" if it cannot be read."""
        return self._link(self._pid, fd)

    def _link(self, pid: int, fd: int) -> str:
        """As ``descriptor``, for an fd of process ``pid``."""
        if (pid, fd) not in self._links:
            self._links[pid, fd] = self._files.link(f"/proc/{pid}/fd/{fd}")
        return self._links[pid, fd]

    def _fds_of(self, pid: int) -> list[int]:
        names = self._files.names(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]
        return [fd for name in names if (fd := number(name)) is not None]

    def open_files(self, pid: int) -> set[str]:
        """The targets (``pipe:[77]``, paths) of at most 4,096 fds of any process."""
        return {self._link(pid, fd) for fd in self._fds_of(pid)}

    def has_locked(self, pid: int, path: str) -> bool:
        """True if a process holds a lock of a file by one of its fds (proc_pid_fdinfo(5))."""
        files = [fd for fd in self._fds_of(pid) if self._link(pid, fd) == path]
        return any("lock:" in self._files.text(f"/proc/{pid}/fdinfo/{fd}") for fd in files)

    # --- processes -------------------------------------------------------------------------------

    def children(self) -> Mapping[int, ChildProcess]:
        """The child processes by PID."""
        return self._children

    @cached_property
    def _children(self) -> dict[int, ChildProcess]:
        return {pid: self._describe(pid) for pid in self._children_of(self._pid)}

    def grandchildren(self) -> Mapping[int, Sequence[ChildProcess]]:
        """PID of a child, or of a further descendant → its own children, at most 64 of all together: a launcher's agent
        has some, for example, and a server's engine has workers."""
        grandchildren, room = {}, 64
        pending = sorted(self._children)[:room]
        while pending:
            child = pending.pop(0)
            if pids := self._children_of(child)[:room]:
                room -= len(pids)
                grandchildren[child] = [self._describe(pid, brief=True) for pid in pids]
                pending += pids
        return grandchildren

    def descendants(self) -> Mapping[int, int]:
        """PID → its parent's PID, of each child, each child's child and so on, at most 4,096 of them."""
        parents: dict[int, int] = {}
        pending = [self._pid]
        while pending and len(parents) < _MAX_CHILDREN:
            parent = pending.pop(0)
            children = [pid for pid in self._children_of(parent) if pid not in parents]
            parents.update(dict.fromkeys(children, parent))
            pending += children
        return parents

    def process(self, pid: int) -> ChildProcess:
        """The description of any process of this machine."""
        return self._children[pid] if pid in self._children else self._describe(pid)

    def _children_of(self, pid: int) -> list[int]:
        """PIDs of the children of process ``pid``, thread by thread; none for 0 and for init."""
        children: list[int] = []
        for tid in self._files.names(f"/proc/{pid}/task") if pid > 1 else ():
            words = self._files.text(f"/proc/{pid}/task/{tid}/children").split()
            children += [child for word in words[:_MAX_CHILDREN] if (child := number(word)) is not None]
        return children

    def _describe(self, pid: int, brief: bool = False) -> ChildProcess:
        """The description of a process; ``brief``: without the pipes that its threads may wait for."""
        name, fields = split_stat(self._files.text(f"/proc/{pid}/stat"))
        state = _STATES.get(fields[:1])
        codes = self._stat_fields(pid)[_EXIT_CODE : _EXIT_CODE + 1] if state is ProcessState.ENDED else []
        status = number("".join(codes))  # as wait(2) has it
        ending = ""
        if status is not None:
            ending = f"killed by {signal_name(status & 0x7F)}" if status & 0x7F else f"exit status {status >> 8}"
        words = self._files.text(f"/proc/{pid}/cmdline", 4096)
        command = command_text(words.encode("utf-8", "surrogateescape")).strip()
        waits = None if brief else self._pipe_wait(pid)
        call, fd = self._call(f"/proc/{pid}/syscall")
        link = self._link(pid, fd) if fd is not None and call == "read" else ""
        asks_at = link if link.startswith(("/dev/pts/", "/dev/tty")) else ""
        return ChildProcess(pid, name, state, waits, ending, command, call, asks_at)

    def _pipe_wait(self, pid: int) -> PipeWait | None:
        """The pipe of this process that one of the first 32 threads of the child is blocked on: this process may have
        to act itself."""
        own_files = self.open_files(self._pid)
        for tid in self._files.names(f"/proc/{pid}/task")[:32]:
            call, fd = self._call(f"/proc/{pid}/task/{tid}/syscall")
            link = self._link(pid, fd) if fd is not None and call in ("read", "write") else ""
            if link.startswith("pipe:") and link in own_files:
                return PipeWait(link, call == "write")
        return None

    def _call(self, path: str) -> tuple[str, int | None]:
        """(name, first argument) of the system call that a thread is blocked in, by its file ``syscall``
        (proc_pid_syscall(5)); ("", None) if it runs."""
        words = self._files.text(path).split()
        call = number(words[0]) if words else None
        if call is None:
            return "", None
        return self._syscall_names.get(call, f"system call {call}"), number(words[1], 16) if len(words) > 1 else None

    def start_ticks(self, pid: int) -> int | None:
        """When a process started, in clock ticks since boot; None if unknown."""
        fields = self._stat_fields(pid)
        return number(fields[_START_TIME]) if fields else None

    def is_no_process(self, pid: int) -> bool:
        """True if this machine has no process ``pid``, in the PID namespace of gdbext."""
        return not self._files.text(f"/proc/{pid}/stat") and bool(self._files.text(f"/proc/{self._pid}/stat"))

    def has_threads(self, pid: int) -> bool:
        """True if a process has more than one thread."""
        return len(self._files.names(f"/proc/{pid}/task")) > 1

    def forked_from(self) -> int | None:
        """The parent, if this process is a copy of it: the kernel places code, stack and heap anew at every exec
        (proc_pid_stat(5)). None also if the addresses are not random, and so prove nothing."""
        fields = self._stat_fields(self._pid)
        parent = self._parent(fields)
        others = self._stat_fields(parent) if parent > 1 else []
        if not others:
            return None
        # the kernel hides addresses as 0 or 1 from other users
        if any(fields[index] != others[index] or (number(fields[index]) or 0) <= 1 for index in _ADDRESSES):
            return None
        personality = number(self._files.text(f"/proc/{self._pid}/personality").strip(), 16)
        # 0x40000: ADDR_NO_RANDOMIZE (include/uapi/linux/personality.h)
        return None if personality is None or personality & 0x40000 else parent

    def _parent(self, fields: Sequence[str]) -> int:
        """The parent's PID, by the fields of /proc/PID/stat; 0 if unknown."""
        return number(fields[_PARENT]) or 0 if fields else 0

    def _stat_fields(self, pid: int) -> list[str]:
        """The fields of /proc/PID/stat from the third on; [] if there are too few of them."""
        fields = stat_fields(self._files.text(f"/proc/{pid}/stat"))
        return fields if len(fields) > max(_ADDRESSES) else []

    def sharers(self, mapping: MemoryMapping) -> list[ChildProcess] | None:
        """Parent, siblings and children that have mapped the same shared memory: what multiprocessing makes is
        inherited, or handed to children. None if unknown."""
        fields = self._stat_fields(self._pid)
        parent = self._parent(fields)
        relatives = {parent, *self._children_of(parent), *self._children} - {0, 1, self._pid}
        wanted = f" {mapping.device} {mapping.inode} "

        def read() -> Iterator[int]:
            return (pid for pid in sorted(relatives) if wanted in file_text(f"/proc/{pid}/maps", proc_files.TABLE))

        pids = self._files.pids(f"sharers of{wanted}", read)
        return [self.process(pid) for pid in pids if pid > 0] if mapping.inode and fields else None

    def handled_signals(self) -> list[int] | None:
        """The signals that the process has a handler of its own for, without SIGINT and those of faults (SigCgt of
        proc_pid_status(5)); None if unknown."""
        mask = signals_in(status_values(self._files.text(f"/proc/{self._pid}/status")), "SigCgt")
        if mask is None:
            return None
        return [signal for signal in range(1, 65) if mask >> (signal - 1) & 1 and signal not in _COMMON_SIGNALS]

    def clock(self, clock: int) -> float | None:
        """Seconds on the clock of that CLOCK_ number, as the process reads it; None if its time namespace has clocks of
        its own, and for other clocks than CLOCK_REALTIME and CLOCK_MONOTONIC."""
        if clock not in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
            return None
        has_own_clocks = self._files.link(f"/proc/{self._pid}/ns/time") != self._files.link("/proc/self/ns/time")
        return None if has_own_clocks else self._files.clock(clock)

    # --- files by their names --------------------------------------------------------------------

    def absolute(self, path: str) -> str:
        """The path from the process's root, for people; ``path`` if its current folder is unknown."""
        folder = "" if path.startswith("/") else self._files.link(f"/proc/{self._pid}/cwd")
        return os.path.normpath(f"{folder}/{path}") if folder else path

    def _path_from_root(self, path: str) -> str:
        """As ``absolute``, but not normalized and not recorded: it is needed only to read what is then recorded."""
        folder = "" if path.startswith("/") else link_target(f"/proc/{self._pid}/cwd")
        return f"{folder}/{path}" if folder else path

    def file_exists(self, path: str) -> bool | None:
        """True if the process would find that file, from its current folder; None if unknown."""
        return self._files.exists(path, lambda: self._path_from_root(path))

    def is_named_pipe(self, path: str) -> bool:
        """True if the process sees a named pipe there."""

        def read() -> bool:
            return stat.S_ISFIFO(self._files.foreign.status(self._path_from_root(path)).st_mode)

        return bool(self._files.flag(f"{path} is a named pipe", read))

    def has_open(self, path: str) -> bool | None:
        """True if any process whose fds may be read has that file open; None if unknown."""

        def read() -> bool:
            absolute = os.path.normpath(self._path_from_root(path))
            return any(link_target(f"/proc/{pid}/fd/{fd}") == absolute for pid, fd in all_fds())

        return self._files.flag(f"{path} is open", read)

    def file_lock(self, path: str) -> Peer | None:
        """The process that has locked that file, None for none or unknown."""
        return self.peers.lock_of(path, lambda: self._path_from_root(path))


class _UnknownFacts(HostFiles):
    """Reads nothing: each fact is unknown."""

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        return unknown


class _NoProcFs(ProcFs):
    def __init__(self) -> None:
        super().__init__(0, _UnknownFacts(), {})

    def __bool__(self) -> bool:
        return False


NO_PROCFS = _NoProcFs()
"""Used for a core: falsy, and everything is unknown."""
