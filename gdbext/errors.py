"""The exceptions. Each error for users says what happened, why it can happen and what to try."""

from __future__ import annotations

import os
from collections.abc import Iterable


def as_root(command: str) -> str:
    """The command, with a note that it needs root unless we are root."""
    return command if os.geteuid() == 0 else f"as root: {command}"


def or_root(words: str) -> str:
    """``words``, which name a user to be, with root as an alternative unless we are root."""
    return words if os.geteuid() == 0 else f"{words}, or as root"


class GdbextError(Exception):
    """Base of all errors that gdbext raises on purpose. ``what`` is one sentence, ``why`` the usual reasons, ``help``
    the exact next step; subclasses have defaults for ``why`` and ``help``."""

    why: str = ""
    help: str = ""
    exit_status: int = 1  # the exit status of our program after this error

    def __init__(self, what: str, *, why: str | None = None, help: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        if why is not None:
            self.why = why
        if help is not None:
            self.help = help


class UsageError(GdbextError):
    """The command line cannot be understood (exit status 2)."""

    exit_status = 2


class TargetError(GdbextError):
    """The process or the core cannot be analyzed (exit status 1)."""

    why = "the debugger or the kernel refused a request"
    help = "examine it in another way (--debugger none or --debugger gdb), or take a core and examine that: gcore PID"


class NoSuchProcess(TargetError):
    """No process has that PID."""

    why = "it may have exited, or the PID belongs to another PID namespace (a container)"
    help = "find the process with: scripts/dispatch ps"


class NotPermitted(TargetError):
    """The kernel refuses to let us read the process."""

    why = (
        "ptrace is allowed only for the same user, only for child processes if /proc/sys/kernel/yama/ptrace_scope is "
        "1, and never if it is 3 or another debugger is attached"
    )
    help = "run it as the user of the process, or as root on the host"


class TargetGone(TargetError):
    """The process exited while we read it."""

    why = "the process exited, was killed or replaced itself by exec"
    help = "check its exit status; take a core of the next one and examine that: gcore PID"

    @classmethod
    def of(cls, pid: int) -> TargetGone:
        """The error for process ``pid``, in one line."""
        return cls(f"process {pid} has exited; take a core of the next one (gcore PID)", why="", help="")


class ProgramEnded(TargetGone):
    """A program that we started exited by itself; ``exit_status`` is its own."""

    why = ""
    help = ""

    def __init__(self, status: int) -> None:
        super().__init__(f"the program exited with status {status}: it neither crashed nor hung")
        self.exit_status = status


class BadCore(TargetError):
    """The file is not a readable core dump."""

    why = "it is empty, truncated (a full disk, ulimit -c) or not an ELF core file"
    help = "check with: file CORE; take a new one with: gcore PID"


class StacklessCore(BadCore):
    """The debugger that made the core left out the stacks of threads."""

    why = "an older gcore, such as that of gdb 13, cannot read memory with the guard pages of glibc 2.41 and later"
    help = "take it with a newer gdb (18 can), let the kernel write it (kill -ABRT PID), or record it: --record FILE"


class BadRecording(TargetError):
    """The file is not a recording that can be replayed."""

    why = "it was truncated or damaged in transfer, or is another kind of file"
    help = "make it again: scripts/dispatch -p PID --record FILE   (copy it as binary data)"


class ForeignArchitecture(TargetError):
    """The process or core belongs to an architecture that is not supported."""

    why = "only some architectures are supported"
    help = "examine it with gdb on a machine of that architecture"


class NotTorch(TargetError):
    """No PyTorch is loaded in the process."""

    why = "libtorch_cpu.so is not mapped: torch is not imported (yet), or this is another process of the job"
    help = "find the process with: scripts/dispatch ps"


class ProbesRefused(TargetError):
    """The kernel refuses probes in a process."""

    why = "uprobes with BPF need Linux 6.6 (5.15 for a few operators) and CAP_BPF with CAP_PERFMON, or root"
    help = (
        "run it as root on the host, or docker run --cap-add=BPF --cap-add=PERFMON; "
        "or trace by breakpoints: dispatch-trace OP --engine breakpoints"
    )


NOT_RECORDED = "not in the recording"
"""The reason of a MemoryFault in a replay: no command read that memory when the recording was made."""


class MemoryFault(GdbextError):
    """Memory at ``address`` cannot be read."""

    why = "the pointer to it is damaged or was being changed, or the core lacks that memory"
    help = "see which files could not be used: dispatch-info   or make a full core: gcore PID"

    def __init__(self, address: int, size: int = 0, reason: str = "not readable") -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}: {reason}")
        if reason == NOT_RECORDED:
            self.why = "no command read that memory when the recording was made"
            self.help = "make the recording with the command that needs it (--record FILE)"
        self.reason = reason
        self.address = address
        self.size = size


class BadData(GdbextError):
    """A value is impossible (a count out of range, a pointer to nowhere)."""

    why = "the process overwrote it, or was stopped while it was changing it"
    help = "let the process run and try again; gcore PID saves the current state"


class SymbolFileError(GdbextError):
    """An ELF file is missing, damaged or not the one in memory."""

    why = "it was deleted, upgraded or rebuilt after it had been loaded, or belongs to another machine or container"
    help = "pass the root of the process's files (--sysroot DIR), or run gdbext inside its container"


class LayoutError(GdbextError):
    """No layout matches this torch (or this Python), or the chosen one lacks something."""

    why = "offsets inside libtorch change with every version; none of the shipped layouts matches this build"
    help = "generate one from the installed headers: scripts/dispatch measure /path/to/site-packages/torch (needs g++)"


class PythonUnsupported(GdbextError):
    """This CPython cannot be read: its version, or its free-threaded build, is unknown."""

    why = "CPython's internal structures change with every version"
    help = "the native part of the report does not depend on it; py-spy or pystack may support this version"


class AddOnError(GdbextError):
    """An entry point of another package cannot be used."""


class HelpRequested(Exception):
    """--help was given; the text is the message."""


def words_like(word: str, words: Iterable[str], most: int, cutoff: float = 0.6) -> list[str]:
    """At most ``most`` of ``words`` spelled like ``word``, closest first; ``cutoff``: see difflib.get_close_matches."""
    from difflib import get_close_matches  # 2 ms, for mistakes alone

    return get_close_matches(word, list(words), most, cutoff)
