"""What several samples of a process show together, as ``dispatch-diagnose --samples`` reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.sections.section import Section
from gdbext.model.threads.thread_progress import ThreadProgress


@dataclass(frozen=True)
class SamplesSection(Section):
    """How many samples were taken, over how many seconds, and the progress of each thread.

    ``calls``: of operators that a kernel probe counted meanwhile, None where there was no probe.
    """

    name: ClassVar[str] = "samples"
    count: int
    seconds: float
    threads: tuple[ThreadProgress, ...]
    calls: int | None = None
