"""The files that a process has mapped, with their names and unwind rows: the same as long as none comes or goes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.process.modules import ModuleTable
from gdbext.process.symbols import Symbolizer
from gdbext.unwind.frame_steps import FrameSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.process.memory import Memory
    from gdbext.process.modules import Module
    from gdbext.targets.base import Target


class LoadedFiles:
    """Modules, their symbols, and the steps from frame to frame.

    ``earlier`` are those of another look at the same process: what has not changed since is taken over.
    """

    def __init__(self, target: Target, memory: Memory, earlier: LoadedFiles | None = None) -> None:
        known: Sequence[Module] = earlier.modules.modules if earlier is not None else ()
        self.modules: ModuleTable = ModuleTable(target, memory, known)
        self._memory = memory
        self._earlier = earlier if self.modules.modules == known else None

    @cached_property
    def symbolizer(self) -> Symbolizer:
        """Names of addresses, addresses of names."""
        if self._earlier is not None:
            return self._earlier.symbolizer
        return Symbolizer(self.modules, self.modules.files.symbols)

    @cached_property
    def steps(self) -> FrameSteps:
        """What is known of code addresses."""
        return self._earlier.steps if self._earlier is not None else FrameSteps(self._memory, self.modules)
