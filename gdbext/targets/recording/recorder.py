"""A target of which everything that is read is written down."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from gdbext import __version__
from gdbext.errors import GdbextError, MemoryFault
from gdbext.formats.auxv import AT_RANDOM
from gdbext.model.recorded_run import RecordedRun
from gdbext.targets import environment
from gdbext.targets.base import MemoryMapping, Target, Thread
from gdbext.targets.recording.logged_files import LoggedFiles
from gdbext.targets.recording.recording import RecordedThread, Recording
from gdbext.targets.recording.sparse_bytes import SparseBytes
from gdbext.targets.system.linux import PAGE_SIZE

MAX_MEMORY = 192 << 20
"""Bytes of memory that are kept; what is read after that is not in the recording."""
_RANDOM_BYTES = 16


class RecordingTarget(Target):
    """``target`` itself to everybody else; ``recording`` says what was read of it."""

    reads_ahead = False

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = target.kind
        self.debugger = target.debugger
        self.pid = target.pid
        self.architecture = target.architecture
        self.is_complete = True
        """False once more was read than is kept."""
        self._pieces: dict[tuple[int, int], bytes] = {}
        self._size = 0
        self._unreadable: set[int] = set()

    @cached_property
    def files(self) -> LoggedFiles:
        """The target's, noted."""
        return LoggedFiles(self.target.files)

    def read(self, address: int, size: int) -> bytes:
        """As the target; pages that cannot be read are noted, too."""
        try:
            found = self.target.read(address, size)
        except MemoryFault:
            if size == PAGE_SIZE and address % PAGE_SIZE == 0:
                self._unreadable.add(address)
            raise
        if self._size + size <= MAX_MEMORY:
            self._pieces[address, size] = found
            self._size += size
        else:
            self.is_complete = False
        return found

    def sample(self, address: int, size: int) -> bytes:
        """As the target; not noted."""
        return self.target.sample(address, size)

    def threads(self) -> Sequence[Thread]:
        """As the target."""
        return self.target.threads()

    def selected_thread(self) -> Thread | None:
        """As the target."""
        return self.target.selected_thread()

    def maps(self) -> Sequence[MemoryMapping]:
        """As the target."""
        return self.target.maps()

    def auxv(self) -> Mapping[int, int]:
        """As the target."""
        return self.target.auxv()

    def local_path(self, path: str) -> str:
        """As the target."""
        return self.target.local_path(path)

    def environ(self) -> Mapping[str, str]:
        """As the target."""
        return self.target.environ()

    def files_known_at(self) -> float | None:
        """As the target."""
        return self.target.files_known_at()

    def close(self) -> None:
        """Let the target go."""
        self.target.close()

    def recording(self, command: str) -> Recording:
        """What was read so far, all registers, the code and the stack that they point to; while the target is stopped.

        Raises TargetError.
        """
        selected = self.selected_thread()
        threads = tuple(_recorded(thread) for thread in self.threads())
        self._read_at(threads)
        return Recording(
            kind=self.kind,
            debugger=self.debugger,
            pid=self.pid,
            architecture=self.architecture.name,
            run=RecordedRun(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), __version__, command),
            selected=None if selected is None else selected.tid,
            threads=threads,
            maps=tuple(self.maps()),
            auxv=dict(self.auxv()),
            environ=environment.shown(self.environ()),
            facts=dict(self.files.facts),
            kept=dict(self.files.texts),
            modules=self.files.recorded_modules(),
            files=self.files.recorded_files(),
            memory=self._memory(),
            unreadable=frozenset(self._unreadable),
        )

    def _read_at(self, threads: Sequence[RecordedThread]) -> None:
        """Read the pages that program counters and stack pointers point to: a later version may want them, too."""
        for thread in threads:
            for name in (self.architecture.program_counter, self.architecture.stack_pointer):
                address = thread.registers.get(name, 0)
                try:
                    self.read(address - address % PAGE_SIZE, PAGE_SIZE)
                except MemoryFault:
                    continue

    def _memory(self) -> SparseBytes:
        """What was read, with the strings of the arguments and of the environment blanked."""
        start, end = self._strings()
        return SparseBytes.merged(
            (address, _blanked(address, piece, start, end)) for (address, _), piece in self._pieces.items()
        )

    def _strings(self) -> tuple[int, int]:
        """Where the kernel put them: at the end of the main thread's stack, behind the 16 bytes of AT_RANDOM
        (create_elf_tables and setup_arg_pages, Linux's fs/binfmt_elf.c and fs/exec.c)."""
        start = self.auxv().get(AT_RANDOM, 0)
        for mapping in self.maps():
            if mapping.start <= start < mapping.end:
                return start + _RANDOM_BYTES, mapping.end
        return 0, 0


def _blanked(address: int, piece: bytes, start: int, end: int) -> bytes:
    start, end = max(start, address), min(end, address + len(piece))
    if start >= end:
        return piece
    return piece[: start - address] + bytes(end - start) + piece[end - address :]


def _recorded(thread: Thread) -> RecordedThread:
    try:
        return RecordedThread(
            tid=thread.tid,
            number=thread.number,
            name=thread.name,
            signal=thread.signal,
            kernel_state=thread.kernel_state,
            registers=dict(thread.registers()),
            float_registers=dict(thread.float_registers()),
        )
    except GdbextError as error:
        return RecordedThread(
            thread.tid, thread.number, thread.name, None, thread.kernel_state, {}, error.what, error.help
        )
