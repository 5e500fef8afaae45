"""Session: one stopped target with everything that was found out about it, each thing once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gdbext.errors import GdbextError, NotTorch, SymbolFileError, TargetGone, UsageError
from gdbext.model.dispatch_frame import DispatchFrame
from gdbext.model.frame import Frame, FrameKind
from gdbext.model.report import ErrorFact, TargetFacts
from gdbext.model.thread import RunState, ThreadReport
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.process.symbols import Symbolizer
from gdbext.process.syscalls import blocked
from gdbext.targets.base import Target, Thread
from gdbext.unwind.stack import Stack
from gdbext.unwind.unwinder import Unwinder

if TYPE_CHECKING:
    from pathlib import Path

    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.cpython.threads.thread_state import ThreadState
    from gdbext.layouts.layout import Layout
    from gdbext.torch.registry.dispatch_table import DispatchTables
    from gdbext.torch.registry.operators import Dispatcher, Operator
    from gdbext.torch.registry.redispatch_chain import RedispatchPredictor
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader
    from gdbext.torch.state.dispatch_state import DispatchStateReader
    from gdbext.torch.state.tensor import TensorReader
    from gdbext.torch.values.key_names import KeyNames

TORCH_LIBRARY = "libtorch_cpu.so"
TORCH_PREFIXES = ("libtorch", "libc10")
_RECORD_AGAIN = "record the process again with this very command: a recording holds only what was read"


class Session:
    """What a command receives. Everything is read when it is first asked for and kept while the target is stopped."""

    def __init__(self, target: Target, layout_file: str | None = None) -> None:
        self.target = target
        self.memory = Memory(target)
        self.modules = ModuleTable(target, self.memory)
        self.symbolizer = Symbolizer(self.modules, target.files.symbols)
        self.unwinder = Unwinder(self.memory, self.modules)
        self._layout_file = layout_file
        self._stacks: dict[int, Stack] = {}
        self._steps: dict[int, tuple[DispatchFrame, ...]] = {}
        self._errors: dict[str, ErrorFact] = {}
        self._checked: set[Module] = set()

    # --- torch -----------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> Layout:
        """The torch layout. Raises NotTorch, LayoutError."""
        found = self._layout_or_error
        if isinstance(found, GdbextError):
            raise found
        return found

    @cached_property
    def _layout_or_error(self) -> Layout | GdbextError:
        """Asked for once: before it is refused, a compiler may have run for a minute."""
        from gdbext.layouts.select import torch_layout
        from gdbext.torch.registry.singleton import find_singleton

        if not self.has_torch:
            return NotTorch("no PyTorch is loaded in this process")
        try:
            find_dispatcher = partial(find_singleton, self.memory, self.symbolizer)
            return torch_layout(
                self.modules, self.memory, self.symbolizer, find_dispatcher, self._layout_file, measure=_measure_torch
            )
        except GdbextError as error:
            return error

    @property
    def has_torch(self) -> bool:
        """libtorch_cpu.so is mapped."""
        return self.modules.named(TORCH_LIBRARY) is not None

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """The target's dispatcher. Raises NotTorch, LayoutError, TargetError, MemoryFault, BadData."""
        from gdbext.torch.registry.operators import Dispatcher

        return Dispatcher(self.memory, self.layout, self.symbolizer, self._python_source)

    @cached_property
    def _dispatcher_or_error(self) -> Dispatcher | GdbextError:
        try:
            return self.dispatcher
        except GdbextError as error:
            return error

    def torch_errors(self) -> tuple[ErrorFact, ...]:
        """Why the dispatcher cannot be read; empty where it can."""
        found = self._dispatcher_or_error
        return (ErrorFact.of(found, "torch"),) if isinstance(found, GdbextError) else ()

    def _python_source(self, address: int) -> Any:
        return self.python.functions.source(address) if self.python is not None else None

    @cached_property
    def step_reader(self) -> DispatchStackReader:
        """Reads the dispatcher's steps; by names alone where the dispatcher cannot be read."""
        from gdbext.torch.stack.dispatch_stack import DispatchStackReader
        from gdbext.torch.stack.pending_redispatch import PendingRedispatch

        found = self._dispatcher_or_error
        if isinstance(found, GdbextError):
            return DispatchStackReader(self.memory, self.symbolizer, None)
        unreached = PendingRedispatch(self.tables, self.memory, self.symbolizer)
        return DispatchStackReader(self.memory, self.symbolizer, found, self._registration, unreached)

    @cached_property
    def tables(self) -> DispatchTables:
        """Registrations and computed tables of the dispatcher's operators. Raises as ``dispatcher`` does."""
        from gdbext.torch.registry.dispatch_table import DispatchTables

        return DispatchTables(self.dispatcher)

    @cached_property
    def chains(self) -> RedispatchPredictor:
        """Redispatches that are expected from a keyset. Raises as ``dispatcher`` does."""
        from gdbext.torch.registry.redispatch_chain import RedispatchPredictor

        return RedispatchPredictor(self.tables)

    @cached_property
    def dispatch_keys(self) -> KeyNames:
        """The dispatch keys of the target's torch, without its dispatcher. Raises NotTorch, LayoutError."""
        from gdbext.torch.values.key_names import KeyNames

        return KeyNames(self.layout)

    @cached_property
    def dispatch_states(self) -> DispatchStateReader:
        """Reads the thread-local state of dispatch. Raises NotTorch, LayoutError."""
        from gdbext.torch.state.dispatch_state import DispatchStateReader

        return DispatchStateReader(self.memory, self.layout, self.symbolizer, self.dispatch_keys, self._python_type)

    @cached_property
    def tensors(self) -> TensorReader:
        """Reads tensors. Raises NotTorch, LayoutError."""
        from gdbext.torch.state.tensor import TensorReader

        return TensorReader(self.memory, self.layout, self.symbolizer, self.dispatch_keys)

    def _python_type(self, address: int) -> str | None:
        try:
            return self.python.objects.type_of(address).name if self.python is not None else None
        except GdbextError:
            return None

    def _registration(self, operator: Operator, index: int) -> tuple[str, str] | None:
        """Where the kernel at a table index was registered and the path to it, None where that cannot be proven."""
        try:
            entry = self.tables.entry(operator, index)
        except GdbextError as error:
            self.note_error(error, f"registrations of {operator.qualified}")
            return None
        return (entry.debug, entry.path) if entry.consistent else None

    # --- Python ----------------------------------------------------------------------------------

    @cached_property
    def python(self) -> PythonRuntime | None:
        """The CPython of the process, None without one or where it cannot be read (see errors())."""
        from gdbext.cpython.threads.runtime import PythonRuntime

        try:
            return PythonRuntime.detect(self.memory, self.modules, self.symbolizer)
        except GdbextError as error:
            self.note_error(error, "python")
            return None

    @cached_property
    def thread_states(self) -> dict[int, list[ThreadState]]:
        """Kernel thread id → its Python thread states; empty where they cannot be read."""
        if self.python is None:
            return {}
        try:
            return self.python.threads_by_tid()
        except GdbextError as error:
            self.note_error(error, "python threads")
            return {}

    @cached_property
    def python_names(self) -> dict[int, str]:
        """Kernel thread id → the name of its ``threading.Thread``; empty where they cannot be read."""
        from gdbext.cpython.threads.thread_names import read_thread_names

        if self.python is None:
            return {}
        try:
            names = read_thread_names(self.python)
        except GdbextError as error:
            self.note_error(error, "python thread names")
            return {}
        states = ((tid, state) for tid, found in self.thread_states.items() for state in found)
        return {tid: names[state.ident] for tid, state in states if state.ident in names}

    # --- threads ---------------------------------------------------------------------------------

    def find_thread(self, word: str) -> Thread:
        """The thread a user means: the debugger's number or a tid. Raises UsageError."""
        threads = self.target.threads()
        known = ", ".join(str(thread.tid) for thread in threads[:8]) + (" …" if len(threads) > 8 else "")
        try:
            number = int(word, 0)
        except ValueError:
            raise UsageError(f"{word!r} is neither a thread number nor a tid", help=f"tids are {known}") from None
        for thread in threads:
            if thread.number == number or thread.tid == number:
                return thread
        raise UsageError(f"no thread {number} in the target", why="it may have ended", help=f"tids are {known}")

    def stack(self, thread: Thread) -> Stack:
        """The unwound stack of a thread. Raises TargetError where its registers cannot be read."""
        stack = self._stacks.get(thread.tid)
        if stack is None:
            stack = self._stacks[thread.tid] = Stack.walk(thread.registers(), self.unwinder, self.symbolizer)
            self._note_modules(stack)
        return stack

    def _note_modules(self, stack: Stack) -> None:
        """Says which files on the stack could not be used: their functions have no names, or fewer."""
        for module in {frame.module for frame in stack.frames if frame.module is not None}:
            if module not in self._checked:
                self._checked.add(module)
                if module.problem:
                    self.note_error(_file_error(module), module.name)

    def steps(self, thread: Thread) -> tuple[DispatchFrame, ...]:
        """The dispatch calls on a thread's stack, innermost first."""
        steps = self._steps.get(thread.tid)
        if steps is None:
            steps = self._steps[thread.tid] = self.step_reader.steps(self.stack(thread)) if self.has_torch else ()
        return steps

    def explained(self, thread: Thread, steps: tuple[DispatchFrame, ...]) -> tuple[DispatchFrame, ...]:
        """The steps, their evidence joined by why the key won and the keys of each tensor argument."""
        from gdbext.torch.stack.keyset_explanation import KeySetExplanation

        if isinstance(self._dispatcher_or_error, GdbextError):
            return steps
        known = KeySetExplanation(self.memory, self.step_reader.sites, self.tensors, self.dispatch_keys)
        found = []
        for step in steps:
            operator = self.dispatcher.by_def(self.dispatcher.names.get(step.qualified, 0))
            lines = known.lines(self.stack(thread), step, operator) if operator is not None else []
            found.append(replace(step, evidence=(*step.evidence, *lines)))
        return tuple(found)

    def thread_facts(self, thread: Thread, native: bool = False) -> ThreadReport:
        """What is known of a thread, without its waits. Raises TargetError where its registers cannot be read."""
        stack = self.stack(thread)
        try:
            python, notes = self._python_frames(thread, stack)
        except TargetGone:
            raise
        except GdbextError as error:
            python, notes = [], [f"Python frames: {error.what}"]
        if stack.ended != "end of stack":
            notes.append(f"the stack ends early: {stack.ended}")
        return ThreadReport(
            tid=thread.tid,
            name=thread.name,
            python_name=self.python_names.get(thread.tid),
            number=thread.number,
            signal=thread.signal.name if thread.signal else None,
            state=RunState.WAITING if blocked(thread.registers(), self.memory) else RunState.RUNNING,
            dispatch=self.steps(thread),
            dispatch_doubt=self._dispatch_doubt(stack),
            frames=self._merged_frames(stack, python) if native else (),
            python=tuple(python),
            frame_count=len(stack),
            notes=tuple(notes),
        )

    def _dispatch_doubt(self, stack: Stack) -> str:
        """Why a stack may hold steps that cannot be seen."""
        if not self.has_torch:
            return ""
        if stack.ended != "end of stack":
            return "the stack ends early"
        for module in {frame.module for frame in stack.frames if frame.module is not None}:
            if module.name.startswith(TORCH_PREFIXES) and module.image is None:
                return f"the functions of {module.name} have no names without its file"
        return ""

    def _python_frames(self, thread: Thread, stack: Stack) -> tuple[list[Frame], list[str]]:
        """The Python frames, innermost first, each at the level of the evaluation loop that runs it."""
        from gdbext.cpython.threads.frame_reader import match

        states = self.thread_states.get(thread.tid, ())
        if self.python is None or not states:
            return [], []
        functions = ((level, stack.function(level)) for level in range(len(stack)))
        evaluates = self.python.layout.abi.evaluates
        loops = [level for level, function in functions if function is not None and evaluates(function.names)]
        if not loops:
            return [], []
        notes = []
        for state in states:
            problem = self.python.frames.stack(state).problem
            if problem:
                notes.append(f"Python frames: {problem}")
        spans = [(stack.frames[level].sp, stack.frames[level].cfa) for level in loops]
        groups = match(self.python.frames.groups(states), spans)
        found = [
            Frame(level, FrameKind.PYTHON, frame.function, file=frame.file, line=frame.line)
            for level, group in zip(loops, groups)
            for frame in group or ()
        ]
        return found, notes

    def _merged_frames(self, stack: Stack, python: list[Frame]) -> tuple[Frame, ...]:
        """Native frames with the Python frames just above the native frame that evaluates them."""
        roles = self.step_reader.roles(stack) if self.has_torch else None
        merged: list[Frame] = []
        position = 0
        for level in range(len(stack)):
            while position < len(python) and python[position].level == level:
                merged.append(python[position])
                position += 1
            merged.append(self._native_fact(stack, level, roles[level].role.value if roles else ""))
        return tuple(merged)

    def _native_fact(self, stack: Stack, level: int, role: str) -> Frame:
        frame = stack.frames[level]
        function = stack.function(level)
        how = "" if frame.how in ("registers", "cfi", "signal") else f"unwound by {frame.how}"
        module = frame.module.name if frame.module is not None else ""
        return Frame(
            level,
            FrameKind.NATIVE,
            function.demangled[0] if function is not None else "??",
            module=module,
            pc=frame.pc,
            role=" ".join(filter(None, ("signal handler called" if frame.is_signal else role, how))),
        )

    # --- the report ------------------------------------------------------------------------------

    def note_error(self, error: GdbextError, where: str) -> None:
        """Remembers, once, something that could not be read."""
        self._errors.setdefault(f"{where}: {error.what}", ErrorFact.of(error, where))

    def errors(self) -> tuple[ErrorFact, ...]:
        """What could not be read so far."""
        lacks = self.target.lacks()
        more = (ErrorFact(f"not in the recording: {lacks}", "recording", _RECORD_AGAIN),) if lacks else ()
        return (*self._errors.values(), *more)

    def target_facts(self) -> TargetFacts:
        """The ``target`` of a report."""
        version = layout = match = None
        if self.has_torch:
            from gdbext.layouts.select import torch_version

            version = torch_version(self.modules)
            if not isinstance(self._layout_or_error, GdbextError):
                layout, match = self.layout.id, self.layout.match
                version = version or (self.layout.version if match == "exact" else "")
            version = version or "unknown"
        return TargetFacts(
            kind=self.target.kind,
            pid=self.target.pid,
            debugger=self.target.debugger,
            torch_version=version,
            layout_id=layout,
            layout_match=match or "none",
            python_version=self.python.version if self.python is not None else None,
            recording=self.target.recorded,
        )


def _measure_torch(package: Path, build_id: str | None) -> Layout:
    from gdbext.layouts.measure.measurement import measure_torch

    return measure_torch(package, build_id)


def _file_error(module: Module) -> SymbolFileError:
    """What the report lacks because of a file; where the deleted file could still be read, it lacks nothing."""
    what = module.problem if module.path in module.problem else f"{module.path}: {module.problem}"
    if module.status == "deleted" and module.image is not None and not module.image.from_memory:
        return SymbolFileError(what, why="", help="nothing is lost here, but take no core without keeping that file")
    return SymbolFileError(what)
