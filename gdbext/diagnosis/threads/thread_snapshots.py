"""Snapshots of threads: everything that is read of a thread, its native and Python stacks included, put together once.

Whose stack a thread stands on, where its registers come from a file and may be any:

What a thread pointer proves. glibc puts the control block of a thread that it makes at the upper end of the thread's
stack (nptl/allocatestack.c), with the thread's id in it. A thread pointer above a stack pointer, in the same mapping,
is the claim that the stack between them is that thread's; the block there is the proof. A block that names a thread
settles it for all who stand below; what can be read and is no block claims nothing. Where the file does not have the
block, claims that exclude each other are not believed. The kernel made the first thread's stack, and its block is in no
stack unless it proves to be (in a child that a thread forked).

A thread may leave its stack, for a signal's or a coroutine's; it never runs on another thread's. Where it seems to,
what is read from there on would be the other's. The registers of a process come from the kernel, and are believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.threads.frame_reader import place_groups
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.engine.glibc.pthread import id_of_block
from gdbext.engine.unwind import NativeStack, Unwinder
from gdbext.engine.vocabulary import ErrorLog
from gdbext.errors import GdbextError, StacklessCore, SymbolFileError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

    from gdbext.cpython.threads.runtime import ThreadTable
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetThread
    from gdbext.torch.stack import DispatchFrame
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader

_FIRST_STACK, _HEAP = "[stack]", "[heap]"
"""The kernel's names of the stack that it made for the first thread, and of the break (proc_pid_maps(5))."""
_NAMED = "[anon:"
"""The beginning of the names that programs give to anonymous mappings (prctl(2), PR_SET_VMA); so does glibc to stacks,
where it is asked to (GLIBC_TUNABLES, glibc.mem.decorate_maps)."""
_MAX_TID = 1 << 22
"""The largest id of a thread: PID_MAX_LIMIT of linux/threads.h."""
_RANDOM_BYTES = 25
"""AT_RANDOM of linux/auxvec.h: the address of 16 bytes that the kernel put on that stack."""


_BLANK = 64
"""Bytes at the top of a stack, and of a control block, which begins with its own address, that are never all zero."""


class _Place(NamedTuple):
    """The place of a thread by its registers; the thread pointer is None where they are not known to have one."""

    tid: int
    stack_pointer: int
    thread_pointer: int | None


class _Claim(NamedTuple):
    """The stack below a control block is a thread's; proven where the block itself names it."""

    block: int
    tid: int
    is_proven: bool


class StackOwners:
    """The stacks of one process's threads."""

    def __init__(self, target: Target, modules: ModuleTable, memory: Memory) -> None:
        self._target = target
        self._modules = modules
        self._memory = memory
        self._claimed: dict[int, Sequence[_Claim]] = {}

    def stranger(self, thread: TargetThread) -> int | None:
        """The other thread in whose stack this one's stack pointer lies, or may lie; None as a rule."""
        if not (self._target.origin.is_core or self._target.origin.recorded):
            if self._target.memory.records:
                self._named  # noqa: B018 - who replays the recording will ask for the blocks
            return None
        place = next((each for each in self._places if each.tid == thread.tid), None)
        around = self._modules.mapping_at(place.stack_pointer) if place else None
        if not place or not around or self._is_file(around):
            return None
        if self._is_first_stack(around):
            return None if place.tid == self._target.pid else self._target.pid
        return self._owner_instead(place, around)

    def is_absent(self, thread: TargetThread) -> bool:
        """The core has only zeros where the stack and the control block of the thread were."""
        place = (
            next((each for each in self._places if each.tid == thread.tid), None)
            if self._target.origin.is_core
            else None
        )
        if not place or not place.thread_pointer or not place.stack_pointer:
            return False
        found = [self._memory.try_read(at, _BLANK) for at in (place.stack_pointer, place.thread_pointer)]
        return all(raw and not any(raw) for raw in found)

    def _owner_instead(self, place: _Place, around: MemoryMapping) -> int | None:
        claims = self._claims(around)
        above = claims[bisect_right(claims, (place.stack_pointer, _MAX_TID)) :]
        proven = next((claim for claim in above if claim.is_proven), None)
        if proven:
            return None if proven.tid == place.tid else proven.tid
        own = next((claim.block for claim in above if claim.tid == place.tid), None)
        rivals = (claim.tid for claim in above if claim.tid != place.tid and (own is None or claim.block <= own))
        return next(rivals, None) or next(self._rivals(place, around, own), None)

    def _rivals(self, place: _Place, around: MemoryMapping, own: int | None) -> Iterator[int]:
        """Threads whose stack it may be, though none claims it: that stand there, too, or could. ``own``: the control
        block above."""
        claims = self._claims(around)
        below = max((claim.block for claim in claims if claim.block <= place.stack_pointer), default=around.start)
        for each in self._places:
            if each.tid != place.tid and below <= each.stack_pointer < (own or around.end):
                is_there = own is None and (place.tid in self._lost or each.stack_pointer == place.stack_pointer)
                if is_there or each.tid in self._lost:
                    yield each.tid
        if own is None:
            yield from self._lost - {place.tid, self._target.pid}

    def _claims(self, around: MemoryMapping) -> Sequence[_Claim]:
        """The claims to stacks in a mapping, by address."""
        found = self._claimed.get(around.start)
        if found is None:
            claims = (self._claim(place, around) for place in self._places if place.stack_pointer)
            found = self._claimed[around.start] = sorted({claim for claim in claims if claim})
        return found

    def _claim(self, place: _Place, around: MemoryMapping) -> _Claim | None:
        block = place.thread_pointer
        if block is None or not around.start < block < around.end:
            return None
        named = self._named.get(block)
        tid = named or place.tid
        if named == 0 or (tid == self._target.pid and not (named and self._stands_in(around, tid))):
            return None
        return _Claim(block, tid, bool(named))

    def _stands_in(self, around: MemoryMapping, tid: int | None = None) -> bool:
        """A thread, or this one, has its stack pointer in the mapping."""
        return any(around.start <= each.stack_pointer < around.end and tid in (None, each.tid) for each in self._places)

    @cached_property
    def _lost(self) -> Set[int]:
        """Threads whose own stack is not where their thread pointer says."""
        return {place.tid for place in self._places if not self._is_credible(place)}

    def _is_credible(self, place: _Place) -> bool:
        block = place.thread_pointer
        named = self._named.get(block) if block is not None else None
        if block is None or named is not None:
            return block is None or named == place.tid
        around = self._modules.mapping_at(block)
        if self._shared[block] > 1 or not around or self._is_file(around) or self._is_first_stack(around):
            return False
        return not self._stands_in(around) if place.tid == self._target.pid else around.path != _HEAP

    @cached_property
    def _shared(self) -> Counter[int]:
        """Number of threads that have a thread pointer; those that the kernel runs for the process (io_uring's) have no
        stack, and their maker's."""
        return Counter(place.thread_pointer for place in self._places if place.thread_pointer and place.stack_pointer)

    @cached_property
    def _named(self) -> Mapping[int, int]:
        """The threads that control blocks name, by thread pointer; 0 where what is there is no block. What cannot be
        read, or names a thread that is not here (ids of another namespace), says nothing."""
        tids, found = {place.tid for place in self._places}, {}
        for block in {place.thread_pointer for place in self._places if place.thread_pointer}:
            if not self._target.origin.recorded or self._target.memory.known_from(block) > 1:
                named = id_of_block(self._memory, block)
                if named == 0 or named in tids:
                    found[block] = named
        return found

    @staticmethod
    def _is_file(around: MemoryMapping) -> bool:
        return bool(around.path) and not around.path.startswith((_FIRST_STACK, _HEAP, _NAMED))

    def _is_first_stack(self, around: MemoryMapping) -> bool:
        """The mapping is the stack of the first thread, by its name or by what the kernel put there."""
        if around.path.startswith(_FIRST_STACK):
            return True
        return around.start <= self._target.memory.auxv().get(_RANDOM_BYTES, 0) < around.end

    @cached_property
    def _places(self) -> Sequence[_Place]:
        """The places of all threads."""
        architecture, found = self._target.architecture, []
        for thread in self._target.memory.threads():
            if not thread.runs_on:
                with suppress(GdbextError):
                    registers = thread.registers()
                    pointer = registers.get(architecture.thread_register)
                    found.append(_Place(thread.tid, registers.get(architecture.stack_pointer, 0), pointer))
        return found


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

    def forget(self, thread: TargetThread) -> None:
        """Forget the stack of a thread of which more is known now."""
        self._stacks.pop(thread.tid, None)

    def _walk(self, thread: TargetThread) -> NativeStack:
        registers = thread.registers()
        if self._owners.is_absent(thread):
            self._errors.note(StacklessCore("the core has only zeros where stacks of threads were"), "core")
            return self.unseen("the core has only zeros where its stack was")
        stranger = self._owners.stranger(thread)
        if stranger is not None:
            return self.unseen(f"its stack pointer lies in the stack of thread {stranger}")
        stack = NativeStack.walk(registers, self._unwinder, self._symbolizer)
        stack.floats = thread.float_registers
        self._note_modules(stack)
        return stack

    def unseen(self, why: str) -> NativeStack:
        """A stack of which nothing can be known."""
        return NativeStack([], why, self._symbolizer)

    def _note_modules(self, stack: NativeStack) -> None:
        """Functions of a file that cannot be used have no names, or fewer."""
        for module in {frame.module for frame in stack.frames if frame.module} - self._checked:
            self._checked.add(module)
            if module.problem:
                self._errors.note(_file_error(module), module.name)


def _file_error(module: Module) -> SymbolFileError:
    """The error on what the report lacks because of a file; where the deleted file could still be read, it lacks
    nothing."""
    if module.status == "deleted" and module.image and not module.image.from_memory:
        nothing_lost = "nothing is lost here, but take no core without keeping that file"
        return SymbolFileError(module.problem, why="", help=nothing_lost)
    return SymbolFileError(module.problem)


def python_frames(table: ThreadTable, tid: int, stack: NativeStack) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
    """(the Python frames innermost first, each at the level of the native frame that evaluates it; what could not be
    read). Raises MemoryFault, BadData."""
    states = table.states.get(tid)
    if not states:
        return (), ()
    frames = table.runtime.frames
    problems = [frames.stack(state).problem for state in states]
    groups = frames.groups(states)
    spans = [(frame.sp, frame.cfa) for frame in stack.frames]
    evaluates = table.runtime.layout.abi.evaluates
    placed = place_groups(groups, spans, lambda level: _is_loop(stack, level, evaluates))
    if not placed and any(groups):
        placed = [(max(0, len(spans) - 1), group) for group in groups]
        problems.append("no native frame is known to evaluate them; they stand at the outermost one")
    placed_frames = tuple(
        Frame(level, FrameKind.PYTHON, None, frame.function, file=frame.file, line=frame.line)
        for level, group in placed
        for frame in group
    )
    return placed_frames, tuple(f"Python frames: {problem}" for problem in problems if problem)


def _is_loop(stack: NativeStack, level: int, evaluates: Callable[[Iterable[str]], bool]) -> bool:
    """The native frame runs Python code, by the name of its function."""
    function = stack.function(level)
    return function is not None and evaluates(function.names)


def _lacks_registers(stack: NativeStack, dispatch: Sequence[DispatchFrame], kept: Collection[str]) -> bool:
    """The registers that a called function keeps are needed and not known: to go on unwinding, or in the frame of the
    innermost operator, whose arguments and keyset may stand in them."""
    if stack.outer is not None and not stack.is_truncated:
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
        python: ThreadTable,
        dispatch: DispatchStackReader | None,
        errors: ErrorLog,
    ) -> None:
        """``process`` gets its threads here. ``dispatch``: None without torch."""
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
            for thread in self._target.memory.threads():
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
        if not taken:
            taken = self._taken[thread.tid] = self._take(thread)
        return taken

    def _take(self, thread: TargetThread) -> ThreadSnapshot:
        registers: Mapping[str, int] = {} if thread.runs_on else thread.registers()
        stack = self._stacks.unseen(_RUNS_ON) if thread.runs_on else self._stacks.of(thread)
        dispatch = self._dispatch.steps(stack) if self._dispatch else ()
        if thread.lacks_registers and _lacks_registers(stack, dispatch, self._process.memory.architecture.callee_saved):
            stopped = self._target.moment.stopped_thread(thread.tid)
            if stopped and not stopped.lacks_registers:
                self._stacks.forget(thread)
                return self._take(stopped)
            self._target.moment.need_registers(thread.tid)
        python, notes = self._python_frames(thread, stack)
        if stack.outer is not None:
            notes = (*notes, f"the stack ends early: {stack.outer}")
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
            python_name=self._python.names.get(thread.tid),
            number=thread.number,
            signal=thread.signal,
            notes=notes,
            kernel_side=thread.kernel_side,
            stop_signal=thread.stop_signal,
        )

    def _python_frames(self, thread: TargetThread, stack: NativeStack) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
        """The Python frames, and what could not be read of them."""
        try:
            return python_frames(self._python, thread.tid, stack)
        except TargetGone:
            raise
        except GdbextError as error:
            return (), (f"Python frames: {error.what}",)

    def _unseen_dispatch(self, stack: NativeStack) -> str | None:
        """The reason why there may be frames of the dispatcher that cannot be seen on a stack."""
        if not self._dispatch:
            return None
        if stack.outer is not None:
            return "the stack ends early"
        for module in {frame.module for frame in stack.frames if frame.module}:
            if module.name.startswith(TORCH_PREFIXES) and not module.image:
                return f"the functions of {module.name} have no names without its file"
        unread = self._dispatch.unread(stack)
        return "; ".join(one.text for one in unread) if unread else None
