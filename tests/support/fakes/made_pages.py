"""A page of each kind, made of made-up reports."""

from __future__ import annotations

import math
from dataclasses import replace

from gdbext.hosts.resume.dispatch_description import LookupResult, TracedDispatch
from gdbext.tools.probes import top_view
from gdbext.tools.probes.summary import TopRow, TopSection
from gdbext.tools.ranks import ranks_views
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.tensor import tensor_files
from gdbext.tools.tensor.tensor_files import TensorSlice
from gdbext.tools.trace.timeline_page import TimelinePage
from support.fakes import made_tensors
from support.recorded import jobs

EVIL = "</script><b>&\x1b[31m"
"""What a hostile process may call something."""


def result(op: str, event: str = "call", key: str = "CPU", kernel: str = "") -> LookupResult:
    """What a lookup found."""
    return LookupResult(event, op, "", 1, (key,), key, 1, kernel, "", True, True, True, False)


MM, MM_CPU = result("aten::mm", key="AutogradCPU"), result("aten::mm", "redispatch", kernel="wrapper_CPU_mm")
ODD = result(f"evil::{EVIL}", "callBoxed")


def dispatch(found: LookupResult, started: float, ended: float | None, depth: int, tid: int = 7) -> TracedDispatch:
    """One that was traced."""
    return TracedDispatch(found, tid, depth, 0, 0, (0, 0), 0, started, ended)


DISPATCHES = (
    dispatch(MM, 0.0, 10.0, 1), dispatch(MM_CPU, 2.0, 9.0, 2), dispatch(MM, 100.0, 106.0, 1),
    dispatch(MM_CPU, 101.0, 105.0, 2), dispatch(ODD, 50.0, None, 1, tid=8),
)  # fmt: skip
"""The last one has not come back."""


def timeline(dispatches: tuple[TracedDispatch, ...] = DISPATCHES, now: float = 200.0) -> str:
    """A trace."""
    written: list[bytes] = []
    page = TimelinePage(written.append, 4, lambda: now)
    for each in dispatches:
        page.dispatch(each)
    for each in dispatches:
        if each.ended is not None and each.depth == 1:
            page.ended(each)
    page.close()
    return b"".join(written).decode()


ROWS = tuple(
    TopRow(f"aten::{name}", "", "call", None, "CPU", f"at::native::{name}", None, None, count, count / 2, mark)
    for name, count, mark in (("add", 9, ""), ("mm", 120, "decomposes"), (EVIL, 30, ""))
)


def top() -> str:
    """Counts."""
    return top_view.render_page(TopSection(2.0, "probes", 159, 7, 3, ROWS, 5), None)


def tensor() -> str:
    """A tensor with odd numbers."""
    part = TensorSlice((1,), 3, 4, 1, 2, ((1.0, math.nan), (-2.0, math.inf), (0.5, -math.inf)))
    return tensor_files.render(replace(made_tensors.FLOATS, label=EVIL), part)


def ranks() -> str:
    """A job that hangs."""
    return ranks_views.render_page(judge(jobs.recorded_rows("late-lock"), None))


PAGES = {"timeline": timeline, "top": top, "tensor": tensor, "ranks": ranks}
