"""What every target lends: memory, registers, threads and the memory map. There is nothing here that writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from gdbext.arch.base import Architecture
from gdbext.model.record import Record
from gdbext.model.recorded_run import RecordedRun
from gdbext.targets.host_files import HostFiles


class MemoryMapping(Record):
    """One line of /proc/PID/maps, or one entry of a core's NT_FILE note.

    ``path`` is the path as the target names it, without the " (deleted)" mark; "" is anonymous memory;
    "[vdso]", "[stack]" and "[heap]" are kept as the kernel writes them. ``permissions`` is like "r-xp", or ""
    where it is unknown.
    """

    start: int
    end: int
    offset: int
    path: str
    permissions: str = ""
    deleted: bool = False
    device: str = ""
    inode: int = 0


class Signal(Record):
    """The signal that a thread is stopped by: ``number`` as in signal(7), ``address`` of a fault (si_addr)."""

    number: int
    name: str
    code: int | None = None
    address: int | None = None


class Thread(ABC):
    """One thread of the target, stopped."""

    tid: int
    """The kernel's thread id, in the target's PID namespace as the debugger reports it."""
    number: int | None
    """The debugger's number ("Thread 3"), None without a debugger."""
    name: str | None
    """The kernel's name (comm), None where it is unknown."""

    listed_name: str | None = None
    """The same, where whoever listed the threads has read it anyway."""
    runs_on = False
    """It runs while we look, so that it has no registers to read: nobody is stopped."""
    signal: Signal | None
    """The fatal signal this thread is stopped by, None where it was only stopped by us."""

    @abstractmethod
    def registers(self) -> Mapping[str, int]:
        """Register name to unsigned value; at least the architecture's general registers. Raises TargetError."""

    def float_registers(self) -> Mapping[str, int]:
        """The low 8 bytes of the architecture's vector registers; {} where the target does not give them, and of
        threads that sleep in the kernel."""
        return {}

    @property
    def kernel_state(self) -> str | None:
        """The letter of /proc/PID/task/TID/stat before we stopped it (R, S, D, T, Z), None if unknown."""
        return None


class Target(ABC):
    """A stopped process or a core dump. Read-only by construction."""

    kind: str
    """"live" or "core"."""
    debugger: str
    """"gdb", "lldb" or "none"."""
    pid: int
    architecture: Architecture
    recorded: RecordedRun | None = None
    """The run that this is a recording of; None for a target that is there."""
    stopped_since: float | None = None
    """When it was stopped (time.perf_counter), where that is known."""
    reads_ahead = True
    """Pages around the one that is wanted may be read with it; a recording holds only what was wanted."""

    @cached_property
    def files(self) -> HostFiles:
        """How files and facts of the system are read for this target."""
        return HostFiles()

    @property
    def is_core(self) -> bool:
        """True for a core dump."""
        return self.kind == "core"

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``. Raises MemoryFault, TargetGone."""

    def copied_page(self, number: int) -> bytes | None:  # noqa: ARG002
        """The page at ``number`` times the page size where it costs nothing to read, None elsewhere."""
        return None

    def sample(self, address: int, size: int) -> bytes:
        """As ``read``, of what is compared with a file and then forgotten."""
        return self.read(address, size)

    @abstractmethod
    def threads(self) -> Sequence[Thread]:
        """All threads, in the debugger's order (by tid without a debugger)."""

    @abstractmethod
    def selected_thread(self) -> Thread | None:
        """The thread the user looks at; for a core without debugger the one that got the signal."""

    def evaluate(self, expression: str) -> int | None:  # noqa: ARG002
        """The address that an expression of the debugger's language means in the selected frame: of an object, or what
        a pointer is. None where there is no debugger. Never calls or writes anything. Raises UsageError."""
        return None

    @abstractmethod
    def maps(self) -> Sequence[MemoryMapping]:
        """The memory map, sorted by start. May lack anonymous regions (old cores)."""

    @abstractmethod
    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector (AT_* number to value), empty if unknown."""

    @abstractmethod
    def local_path(self, path: str) -> str:
        """Where *we* can open a file that the target calls ``path`` (sysroot, /proc/PID/root)."""

    def environ(self) -> Mapping[str, str]:
        """The target's initial environment, empty if unknown."""
        return {}

    def damage(self) -> Sequence[str]:
        """What is missing from the target itself: the end of a core that was cut off."""
        return ()

    def lacks(self) -> str:
        """What was asked for and is not in the recording, "" when nothing was."""
        return ""

    def files_known_at(self) -> float | None:
        """Seconds since the epoch: a file that changed later may not be what the process has loaded.

        The start of a live process, the time at which a core was written; None if unknown.
        """
        return None

    def is_current(self) -> bool:
        """What was read is still so. Only a target of which nobody says when it was written to has to look."""
        return True

    def on_change(self, action: Callable[[], None]) -> None:
        """Have ``action`` called at a stop that comes later: what was read so far may be older than the threads."""

    @property
    def paused_ms(self) -> float | None:
        """How long the process stood still for us, in milliseconds; None for a core, and where that is not over."""
        return None

    def moved(self) -> Sequence[int]:
        """Thread ids of those that ran on while memory was read: what is said of them may mix two moments."""
        return ()

    def ran_on(self, tid: int) -> bool:
        """That thread ran on, or began, while memory was read: it does not wait for ever for what it was seen to."""
        del tid
        return False

    def again(self) -> bool:
        """Take another look at the process, where threads moved during this one; whether that was done."""
        return False

    def close(self) -> None:
        """Let the target go on as before (live without debugger); idempotent."""
