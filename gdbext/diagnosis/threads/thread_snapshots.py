"""Snapshots of threads: everything that is read of a thread, put together once.

Native stacks of threads, each unwound once.

Python frames of a native stack: which native frame evaluates which of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_reader import ThreadState, place_groups
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.base_target import Target, TargetThread
from gdbext.engine.unwind.unwinder import NativeStack, StackOwners, Unwinder
from gdbext.engine.vocabulary import Absent, ErrorLog
from gdbext.errors import GdbextError, SymbolFileError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gdbext.cpython.threads.runtime import ThreadTable
    from gdbext.torch.stack.dispatch_frame import DispatchFrame
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader


class Stacks:
    """Unwinds threads, and notes which files on their stacks cannot be used."""

    def __init__(self, unwinder: Unwinder, symbolizer: Symbolizer, owners: StackOwners, errors: ErrorLog) -> None:
        self._unwinder = unwinder
        self._owners = owners
        self._symbolizer = symbolizer
        self._errors = errors
        self._stacks: dict[int, NativeStack] = {}
        self._checked: set[Module] = set()

    def of(self, thread: TargetThread) -> NativeStack:
        """The stack of a thread. Raises TargetError where its registers cannot be read."""
        stack = self._stacks.get(thread.tid)
        if stack is None:
            stack = self._stacks[thread.tid] = self._walk(thread)
        return stack

    def _walk(self, thread: TargetThread) -> NativeStack:
        registers = thread.registers()
        stranger = self._owners.stranger(thread, registers)
        if stranger is not None:
            return self.unseen(f"its stack pointer lies in the stack of thread {stranger}")
        stack = NativeStack.walk(registers, self._unwinder, self._symbolizer)
        stack.floats = thread.float_registers
        self._note_modules(stack)
        return stack

    def unseen(self, why: str) -> NativeStack:
        """A stack of which nothing can be known."""
        return NativeStack([], Absent(why), self._symbolizer)

    def _note_modules(self, stack: NativeStack) -> None:
        """Functions of a file that cannot be used have no names, or fewer."""
        for module in {frame.module for frame in stack.frames if frame.module is not None} - self._checked:
            self._checked.add(module)
            if module.problem:
                self._errors.note(_file_error(module), module.name)


def _file_error(module: Module) -> SymbolFileError:
    """The error on what the report lacks because of a file; where the deleted file could still be read, it lacks
    nothing."""
    if module.status == "deleted" and module.image is not None and not module.image.from_memory:
        nothing_lost = "nothing is lost here, but take no core without keeping that file"
        return SymbolFileError(module.problem, why="", help=nothing_lost)
    return SymbolFileError(module.problem)


def python_frames(
    runtime: PythonRuntime, states: Sequence[ThreadState], stack: NativeStack
) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
    """(the Python frames innermost first, each at the level of the native frame that evaluates it; what could not be
    read). Raises MemoryFault, BadData."""
    problems = [runtime.frames.stack(state).problem for state in states]
    groups = runtime.frames.groups(states) if states else []
    spans = [(frame.sp, frame.cfa) for frame in stack.frames]
    placed = place_groups(groups, spans, lambda level: _is_loop(runtime, stack, level))
    if not placed and any(groups):
        placed = [(max(0, len(spans) - 1), group) for group in groups]
        problems.append("no native frame is known to evaluate them; they stand at the outermost one")
    frames = tuple(
        Frame(level, FrameKind.PYTHON, frame.function, file=frame.file, line=frame.line)
        for level, group in placed
        for frame in group
    )
    return frames, tuple(f"Python frames: {problem}" for problem in problems if problem)


def _is_loop(runtime: PythonRuntime, stack: NativeStack, level: int) -> bool:
    """The native frame runs Python code, by the name of its function."""
    function = stack.function(level)
    return function is not None and runtime.layout.abi.evaluates(function.names)


def _lacks_registers(stack: NativeStack, dispatch: Sequence[DispatchFrame], kept: Collection[str]) -> bool:
    """The registers that a called function keeps are needed and not known: to go on unwinding, or in the frame of the
    innermost operator, whose arguments and keyset may stand in them."""
    if stack.outer is not None:
        return True
    return bool(dispatch) and not stack.frames[dispatch[0].level].registers.keys() >= set(kept)


_RUNS_ON = "it runs, and nobody is stopped (--no-stop)"
TORCH_PREFIXES = ("libtorch", "libc10")


class ThreadSnapshots:
    """Takes the snapshots of one process."""

    def __init__(
        self,
        target: Target,
        process: ProcessSnapshot,
        stacks: Stacks,
        python: ThreadTable | None,
        dispatch: DispatchStackReader | None,
        errors: ErrorLog,
    ) -> None:
        """``process`` gets its threads here. ``python``: None without CPython, ``dispatch``: None without torch."""
        self._target = target
        self._process = process
        self._stacks = stacks
        self._python = python
        self._dispatch = dispatch
        self._errors = errors
        self._taken: dict[int, ThreadSnapshot] = {}

    def all(self) -> ProcessSnapshot:
        """The process with all its threads. An unreadable thread is skipped and recorded in the error log."""
        if not self._process.threads:
            for thread in self._target.threads():
                try:
                    self._process.threads.append(self.of(thread))
                except TargetGone:
                    raise
                except GdbextError as error:
                    self._errors.note(error, f"thread {thread.tid}")
        return self._process

    def of(self, thread: TargetThread) -> ThreadSnapshot:
        """The snapshot of a thread. Raises TargetError where its registers cannot be read."""
        taken = self._taken.get(thread.tid)
        if taken is None:
            taken = self._taken[thread.tid] = self._take(thread)
        return taken

    def _take(self, thread: TargetThread) -> ThreadSnapshot:
        registers: Mapping[str, int] = {} if thread.runs_on else thread.registers()
        stack = self._stacks.unseen(_RUNS_ON) if thread.runs_on else self._stacks.of(thread)
        dispatch = self._dispatch.steps(stack) if self._dispatch is not None else ()
        if thread.lacks_registers and _lacks_registers(stack, dispatch, self._process.memory.architecture.callee_saved):
            self._target.need_registers(thread.tid)
        python, notes = self._python_frames(thread, stack)
        if stack.outer is not None:
            notes = (*notes, f"the stack ends early: {stack.outer.reason}")
        return ThreadSnapshot(
            self._process,
            thread.tid,
            registers,
            stack,
            kernel_state=thread.kernel_state,
            python=python,
            dispatch=dispatch,
            unseen_dispatch=self._unseen_dispatch(stack),
            name=thread.name,
            python_name=self._python.names.get(thread.tid) if self._python is not None else None,
            number=thread.number,
            signal=thread.signal,
            notes=notes,
            kernel_side=thread.kernel_side,
            stop_signal=thread.stop_signal,
        )

    def _python_frames(self, thread: TargetThread, stack: NativeStack) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
        """The Python frames, and what could not be read of them."""
        if self._python is None:
            return (), ()
        try:
            return python_frames(self._python.runtime, self._python.states.get(thread.tid, ()), stack)
        except TargetGone:
            raise
        except GdbextError as error:
            return (), (f"Python frames: {error.what}",)

    def _unseen_dispatch(self, stack: NativeStack) -> Absent | None:
        """The reason why there may be frames of the dispatcher that cannot be seen on a stack."""
        if self._dispatch is None:
            return None
        if stack.outer is not None:
            return Absent("the stack ends early")
        for module in {frame.module for frame in stack.frames if frame.module is not None}:
            if module.name.startswith(TORCH_PREFIXES) and module.image is None:
                return Absent(f"the functions of {module.name} have no names without its file")
        unread = self._dispatch.unread(stack)
        return Absent("; ".join(one.text for one in unread)) if unread else None
