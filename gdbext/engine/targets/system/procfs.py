"""Asks the system about a live process besides its memory: descriptors and children, from /proc. Linux."""

from __future__ import annotations

import os
import stat
import time
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles, link_of
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import (
    command_text,
    signal_name,
    signals_in,
    split_stat,
    stat_fields,
    status_values,
)
from gdbext.engine.targets.system.machine import Machine
from gdbext.engine.targets.system.peer import ChildProcess, PipeWait, ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gdbext.engine.targets.base_target import MemoryMapping
    from gdbext.engine.targets.host_files import AnyFact
    from gdbext.engine.targets.system.peer import Peer
    from gdbext.engine.targets.system.peers import Peers

_MAX_CHILDREN = 4096
_MAX_GRANDCHILDREN = 64
_MAX_DESCRIPTORS = 4096
_MAX_COMMAND = 4096
_MAX_THREADS = 32
"""Threads of a child that are looked at."""
_PIPE_CALLS = {"read": False, "write": True}
"""System calls on pipes, and whether they write."""
_TERMINALS = ("/dev/pts/", "/dev/tty")
_STATES = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.TRACED,
    "Z": ProcessState.ENDED,
    "D": ProcessState.UNINTERRUPTIBLE,
}
"""State letters of proc_pid_stat(5) that explain why a process does not answer."""

_PARENT = 4 - 3
_EXIT_CODE = 52 - 3
_PLACES = (26 - 3, 28 - 3, 47 - 3)
"""ppid, and startcode, startstack, start_brk of proc_pid_stat(5), counted from the state, which is its third field."""
_OF_EACH_PROGRAM = frozenset({2, 4, 6, 7, 8, 11, 31, 32, 33})
"""SIGINT, which Python itself handles; SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which report faults; the
two signals that glibc keeps for its threads (nptl/internaltypes.h)."""
_NO_RANDOM_ADDRESSES = 0x40000
"""The flag ADDR_NO_RANDOMIZE of a personality (include/uapi/linux/personality.h)."""
_START_TIME = 22 - 3
"""starttime, in clock ticks since boot, counted likewise."""


def started_at(pid: int) -> float | None:
    """The time when a process of this machine started, in seconds since the epoch; None where that cannot be read."""
    try:
        ticks = int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


class ProcFs:
    """Reads /proc/PID of a process on this machine; everything unknown is empty, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, syscall_names: Mapping[int, str]) -> None:
        """``syscall_names``: those of the process's architecture."""
        self._pid = pid
        self._syscall_names = syscall_names
        self._files = files
        self._links: dict[tuple[int, int], str] = {}

    def descriptor(self, fd: int) -> str:
        """``pipe:[77]``, ``socket:[5]``, a path; "" where it cannot be read."""
        return self._link(self._pid, fd)

    def children(self) -> Mapping[int, ChildProcess]:
        """The child processes by pid."""
        return self._children

    def grandchildren(self) -> Mapping[int, Sequence[ChildProcess]]:
        """The child processes of the children, by the child's pid; those of a launcher's agent, for example."""
        found, room = {}, _MAX_GRANDCHILDREN
        for pid in sorted(self._children)[:_MAX_GRANDCHILDREN]:
            theirs = self._children_of(pid)[:room]
            room -= len(theirs)
            if theirs:
                found[pid] = [self._child(each, brief=True) for each in theirs]
        return found

    def descendants(self) -> Mapping[int, int]:
        """The pid of each child, each child's child and so on with that of its parent, at most 4,096 of them."""
        return self._descendants

    @cached_property
    def _descendants(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        waiting = [self._pid]
        while waiting and len(found) < _MAX_CHILDREN:
            parent = waiting.pop(0)
            for pid in self._children_of(parent):
                if pid not in found:
                    found[pid] = parent
                    waiting.append(pid)
        return found

    def open_files(self, pid: int) -> set[str]:
        """The objects of the descriptors of any process, of at most 4,096 of them."""
        return {self._link(pid, fd) for fd in self._descriptors(pid)}

    def has_locked(self, pid: int, path: str) -> bool:
        """True if a process holds a lock of a file by one of its descriptors (proc_pid_fdinfo(5))."""
        files = [fd for fd in self._descriptors(pid) if self._link(pid, fd) == path]
        return any("lock:" in self._files.text(f"/proc/{pid}/fdinfo/{fd}") for fd in files)

    @cached_property
    def machine(self) -> Machine:
        """File systems and control groups of the process."""
        return Machine(self._pid, self._files, self.process)

    @cached_property
    def peers(self) -> Peers:
        """Other ends of the descriptors."""
        from gdbext.engine.targets.system.peers import Peers  # and socket: 4 ms, which few looks need

        return Peers(self._pid, self._files, self.process)

    def process(self, pid: int) -> ChildProcess:
        """Any process of this machine."""
        return self._children[pid] if pid in self._children else self._child(pid)

    def forked_from(self) -> int | None:
        """The parent, where this process is a copy of it: the kernel places code, stack and heap anew at every exec.

        proc_pid_stat(5). None as well where the addresses are not random, and so prove nothing.
        """
        fields = self._stat_fields(self._pid)
        parent = self._parent(fields)
        theirs = self._stat_fields(parent) if parent > 1 else []
        if not theirs or any(fields[at] != theirs[at] or (number(fields[at]) or 0) <= 1 for at in _PLACES):
            return None
        personality = number(self._files.text(f"/proc/{self._pid}/personality").strip(), 16)
        return None if personality is None or personality & _NO_RANDOM_ADDRESSES else parent

    def _parent(self, fields: Sequence[str]) -> int:
        """The parent's pid by the fields of /proc/PID/stat; 0 where that cannot be read."""
        return max(0, number(fields[_PARENT]) or 0) if fields else 0

    def _stat_fields(self, pid: int) -> list[str]:
        """The fields of /proc/PID/stat from the third on; empty where there are too few of them."""
        fields = stat_fields(self._files.text(f"/proc/{pid}/stat"))
        return fields if len(fields) > max(_PLACES) else []

    def handled_signals(self) -> list[int] | None:
        """The signals that the process has a handler of its own for, without SIGINT and those of faults (SigCgt of
        proc_pid_status(5)); None where that is not known."""
        mask = signals_in(status_values(self._files.text(f"/proc/{self._pid}/status")), "SigCgt")
        if mask is None:
            return None
        return [signal for signal in range(1, 65) if mask >> (signal - 1) & 1 and signal not in _OF_EACH_PROGRAM]

    def clock(self, number: int) -> float | None:
        """The clock's time; ours is the process's as long as it is in no time namespace of its own."""
        if number not in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC) or self._has_own_time:
            return None
        return self._files.clock(number)

    @cached_property
    def _has_own_time(self) -> bool:
        return self._files.link(f"/proc/{self._pid}/ns/time") != self._files.link("/proc/self/ns/time")

    @cached_property
    def _children(self) -> dict[int, ChildProcess]:
        return {pid: self._child(pid) for pid in self._children_of(self._pid)}

    def _children_of(self, process: int) -> list[int]:
        found: list[int] = []
        for tid in self._files.names(f"/proc/{process}/task") if process > 1 else ():
            words = self._files.text(f"/proc/{process}/task/{tid}/children").split()
            found += [child for word in words[:_MAX_CHILDREN] if (child := number(word)) is not None]
        return found

    def _child(self, pid: int, brief: bool = False) -> ChildProcess:
        """``brief``: without the pipes that its threads may wait for."""
        name, state = self._name_and_state(pid)
        ending = self._ending(pid) if state is ProcessState.ENDED else ""
        words = self._files.text(f"/proc/{pid}/cmdline", _MAX_COMMAND)
        command = command_text(words.encode("utf-8", "surrogateescape")).strip()
        waits = None if brief else self._waits_for_us(pid)
        return ChildProcess(pid, name, state, waits, ending, command, self._call(pid), self._read_terminal(pid))

    def _ending(self, pid: int) -> str:
        """The end of a process, by the wait status that is the last field of /proc/PID/stat (exit_code)."""
        fields = self._stat_fields(pid)
        status = number(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else None
        if status is None:
            return ""
        return f"killed by {signal_name(status & 0x7F)}" if status & 0x7F else f"exit status {status >> 8}"

    def _call(self, pid: int) -> str:
        """The system call that the main thread is in."""
        call = number(self._files.text(f"/proc/{pid}/syscall").partition(" ")[0])
        return "" if call is None else self._syscall_names.get(call, f"system call {call}")

    def _read_terminal(self, pid: int) -> str:
        """The terminal that the main thread is about to read from: it asks somebody."""
        words = self._files.text(f"/proc/{pid}/syscall").split()
        descriptor = number(words[1], 16) if len(words) > 1 and self._writes(words[0]) is False else None
        link = self._link(pid, descriptor) if descriptor is not None else ""
        return link if link.startswith(_TERMINALS) else ""

    def sharers(self, mapping: MemoryMapping) -> list[ChildProcess] | None:
        """Relatives that have mapped the same shared memory: what multiprocessing makes is inherited, or handed to
        children. None where nobody can tell."""
        fields = self._stat_fields(self._pid)
        parent = self._parent(fields)
        relatives = {parent, *self._children_of(parent), *self._children} - {0, 1, self._pid}
        wanted = f" {mapping.device} {mapping.inode} "
        unknown: list[str] = []
        found = self._files.fact(
            f"sharers of{wanted}", unknown, lambda: [str(pid) for pid in sorted(relatives) if wanted in _maps(pid)]
        )
        pids = [pid for each in found if (pid := number(each)) is not None and pid > 0]
        return [self.process(pid) for pid in pids] if mapping.inode and fields else None

    def absolute(self, path: str) -> str:
        """The path from the process's root; itself where its current folder is not known."""
        folder = "" if path.startswith("/") else self._files.link(f"/proc/{self._pid}/cwd")
        return os.path.normpath(f"{folder}/{path}") if folder else path

    def file_exists(self, path: str) -> bool | None:
        """True if the process sees that file; a relative name is taken from its current folder."""
        return self._files.exists(path, lambda: self._place(path))

    def is_named_pipe(self, path: str) -> bool:
        """True if the process sees a named pipe there."""

        def read() -> float | None:
            try:
                return float(stat.S_ISFIFO(self._files.foreign.status(self._place(path)).st_mode))
            except OSError:
                return None

        return bool(self._files.fact(f"{path} is a named pipe", None, read))

    def has_open(self, path: str) -> bool | None:
        """True if any process has that file open, as far as their descriptors may be read; None where that is not
        known."""
        found = self._files.fact(
            f"{path} is open", None, lambda: float(self.peers.has_open(os.path.normpath(self._place(path))))
        )
        return None if found is None else bool(found)

    def file_lock(self, path: str) -> Peer | None:
        """The process that has locked that file, None where nobody has or that is not known."""
        return self.peers.lock_of(path, lambda: self._place(path))

    def _place(self, path: str) -> str:
        """The path from the root; not recorded, as what is found there is."""
        folder = "" if path.startswith("/") else link_of(f"/proc/{self._pid}/cwd")
        return f"{folder}/{path}" if folder else path

    def _waits_for_us(self, pid: int) -> PipeWait | None:
        """The pipe of this process that the child is blocked on: who waits for that child may have to act itself.
        proc_pid_syscall(5): the number of the system call, then its arguments."""
        mine = self.open_files(self._pid)
        for tid in self._files.names(f"/proc/{pid}/task")[:_MAX_THREADS]:
            words = self._files.text(f"/proc/{pid}/task/{tid}/syscall").split()
            writes = self._writes(words[0]) if len(words) > 1 else None
            descriptor = number(words[1], 16) if writes is not None else None
            pipe = self._link(pid, descriptor) if descriptor is not None else ""
            if writes is not None and pipe.startswith("pipe:") and pipe in mine:
                return PipeWait(pipe, writes)
        return None

    def _writes(self, text: str) -> bool | None:
        """True if that system call writes to a pipe; None for any other, and for "running"."""
        call = number(text)
        return None if call is None else _PIPE_CALLS.get(self._syscall_names.get(call, ""))

    def _descriptors(self, pid: int) -> list[int]:
        names = self._files.names(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]
        return [fd for name in names if (fd := number(name)) is not None]

    def _link(self, pid: int, fd: int) -> str:
        key = (pid, fd)
        if key not in self._links:
            self._links[key] = self._files.link(f"/proc/{pid}/fd/{fd}")
        return self._links[key]

    def _name_and_state(self, pid: int) -> tuple[str, ProcessState | None]:
        name, fields = split_stat(self._files.text(f"/proc/{pid}/stat"))
        return name, _STATES.get(fields[:1])


class _UnknownFacts(HostFiles):
    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        return unknown


class _NoProcFs(ProcFs):
    def __init__(self) -> None:
        super().__init__(0, _UnknownFacts(), {})

    def __bool__(self) -> bool:
        return False

    def _link(self, pid: int, fd: int) -> str:  # noqa: ARG002
        return ""


NO_PROCFS = _NoProcFs()
"""Stands for /proc/PID of a core: falsy, and everything is unknown."""


def _maps(pid: int) -> str:
    try:
        return proc_files.read(f"/proc/{pid}/maps").decode(errors="replace")
    except OSError:
        return ""
