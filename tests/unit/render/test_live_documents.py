"""``breaks`` and ``trace`` of a report: as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gdbext.diagnosis.report import Ending, EndingKind, Report, json_report, render_text
from gdbext.engine.vocabulary import Section
from gdbext.tools import breaks
from gdbext.tools.breaks.breaks_section import BreakRequest, BreaksSection, PlacedBreakpoint, RequestedBreakpoints
from gdbext.tools.trace import trace_section
from gdbext.tools.trace.trace_section import InnermostStep, OpenDispatch, OpenThread, TraceSection
from gdbext.tools.values import values_section
from gdbext.torch.stack import DispatchEvent, DispatchStage
from support.source import contract_schema

REQUEST = BreakRequest("kernel", ("aten::mm", "add"), "CPU", "Meta", continue_=True)
VIEWS = {"breaks": breaks.render, "trace": trace_section.render, "values": values_section.render}
BREAKS = BreaksSection(
    requests=(
        RequestedBreakpoints(
            REQUEST,
            (
                PlacedBreakpoint(3, 0x7F00, "aten::mm", "kernel", "wrapper_CPU_mm", None, "$rdi == 0x10", 7),
                PlacedBreakpoint(4, None, None, None, "registerSchema", "add is registered"),
                PlacedBreakpoint(5, None, None, None, "getStepCallbacks"),
            ),
        ),
    ),
    notes=("a note",),
    ending=Ending(EndingKind.EXITED, "the process exited with status 7", status=7),
)
TRACE = TraceSection(
    count=1,
    operators=("aten::mm",),
    hooks=12,
    ending=Ending(EndingKind.INTERRUPTED, "interrupted"),
    open=(
        OpenThread(
            9,
            (OpenDispatch("call", "aten::mm", "Meta", "lookup"),),
            InnermostStep(DispatchEvent.CALL, "aten::mm", None, DispatchStage.IN_KERNEL, "meta_mm"),
            "it is inside",
        ),
    ),
    notes=("slow",),
)

END = {"step": "end", "tid": 9, "number": 1, "returned": True}


def document(name: str, section: Section) -> Any:
    report = Report(command=f"dispatch-{name}", target=None, view=VIEWS[name], sections=(section,))
    whole = json.loads(json_report.render(report, pretty=False))
    contract_schema.check(whole)
    return whole[name]


def text(name: str, section: Section) -> str:
    report = Report(command=f"dispatch-{name}", target=None, view=VIEWS[name], sections=(section,))
    return render_text(report)


def test_breakpoints_as_json() -> None:
    found = document("breaks", BREAKS)
    assert found["ending"] == {"kind": "exited", "text": "the process exited with status 7", "status": 7}
    assert (found["notes"], found["deleted"]) == (["a note"], None)
    (request,) = found["requests"]
    placed, awaiting, pending = request.pop("breakpoints")
    assert request == {"where": "kernel", "op": ["aten::mm", "add"], "key": "CPU", "has": "Meta", "continue": True}
    of_mm = {"op": "aten::mm", "event": "kernel", "place": "wrapper_CPU_mm", "condition": "$rdi == 0x10", "hits": 7}
    assert placed == {**of_mm, "number": 3, "pending": False, "address": "0x7f00", "waits_for": None}
    nothing = {"op": None, "event": None, "condition": None, "address": None, "pending": True, "hits": 0}
    assert awaiting == {**nothing, "number": 4, "place": "registerSchema", "waits_for": "add is registered"}
    assert pending == {**nothing, "number": 5, "place": "getStepCallbacks", "waits_for": None}


def test_many_breakpoints_as_text() -> None:
    """The first ones, and how many more; with --why all of them, with their conditions."""
    (request,) = BREAKS.requests
    many = tuple(replace(request.breakpoints[0], number=n) for n in range(1, 38))
    section = replace(BREAKS, requests=(replace(request, breakpoints=many),))
    lines = text("breaks", section).splitlines()
    assert [line for line in lines if "breakpoint" in line][5:] == [
        "  breakpoint 6 at 0x7f00: aten::mm kernel: wrapper_CPU_mm, 7 hits",
        "  breakpoints 7 to 37: 217 hits (--why lists them)",
    ]
    whole = Report(command="dispatch-break", target=None, view=VIEWS["breaks"], sections=(section,), why=True)
    assert render_text(whole).count("wrapper_CPU_mm, if $rdi == 0x10, 7 hits") == 37


def test_no_breakpoints_as_text() -> None:
    assert "no breakpoints of dispatch-break" in text("breaks", BreaksSection(()))


def test_a_trace_as_json() -> None:
    found = document("trace", TRACE)
    (thread,) = found.pop("open")
    step = {"event": "call", "op": "aten::mm", "key": None, "stage": "in-kernel", "kernel": "meta_mm"}
    assert thread.pop("open") == [{"event": "call", "op": "aten::mm", "key": "Meta", "last": "lookup"}]
    assert thread == {"tid": 9, "stopped_in": step, "meaning": "it is inside"}
    ending = {"kind": "interrupted", "text": "interrupted", "status": None}
    told = {"count": 1, "operators": ["aten::mm"], "hooks": 12, "notes": ["slow"], "output": None, "ending": ending}
    assert {name: found[name] for name in told} == told
    assert "events" not in found


def test_events_of_a_trace_are_in_the_document_only_where_they_went_nowhere_else() -> None:
    section = TraceSection(0, (), 1, Ending(EndingKind.ASKED, ""), events=(END,))
    assert document("trace", section)["events"] == [END]


def test_what_an_ending_leaves() -> None:
    assert {kind.value for kind in EndingKind if not kind.leaves_process} == {"exited", "killed", "gone"}
    assert {kind.value for kind in EndingKind if kind.is_by_command} == {"limit", "failed", "replaced"}
