"""Live processes that another process overwrites while they are looked at."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.snapshot_target import brief_stop
from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.engine.targets.system.linux import parse_maps
from gdbext.tools.outcome import Outcome

from . import live_programs, memory_damage, subjects
from .look import Change, Kind, Look
from .memory_damage import PAGE, Patch

COMMANDS = (*subjects.JUDGED, ("dispatch-info", "--json"), ("all-threads", "--stacks"), ("dispatch-diagnose",))
_LOOKS = 200
"""After so many a process is replaced by a new one: scribbling leaves traces."""


class LiveKind(Kind):
    """A hung process whose memory changes all the time: a helper writes the damage and what was there in turn."""

    def __init__(self) -> None:
        super().__init__("live", 5, self._look)
        self._inferiors: dict[str, Inferior] = {}

    def _look(self, chance: Random, block: Random) -> Look:
        name = block.choice(("plain", "python", "python"))
        if name in self._inferiors and not self._inferiors[name].is_well():
            self._inferiors.pop(name).end()
        inferior = self._inferiors.get(name) or self._inferiors.setdefault(name, Inferior(name))
        damage = memory_damage.DAMAGES[chance.choice(("bits", "pointers", "pointers", "counts", "strings"))]
        changes = damage(inferior.memory, chance)
        command, brief = chance.choice(COMMANDS), chance.random() < 0.5
        truth = inferior.truth if command in subjects.JUDGED else None
        subject = f"{name}, {'copied' if brief else 'stopped'}"
        return Look(subject, command, changes, partial(inferior.run, command, brief), truth)

    def close(self) -> None:
        for inferior in self._inferiors.values():
            inferior.end()
        self._inferiors.clear()


class Inferior(subjects.Subject):
    """A process; of its memory the pages that it may write itself."""

    def __init__(self, name: str) -> None:
        self._process: subprocess.Popen[bytes] = live_programs.start(name)
        self.pid = self._process.pid
        self._looks = 0
        super().__init__(name, lambda command: _look_at(self.pid, command, False), self._writable)

    def _writable(self, used: Collection[int]) -> SparseBytes:
        maps = [each for each in parse_maps(Path(f"/proc/{self.pid}/maps").read_text()) if each.permissions[1] == "w"]
        pages = {word & -PAGE for word in used if any(each.start <= word < each.end for each in maps)}
        with open(f"/proc/{self.pid}/mem", "rb", 0) as memory:
            return SparseBytes.merged((page, os.pread(memory.fileno(), PAGE, page)) for page in pages)

    def run(self, command: Sequence[str], brief: bool, changes: Sequence[Change]) -> Outcome:
        """The command while a helper writes; afterwards all is as it was."""
        self._looks += 1
        known, patches = self.memory.known, [change for change in changes if isinstance(change, Patch)]
        writes = [(each.address, each.data, known.read(each.address, len(each.data)) or b"") for each in patches]
        helper = os.fork()
        if not helper:
            _scribble(self.pid, writes)
        try:
            return _look_at(self.pid, command, brief)
        finally:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
            with suppress(OSError), open(f"/proc/{self.pid}/mem", "r+b", 0) as file:
                for address, _, before in writes:
                    os.pwrite(file.fileno(), before, address)

    def is_well(self) -> bool:
        return self._looks < _LOOKS and self._process.poll() is None and live_programs.is_asleep(self.pid)

    def end(self) -> None:
        live_programs.end(self._process)


def _scribble(pid: int, writes: Sequence[tuple[int, bytes, bytes]]) -> None:
    live_programs.end_with_parent()
    chance = Random(len(writes))
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        while writes:
            for address, data, before in writes:
                os.pwrite(descriptor, data if chance.random() < 0.7 else before, address)
        signal.pause()
    finally:
        os._exit(0)


def _look_at(pid: int, command: Sequence[str], brief: bool) -> Outcome:
    return subjects.look(command, lambda: brief_stop(pid) if brief else ProcTarget(pid))


def can_trace() -> bool:
    with live_programs.running("python") as pid:
        return _look_at(pid, ("all-threads",), False).status == 0


KINDS = (LiveKind(),)
