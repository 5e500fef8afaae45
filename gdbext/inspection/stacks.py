"""Native stacks of threads, each unwound once."""

from __future__ import annotations

from gdbext.errors import SymbolFileError
from gdbext.inspection.error_log import ErrorLog
from gdbext.model.absent import Absent
from gdbext.process.modules import Module
from gdbext.process.symbols import Symbolizer
from gdbext.targets.base import Thread
from gdbext.unwind.stack import Stack
from gdbext.unwind.unwinder import Unwinder


class Stacks:
    """Unwinds threads, and notes which files on their stacks cannot be used."""

    def __init__(self, unwinder: Unwinder, symbolizer: Symbolizer, errors: ErrorLog) -> None:
        self._unwinder = unwinder
        self._symbolizer = symbolizer
        self._errors = errors
        self._stacks: dict[int, Stack] = {}
        self._checked: set[Module] = set()

    def of(self, thread: Thread) -> Stack:
        """The stack of a thread. Raises TargetError where its registers cannot be read."""
        stack = self._stacks.get(thread.tid)
        if stack is None:
            stack = self._stacks[thread.tid] = Stack.walk(thread.registers(), self._unwinder, self._symbolizer)
            stack.floats = thread.float_registers
            self._note_modules(stack)
        return stack

    def unseen(self, why: str) -> Stack:
        """A stack of which nothing can be known."""
        return Stack([], Absent(why), self._symbolizer)

    def _note_modules(self, stack: Stack) -> None:
        """Functions of a file that cannot be used have no names, or fewer."""
        for module in {frame.module for frame in stack.frames if frame.module is not None} - self._checked:
            self._checked.add(module)
            if module.problem:
                self._errors.note(_file_error(module), module.name)


def _file_error(module: Module) -> SymbolFileError:
    """What the report lacks because of a file; where the deleted file could still be read, it lacks nothing."""
    if module.status == "deleted" and module.image is not None and not module.image.from_memory:
        nothing_lost = "nothing is lost here, but take no core without keeping that file"
        return SymbolFileError(module.problem, why="", help=nothing_lost)
    return SymbolFileError(module.problem)
