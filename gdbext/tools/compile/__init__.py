"""The tool dispatch-compile: what torch.compile did, graph breaks, recompilations, compilations in progress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report, torch_version
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.engine.numbers import number
from gdbext.errors import NotTorch
from gdbext.render import Style, counted, escape
from gdbext.tools.compile import compiled_frames
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import (
    Compilation,
    CompiledCode,
    CompiledKernel,
    CompileFrame,
    CompilePool,
    CompileSection,
    CompilingThread,
    ConfigValue,
    FrameState,
    GraphBreak,
    GuardFailures,
    Resumption,
    SourcePlace,
    recompilations,
)
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.compile.generated_kernels import fused_operators

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session

_FRAME_LIMIT = 2000
"""Frames reported, of all threads with compiled code or the compiler, at most."""


def read_compilation(session: Session) -> CompileSection:
    """Read everything; unreadable parts are among the problems. Raises NotTorch without torch or Python."""
    if not session.python or not session.has_torch:
        raise NotTorch("no PyTorch for Python is loaded in this process")
    version = torch_version(session) or "unknown"
    reader = DynamoReader(session.python)
    comments = compiled_frames.KernelComments(session.target)
    if not reader.imported:  # a thread may still compile a kernel of Triton's own
        threads = _Threads(session, compiled_frames.CompiledFrames({}, (), comments))
        empty = _empty_section(session, imported=False, known=True)
        return replace(empty, frames=tuple(threads.frames), now=tuple(threads.compiling))
    if not names.is_known(version):
        compared = ", ".join(names.compared())
        problem = f"what torch.compile did: it is known for torch {compared}; this is {version}"
        return _empty_section(session, imported=True, known=False, problems=(problem,))
    counters, compilations, originals = reader.counters(), reader.compilations(), reader.original_codes()
    dynamo, inductor = reader.options(names.CONFIG), reader.inductor_options()
    threads = _Threads(session, compiled_frames.CompiledFrames(originals, compilations, comments))
    enabled, disabled_by = _enabled(session.target.origin.environ(), dynamo.values, bool(counters))
    generated = session.generated_kernels.all
    operators: frozenset[str] = frozenset()  # base names
    if generated and not session.dispatcher_error:
        operators = frozenset(name.rpartition("::")[2].partition(".")[0] for name in session.dispatcher.names)
    kernels = tuple(
        CompiledKernel(
            kernel.name,
            fused_operators(kernel.name, operators),
            kernel.source,
            kernel.library,
            kernel.file,
            comments.of_module(kernel.file).kernels.get(kernel.name, ""),
        )
        for kernel in generated
    )
    return CompileSection(
        imported=True,
        enabled=enabled,
        disabled_by=disabled_by,
        counters=counters,
        graph_breaks=graph_breaks(counters),
        resumptions=resumptions(counters, compilations),
        compilations=compilations,
        recompiles=recompilations(compilations),
        guard_failures=reader.guard_failures(),
        failures=tuple(compilation for compilation in compilations if compilation.fail_type),
        codes=reader.codes(originals),
        frames=tuple(threads.frames),
        now=tuple(threads.compiling),
        processes=compiled_frames.compiling_processes(session),
        locks=compiled_frames.compile_locks(session),
        pools=tuple(threads.pools),
        settings=dynamo.values,
        inductor_settings=inductor.values,
        unshown_settings=(*dynamo.unshown, *inductor.unshown),
        thread_settings=reader.thread_options(dynamo),
        kernels=kernels,
        truncated=(*reader.truncated, *threads.truncated, *session.generated_kernels.truncated),
        problems=(*reader.problems, *session.generated_kernels.problems),
    )


def _empty_section(session: Session, imported: bool, known: bool, problems: tuple[str, ...] = ()) -> CompileSection:
    """The section for a process that has not ``imported`` torch._dynamo, or whose release is not ``known``."""
    enabled, disabled_by = _enabled(session.target.origin.environ(), {}, has_compiled=False)
    processes = compiled_frames.compiling_processes(session)
    section = CompileSection(imported, enabled, disabled_by, {}, (), (), (), (), (), (), (), (), processes, {})
    return replace(section, known=known, problems=problems)


def _enabled(
    environment: Mapping[str, str], settings: Mapping[str, ConfigValue], has_compiled: bool
) -> tuple[bool | None, str]:
    """(True if torch.compile is enabled, None if unknown; the option or variable that disables it, or "")."""
    if settings.get(names.DISABLE) is True:
        return False, f"{names.CONFIG}.{names.DISABLE}"
    for variable in names.DISABLING_VARIABLES:
        if environment.get(variable) == "1" and settings.get(names.DISABLE) is not False:
            return False, f"{variable}=1"
    return True if has_compiled else None, ""


class _Threads:
    """The frames of threads with compiled code or the compiler, and the pools that threads wait for."""

    def __init__(self, session: Session, compiled: compiled_frames.CompiledFrames) -> None:
        """Read all threads."""
        self.frames: list[CompileFrame] = []
        self.compiling: list[CompilingThread] = []
        self.truncated: list[str] = []
        self.pools: list[CompilePool] = []
        for tid, stack in compiled_frames.python_stacks(session):
            frames = compiled.of_thread(tid, stack.innermost(_FRAME_LIMIT))
            pool = compiled_frames.pool_of(tid, stack)
            self.pools += [pool] if pool else []
            if all(frame.state is FrameState.EAGER for frame in frames):
                continue
            taken = frames[: _FRAME_LIMIT - len(self.frames)]
            self.frames += taken
            if len(taken) < len(stack) and not self.truncated:
                self.truncated.append(f"frames, truncated at {_FRAME_LIMIT}")
            work = compiled_frames.work_of_thread(tid, stack)
            self.compiling += [work] if work else []


_EPILOG = """\
The report is read from the objects of torch._dynamo in memory, also from a core: its counters
(torch._dynamo.utils.counters), the last 64 compilations, each with the guard that required it and its failure, the code
objects that have compiled code, the guards that failed, and the options of torch._dynamo.config and
torch._inductor.config that differ from their defaults, for the main thread and for threads with other values. An error
that suppress_errors hid is listed as a failure: that code runs eagerly.

Threads in compiled code or in the compiler are listed. "compiled" is bytecode that TorchDynamo generated, the function
of a graph, or a module that Inductor wrote, each with its graph and the function and line of the program that it came
from. "compiling" is the compiler at work: TorchDynamo, AOTAutograd, Inductor or Triton. For a live process, child
processes that compile (C++ compilers, ptxas, Inductor's workers) are also listed, and the processes that hold the lock
files of the cache. To see what they compile, at most eight workers are stopped, each for some milliseconds.

The releases listed in docs/measurements/compile-compared.md were compared with what programs print themselves. For any
other release the answer is "unknown". Before torch 2.7 the reasons for recompilations are the guards that failed.
"""


class CompileTool(Tool):
    """The command ``dispatch-compile`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        session, section = session.read_at_one_moment(read_compilation)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """A headline, then blocks with a heading and at most ten lines; empty blocks are left out."""
        section = report.section(CompileSection)
        yield style(_headline(section), "bold")
        for heading, lines in _blocks(section):
            if lines:
                yield ""
                yield style(heading, "bold")
                yield from (f"  {line}" for line in lines[:10])
                if len(lines) > 10:
                    yield f"  … {len(lines) - 10} more (--json has all)"
        if section.truncated or section.problems:
            yield ""
        for text in section.truncated:
            yield style(escape(text), "yellow")
        for text in section.problems:
            yield style(f"unknown: {escape(text)}", "yellow")


_WIDTH = 160


def _headline(section: CompileSection) -> str:
    """Whether torch.compile was used, and the numbers of graphs, breaks, recompilations and failures."""
    if not section.imported:
        return "torch.compile was not used: torch._dynamo is not imported."
    if not section.known:
        return "torch._dynamo is imported, but what torch.compile did is unknown for this release of torch."
    if section.enabled is False:
        return f"torch.compile is disabled by {escape(section.disabled_by)}."
    frames = section.counters.get("frames", {})
    if not frames.get("total"):
        return "torch._dynamo is imported, but nothing has been compiled since it was last reset."
    breaks = sum(graph_break.times for graph_break in section.graph_breaks)
    stats = section.counters.get("stats", {})
    return (
        f"torch.compile: {frames.get('ok', 0)} of {frames['total']} frames compiled, "
        f"{counted(stats.get('unique_graphs', 0), 'graph')}, {counted(breaks, 'graph break')}, "
        f"{counted(len(section.recompiles), 'recompilation')}, {counted(len(section.failures), 'failure')}."
    )


def _blocks(section: CompileSection) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines) of each block of the text; lines may be []."""

    def work(thread: CompilingThread) -> str:  # ``Inductor and compiles train.py:7 (step)``
        where = f" and compiles {_place(thread)}" if thread.file else ""
        return f"{thread.stage or 'the compiler'}{where}"

    def options(values: Mapping[str, ConfigValue]) -> list[str]:
        return [f"{escape(name)} = {escape(repr(value))}"[:_WIDTH] for name, value in values.items()]

    now = [f"thread {thread.tid} is in {work(thread)}" for thread in section.now]
    for process in section.processes:
        source = process.source or process.command
        what = f"it is in {work(process.work)}" if process.work else _first_line(source)
        name, doing = escape(process.name), escape(process.doing)
        now.append(f"process {process.pid} ({name}), child of {process.parent}, {doing}: {what}")
    for pool in section.pools:
        jobs = "an unknown number of jobs" if pool.pending is None else counted(pool.pending, "job")
        now.append(f"thread {pool.tid} waits for the pool of process {pool.pid or '?'}: {jobs} not finished")
    yield "Compiling now", now
    locks = []
    for lock in section.locks:
        holders = f"held by {', '.join(map(str, lock.held_by))}" if lock.held_by else "not held"
        locks.append(f"{escape(lock.path)}: {holders}, open in {', '.join(map(str, lock.open_in))}")
    yield "Lock files of the cache", locks
    yield "In compiled code", list(_compiled_threads(section.frames))
    failures = []
    for failure in section.failures:
        effect = "; suppressed, it runs eagerly" if failure.suppressed else ""
        reason = f"{escape(failure.fail_type or '')}: {_first_line(failure.fail_reason or '')}"
        failures.append(f"{_compilation_place(failure)}: {reason}{effect}")
    yield "Failed", failures
    breaks = section.graph_breaks
    yield "Graph breaks", [f"{graph_break.times} × {_first_line(graph_break.reason)}" for graph_break in breaks]
    resumed = []
    for resumption in section.resumptions:
        file = f"{escape(resumption.file)}:" if resumption.file else "line "
        resumed.append(f"{resumption.times} × {file}{resumption.line} ({escape(resumption.function)})")
    yield "Resumed after graph breaks", resumed
    again = []
    for compilation in section.recompiles:
        reason = f": {_first_line(compilation.recompile_reason)}" if compilation.recompile_reason else ""
        again.append(f"{_compilation_place(compilation)}{reason}")
    yield "Recompiled", again
    guards = [guard for guard in section.guard_failures if guard.reasons]
    guard_lines = [f"{len(guard.reasons)} × {_place(guard)}: {_first_line(guard.reasons[-1])}" for guard in guards]
    yield "Guards that failed, with the last failure", guard_lines
    yield "Functions with compiled code", [f"{_place(code)}: {code.entries}" for code in section.codes]
    kernels = []
    for kernel in section.kernels:
        operators = escape(", ".join(kernel.operators)) or "operators unknown from its name"
        kernels.append(f"{escape(kernel.name)}: {operators}  {escape(kernel.source)}")
    yield "Kernels that Inductor wrote", kernels
    yield "Options of torch._dynamo.config that were set", options(section.settings)
    for tid, values in section.thread_settings.items():
        yield f"The same options in thread {tid}", options(values)
    yield "Options of torch._inductor.config that were set", options(section.inductor_settings)
    yield "Options that are set to functions or objects", [escape(name) for name in section.unshown_settings]


def _compiled_threads(frames: Sequence[CompileFrame]) -> Iterator[str]:
    """A line for the innermost compiled frame of each thread: its graph and source."""
    innermost: dict[int, CompileFrame] = {}
    for frame in frames:
        if frame.state is FrameState.COMPILED:
            innermost.setdefault(frame.tid, frame)
    for tid, frame in innermost.items():
        parts = [f"thread {tid}: {_place(frame)}"]
        if frame.graph:
            number = f" [{escape(frame.compile_id)}]" if frame.compile_id else ""
            # Since 2.8 TorchDynamo adds a UUID to the name of a graph.
            name = re.sub(r"(_[0-9a-f]{8})(_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", frame.graph)
            parts.append(f"graph {escape(name)}{number}")
        if frame.source:
            parts.append(f"compiled from {'' if frame.source.exact else 'the function at '}{_place(frame.source)}")
        if frame.source_nodes:
            parts.append(f"source nodes {escape(frame.source_nodes)}")
        yield ", ".join(parts)


def _place(code: CompileFrame | SourcePlace | CompilingThread | GuardFailures | CompiledCode) -> str:
    """``train.py:7 (step)``."""
    return f"{escape(code.file or '')}:{code.line or '?'} ({escape(code.function)})"


def _compilation_place(compilation: Compilation) -> str:
    """``[0/1] train.py:7 (step)``, "?" for what is unknown."""
    number = f"[{escape(compilation.compile_id)}] " if compilation.compile_id else ""
    place = f"{escape(compilation.file or '?')}:{compilation.line or '?'} ({escape(compilation.function or '?')})"
    return number + place


def _first_line(text: str) -> str:
    """The first line of a text, and the second one if the first ends with a colon."""
    lines = text.split("\n")
    return escape(" ".join(lines[: 1 + lines[0].endswith(":")]))[:_WIDTH]


def graph_breaks(counters: dict[str, dict[str, int]]) -> tuple[GraphBreak, ...]:
    """The reasons of graph breaks, the most frequent first; ``counters``: torch._dynamo.utils.counters."""
    most_common = Counter(counters.get(names.GRAPH_BREAK, {})).most_common()
    return tuple(GraphBreak(reason, count) for reason, count in most_common)


def resumptions(counters: dict[str, dict[str, int]], compilations: tuple[Compilation, ...]) -> tuple[Resumption, ...]:
    """The lines at which code resumes after graph breaks; the file is known if the rest's compilation is recorded."""
    files = {compilation.function: compilation.file for compilation in compilations}
    places = []
    for name, count in counters.get(names.RESUMES, {}).items():
        match = re.match(names.RESUME_FUNCTION, name)
        line = number(match["line"]) if match else None
        if match and line is not None:
            places.append(Resumption(match["function"], line, files.get(name), count))
    return tuple(places)
