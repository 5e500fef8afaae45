"""What dispatch-trace reports when the trace is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.dispatch.dispatch_frame import DispatchStage
from gdbext.model.ending import Ending
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class OpenDispatch:
    """A dispatch that has not come back. ``last`` is the last step of it that was seen."""

    event: str
    op: str
    key: str
    last: str


@dataclass(frozen=True)
class InnermostStep:
    """The innermost dispatch on the thread's stack, and how far it has come."""

    event: DispatchEvent
    op: str
    key: str | None
    stage: DispatchStage
    kernel: str | None


@dataclass(frozen=True)
class OpenThread:
    """A thread inside traced dispatches: those, outermost first, and what the innermost step means for it."""

    tid: int
    open: tuple[OpenDispatch, ...]
    stopped_in: InnermostStep | None
    meaning: str


@dataclass(frozen=True)
class TraceSection(Section):
    """``output`` is the file that the trace went to; ``events`` are those of a document that has them all.

    ``hooks``: breakpoints or probes, by ``engine``; ``lost``: dispatches that found no room; ``unseen``: functions that
    look operators up in a way that probes do not recognise.
    """

    name: ClassVar[str] = "trace"
    count: int
    operators: tuple[str, ...]
    hooks: int
    ending: Ending
    open: tuple[OpenThread, ...] = ()
    notes: tuple[str, ...] = ()
    output: str | None = None
    events: tuple[Mapping[str, object], ...] | None = None
    engine: str = "breakpoints"
    lost: int = 0
    unseen: int = 0
