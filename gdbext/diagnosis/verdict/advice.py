"""Advice what to try next: by the verdict's kind, and what all kinds have in common."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from gdbext.diagnosis.kinds.state import IDLE
from gdbext.diagnosis.report.finding import Finding, ProcessStop
from gdbext.diagnosis.report.suggestion import ALL_CHILDREN, MORE_SAMPLES, Suggestion
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.engine.terminal import IN_A_DEBUGGER, PROGRAM, CommandLine

_SAVES = {"gdb": "generate-core-file core.{0}", "lldb": f"{PROGRAM} -p {{0}} --record hang.{{0}}.rec"}
"""Tracing debugger → command that saves the process's memory (gcore cannot attach; LLDB writes no ELF cores)."""


def advice(
    finding: Finding,
    threads: Sequence[ThreadReport],
    pid: int,
    is_core: bool,
    called: CommandLine = IN_A_DEBUGGER,
    debugger: str = "",
    stop: ProcessStop | None = None,
    used: Collection[str] = (),
) -> tuple[str, ...]:
    """Lines of advice, the most useful first. ``debugger``: the one that traces the process; ``stop``: what has stopped
    the process as a whole; ``used``: options of dispatch-diagnose that are in use and need no recommendation."""
    reports = {thread.tid: thread for thread in threads}
    involved = [reports[tid] for tid in finding.threads if tid in reports]
    lines = [*finding.kind.advice(finding, involved)]
    if called.may_run and any(thread.wait and thread.wait.detail.collective for thread in involved):
        lines.insert(0, advice_on_ranks(pid, called))  # one rank never shows why the others are missing
    inside = [thread for thread in involved if thread.dispatch]
    if finding.step and finding.step.op is not None and inside:
        lines.append(Suggestion("The full path through the dispatcher", f"dispatch-bt --thread {inside[0].tid}"))
    backward = next((thread for thread in involved if thread.backward), None)
    if backward:  # a node is explained by the forward pass that made it
        shows = "The node that runs in backward, and its forward line"
        lines.append(Suggestion(shows, f"dispatch-autograd --thread {backward.tid}"))
    kind = finding.kind
    can_run = not is_core and called.may_run
    if can_run and not kind.is_hang and inside and called.source and os.geteuid() == 0:
        lines.append(Suggestion("What it dispatches, and how often", "dispatch-top"))
    if can_run and kind.may_be_slow:
        lines.append(MORE_SAMPLES)
    if can_run and kind.is_hang and kind.can_be_dumped:
        shows = "Keep the evidence before you kill it"
        tracer = stop.tracer if stop else ""
        if tracer:  # no second tracer can attach
            saves = next(
                (text for name, text in _SAVES.items() if f"({name}" in tracer), "gcore {}, once it has detached"
            )
            lines.append(f"{shows}, in process {tracer}: {saves.format(pid)}")
        elif not stop or not stop.group:  # a process in a frozen group cannot be stopped
            saves = _SAVES.get("" if called.source else debugger, "gcore {}")
            lines.append(Suggestion(shows, "", shell=saves.format(pid)))
    return tuple(
        line if isinstance(line, str) else line.text(called)
        for line in lines
        if isinstance(line, str) or (line.option not in used and (can_run or not line.needs_process()))
    )


def advice_on_children(finding: Finding, called: CommandLine, used: Collection[str] = ()) -> tuple[str, ...]:
    """Advice for an idle process that has children: one of them may hang."""
    if finding.kind is not IDLE or not called.may_run or ALL_CHILDREN.option in used:
        return ()
    return (ALL_CHILDREN.text(called),)


def advice_on_ranks(pid: int, called: CommandLine) -> str:
    """Advice for a process of a job with several ranks."""
    return f"All ranks of the job, and which of them the others wait for: {called.outside(f'ranks -p {pid}')}"
