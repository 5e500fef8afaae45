"""The interpreter that runs the tests, read from the memory of this very process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from support.fakes.fake_target import OwnProcess


@contextmanager
def own_python() -> Iterator[PythonRuntime]:
    """What is read of it must be kept alive by the caller."""
    with closing(OwnProcess()) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        runtime = PythonRuntime.detect(memory, modules, Symbolizer(modules))
        assert runtime is not None
        yield runtime
