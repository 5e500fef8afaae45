"""A page of each kind, made of made-up reports."""

from __future__ import annotations

import math
from dataclasses import replace

from gdbext.diagnosis.commands import diagnose_page
from gdbext.diagnosis.report import Report, TargetReport
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, LocalVariable
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge as judge_process
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.render.page import Origin
from gdbext.tools.probes import top_view
from gdbext.tools.probes.summary import DispatchSubject, TopRow, TopSection
from gdbext.tools.ranks import ranks_views
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.tensor import tensor_files
from gdbext.tools.tensor.tensor_files import TensorSlice
from gdbext.tools.trace.trace_output import TimelinePage
from gdbext.torch.stack import DispatchEvent, DispatchKeySet, Kernel
from support.fakes import made_tensors
from support.fakes.analysis_facts import thread, wait
from support.recorded import jobs

EVIL = "</script><b>&\x1b[31m"
"""What a hostile process may call something."""


ORIGIN = Origin(f"python {EVIL}", "node1", "dispatch -p 1", "0.1", 1.0)


def result(op: str, event: str = "call", key: str = "CPU", kernel: str = "") -> LookupResult:
    found = Kernel(kernel, True, True, True, False)
    return LookupResult(DispatchEvent(event), op, "", DispatchKeySet(1, (key,)), key, 1, found, "")


MM, MM_CPU = result("aten::mm", key="AutogradCPU"), result("aten::mm", "redispatch", kernel="wrapper_CPU_mm")
ODD = result(f"evil::{EVIL}", "callBoxed")


def dispatch(found: LookupResult, started: float, ended: float | None, depth: int, tid: int = 7) -> TracedDispatch:
    return TracedDispatch(0, tid, depth, found, 0, 0, (0, 0), 0, started, ended)


DISPATCHES = (
    dispatch(MM, 0.0, 10.0, 1),
    dispatch(MM_CPU, 2.0, 9.0, 2),
    dispatch(MM, 100.0, 106.0, 1),
    dispatch(MM_CPU, 101.0, 105.0, 2),
    dispatch(ODD, 50.0, None, 1, tid=8),
)
"""The last one has not come back."""


def timeline(dispatches: tuple[TracedDispatch, ...] = DISPATCHES, now: float = 200.0) -> str:
    written: list[bytes] = []
    page = TimelinePage(written.append, 4, lambda: now, ORIGIN)
    for each in dispatches:
        page.dispatch(each)
    for each in dispatches:
        if each.ended is not None and each.depth == 1:
            page.ended(each)
    page.close()
    return b"".join(written).decode()


def subject(name: str) -> DispatchSubject:
    return DispatchSubject(f"aten::{name}", "", "call", None, "CPU", f"at::native::{name}")


ROWS = tuple(
    TopRow(subject(name), None, None, count, count / 2, mark)
    for name, count, mark in (("add", 9, ""), ("mm", 120, "decomposes"), (EVIL, 30, ""))
)


def top() -> str:
    return top_view.render_page(TopSection(2.0, "probes", 159, 7, 3, ROWS, 5), None, ORIGIN)


def tensor() -> str:
    part = TensorSlice((1,), 3, 4, 1, 2, ((1.0, math.nan), (-2.0, math.inf), (0.5, -math.inf)))
    return tensor_files.render(replace(made_tensors.FLOATS, name_=EVIL), part, "", ORIGIN)


def ranks() -> str:
    return ranks_views.render_page(judge(jobs.recorded_rows("late-lock"), None), ORIGIN)


def frame(secret: str = "") -> Frame:
    variable = LocalVariable("password", "str", secret or EVIL)
    return Frame(0, FrameKind.PYTHON, None, EVIL, file="train.py", line=7, variables=(variable,))


def deadlocked(secret: str = "") -> Report:
    """Two threads that wait for each other, one with a hostile name, and 3 that idle."""
    threads = (
        thread(1, wait("mutex", 2, 0x1000, name=EVIL), name=EVIL, python_frames=(frame(secret),)),
        thread(2, wait("gil", 1), name="b"),
        *(thread(tid, wait("sleep"), name="idle", stack_key=9) for tid in (3, 4, 5)),
    )
    judged = judge_process(Observations(threads, 1))
    verdict = judged.verdict._replace(advice=(EVIL,))
    target = TargetReport("live", 1, "none")
    return Report("dispatch-diagnose", target, threads=threads, verdict=verdict, findings=judged.findings)


def diagnosis() -> str:
    return diagnose_page.render_page(deadlocked(), ORIGIN)


PAGES = {"diagnosis": diagnosis, "timeline": timeline, "top": top, "tensor": tensor, "ranks": ranks}
