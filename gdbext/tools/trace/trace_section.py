"""The report of dispatch-trace when the trace is over, and as text: why it ended, and what had not come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Ending, Report
from gdbext.engine.vocabulary import Section, counted
from gdbext.render import Style, escape
from gdbext.torch.stack import DispatchEvent, DispatchStage

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Sparse
    from gdbext.live.dispatch_description import TracedDispatch


@dataclass(frozen=True)
class OpenDispatch:
    """A dispatch that has not returned. ``last``: its last step that was seen."""

    event: str
    op: str
    key: str
    last: str

    @classmethod
    def of(cls, dispatch: TracedDispatch) -> OpenDispatch:
        return cls(dispatch.lookup.event.value, dispatch.lookup.qualified, dispatch.lookup.key, dispatch.last)


@dataclass(frozen=True)
class InnermostStep:
    """The innermost dispatch on the thread's stack, and its stage."""

    event: DispatchEvent | None
    op: str
    key: str | None
    stage: DispatchStage
    kernel: str | None


@dataclass(frozen=True)
class OpenThread:
    """A thread inside of traced dispatches (``open``, outermost first), and the meaning of its innermost step."""

    tid: int
    open: tuple[OpenDispatch, ...]
    stopped_in: InnermostStep | None
    meaning: str


@dataclass(frozen=True)
class TraceSection(Section):
    """``output`` is the file of the trace; ``events``: the whole trace, if it is written to the document.

    ``hooks``: number of breakpoints or probes, by ``engine``; ``lost``: number of dispatches without room; ``unseen``:
    number of functions that look operators up in a way that probes do not recognize.
    """

    name: ClassVar[str] = "trace"
    count: int
    operators: tuple[str, ...]
    hooks: int
    ending: Ending
    open: tuple[OpenThread, ...] = ()
    notes: tuple[str, ...] = ()
    output: str | None = None
    engine: str = "breakpoints"
    lost: int = 0
    unseen: int = 0
    unseen_in: tuple[str, ...] = ()
    """The libraries of these functions, with the number in each."""
    events: Sparse[tuple[Mapping[str, object], ...] | None] = None


def unproven_note(count: int) -> str:
    """The note on dispatches that were shown inside others without proof."""
    return f"{counted(count, 'dispatch')} may be outside the one they are shown in: their stacks could not be unwound"


def render(report: Report, style: Style) -> Iterator[str]:
    """One line on the trace, then each thread that is still inside a traced operator."""
    trace = report.section(TraceSection)
    what = f"{counted(trace.count, 'dispatch')} traced"
    where = f", in {escape(trace.output)}" if trace.output else ""
    yield style(f"{what}{where}; ended: {escape(trace.ending.text or 'as requested')}", "bold")
    if trace.unseen:
        where = f" ({', '.join(trace.unseen_in)})" if trace.unseen_in else ""
        functions = counted(trace.unseen, "function")
        yield f"  not seen: operators that {functions} call{'s' * (trace.unseen == 1)} directly{where}"
        yield "    because the lookup in their code is not recognized; what is inside of them is shown one level up"
    for note in trace.notes:
        yield f"  note: {escape(note)}"
    for thread in trace.open:
        yield style(f"thread {thread.tid} has not returned from:", "yellow")
        for dispatch in thread.open:
            names = f"[{dispatch.event}] op=[{escape(dispatch.op)}], key=[{dispatch.key}]"
            yield f"  {names}  last step seen: {dispatch.last}"
        step = thread.stopped_in
        if step:
            kernel = f", kernel {escape(step.kernel)}" if step.kernel else ""
            yield f"  now in: {escape(step.op)}, key {step.key or 'unknown'}, {step.stage.value}{kernel}"
        if thread.meaning:
            yield f"  that means: {thread.meaning}"
