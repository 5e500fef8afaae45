"""A process that the kernel dumps into a pipe: its memory in /proc/PID/mem, its registers in the head of the core.

The kernel keeps a dying process as it is until whoever reads the pipe has closed it (fs/coredump.c, Linux 6.1:
wait_for_dump_helpers, and before that each write to the full pipe). Nobody can trace its threads any more, but the
core's notes, which come before all memory, have their registers. So 100 GB need not be read, nor written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from gdbext.engine.arch import architectures
from gdbext.engine.formats import elf_header
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.targets.core_target import PIPE, CoreFileThread, open_core, signal_of
from gdbext.engine.targets.live.local_process import LocalProcess, own_tid, read_memory, thread_name
from gdbext.errors import BadCore

_HEAD = 64 << 20
"""Most bytes before a core's memory: 100,000 mappings have 6 MB of headers and 10 MB of names."""
_PIECE = 1 << 16


class DyingProcess(LocalProcess):
    """Process ``pid``, which the kernel dumps; it goes when the pipe is closed. Raises BadCore, ForeignArchitecture."""

    kind = "core"
    debugger = "none"

    def __init__(self, pid: int, memory: int, pipe: int) -> None:
        """``memory``: a descriptor of /proc/PID/mem; ``pipe``: the one that the core comes out of."""
        self.pid = pid
        self._memory = memory
        head = _head_file(pipe)
        core = open_core(f"/proc/self/fd/{head}")
        try:
            self.architecture = architectures.by_machine(core.machine)
            self.command = core.arguments or core.name
            signals = {core.threads[0].tid: signal_of(core.threads[0], False)}
            tids = _tids(pid)
            found = [
                CoreFileThread(
                    self.architecture, note._replace(tid=tids.get(note.tid, note.tid)), signals.get(note.tid)
                )
                for note in core.threads
            ]
        finally:
            core.close()
            os.close(head)
        for thread in found:
            thread.name = thread_name(pid, thread.tid)
        self._first = found[0]
        self._threads = sorted(found, key=lambda thread: thread.tid)

    @classmethod
    def named(cls, name: str) -> DyingProcess:
        """The target of that name (``PIPE``). Raises BadCore."""
        words = name[len(PIPE) :].split(":")
        if len(words) != 3 or not all(word.isdecimal() for word in words):
            raise BadCore(f"{name} is no pipe of the kernel's", help="core-handler makes such names")
        pid, memory, pipe = map(int, words)
        return cls(pid, memory, pipe)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault, TargetGone."""
        return read_memory(self._memory, self.pid, address, size)

    def threads(self) -> Sequence[TargetThread]:
        """All threads of the core's notes, by tid."""
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        """The thread that got the signal: the kernel writes it first."""
        return self._first


def _tids(pid: int) -> dict[int, int]:
    """Ids of the threads in their own PID namespace, which the notes have, to those of ours."""
    return {own_tid(pid, int(tid)): int(tid) for tid in os.listdir(f"/proc/{pid}/task")}  # noqa: PTH208


def _head_file(pipe: int) -> int:
    """A descriptor of a file in memory with the core up to the end of its notes. Raises BadCore."""
    head = bytearray(_exactly(pipe, elf_header.EHDR.size))
    if elf_header.identify(bytes(head)) is None:
        raise BadCore("what comes out of the pipe is no core")
    header = elf_header.parse_header(bytes(head))
    end = header.phoff + header.phnum * header.phentsize
    head += _exactly(pipe, end - len(head))
    for kind, _, offset, _, filesz, _ in elf_header.segments(bytes(head), header, header.phnum):
        end = max(end, offset + filesz) if kind == elf_header.PT_NOTE else end
    head += _exactly(pipe, end - len(head))
    descriptor = os.memfd_create("gdbext-core-head")
    view = memoryview(head)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _exactly(pipe: int, size: int) -> bytes:
    """The next ``size`` bytes of the pipe. Raises BadCore."""
    if size > _HEAD:
        raise BadCore(f"the core claims {size} bytes before its memory, and {_HEAD} are read at most")
    pieces = []
    while size > 0:
        piece = os.read(pipe, min(size, _PIECE))
        if not piece:
            raise BadCore("the core ends before the notes on its threads")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
