"""The protocol of targets, in three parts: memory (with threads), the moment of the stop, and the origin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.host_files import HostFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Optional

    from gdbext.engine.arch import Architecture

    Readings = tuple[Mapping[str, str], Mapping[str, str], Optional[float]]
    """Texts of files of the kernel by path; those of a second reading, {} for none; the seconds between them."""


class RecordedRun(NamedTuple):
    """What a recording says of its own making."""

    taken: str
    """When it was made: ISO 8601, in UTC."""
    gdbext: str
    """The version of gdbext that made it."""
    command: str
    """The command with its arguments."""


class MemoryMapping(NamedTuple):
    """One line of /proc/PID/maps, or one entry of a core's NT_FILE note. ``path`` is the path as the target names it,
    without the " (deleted)" mark; "" is anonymous memory; "[vdso]", "[stack]" and "[heap]" are kept as the kernel
    writes them. ``permissions`` is like "r-xp", or "" if unknown."""

    start: int
    end: int
    offset: int
    path: str
    permissions: str = ""
    deleted: bool = False
    device: str = ""
    inode: int = 0


class Signal(NamedTuple):
    """The signal that a thread is stopped by: ``number`` as in signal(7), ``address`` of a fault (si_addr)."""

    number: int
    name: str
    code: int | None = None
    address: int | None = None


class KernelSide(NamedTuple):
    """How a thread slept in the kernel before we stopped it."""

    state: str
    """The letter of its state: D, or S."""
    call: int
    """The number of its system call, -1 outside of one."""
    channel: str = ""
    """The function of the kernel that it sleeps in (wchan); "" if unknown."""
    arguments: tuple[int, ...] = ()
    """The arguments of its system call."""
    stack: tuple[str, ...] = ()
    """The functions of its kernel stack, innermost first; only root may read it."""
    seconds: float | None = None
    """Seconds since it last ran; None if unknown."""

    @property
    def is_uninterruptible(self) -> bool:
        return self.state == "D"

    @property
    def is_page_fault(self) -> bool:
        """It waits for a page of memory, outside any call; without its kernel stack ``channel`` decides."""
        # functions that serve a fault, whatever the architecture (mm/memory.c, fs/userfaultfd.c)
        functions = {"handle_mm_fault", "handle_userfault", "lock_mm_and_find_vma", "do_page_fault"}
        waits = ("handle_userfault", "folio_wait", "wait_on_page", "__folio_lock", "__lock_page", "request_wait_answer")
        return self.call == -1 and (not functions.isdisjoint(self.stack) or self.channel.startswith(waits))

    @property
    def is_userfault(self) -> bool:
        """It waits for a page that a userfaultfd(2) handler must supply."""
        return "handle_userfault" in (self.channel, *self.stack[:4])

    @property
    def is_out_of_memory(self) -> bool:
        """Its cgroup is out of memory and the OOM killer is off (mm/memcontrol-v1.c)."""
        return self.channel.startswith("mem_cgroup_oom")

    @property
    def is_frozen(self) -> bool:
        """Its cgroup is frozen. If do_freezer_trap is inlined, it sleeps (S) in get_signal itself; a thread that a
        signal or a tracer stopped has another state there."""
        freezer = {"do_freezer_trap", "__refrigerator", "refrigerator"}  # kernel/signal.c, kernel/freezer.c
        return self.channel == "get_signal" or not freezer.isdisjoint((self.channel, *self.stack))

    @property
    def is_served(self) -> bool:
        """It waits for the server of a file system, by the names of the kernel functions."""
        prefixes = ("fuse_", "request_wait_answer", "nfs", "rpc_", "cifs_", "wait_for_response", "ceph_", "p9_", "afs_")
        return any(function.startswith(prefixes) for function in (self.channel, *self.stack))

    @property
    def has_slept_long(self) -> bool:
        """It has slept too long for an ordinary read from a disk."""
        return self.seconds is not None and self.seconds >= 0.5

    @property
    def cannot_stop(self) -> bool:
        """No signal ends its sleep: it is uninterruptible, or becomes so when it is interrupted, as the wait for a FUSE
        server does (request_wait_answer, fs/fuse/dev.c)."""
        return self.has_slept_long and (self.is_uninterruptible or self.is_served)

    @property
    def location(self) -> str:
        """Its kernel functions for people, innermost first: ``folio_wait_bit_common < filemap_fault``."""
        return " < ".join(self.stack[:8]) or self.channel or "unknown"


class TargetThread(ABC):
    """One thread of the target, stopped."""

    tid: int
    """The kernel's thread id, in the target's PID namespace as the debugger reports it."""
    number: int | None = None
    """The debugger's number ("Thread 3"), None without a debugger."""
    name: str | None = None
    """The kernel's name (comm), None if unknown."""
    listed_name: str | None = None
    """The name, if listing the threads has read it."""
    runs_on = False
    """It runs while the target is read (nothing was stopped), so it has no registers."""
    lacks_registers = False
    """It was not stopped but sleeps: the registers that a called function saves are unknown."""
    signal: Signal | None = None
    """The fatal signal by which this thread is stopped, None if only we stopped it."""
    kernel_state: str | None = None
    """The letter of /proc/PID/task/TID/stat before we stopped it (R, S, D, T, Z), None if unknown."""
    stop_signal = 0
    """The signal that stopped its process before us (SIGSTOP, SIGTTIN, …), 0 for none or unknown."""
    kernel_side: KernelSide | None = None
    """How it slept in the kernel before we stopped it, if the program itself cannot explain that sleep."""

    @abstractmethod
    def registers(self) -> Mapping[str, int]:
        """Register name to unsigned value; at least the architecture's general registers. Raises TargetError."""

    def float_registers(self) -> Mapping[str, int]:
        """The low 8 bytes of the architecture's vector registers; {} if the target lacks them, and for threads that
        sleep in the kernel."""
        return {}


class TargetMemory(ABC):
    """What can be read of the process: memory, memory map, threads with their registers. Nothing here writes. The
    defaults are those of a target without mappings and threads."""

    reads_ahead = True
    """The pages after the wanted one may be read with it; a recording has only what was wanted."""
    records = False
    """A recording is being made: ``note`` must be called for what is used of the pages from ``copied_page``."""
    runs_meanwhile = False
    """The process runs while it is read: values that are read in several parts may contradict each other."""

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``. Raises MemoryFault, TargetGone."""

    def sample(self, address: int, size: int) -> bytes:
        """As ``read``, for bytes that are compared with a file: they are neither copied nor recorded."""
        return self.read(address, size)

    def copied_page(self, number: int) -> bytes:  # noqa: ARG002
        """The page at ``number`` times the page size if it was copied already, else b""."""
        return b""

    def note(self, address: int, size: int) -> None:
        """Keep these bytes in the recording; called only if ``records``."""

    def known_size(self, address: int) -> int:  # noqa: ARG002
        """Number of bytes at ``address`` that can be read at once, for readers that do not know how many they need."""
        return 1

    def is_current(self) -> bool:
        """True if cached reads are still valid. Only debugger targets, which report no writes, must check."""
        return True

    def maps(self) -> Sequence[MemoryMapping]:
        """The memory map, sorted by start. May lack anonymous regions (old cores)."""
        return ()

    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector (AT_* number to value), empty if unknown."""
        return {}

    def threads(self) -> Sequence[TargetThread]:
        """All threads, in the debugger's order (by tid without a debugger)."""
        return ()

    def selected_thread(self) -> TargetThread | None:
        """The thread that the user has selected in the debugger; without one the main thread, or the thread that the
        signal killed (cores)."""
        return next(iter(self.threads()), None)

    def selected_stack_pointer(self) -> int | None:
        """Stack pointer of the frame that the user selected with ``up`` or ``frame``; None for the innermost one, and
        without a debugger."""
        return None

    def evaluate(self, expression: str) -> int | None:  # noqa: ARG002
        """Address of the object, or value of the pointer, that an expression of the debugger's language denotes in the
        selected frame; None without a debugger. Never calls or writes anything. Raises UsageError."""
        return None


class TargetMoment:
    """The moment at which a process is examined, how it was stopped for that, and which threads ran since. This class
    is for targets that do not run: a core, a recording, a process that a debugger has stopped."""

    stopped_since: float | None = None
    """Time of the stop (time.perf_counter), None if unknown."""
    holder = ""
    """PID and name of another process whose tracing stopped all threads, "" if there is none."""

    @property
    def stops(self) -> int | None:
        """Number of times that we stopped the process; None for a core, and if a debugger stopped it."""
        return None

    @property
    def paused_ms(self) -> float | None:
        """Milliseconds for which we stopped the process; None for a core, and before the end of the stop."""
        return None

    def cut_short(self) -> Mapping[int, str]:
        """Thread id → name of the system call that one of our stops may have ended early."""
        return {}

    def on_change(self, action: Callable[[], None]) -> None:
        """Call ``action`` at each later stop: what was read before may be older than the threads."""

    def before_stops(self, prepare: Callable[[], Callable[[], None] | None]) -> None:
        """Call ``prepare`` before each later stop, and during the stop the function that it returns, which must be
        quick: all that this reads is of the moment of the stop."""

    def need_registers(self, tid: int) -> None:
        """Note that a proof needs registers that the thread lacks: ``retake`` then stops the process."""

    def stopped_thread(self, tid: int) -> TargetThread | None:  # noqa: ARG002
        """The thread with the registers that it lacked, if everything read so far also holds at a stop made now."""
        return None

    def retake(self, in_doubt: bool = False) -> bool:  # noqa: ARG002
        """Examine the process at a later moment if threads moved since this one; True if that was done. ``in_doubt``:
        what was read contradicts itself, so more attempts are allowed."""
        return False

    def hold(self) -> bool:
        """Stop the process until ``let_go``: what is read meanwhile is of one moment. False if it must not be stopped,
        or stands still anyway."""
        return False

    def let_go(self) -> None:
        """Resume the process after ``hold``."""

    def threads_that_ran(self) -> Sequence[int]:
        """Ids of threads that ran while memory was read: what is reported of them may mix two moments."""
        return ()

    def has_run(self, tid: int) -> bool:  # noqa: ARG002
        """True if the thread ran, or began, while memory was read: then its wait is over, or a new one."""
        return False

    def may_have_left(self, tid: int) -> bool:  # noqa: ARG002
        """True if the thread may have run since it was copied. Check this after reading facts that are in no copy (its
        fds, for example). Stops no thread."""
        return False


class TargetOrigin:
    """Where a target comes from: a process of this machine, a core or a recording, with the files that belong to it.
    This class is for a process of which only ``foreign`` files are known."""

    kind = "live"
    """The kind of target: "live" or "core"."""
    recorded: RecordedRun | None = None
    """The run that this is a recording of, None for all other targets."""
    readings: Readings | None = None
    """Surroundings of the process, read before it was stopped."""
    unreadable = ""
    """Names the parts of the process that the kernel does not let us read, "" if it answers."""

    def __init__(self, foreign: ForeignFiles | None = None) -> None:
        if foreign:
            self.foreign = foreign

    @cached_property
    def foreign(self) -> ForeignFiles:
        """Opens the files that the target names; by default those of this machine."""
        return ForeignFiles()

    @cached_property
    def files(self) -> HostFiles:
        """Reads files and facts of the system for this target."""
        return HostFiles(self.foreign)

    @property
    def is_core(self) -> bool:
        return self.kind == "core"

    def local_path(self, path: str) -> str:
        """Our name of the file that the target calls ``path`` (sysroot, /proc/PID/root); ``foreign`` opens it."""
        return self.foreign.local_path(path)

    def environ(self) -> Mapping[str, str]:
        """The target's initial environment, empty if unknown."""
        return {}

    def files_known_at(self) -> float | None:
        """Seconds since the epoch: a file that changed later may not be the one that the process has loaded. The start
        of a live process, the time at which a core was written; None if unknown."""
        return None

    def damage(self) -> Sequence[str]:
        """Sentences that say what a damaged core lacks."""
        return ()

    @property
    def is_truncated(self) -> bool:
        """It is a core whose end is missing."""
        return False

    def missing_from_recording(self) -> str:
        """Names what was asked for and is not in the recording, "" if nothing is missing."""
        return ""


class Target:
    """A stopped process, a core or a recording, in three parts; a part may be the target itself. Read-only."""

    debugger: str = "none"
    """The debugger: "gdb", "lldb" or "none"."""
    pid: int
    architecture: Architecture

    @property
    def memory(self) -> TargetMemory:
        return cast("TargetMemory", self)

    @property
    def moment(self) -> TargetMoment:
        return cast("TargetMoment", self)

    @property
    def origin(self) -> TargetOrigin:
        return cast("TargetOrigin", self)

    def close(self) -> None:
        """Resume the process if we stopped it (a live one, without a debugger); idempotent."""
