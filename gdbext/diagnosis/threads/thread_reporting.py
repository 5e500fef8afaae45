"""A thread as it is reported: its frames, native and Python, as one stack, what it waits for and what it holds, the
arguments of its operators, and the exception that ended it.

Kernels that Inductor generated are all called "kernel" on native stacks; here they have their own names and files. A
thread that stopped where the dispatcher complains of a missing kernel is told what is registered instead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.finding import NOTE, Finding
from gdbext.diagnosis.report.thread_report import EventLoop, Frame, FrameKind, RunState, ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.repetitions import FOLD_PERIOD, MOST_WHOLE, fold_long
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import KERNEL
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchEvent, DispatchFrame
from gdbext.torch.stack.argument_recovery import ArgumentRecovery, FoundArgument
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.stack.key_choice import KeySetExplanation
from gdbext.torch.values.cpp_objects import CxxException, read_exception
from gdbext.torch.values.cpp_values import CppValues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gdbext.diagnosis.report.resource import Resource
    from gdbext.diagnosis.waits.recognise import State
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.stack.known_fallbacks import RecoveredCall
    from gdbext.torch.stack.roles import FunctionRole
    from gdbext.torch.state.dispatch_state_reader import DispatchState
    from gdbext.torch.state.tensor import TensorFacts

_ORDINARY = ("registers", "cfi", "signal")
"""Ways of unwinding that nobody need be told of."""


def merged_frames(stack: NativeStack, python: Sequence[Frame], roles: Sequence[FunctionRole] = ()) -> tuple[Frame, ...]:
    """Native frames, each below the Python frames that it evaluates. ``roles``: of the native frames, if known."""
    merged: list[Frame] = []
    position = 0
    for level in range(len(stack)):
        while position < len(python) and python[position].level == level:
            merged.append(python[position])
            position += 1
        merged.append(_native_frame(stack, level, roles[level].role.value if roles else ""))
    return tuple(merged)


def _native_frame(stack: NativeStack, level: int, role: str) -> Frame:
    frame = stack.frames[level]
    function = stack.function(level)
    how = "" if frame.how in _ORDINARY else f"unwound by {frame.how}"
    return Frame(
        level,
        FrameKind.NATIVE,
        frame.pc,
        function.demangled[0] if function else "??",
        module=frame.module.name if frame.module else "",
        role=" ".join(filter(None, ("signal handler called" if frame.is_signal else role, how))),
    )


_PART = f"{KERNEL}._omp_fn."
"""The beginning of what GCC calls a part of it that OpenMP's threads run."""


def named_kernels(session: Session, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames; those of generated kernels with the kernel's name and its C++ file."""
    if not session.python or not any(map(_is_candidate, frames)):
        return tuple(frames)
    by_library = {os.path.basename(each.library): each for each in session.generated_kernels.all}
    return tuple(
        frame._replace(function=kernel.name + frame.function[len(KERNEL) :], file=kernel.source)
        if _is_candidate(frame) and (kernel := by_library.get(frame.module))
        else frame
        for frame in frames
    )


def _is_candidate(frame: Frame) -> bool:
    return frame.kind is FrameKind.NATIVE and (frame.function == KERNEL or frame.function.startswith(_PART))


_COMPARED = 200
"""Innermost frames that make two stacks equal; deeper ones differ only in recursions."""


_AROUND = 2 * FOLD_PERIOD
"""Steps behind a block's first one that a text may show: it folds frames and steps together."""


def shown_steps(steps: Sequence[DispatchFrame]) -> frozenset[int]:
    """Positions of the steps that are left once a stack is folded. What costs time is read of these alone: a recursion
    has tens of thousands."""
    if len(steps) <= MOST_WHOLE:
        return frozenset(range(len(steps)))
    return frozenset(
        position
        for found in fold_long([step.fold_key for step in steps])
        for position in range(found.start, found.start + min(found.length, found.period + _AROUND))
    )


def report_thread(
    snapshot: ThreadSnapshot,
    state: State | None = None,
    holds: Sequence[Resource] = (),
    frames: Sequence[Frame] = (),
    dispatch: Sequence[DispatchFrame] | None = None,
    loop: EventLoop | None = None,
) -> ThreadReport:
    """``state``: None where the wait is not asked for or not known; ``dispatch``: instead of the snapshot's."""
    return ThreadReport(
        tid=snapshot.tid,
        name=snapshot.name,
        python_name=snapshot.python_name,
        number=snapshot.number,
        signal=snapshot.signal.name if snapshot.signal else None,
        state=state.state if state else _bare_state(snapshot),
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
        native_place=_outside_of_python(snapshot) if state and state.state is RunState.RUNNING else "",
        stack_key=_stack_key(snapshot) if state else 0,
    )


_INTERPRETER = ("python", "libpython")


def _outside_of_python(snapshot: ThreadSnapshot) -> str:
    """The innermost native function; "" where the interpreter runs Python code."""
    inside = snapshot.python and snapshot.module_name(0).startswith(_INTERPRETER)
    return native_place(snapshot, 0) if snapshot.frames and not inside else ""


def native_place(snapshot: ThreadSnapshot, level: int) -> str:
    """The function with its library: ``sre_ucs1_match (libpython3.11.so.1.0)``."""
    function = snapshot.stack.function(level)
    name = function.demangled[0].split("(")[0] if function else "an unnamed function"
    return f"{name} ({snapshot.module_name(level) or 'no library'})"


def report_stack(session: Session, thread: TargetThread, native: bool, explained: bool) -> ThreadReport:
    """A thread without its wait; ``native``: with every frame, ``explained``: with why each key won.

    Raises TargetError where its registers cannot be read.
    """
    snapshot = session.threads.of(thread)
    frames = all_frames(session, snapshot) if native else ()
    if not explained or session.dispatcher_error:
        return report_thread(snapshot, frames=frames)
    explanation = KeySetExplanation(session.tensors, session.dispatcher.keys)
    shown = shown_steps(snapshot.dispatch)
    found = ArgumentReporter(session).at(snapshot.stack, shown)
    dispatch = explanation.explained(
        [frame for frame, *_ in session.dispatch_stacks.calls(snapshot.stack)], found, shown
    )
    return report_thread(snapshot, frames=frames, dispatch=dispatch)


def report_dispatch_state(session: Session, thread: TargetThread, state: DispatchState) -> ThreadReport:
    """A thread with the state of dispatch that was read of it, and nothing else."""
    return ThreadReport(
        tid=thread.tid,
        name=thread.name,
        python_name=session.python_threads.names.get(thread.tid),
        number=thread.number,
        signal=thread.signal.name if thread.signal else None,
        tls=state,
    )


def all_frames(session: Session, snapshot: ThreadSnapshot) -> tuple[Frame, ...]:
    """Native and Python frames of a thread; with the role that each plays in the dispatcher, where there is torch."""
    roles = session.dispatch_stacks.roles(snapshot.stack) if session.has_torch else ()
    frames = merged_frames(snapshot.stack, snapshot.python, roles)
    if session.has_torch and any(frame.function.startswith("kernel") for frame in frames):
        return named_kernels(session, frames)
    return frames


def _bare_state(snapshot: ThreadSnapshot) -> RunState:
    """The state of a thread of which only is known whether it is blocked in the kernel."""
    return RunState.WAITING if snapshot.syscall else RunState.RUNNING


def _stack_key(snapshot: ThreadSnapshot) -> int:
    frames = snapshot.frames
    return hash(tuple(frame.pc for frame in frames[:_COMPARED])) if frames else 0


def missing_kernels(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Iterator[Finding]:
    """A note for each such thread."""
    for thread in threads:
        snapshot = process.thread(thread.tid)
        frame = _complaining(snapshot) if snapshot else None
        if not frame or frame.op is None:
            continue
        for_key = f" for {frame.key}" if frame.key else ""
        text = f"{thread.label} is where the dispatcher finds no kernel{for_key} of {frame.qualified}"
        keys = ", ".join(_registered(session, frame.op, frame.overload)) or "no key"
        yield Finding(NOTE, f"{text}; there are kernels for {keys}.", (thread.tid,))


def _complaining(snapshot: ThreadSnapshot) -> DispatchFrame | None:
    """The dispatcher's frame that found no kernel."""
    level = snapshot.first(FunctionTag.NO_KERNEL)
    if level is None:
        return None
    return next((frame for frame in snapshot.dispatch if frame.level >= level), None)


def _registered(session: Session, op: str, overload: str) -> list[str]:
    """The keys that have a kernel of the operator."""
    try:
        for operator in session.dispatcher.find(op):
            if operator.overload == overload:
                return [each.key for each in session.tables.registrations(operator) if each.active]
    except GdbextError as error:
        session.errors.note(error, f"registrations of {op}")
    return []


THROW = "__cxa_throw"
"""``void __cxa_throw(void *thrown, std::type_info *type, void (*destroy)(void *))`` (Itanium C++ ABI, 2.4.3): it is
still on the stack when std::terminate is called, because unwinding begins only where a handler was found."""

_WITHIN = 24
"""Frames from the innermost one among which it stands: abort, terminate and its handler, the unwinder's own."""


def uncaught_exception(session: Session, snapshot: ThreadSnapshot) -> CxxException | None:
    """The exception that the thread threw, None where that is not known."""
    stack = snapshot.stack
    sites = CallSites(session.memory, FunctionCode(session.memory, session.symbolizer))
    for level in range(min(len(stack) - 1, _WITHIN)):
        function = stack.function(level)
        if not function or THROW not in function.names:
            continue
        thrown = sites.argument(stack, level + 1, 0)
        try:
            return None if thrown is None else read_exception(session.memory, session.symbolizer, thrown)
        except GdbextError:
            return None
    return None


UNDEFINED = "undefined"
"""The text for an at::Tensor without a tensor."""


_TORCH = ("libtorch.so", "libtorch_cpu", "libtorch_cuda", "libtorch_python", "libc10")
"""PyTorch's own libraries; a backend's may be called libtorch_ and its name."""


_REWRITING = ("Conjugate", "Negative", "ZeroTensor", "Functionalize", "FuncTorch", "Batched", "VmapMode")
"""Keys, or their beginnings, whose fallbacks put other tensors on the boxed stack before they hand it on or call anew
with it: aten/src/ATen/native/MathBitsFallback.h, aten/src/ATen/ZeroTensorFallback.cpp, FunctionalizeFallbackKernel.cpp,
aten/src/ATen/functorch/DynamicLayer.cpp, BatchedFallback.cpp (1.12 to 2.13)."""


class Doubt(IntEnum):
    """The doubt that a boxed stack may hold what its call was not given."""

    NONE = 0
    MAY_BE = 1
    REWRITTEN = 2


class ArgumentReporter:
    """Finds and describes arguments in one session."""

    def __init__(self, session: Session, statistics: bool = False) -> None:
        """``statistics``: of each tensor, too. Raises NotTorch, LayoutError."""
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
        """The dispatcher's frames of a stack with their arguments; only the innermost ``limit`` have them, and of a
        recursion those that are left when it is folded."""
        shown = shown_steps(self._reader.steps(stack))
        return self.at(stack, {number for number in shown if limit is None or number < limit})

    def at(self, stack: NativeStack, positions: Collection[int]) -> tuple[DispatchFrame, ...]:
        """All the dispatcher's frames of a stack; those at ``positions`` with their arguments."""
        found: list[DispatchFrame] = []
        arguments: tuple[FoundArgument, ...] = ()
        calls = self._reader.calls(stack)
        count = max(positions, default=-1) + 1
        doubt = Doubt.NONE
        for number, (frame, call, recovered) in enumerate(calls[:count]):
            inside, arguments = arguments, ()
            inner = calls[number - 1] if number else None
            if (
                not inner
                or inner[2].operator is not recovered.operator
                or inner[0].event is not DispatchEvent.REDISPATCH_BOXED
            ):
                inner = None
            doubt = max(self._doubt(recovered, inner is not None), doubt if inner else Doubt.NONE)
            if number not in positions:
                found.append(frame)
                continue
            with suppress(GdbextError):
                arguments = self._recovery.find(stack, call, recovered)
                if inner:
                    arguments = self._recovery.completed(stack, arguments, inner[1], inside)
                if doubt:
                    arguments = self._doubted(arguments, recovered.keyset or 0, doubt)
            found.append(frame._replace(arguments=tuple(map(self._described, arguments))))
        return (*found, *(frame for frame, _, _ in calls[count:]))

    def _doubt(self, recovered: RecoveredCall, hands_on: bool) -> Doubt:
        """The doubt that the boxed stack holds other values than the call was given: a backend's fallback may put
        tensors of another device there, some of PyTorch's put others there for sure, and results are there once the
        call that it was handed on to has come back."""
        kernel = recovered.kernel
        if not kernel or kernel.unboxed or kernel.sym_unboxed:
            return Doubt.NONE
        if recovered.index is not None and self._keys.key_of_index(recovered.index).startswith(_REWRITING):
            return Doubt.REWRITTEN
        module = self._modules.find(kernel.boxed)
        may_be = not hands_on or module is None or not module.name.startswith(_TORCH)
        return Doubt.MAY_BE if may_be else Doubt.NONE

    def _doubted(self, arguments: Sequence[FoundArgument], keyset: int, doubt: Doubt) -> tuple[FoundArgument, ...]:
        """Take what is on the boxed stack for inferred; and tensors for unknown that were rewritten, or cannot have
        given the keyset."""
        tensors = [one for one in arguments if "Tensor" in one.type]
        known = [address for one in tensors if one.value for address in one.value.tensors if address]
        held = reduce(or_, (self._tensors.read_alive(address).key_set for address in known), 0)
        others = bool(known) and bool(keyset & self._keys.backend_mask & ~held)
        are_unknown = others or doubt is Doubt.REWRITTEN
        return tuple(
            _less_certain(one, are_unknown and "Tensor" in one.type) if one.value and one.boxed else one
            for one in arguments
        )

    def _described(self, found: FoundArgument) -> Argument:
        if not found.value:
            return Argument(found.name, found.type, "", found.certainty)
        tensors = tuple(self._tensor(address) for address in found.value.tensors)
        return Argument(found.name, found.type, found.value.text, found.certainty, tensors)

    def _tensor(self, address: int) -> ArgumentTensor:
        if not address:
            return ArgumentTensor(0, "None")
        statistics = self._statistics(address) if self._statistics else None
        return ArgumentTensor(address, self._tensor_text(address), statistics)

    def _tensor_text(self, address: int) -> str:
        """Raises BadData where there is no tensor."""
        if address & 7 or not address:
            raise BadData(f"there is no tensor at {address:#x}")
        return tensor_text(self._tensors.read_alive(address))


def tensor_text(facts: TensorFacts) -> str:
    """The tensor in short: ``f32[4, 4] cpu``."""
    return facts.short


def _less_certain(found: FoundArgument, is_unknown: bool) -> FoundArgument:
    certainty = Certainty.UNKNOWN if is_unknown else min(found.certainty, Certainty.INFERRED)
    return found._replace(value=None if is_unknown else found.value, certainty=certainty)
