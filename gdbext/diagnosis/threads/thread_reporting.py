"""A thread as it is reported: its frames as one stack, its wait, what it holds, and its operators' arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.finding import NOTE, Finding
from gdbext.diagnosis.report.thread_report import EventLoop, Frame, FrameKind, RunState, ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import PYTHON_LIBRARIES, ThreadSnapshot
from gdbext.engine.repetitions import FOLD_PERIOD, MOST_WHOLE, fold_long, longest
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import KERNEL
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchEvent, DispatchFrame
from gdbext.torch.stack.argument_recovery import ArgumentRecovery, FoundArgument
from gdbext.torch.stack.key_choice import with_key_choice
from gdbext.torch.values.cpp_values import CppValues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gdbext.diagnosis.report.wait_kind import Resource
    from gdbext.diagnosis.waits.recognize import State
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.stack.dispatch_calls import RecoveredCall
    from gdbext.torch.state.dispatch_state_reader import DispatchState


def visible_positions(steps: Sequence[DispatchFrame]) -> frozenset[int]:
    """Positions of the steps that remain when repetitions are folded: the only ones of which costly facts are read."""
    if len(steps) <= MOST_WHOLE:
        return frozenset(range(len(steps)))
    return frozenset(
        position
        for block in fold_long([step.fold_key for step in steps])
        for position in range(block.start, block.start + min(block.length, block.period + 2 * FOLD_PERIOD))
    )


def report_thread(
    snapshot: ThreadSnapshot,
    state: State | None = None,
    holds: Sequence[Resource] = (),
    frames: Sequence[Frame] = (),
    dispatch: Sequence[DispatchFrame] | None = None,
    loop: EventLoop | None = None,
) -> ThreadReport:
    """The report of a thread. ``state``: None if unknown; ``dispatch``: replaces the snapshot's steps."""
    is_running = state is not None and state.state is RunState.RUNNING
    in_interpreter = snapshot.python and snapshot.module_name(0).startswith(PYTHON_LIBRARIES)
    # 200 innermost frames make two stacks equal; deeper ones differ only in recursions.
    addresses = tuple(frame.pc for frame in snapshot.frames[:200])
    return ThreadReport(
        tid=snapshot.tid,
        name=snapshot.name,
        python_name=snapshot.python_name,
        number=snapshot.number,
        signal=snapshot.signal.name if snapshot.signal else None,
        state=state.state if state else RunState.WAITING if snapshot.syscall else RunState.RUNNING,
        wait=state.wait if state else None,
        holds=tuple(holds),
        dispatch=tuple(snapshot.dispatch if dispatch is None else dispatch),
        dispatch_doubt=snapshot.unseen_dispatch,
        frames=tuple(frames),
        python_frames=tuple(snapshot.python),
        frame_count=len(snapshot.frames),
        notes=tuple(snapshot.notes),
        loop=loop,
        pool=state.pool if state else None,
        native_place=native_place(snapshot, 0) if is_running and snapshot.frames and not in_interpreter else "",
        stack_key=hash(addresses) if state and addresses else 0,
    )


def native_place(snapshot: ThreadSnapshot, level: int) -> str:
    """The function of frame ``level`` with its library: ``sre_ucs1_match (libpython3.11.so.1.0)``."""
    return f"{snapshot.function_name(level) or 'an unnamed function'} ({snapshot.module_name(level) or 'no library'})"


def report_stack(session: Session, thread: TargetThread, native: bool, explained: bool) -> ThreadReport:
    """A thread without its wait. ``explained``: with why each key won. Raises TargetError without registers."""
    snapshot = session.threads.snapshot(thread)
    frames = all_frames(session, snapshot) if native else ()
    if not explained or session.dispatcher_error:
        return report_thread(snapshot, frames=frames)
    shown = visible_positions(snapshot.dispatch)
    with_arguments = ArgumentReporter(session).frames_with_arguments_at(snapshot.stack, shown)
    steps = [step for step, *_ in session.dispatch_stacks.calls(snapshot.stack)]
    tensors, keys = session.tensors, session.dispatcher.keys
    for position, described in enumerate(with_arguments):
        if position in shown:
            steps[position] = with_key_choice(steps[position], described.arguments, tensors, keys)
    return report_thread(snapshot, frames=frames, dispatch=tuple(steps))


def with_nodes(session: Session, thread: TargetThread, report: ThreadReport) -> ThreadReport:
    """The report with the autograd nodes that run, if the thread is in a backward pass."""
    stack = session.threads.snapshot(thread).stack
    levels = session.dispatch_stacks.engine_calls(stack) if session.has_torch else ()
    return report._replace(backward=session.extras.backward_nodes(session, thread, stack, levels)) if levels else report


def report_dispatch_state(session: Session, thread: TargetThread, state: DispatchState) -> ThreadReport:
    """A thread with its thread-local dispatch state, and nothing else."""
    return ThreadReport(
        tid=thread.tid,
        name=thread.name,
        python_name=session.python_threads.names.get(thread.tid),
        number=thread.number,
        signal=thread.signal.name if thread.signal else None,
        tls=state,
    )


def all_frames(session: Session, snapshot: ThreadSnapshot) -> tuple[Frame, ...]:
    """All frames, innermost first: native ones, each after the Python frames that it evaluates. With torch: roles in
    the dispatcher, and names and files of Inductor's kernels, whose native name is always "kernel"."""
    stack, python = snapshot.stack, snapshot.python
    roles = session.dispatch_stacks.roles(stack) if session.has_torch else ()
    frames: list[Frame] = []
    position = 0
    generated: list[int] = []  # positions of kernels that Inductor generated
    for level, native in enumerate(stack.frames):
        while position < len(python) and python[position].level == level:
            frames.append(python[position])
            position += 1
        function = stack.function(level)
        name = function.demangled[0] if function else "??"
        if name == KERNEL or name.startswith(f"{KERNEL}._omp_fn."):  # GCC's name for the part that OpenMP's threads run
            generated.append(len(frames))
        role = "signal handler called" if native.is_signal else roles[level].role.value if roles else ""
        how = "" if native.how in ("registers", "cfi", "signal") else f"unwound by {native.how}"
        module = native.module.name if native.module else ""
        role = " ".join(filter(None, (role, how)))
        frames.append(Frame(level, FrameKind.NATIVE, native.pc, name, module=module, role=role))
    if generated and session.has_torch and session.python:
        kernels = {os.path.basename(kernel.library): kernel for kernel in session.generated_kernels.all}
        for position in generated:
            frame = frames[position]
            kernel = kernels.get(frame.module)
            if kernel:
                name = kernel.name + frame.function[len(KERNEL) :]
                frames[position] = frame._replace(function=name, file=kernel.source)
    return tuple(frames)


def missing_kernels(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Iterator[Finding]:
    """Notes on threads in the dispatcher's function that reports a missing kernel, with the keys that have one."""
    for thread in threads:
        snapshot = process.thread(thread.tid)
        level = snapshot.level_of(FunctionTag.NO_KERNEL) if snapshot else None
        if not snapshot or level is None:
            continue
        step = next((step for step in snapshot.dispatch if step.level >= level), None)
        if not step or step.op is None:
            continue
        keys: list[str] = []
        try:
            operators = session.dispatcher.find(step.op)
            operator = next((operator for operator in operators if operator.overload == step.overload), None)
            if operator:
                keys = session.tables.active_keys(operator)
        except GdbextError as error:
            session.errors.note(error, f"registrations of {step.op}")
        for_key = f" for {step.key}" if step.key else ""
        text = f"The dispatcher found no kernel of {step.qualified}{for_key} in {thread.label}"
        yield Finding(NOTE, f"{text}; kernels exist for {', '.join(keys) or 'no key'}.", (thread.tid,))


_REWRITING = ("Conjugate", "Negative", "ZeroTensor", "Functionalize", "FuncTorch", "Batched", "VmapMode")
"""Keys, or their beginnings, whose fallbacks replace tensors on the boxed stack before they redispatch or call:
MathBitsFallback.h, ZeroTensorFallback.cpp, FunctionalizeFallbackKernel.cpp, functorch's DynamicLayer.cpp and
BatchedFallback.cpp (aten/src/ATen, 1.12 to 2.13)."""


class Doubt(IntEnum):
    """Whether a boxed stack may hold other values than its call was given. RESULTS: it may hold results instead."""

    NONE = 0
    MAY_BE = 1
    REWRITTEN = 2
    RESULTS = 3


class ArgumentReporter:
    """Reads the arguments of the operators on stacks."""

    def __init__(self, session: Session, statistics: bool = False) -> None:
        """``statistics``: with statistics of each tensor. Raises NotTorch, LayoutError."""
        self._tensors = session.tensors
        self._statistics = session.extras.tensor_statistics(session) if statistics else None
        self._reader = session.dispatch_stacks
        self._modules = session.modules
        self._keys = session.dispatcher.keys
        self._recovery = ArgumentRecovery(
            session.memory,
            session.symbolizer,
            self._reader.sites,
            self._reader.code,
            CppValues(session.memory, session.layout, self._tensor_text),
        )

    def frames(self, stack: NativeStack, limit: int | None = None) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack; the innermost ``limit`` with their arguments (all by default), and of a
        recursion those that remain when it is folded."""
        shown = visible_positions(self._reader.steps(stack))
        return self.frames_with_arguments_at(stack, {number for number in shown if limit is None or number < limit})

    def frames_with_arguments_at(self, stack: NativeStack, positions: Collection[int]) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack; those at these positions (0 is the innermost) with their arguments."""
        frames: list[DispatchFrame] = []
        arguments: tuple[FoundArgument, ...] = ()
        calls = self._reader.calls(stack)
        count = max(positions, default=-1) + 1
        doubt = Doubt.NONE
        for number, (frame, call, recovered) in enumerate(calls[:count]):
            inner_arguments, arguments = arguments, ()
            inner = calls[number - 1] if number else None  # the call that this one handed its boxed stack on to
            is_boxed = inner is not None and inner[0].event is DispatchEvent.REDISPATCH_BOXED
            if not inner or not is_boxed or inner[2].operator is not recovered.operator:
                inner = None
            function = stack.function(0) if call.kernel == 0 else None
            if function and function.start == stack.frames[0].pc:
                doubt = Doubt.NONE  # no instruction of the kernel has run
            else:
                doubt = max(self._boxed_stack_doubt(recovered, inner is not None), doubt if inner else Doubt.NONE)
            if number not in positions:
                frames.append(frame)
                continue
            with suppress(GdbextError):
                arguments = self._recovery.find(stack, call, recovered)
                if inner:
                    arguments = self._recovery.with_inner_values(stack, arguments, inner[1], inner_arguments)
                if doubt:
                    arguments = self._with_lower_certainty(arguments, recovered.keyset or 0, doubt)
            frames.append(frame._replace(arguments=tuple(map(self._argument_report, arguments))))
        return (*frames, *(frame for frame, _, _ in calls[count:]))

    def _boxed_stack_doubt(self, recovered: RecoveredCall, inner_call_runs: bool) -> Doubt:
        """How sure it is that the boxed stack still holds the call's arguments: some fallbacks replace tensors, a
        backend's may, and results replace them once the inner call returned (``inner_call_runs``: it has not)."""
        kernel, operator = recovered.kernel, recovered.operator
        if not kernel or not kernel.boxed_only:
            return Doubt.NONE
        if operator and not inner_call_runs:
            with suppress(GdbextError):  # without a schema, nothing on the stack is shown
                schema = operator.schema
                if schema and not 0 <= schema.returns < len(schema.arguments):
                    return Doubt.RESULTS  # as many values are on the stack before as after
        if recovered.index is not None and self._keys.key_of_index(recovered.index).startswith(_REWRITING):
            return Doubt.REWRITTEN
        # A backend's library may be called libtorch_ and its name: these are PyTorch's own.
        own_libraries = ("libtorch.so", "libtorch_cpu", "libtorch_cuda", "libtorch_python", "libc10")
        module = self._modules.find(kernel.boxed)
        may_be = not inner_call_runs or module is None or not module.name.startswith(own_libraries)
        return Doubt.MAY_BE if may_be else Doubt.NONE

    def _with_lower_certainty(
        self, arguments: Sequence[FoundArgument], keyset: int, doubt: Doubt
    ) -> tuple[FoundArgument, ...]:
        """The arguments; those from the boxed stack are at most INFERRED, its tensors UNKNOWN if a fallback rewrote
        them or their keys contradict ``keyset``, all UNKNOWN if they may be results."""
        values = (argument.value for argument in arguments if "Tensor" in argument.type)
        tensors = [address for value in values if value for address in value.tensors if address]
        key_set = reduce(or_, (self._tensors.read_alive(address).key_set for address in tensors), 0)
        has_others = bool(tensors) and bool(keyset & self._keys.backend_mask & ~key_set)
        tensors_unknown = has_others or doubt is Doubt.REWRITTEN
        result = []
        for argument in arguments:
            if argument.value and argument.boxed:
                if doubt is Doubt.RESULTS or (tensors_unknown and "Tensor" in argument.type):
                    argument = argument._replace(value=None, certainty=Certainty.UNKNOWN)
                else:
                    argument = argument._replace(certainty=min(argument.certainty, Certainty.INFERRED))
            result.append(argument)
        return tuple(result)

    def _argument_report(self, argument: FoundArgument) -> Argument:
        """The argument as it is reported, with its tensors and, if requested, their statistics."""
        value = argument.value
        if not value:
            return Argument(argument.name, argument.type, "", argument.certainty)
        tensors = tuple(
            ArgumentTensor(address, self._tensor_text(address), self._statistics(address) if self._statistics else None)
            if address
            else ArgumentTensor(0, "None")
            for address in value.tensors
        )
        return Argument(argument.name, argument.type, value.text, argument.certainty, tensors)

    def _tensor_text(self, address: int) -> str:
        """``f32[8, 16] cpu``. Raises BadData if there is no tensor at the address."""
        if address & 7 or not address:
            raise BadData(f"there is no tensor at {address:#x}")
        return self._tensors.read_alive(address).short


def have_same_arguments(session: Session, snapshot: ThreadSnapshot, positions: Sequence[int], period: int) -> bool:
    """True if the steps at ``positions``, a repetition of ``period`` steps, provably have equal arguments in each
    period: the operators' as far as they are readable; with Python in between, also those of its function calls."""
    try:
        same = _same_operator_arguments(session, snapshot, positions, period)
    except GdbextError:
        return False
    first, last = (snapshot.dispatch[at].level for at in (positions[0], positions[-1]))
    if same is False or not any(first <= frame.level <= last for frame in snapshot.python):
        return same is True
    # (code, objects with which it was called) of each frame; no objects for functions that only pass arguments on.
    stack = session.python_threads.frames(snapshot.tid).innermost(4000)
    passing_on = ("/torch/", "<frozen ")
    calls = [
        (frame.code, () if any(part in frame.file for part in passing_on) else stack.arguments(frame, 32))
        for frame in stack
    ]
    block = longest(calls, 200)
    if not block or block.times * 2 < len(positions) // period:
        return False
    return any(objects for _, objects in calls[block.start : block.start + block.period])


def _same_operator_arguments(
    session: Session, snapshot: ThreadSnapshot, positions: Sequence[int], period: int
) -> bool | None:
    """True: equal, and each operator's were read; False: some differ; None: not all could be read. Only the 6 innermost
    periods (a number that counts down differs from one to the next) and 6 others all over the stack are compared."""
    times = len(positions) // period
    turns = sorted({*range(min(6, times)), *range(0, times, max(1, times // 6))})
    wanted = {positions[turn * period + place] for turn in turns for place in range(period)}
    steps = ArgumentReporter(session).frames_with_arguments_at(snapshot.stack, wanted)
    was_read: dict[str, bool] = {}
    for place in range(period):
        column = [steps[positions[turn * period + place]] for turn in turns]
        if _have_different_arguments(column):
            return False
        operator = column[0].qualified
        is_known = all(step.arguments and all(argument.text for argument in step.arguments) for step in column)
        was_read[operator] = was_read.get(operator, False) or is_known
    return True if all(was_read.values()) else None


def _have_different_arguments(steps: Sequence[DispatchFrame]) -> bool:
    """True if an argument is known to have different values in these steps."""
    values: dict[str, tuple[object, ...]] = {}
    for step in steps:
        for argument in step.arguments:
            if argument.text:
                value = (argument.text, tuple(tensor.address for tensor in argument.tensors))
                if values.setdefault(argument.name, value) != value:
                    return True
    return False
