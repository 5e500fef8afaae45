"""The target that a recording is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from gdbext.arch import registry
from gdbext.errors import MemoryFault, TargetError
from gdbext.targets.base import MemoryMapping, Target, Thread
from gdbext.targets.host_files import HostFiles
from gdbext.targets.recording import reader
from gdbext.targets.recording.missing import Missing
from gdbext.targets.recording.recording import RecordedThread, Recording
from gdbext.targets.recording.replayed_files import ReplayedFiles
from gdbext.targets.system.linux import PAGE_SIZE


class ReplayThread(Thread):
    """One thread of a recording."""

    def __init__(self, thread: RecordedThread, wanted: Sequence[str]) -> None:
        self.tid = thread.tid
        self.number = thread.number
        self.name = thread.name
        self.signal = thread.signal
        self._thread = thread
        self._wanted = wanted

    @property
    def kernel_state(self) -> str | None:
        """The state before the thread was stopped."""
        return self._thread.kernel_state

    def registers(self) -> Mapping[str, int]:
        """The registers. Raises TargetError where they could not be read."""
        registers = self._thread.registers
        if not all(name in registers for name in self._wanted):
            what = self._thread.problem or f"the registers of thread {self.tid} are not in the recording"
            raise TargetError(what, help=self._thread.help)
        return registers

    def float_registers(self) -> Mapping[str, int]:
        """Those of the recorded run; {} in recordings made before they were kept."""
        return self._thread.float_registers


class ReplayTarget(Target):
    """A recording. What was not read when it was made cannot be read, and ``missing`` says so.

    Raises BadRecording, ForeignArchitecture.
    """

    reads_ahead = False

    def __init__(self, recording: Recording) -> None:
        self.architecture = registry.by_name(recording.architecture)
        self.recording = recording
        self.recorded = recording.run
        self.kind = recording.kind
        self.debugger = recording.debugger
        self.pid = recording.pid
        self.missing = Missing()
        self._threads = [ReplayThread(thread, self.architecture.general_registers) for thread in recording.threads]

    @classmethod
    def load(cls, path: str) -> ReplayTarget:
        """The recording in a file."""
        return cls(reader.load(path))

    @cached_property
    def files(self) -> HostFiles:
        """The files of the recording."""
        return ReplayedFiles(self.recording, self.missing)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault."""
        found = self.recording.memory.read(address, size)
        if found is not None:
            return found
        gap = self.recording.memory.gap(address, size)
        if gap - gap % PAGE_SIZE in self.recording.unreadable:
            raise MemoryFault(address, size)
        self.missing.note("pages of memory", gap // PAGE_SIZE)
        raise MemoryFault(address, size, "not in the recording")

    def threads(self) -> Sequence[Thread]:
        """All threads, in the order of the recorded run."""
        return self._threads

    def selected_thread(self) -> Thread | None:
        """The thread that was selected."""
        return next((thread for thread in self._threads if thread.tid == self.recording.selected), None)

    def maps(self) -> Sequence[MemoryMapping]:
        """The memory map."""
        return self.recording.maps

    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector."""
        return self.recording.auxv

    def local_path(self, path: str) -> str:
        """Nothing is opened here."""
        return path

    def environ(self) -> Mapping[str, str]:
        """The variables that matter, of the initial environment."""
        return self.recording.environ

    def lacks(self) -> str:
        """What was asked for and is not there."""
        return str(self.missing)
