"""Snapshots of threads: everything that is read of a thread, including its native and Python stacks."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.threads.frame_reader import place_groups
from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.waits.snapshot import MAX_TID, ProcessSnapshot, ThreadSnapshot
from gdbext.engine.glibc.pthread import id_of_block
from gdbext.engine.unwind import NativeStack, Unwinder
from gdbext.engine.vocabulary import ErrorLog
from gdbext.errors import GdbextError, StacklessCore, SymbolFileError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from gdbext.cpython.threads.runtime import ThreadTable
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetThread
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader


class _ThreadPointers(NamedTuple):
    """The registers that show where a thread's stack is; the thread pointer is None if unknown."""

    tid: int
    stack_pointer: int
    thread_pointer: int | None


class _ControlBlock(NamedTuple):
    """The control block at the upper end of a thread's stack; ``names_it``: memory there has the thread's id, which
    proves that the stack below is its; else only the thread's pointer says so."""

    address: int
    tid: int
    names_it: bool


class StackOwners:
    """Finds threads of a core that seem to be on another thread's stack, because registers in a file may be damaged.

    glibc puts a thread's control block, with its id, at the upper end of the stack (nptl/allocatestack.c). A thread
    pointer above a stack pointer, in the same mapping, suggests that the stack between them is that thread's. A block
    that names the thread proves it for all stack pointers below; readable memory that is no block suggests nothing. If
    the file lacks the block, contradictory thread pointers are not believed. The kernel made the first thread's stack:
    its block is in no stack unless it proves to be (in a child that a thread forked).
    """

    def __init__(self, target: Target, modules: ModuleTable, memory: Memory) -> None:
        self._target = target
        self._modules = modules
        self._memory = memory
        self._blocks: dict[int, Sequence[_ControlBlock]] = {}  # by the start of the mapping

    def other_stack_owner(self, thread: TargetThread) -> int | None:
        """The id of another thread whose stack contains this one's stack pointer, or may contain it; None normally."""
        if not (self._target.origin.is_core or self._target.origin.recorded):
            if self._target.memory.records:
                self._tid_of_block  # noqa: B018 - read now, because a replay of the recording will need the blocks
            return None
        pointers = self._pointers_of(thread)
        mapping = self._modules.mapping_at(pointers.stack_pointer) if pointers else None
        if not pointers or not mapping or self._is_file(mapping):
            return None
        if self._is_first_stack(mapping):
            return None if pointers.tid == self._target.pid else self._target.pid
        blocks = self._blocks_in(mapping)
        above = blocks[bisect_right(blocks, (pointers.stack_pointer, MAX_TID)) :]
        proven = next((block for block in above if block.names_it), None)
        if proven:
            return None if proven.tid == pointers.tid else proven.tid
        own = next((block.address for block in above if block.tid == pointers.tid), None)
        nearer = (block.tid for block in above if block.tid != pointers.tid and (own is None or block.address <= own))
        return next(nearer, None) or next(self._possible_owners(pointers, mapping, own), None)

    def is_absent(self, thread: TargetThread) -> bool:
        """The core has only zeros where the stack and the control block of the thread were: 64 bytes at the top of a
        stack, and of a block, which begins with its own address, are never all zero."""
        pointers = self._pointers_of(thread) if self._target.origin.is_core else None
        if not pointers or not pointers.thread_pointer or not pointers.stack_pointer:
            return False
        tops = [self._memory.try_read(address, 64) for address in (pointers.stack_pointer, pointers.thread_pointer)]
        return all(raw and not any(raw) for raw in tops)

    def _pointers_of(self, thread: TargetThread) -> _ThreadPointers | None:
        return next((row for row in self._all_pointers if row.tid == thread.tid), None)

    def _possible_owners(self, pointers: _ThreadPointers, mapping: MemoryMapping, own: int | None) -> Iterator[int]:
        """Tids of threads whose stack this may be although no control block says so: their stack pointers are there,
        too, or could be. ``own``: the address of this thread's control block above its stack pointer."""
        stack_pointer, is_off = pointers.stack_pointer, pointers.tid in self._off_their_stack
        addresses = (block.address for block in self._blocks_in(mapping) if block.address <= stack_pointer)
        below = max(addresses, default=mapping.start)
        for other in self._all_pointers:
            if other.tid != pointers.tid and below <= other.stack_pointer < (own or mapping.end):
                is_there = own is None and (is_off or other.stack_pointer == stack_pointer)
                if is_there or other.tid in self._off_their_stack:
                    yield other.tid
        if own is None:
            yield from self._off_their_stack - {pointers.tid, self._target.pid}

    def _blocks_in(self, mapping: MemoryMapping) -> Sequence[_ControlBlock]:
        """The threads whose control blocks are in the mapping, ascending by address: they divide it into stacks. The
        main thread is left out, because the kernel allocated its stack."""
        if mapping.start not in self._blocks:
            blocks = set()
            for pointers in self._all_pointers:
                block = pointers.thread_pointer
                if not pointers.stack_pointer or block is None or not mapping.start < block < mapping.end:
                    continue
                named = self._tid_of_block.get(block)
                tid = named or pointers.tid
                is_first = tid == self._target.pid and not (named and self._has_stack_pointer(mapping, tid))
                if named != 0 and not is_first:
                    blocks.add(_ControlBlock(block, tid, bool(named)))
            self._blocks[mapping.start] = sorted(blocks)
        return self._blocks[mapping.start]

    def _has_stack_pointer(self, mapping: MemoryMapping, tid: int | None = None) -> bool:
        """The stack pointer of a thread, or of thread ``tid``, is in the mapping."""
        stack_pointers = (row.stack_pointer for row in self._all_pointers if tid in (None, row.tid))
        return any(mapping.start <= stack_pointer < mapping.end for stack_pointer in stack_pointers)

    @cached_property
    def _off_their_stack(self) -> Set[int]:
        """Ids of threads whose stack is not where their thread pointer says."""
        # Threads that the kernel runs for the process (io_uring's) have no stack, and their maker's thread pointer.
        counts = Counter(row.thread_pointer for row in self._all_pointers if row.thread_pointer and row.stack_pointer)

        def is_credible(pointers: _ThreadPointers) -> bool:
            """The thread pointer may be this thread's: its block names it, or nothing contradicts it."""
            block = pointers.thread_pointer
            if block is None:
                return True
            named = self._tid_of_block.get(block)
            if named is not None:
                return named == pointers.tid
            mapping = self._modules.mapping_at(block)
            if counts[block] > 1 or not mapping or self._is_file(mapping) or self._is_first_stack(mapping):
                return False
            # ld.so makes the main thread's block, on no stack; others are on their mmapped stacks, never in the heap
            is_main = pointers.tid == self._target.pid
            return not self._has_stack_pointer(mapping) if is_main else mapping.path != "[heap]"

        return {row.tid for row in self._all_pointers if not is_credible(row)}

    @cached_property
    def _tid_of_block(self) -> Mapping[int, int]:
        """Thread pointer → the thread that the control block there names; 0 if there is no block. A block that cannot
        be read, or that names a thread of another namespace, is left out."""
        tids, named = {row.tid for row in self._all_pointers}, {}
        for block in {row.thread_pointer for row in self._all_pointers if row.thread_pointer}:
            if not self._target.origin.recorded or self._target.memory.known_size(block) > 1:
                tid = id_of_block(self._memory, block)
                if tid == 0 or tid in tids:
                    named[block] = tid
        return named

    @staticmethod
    def _is_file(mapping: MemoryMapping) -> bool:
        """The mapping is a file's, not a stack, the heap or named anonymous memory."""
        # The kernel's names of the stack that it made for the first thread, and of the break (proc_pid_maps(5)), and
        # names that programs give to anonymous mappings (prctl(2), PR_SET_VMA; glibc's tunable
        # glibc.mem.decorate_maps).
        return bool(mapping.path) and not mapping.path.startswith(("[stack]", "[heap]", "[anon:"))

    def _is_first_stack(self, mapping: MemoryMapping) -> bool:
        """The mapping is the stack of the first thread, by its name or by the 16 bytes that the kernel put there, whose
        address is AT_RANDOM (25) of linux/auxvec.h."""
        random_bytes = self._target.memory.auxv().get(25, 0)
        return mapping.path.startswith("[stack]") or mapping.start <= random_bytes < mapping.end

    @cached_property
    def _all_pointers(self) -> Sequence[_ThreadPointers]:
        """Stack and thread pointers of all stopped threads whose registers can be read."""
        architecture, rows = self._target.architecture, []
        for thread in self._target.memory.threads():
            if not thread.runs_on:
                with suppress(GdbextError):
                    registers = thread.registers()
                    pointer = registers.get(architecture.thread_register)
                    rows.append(_ThreadPointers(thread.tid, registers.get(architecture.stack_pointer, 0), pointer))
        return rows


class Stacks:
    """Unwinds threads, and records which files on their stacks cannot be used."""

    def __init__(self, unwinder: Unwinder, symbolizer: Symbolizer, owners: StackOwners, errors: ErrorLog) -> None:
        self._unwinder = unwinder
        self._owners = owners
        self._symbolizer = symbolizer
        self._errors = errors
        self._stacks: dict[int, NativeStack] = {}  # by tid
        self._checked: set[Module] = set()

    def of(self, thread: TargetThread) -> NativeStack:
        """The stack of a thread. Raises TargetError if its registers cannot be read."""
        if thread.tid not in self._stacks:
            self._stacks[thread.tid] = self._walk(thread)
        return self._stacks[thread.tid]

    def forget(self, thread: TargetThread) -> None:
        """Unwind the thread again when its stack is next needed: more of its registers are known."""
        self._stacks.pop(thread.tid, None)

    def _walk(self, thread: TargetThread) -> NativeStack:
        """Unwind a thread; an empty stack if its registers cannot be believed. Problems of files are recorded."""
        registers = thread.registers()
        if self._owners.is_absent(thread):
            self._errors.note(StacklessCore("the core has only zeros where stacks of threads were"), "core")
            return self.unreadable_stack("the core has only zeros where its stack was")
        stranger = self._owners.other_stack_owner(thread)
        if stranger is not None:
            return self.unreadable_stack(f"its stack pointer lies in the stack of thread {stranger}")
        stack = NativeStack.walk(registers, self._unwinder, self._symbolizer)
        stack.floats = thread.float_registers
        for module in {frame.module for frame in stack.frames if frame.module} - self._checked:
            self._checked.add(module)
            if not module.problem:
                continue
            error = SymbolFileError(module.problem)
            if module.status == "deleted" and module.image and not module.image.from_memory:
                nothing_lost = "nothing is lost here, but take no core without keeping that file"
                error = SymbolFileError(module.problem, why="", help=nothing_lost)
            self._errors.note(error, module.name)
        return stack

    def unreadable_stack(self, why: str) -> NativeStack:
        """An empty stack; ``why`` nothing could be read of it."""
        return NativeStack([], why, self._symbolizer)


def _python_frames(table: ThreadTable, tid: int, stack: NativeStack) -> tuple[tuple[Frame, ...], tuple[str, ...]]:
    """(Python frames innermost first, at their evaluators' levels; problems). Raises MemoryFault, BadData."""
    states = table.states.get(tid)
    if not states:
        return (), ()
    reader = table.runtime.frames
    problems = [reader.stack(state).problem for state in states]
    groups = reader.groups(states)
    spans = [(frame.sp, frame.cfa) for frame in stack.frames]
    evaluates = table.runtime.layout.abi.evaluates

    def is_evaluation_loop(level: int) -> bool:
        function = stack.function(level)
        return function is not None and evaluates(function.names)

    placed = place_groups(groups, spans, is_evaluation_loop)
    if not placed and any(groups):
        placed = [(max(0, len(spans) - 1), group) for group in groups]
        problems.append("no native frame is known to evaluate them; they are shown at the outermost one")
    frames = tuple(
        Frame(level, FrameKind.PYTHON, None, frame.function, file=frame.file, line=frame.line)
        for level, group in placed
        for frame in group
    )
    return frames, tuple(f"Python frames: {problem}" for problem in problems if problem)


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
        self._taken: dict[int, ThreadSnapshot] = {}  # by tid

    def all(self) -> ProcessSnapshot:
        """The process with all its threads. An unreadable thread is skipped and recorded in the error log."""
        if not self._process.threads:
            for thread in self._target.memory.threads():
                try:
                    self._process.threads.append(self.snapshot(thread))
                except TargetGone:
                    raise
                except GdbextError as error:
                    self._errors.note(error, f"thread {thread.tid}")
        return self._process

    def snapshot(self, thread: TargetThread) -> ThreadSnapshot:
        """The snapshot of a thread. Raises TargetError if its registers cannot be read."""
        if thread.tid not in self._taken:
            self._taken[thread.tid] = self._take(thread)
        return self._taken[thread.tid]

    def _take(self, thread: TargetThread) -> ThreadSnapshot:
        """Read a thread; with its stopped copy if callee-saved registers are needed that a running copy lacks."""
        registers: Mapping[str, int] = {} if thread.runs_on else thread.registers()
        running = "it runs, and --no-stop does not stop it"
        stack = self._stacks.unreadable_stack(running) if thread.runs_on else self._stacks.of(thread)
        dispatch = self._dispatch.steps(stack) if self._dispatch else ()
        # Callee-saved registers are needed to unwind further, or in the frame of the innermost operator, whose
        # arguments and keyset may be in them.
        callee_saved = set(self._process.memory.architecture.callee_saved)
        is_cut = stack.outer is not None and not stack.is_truncated
        lacks_some = bool(dispatch) and not stack.frames[dispatch[0].level].registers.keys() >= callee_saved
        if thread.lacks_registers and (is_cut or lacks_some):
            stopped = self._target.moment.stopped_thread(thread.tid)
            if stopped and not stopped.lacks_registers:
                self._stacks.forget(thread)
                return self._take(stopped)
            self._target.moment.need_registers(thread.tid)
        try:
            python, notes = _python_frames(self._python, thread.tid, stack)
        except TargetGone:
            raise
        except GdbextError as error:
            python, notes = (), (f"Python frames: {error.what}",)
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

    def _unseen_dispatch(self, stack: NativeStack) -> str | None:
        """The reason why the stack may have frames of the dispatcher that cannot be seen."""
        if not self._dispatch:
            return None
        if stack.outer is not None:
            return "the stack ends early"
        for module in {frame.module for frame in stack.frames if frame.module}:
            if module.name.startswith(("libtorch", "libc10")) and not module.image:
                return f"the functions of {module.name} have no names without its file"
        unread = self._dispatch.unread(stack)
        return "; ".join(reason.text for reason in unread) if unread else None
