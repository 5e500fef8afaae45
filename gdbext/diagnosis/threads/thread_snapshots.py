"""Snapshots of threads: everything that is read of a thread, its native and Python stacks included, put together once.

Whose stack a thread stands on: glibc puts the control block of a thread that it makes at the upper end of the thread's
stack (nptl/allocatestack.c), so the thread pointer says where that is. A thread may leave its stack, for a signal's or
a coroutine's; it never runs on another thread's. Where its stack pointer lies in one, register or record are damaged,
and what is read from there on is the other thread's. The thread pointer may be damaged like the stack pointer: it is
the thread's own where the block that it points to has the thread's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_reader import ThreadState, place_groups
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record
from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetThread
from gdbext.engine.unwind.unwinder import NativeStack, Unwinder
from gdbext.engine.vocabulary import Absent, ErrorLog
from gdbext.errors import GdbextError, SymbolFileError, TargetGone

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import ThreadTable
    from gdbext.torch.stack.dispatch_frame import DispatchFrame
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader

_FIRST_STACK = "[stack]"
"""The kernel's name of the stack that it made for the first thread (proc_pid_maps(5))."""
_NAMED = "[anon:"
"""The beginning of the names that programs give to anonymous mappings (prctl(2), PR_SET_VMA); so does glibc to stacks,
where it is asked to (GLIBC_TUNABLES, glibc.mem.decorate_maps)."""
_RANDOM_BYTES = 25
"""AT_RANDOM of linux/auxvec.h: the address of 16 bytes that the kernel put on that stack."""


class _Place(Record):
    """The place of a thread by its registers."""

    thread_pointer: int
    stack_pointer: int
    tid: int


class StackOwners:
    """The stacks of one process's threads."""

    def __init__(self, target: Target, modules: ModuleTable, memory: Memory) -> None:
        self._target = target
        self._modules = modules
        self._memory = memory

    def stranger(self, thread: TargetThread, registers: Mapping[str, int]) -> int | None:
        """The other thread in whose stack this one's stack pointer lies; None as a rule."""
        place = self._place(thread.tid, registers)
        around = self._modules.mapping_at(place.stack_pointer)
        if around is None or self._is_file(around):
            return None
        if around.start <= place.thread_pointer < around.end and not self._is_of_a_file:
            return None
        if place.stack_pointer < place.thread_pointer < around.end:
            return self._owner_instead(place, self._contenders.get(place.tid, ()))
        if self._is_first_stack(around):
            return None if thread.tid == self._target.pid else self._target.pid
        for other in self._places:
            if other.tid == self._target.pid:  # its control block is in no stack
                continue
            above = place.stack_pointer < other.thread_pointer < around.end
            may_be_its = other.tid in self._lost or other.stack_pointer == place.stack_pointer
            if other.tid != place.tid and (above or may_be_its):
                return other.tid
        return None

    @property
    def _is_of_a_file(self) -> bool:
        """The registers come from a core or a recording, and may be any; those of a process come from the kernel, and
        nothing is wrong with the thread pointer as a rule."""
        return self._target.is_core or self._target.recorded is not None

    @cached_property
    def _contenders(self) -> Mapping[int, Sequence[_Place]]:
        """Threads that cannot all stand where they seem to: between one and its control block is that of another."""
        found: dict[int, list[_Place]] = {}
        for number, one in enumerate(self._places):
            around = self._modules.mapping_at(one.stack_pointer)
            if around is None or not one.stack_pointer < one.thread_pointer < around.end:
                continue
            for other in reversed(self._places[:number]):
                if other.thread_pointer <= one.stack_pointer:
                    break
                found.setdefault(one.tid, []).append(other)
                found.setdefault(other.tid, []).append(one)
        return found

    @cached_property
    def _lost(self) -> Collection[int]:
        """Threads whose own stack nobody knows: their thread pointer leads nowhere, or to what is another's, too.

        Threads that the kernel runs for the process (io_uring's) have no stack here, and their maker's thread pointer.
        """
        if not self._is_of_a_file:
            return ()
        places = [each for each in self._places if each.stack_pointer]
        shared = Counter(each.thread_pointer for each in places)
        return {
            each.tid
            for each in places
            if shared[each.thread_pointer] > 1 or self._modules.mapping_at(each.thread_pointer) is None
        }

    def _owner_instead(self, place: _Place, others: Sequence[_Place]) -> int | None:
        """The one of the threads whose stack it is rather; None where it is the thread's own."""
        own, ids = self._id_of_block(place) if others else place.tid, [self._id_of_block(each) for each in others]
        if own == place.tid:
            return None
        named = [each.tid for each, found in zip(others, ids) if found == each.tid]
        nearer = [
            each.tid
            for each, found in zip(others, ids)
            if found is not None and each.thread_pointer <= place.thread_pointer
        ]
        return next(iter([*named, *nearer]), None if own is not None else others[0].tid)

    def _id_of_block(self, place: _Place) -> int | None:
        """The thread's id in the control block that the thread pointer leads to, None where it leads to none."""
        from gdbext.engine.glibc.pthread import id_of_block

        return id_of_block(self._memory, place.thread_pointer)

    @staticmethod
    def _is_file(around: MemoryMapping) -> bool:
        return bool(around.path) and not around.path.startswith((_FIRST_STACK, _NAMED))

    def _is_first_stack(self, around: MemoryMapping) -> bool:
        """The mapping is the stack of the first thread, by its name or by what the kernel put there."""
        if around.path.startswith(_FIRST_STACK):
            return True
        return around.start <= self._target.auxv().get(_RANDOM_BYTES, 0) < around.end

    @cached_property
    def _places(self) -> Sequence[_Place]:
        """The places of all threads, by thread pointer."""
        found = []
        for thread in self._target.threads():
            if not thread.runs_on:
                with suppress(GdbextError):
                    found.append(self._place(thread.tid, thread.registers()))
        return sorted(found)

    def _place(self, tid: int, registers: Mapping[str, int]) -> _Place:
        architecture = self._target.architecture
        return _Place(architecture.thread_pointer(registers), registers.get(architecture.stack_pointer, 0), tid)


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
