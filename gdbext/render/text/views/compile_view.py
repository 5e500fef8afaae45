"""``dispatch-compile`` as text: what compiles now, then what happened, most important first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gdbext.model.report import Report
from gdbext.model.sections.compile_section import (
    Compilation,
    CompileFrame,
    CompileLock,
    CompilePool,
    CompileSection,
    CompilingThread,
    ConfigValue,
    FrameState,
)
from gdbext.render.text.style import Style, escape

_SHOWN = 10
"""Entries of each block; --json has them all."""
_WIDTH = 160
_NO_UUID = re.compile(r"(_[0-9a-f]{8})(_[0-9a-f]{4}){3}_[0-9a-f]{12}$")
"""What TorchDynamo adds to the name of a graph since 2.8, to make it the only one of its name anywhere."""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then blocks with a heading each; empty ones are left out."""
    section = report.section(CompileSection)
    yield style(_headline(section), "bold")
    for heading, lines in _blocks(section):
        if lines:
            yield ""
            yield style(heading, "bold")
            yield from (f"  {line}" for line in lines[:_SHOWN])
            if len(lines) > _SHOWN:
                yield f"  … {len(lines) - _SHOWN} more (--json has all)"
    if section.truncated or section.problems:
        yield ""
    for text in section.truncated:
        yield style(escape(text), "yellow")
    for text in section.problems:
        yield style(f"unknown: {escape(text)}", "yellow")


def _headline(section: CompileSection) -> str:
    if not section.imported:
        return "torch.compile was not used: torch._dynamo is not imported."
    if not section.known:
        return "torch._dynamo is imported, and what torch.compile did is unknown for this release of torch."
    if section.enabled is False:
        return f"torch.compile is disabled by {escape(section.disabled_by)}."
    frames = section.counters.get("frames", {})
    if not frames.get("total"):
        return "torch._dynamo is imported, and nothing was compiled since it was last reset."
    breaks = sum(each.times for each in section.graph_breaks)
    stats = section.counters.get("stats", {})
    return (
        f"torch.compile: {frames.get('ok', 0)} of {frames['total']} frames compiled, "
        f"{_counted(stats.get('unique_graphs', 0), 'graph')}, {_counted(breaks, 'graph break')}, "
        f"{_counted(len(section.recompiles), 'recompilation')}, {_counted(len(section.failures), 'failure')}."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _blocks(section: CompileSection) -> Iterator[tuple[str, list[str]]]:
    yield "Compiling now", [*_now(section), *_processes(section), *map(_pool, section.pools)]
    yield "Lock files of the cache", list(map(_lock, section.locks))
    yield "In compiled code", list(_compiled_threads(section.frames))
    yield "Failed", [_failure(each) for each in section.failures]
    yield "Graph breaks", [f"{each.times} × {_first_line(each.reason)}" for each in section.graph_breaks]
    yield "Resumed after graph breaks", [
        f"{each.times} × {escape(each.file) + ':' if each.file else 'line '}{each.line} ({escape(each.function)})"
        for each in section.resumptions
    ]
    yield "Compiled again", [
        _place(each) + (f": {_first_line(each.recompile_reason)}" if each.recompile_reason else "")
        for each in section.recompiles
    ]
    yield "Guards that failed, and the last of them", [
        f"{len(each.reasons)} × {escape(each.file)}:{each.line or '?'} ({escape(each.function)}): "
        f"{_first_line(each.reasons[-1])}"
        for each in section.guard_failures
        if each.reasons
    ]
    yield "Code with compiled code", [
        f"{escape(each.file)}:{each.line or '?'} ({escape(each.function)}): {each.entries}" for each in section.codes
    ]
    yield "Kernels that Inductor wrote", [
        f"{escape(each.name)}: {escape(', '.join(each.operators)) or 'its name does not say which operators'}"
        f"  {escape(each.source)}"
        for each in section.kernels
    ]
    yield "Options of torch._dynamo.config that were set", _options(section.settings)
    for tid, options in section.thread_settings.items():
        yield f"The same in thread {tid}", _options(options)
    yield "Options of torch._inductor.config that were set", _options(section.inductor_settings)
    yield "Options that are set to functions or objects", [escape(name) for name in section.unshown_settings]


def _options(options: Mapping[str, ConfigValue]) -> list[str]:
    return [f"{escape(name)} = {escape(repr(value))}"[:_WIDTH] for name, value in options.items()]


def _now(section: CompileSection) -> Iterator[str]:
    yield from (f"thread {each.tid} is in {_work(each)}" for each in section.now)


def _work(thread: CompilingThread) -> str:
    place = f"{escape(thread.file)}:{thread.line or '?'} ({escape(thread.function)})" if thread.file else ""
    return f"{thread.stage or 'the compiler'}{' and compiles ' if place else ''}{place}"


def _processes(section: CompileSection) -> Iterator[str]:
    for each in section.processes:
        what = f"it is in {_work(each.work)}" if each.work is not None else _first_line(each.source or each.command)
        yield f"process {each.pid} ({escape(each.name)}) of {each.parent}, {escape(each.doing)}: {what}"


def _pool(pool: CompilePool) -> str:
    jobs = "an unknown number of jobs" if pool.pending is None else _counted(pool.pending, "job")
    return f"thread {pool.tid} waits for the pool of process {pool.pid or '?'}: {jobs} not done"


def _lock(lock: CompileLock) -> str:
    holders = f"held by {', '.join(map(str, lock.held_by))}" if lock.held_by else "held by nobody"
    return f"{escape(lock.path)}: {holders}, open in {', '.join(map(str, lock.open_in))}"


def _compiled_threads(frames: Sequence[CompileFrame]) -> Iterator[str]:
    """The innermost compiled frame of each thread, and what it was made of."""
    seen: set[int] = set()
    for frame in frames:
        if frame.state is FrameState.COMPILED and frame.tid not in seen:
            seen.add(frame.tid)
            place = f"thread {frame.tid}: {escape(frame.file)}:{frame.line or '?'} ({escape(frame.function)})"
            yield ", ".join([place, *_origin(frame)])


def _origin(frame: CompileFrame) -> Iterator[str]:
    if frame.graph:
        number = f" [{escape(frame.compile_id)}]" if frame.compile_id else ""
        yield f"graph {escape(_NO_UUID.sub('', frame.graph))}{number}"
    if frame.source is not None:
        where = "" if frame.source.exact else "the function at "
        yield f"made of {where}{escape(frame.source.file)}:{frame.source.line or '?'} ({escape(frame.source.function)})"
    if frame.source_nodes:
        yield f"source nodes {escape(frame.source_nodes)}"


def _failure(each: Compilation) -> str:
    effect = "; suppressed, it runs eagerly" if each.suppressed else ""
    return f"{_place(each)}: {escape(each.fail_type or '')}: {_first_line(each.fail_reason or '')}{effect}"


def _place(each: Compilation) -> str:
    number = f"[{escape(each.compile_id)}] " if each.compile_id else ""
    return f"{number}{escape(each.file or '?')}:{each.line or '?'} ({escape(each.function or '?')})"


def _first_line(text: str) -> str:
    """With the second one where the first only announces it."""
    lines = text.split("\n")
    return escape(" ".join(lines[: 1 + lines[0].endswith(":")]))[:_WIDTH]
