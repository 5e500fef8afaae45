"""The tool dispatch-compile: what torch.compile did, what broke or was compiled again, and what compiles now.

As text: what compiles now, then what happened, most important first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report, torch_version
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.numbers import number
from gdbext.errors import NotTorch
from gdbext.render import Style, counted, escape
from gdbext.tools.compile.compile_workers import at_work, compile_locks, compiling_processes, pool_of, python_stacks
from gdbext.tools.compile.compiled_frames import CompiledFrames, KernelComments
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import recompilations
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.compile.generated_kernels import fused_operators

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost

_FRAME_LIMIT = 2000
"""Frames of all threads that have to do with torch.compile."""


def read_compilation(session: Session) -> compile_section.CompileSection:
    """All of it; what cannot be read is one of the problems. Raises NotTorch without torch or Python."""
    if not session.python or not session.has_torch:
        raise NotTorch("no PyTorch for Python is loaded in this process")
    version = torch_version(session) or "unknown"
    reader = DynamoReader(session.python)
    if not reader.imported:
        return _not_used(session)
    if not names.is_known(version):
        compared = ", ".join(names.compared())
        problem = f"what torch.compile did: known for torch {compared}, and this is {version}"
        return _nothing(session, imported=True, known=False, problems=(problem,))
    return _recorded(session, reader)


def _nothing(
    session: Session, imported: bool, known: bool, problems: tuple[str, ...] = ()
) -> compile_section.CompileSection:
    """The section of a process in which there is nothing to read, or nobody knows how."""
    enabled, disabled_by = _enabled(session.target.origin.environ(), {}, False)
    return compile_section.CompileSection(
        imported,
        enabled,
        disabled_by,
        {},
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        compiling_processes(session),
        {},
        known=known,
        problems=problems,
    )


def _not_used(session: Session) -> compile_section.CompileSection:
    """The section without torch.compile; a thread may still compile a kernel of Triton's own."""
    threads = _Threads(session, CompiledFrames({}, (), KernelComments(session.target)))
    plain = _nothing(session, imported=False, known=True)
    return replace(plain, frames=tuple(threads.frames), now=tuple(threads.compiling))


def _recorded(session: Session, reader: DynamoReader) -> compile_section.CompileSection:
    counters, compilations, originals = reader.counters(), reader.compilations(), reader.original_codes()
    dynamo, inductor = reader.options(names.CONFIG), reader.inductor_options()
    comments = KernelComments(session.target)
    threads = _Threads(session, CompiledFrames(originals, compilations, comments))
    enabled, disabled_by = _enabled(session.target.origin.environ(), dynamo.values, bool(counters))
    return compile_section.CompileSection(
        imported=True,
        enabled=enabled,
        disabled_by=disabled_by,
        counters=counters,
        graph_breaks=graph_breaks(counters),
        resumptions=resumptions(counters, compilations),
        compilations=compilations,
        recompiles=recompilations(compilations),
        guard_failures=reader.guard_failures(),
        failures=tuple(each for each in compilations if each.fail_type),
        codes=reader.codes(originals),
        frames=tuple(threads.frames),
        now=tuple(threads.compiling),
        processes=compiling_processes(session),
        locks=compile_locks(session),
        pools=tuple(threads.pools),
        settings=dynamo.values,
        inductor_settings=inductor.values,
        unshown_settings=(*dynamo.unshown, *inductor.unshown),
        thread_settings=reader.thread_options(dynamo),
        kernels=tuple(_kernels(session, comments)),
        truncated=(*reader.truncated, *threads.truncated, *session.generated_kernels.truncated),
        problems=(*reader.problems, *session.generated_kernels.problems),
    )


def _kernels(session: Session, comments: KernelComments) -> Iterator[compile_section.CompiledKernel]:
    """The kernels that Inductor wrote and loaded, with the operators in each name."""
    kernels = session.generated_kernels.all
    operators = _operators(session) if kernels else frozenset()
    for each in kernels:
        fused = fused_operators(each.name, operators)
        yield compile_section.CompiledKernel(
            each.name, fused, each.source, each.library, each.file, comments.of(each.file, each.name)
        )


def _operators(session: Session) -> frozenset[str]:
    """Base names of all operators; none where the dispatcher cannot be read."""
    if session.dispatcher_error:
        return frozenset()
    return frozenset(name.rpartition("::")[2].partition(".")[0] for name in session.dispatcher.names)


def _enabled(
    environment: Mapping[str, str], settings: Mapping[str, compile_section.ConfigValue], compiled: bool
) -> tuple[bool | None, str]:
    """True if torch.compile compiles, and what keeps it from that."""
    if settings.get(names.DISABLE) is True:
        return False, f"{names.CONFIG}.{names.DISABLE}"
    for variable in names.DISABLING_VARIABLES:
        if environment.get(variable) == "1" and settings.get(names.DISABLE) is not False:
            return False, f"{variable}=1"
    return True if compiled else None, ""


class _Threads:
    """The Python frames of all threads that have to do with torch.compile."""

    def __init__(self, session: Session, compiled: CompiledFrames) -> None:
        self._compiled = compiled
        self.frames: list[compile_section.CompileFrame] = []
        self.compiling: list[compile_section.CompilingThread] = []
        self.truncated: list[str] = []
        self.pools: list[compile_section.CompilePool] = []
        for tid, stack in python_stacks(session):
            self._add(tid, stack)

    def _add(self, tid: int, stack: PyStack) -> None:
        found = self._compiled.of_thread(tid, stack.innermost(_FRAME_LIMIT))
        pool = pool_of(tid, stack)
        self.pools += [pool] if pool else []
        if all(each.state is compile_section.FrameState.EAGER for each in found):
            return
        kept = found[: _FRAME_LIMIT - len(self.frames)]
        self.frames += kept
        if len(kept) < len(stack) and not self.truncated:
            self.truncated.append(f"frames, truncated at {_FRAME_LIMIT}")
        work = at_work(tid, stack)
        self.compiling += [work] if work else []


_EPILOG = """\
Read from the objects of torch._dynamo in memory, of a core as well: its counters (torch._dynamo.utils.counters), the
last 64 compilations with the guard that made each necessary and with what failed, the code objects that have compiled
code, the guards that failed, and the options of torch._dynamo.config and torch._inductor.config that differ from their
defaults, in the main thread and in threads that have others. An error that suppress_errors hid is a failure here: that
code runs eagerly.

A thread is shown where it is in compiled code or in the compiler. "compiled" is bytecode that TorchDynamo made, the
function of a graph, or a module that Inductor wrote, each with its graph and with the function and the line of the
program that it was made of; "compiling" is the compiler at work: TorchDynamo, AOTAutograd, Inductor or Triton. Of a
live process, child processes that compile (C++ compilers, ptxas, Inductor's workers) are listed, too, and who holds
the lock files of the cache. To see what they compile, at most eight workers are stopped, each for some milliseconds.

The releases that docs/measurements/compile-compared.md lists were compared with what programs print themselves. For any
other release the answer is "unknown". Before torch 2.7 the reasons of recompilations are the guards that failed.
"""


class CompileTool(Tool):
    """The command ``dispatch-compile`` as a tool."""

    name = "dispatch-compile"
    summary = "Show what torch.compile did, broke and compiled again, and what compiles now."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        parser.epilog = _EPILOG

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read what is recorded; everything here is allowed to be unknown. Raises NotTorch."""
        session, section = session.settled(read_compilation)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


_SHOWN = 10
"""Entries of each block; --json has them all."""
_WIDTH = 160
_NO_UUID = re.compile(r"(_[0-9a-f]{8})(_[0-9a-f]{4}){3}_[0-9a-f]{12}$")
"""The suffix that TorchDynamo adds to the name of a graph since 2.8, to make it the only one of its name anywhere."""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then blocks with a heading each; empty ones are left out."""
    section = report.section(compile_section.CompileSection)
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


def _headline(section: compile_section.CompileSection) -> str:
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
        f"{counted(stats.get('unique_graphs', 0), 'graph')}, {counted(breaks, 'graph break')}, "
        f"{counted(len(section.recompiles), 'recompilation')}, {counted(len(section.failures), 'failure')}."
    )


def _blocks(section: compile_section.CompileSection) -> Iterator[tuple[str, list[str]]]:
    yield "Compiling now", [*_now(section), *_processes(section), *map(_pool, section.pools)]
    yield "Lock files of the cache", list(map(_lock, section.locks))
    yield "In compiled code", list(_compiled_threads(section.frames))
    yield "Failed", [_failure(each) for each in section.failures]
    yield "Graph breaks", [f"{each.times} × {_first_line(each.reason)}" for each in section.graph_breaks]
    yield (
        "Resumed after graph breaks",
        [
            f"{each.times} × {escape(each.file) + ':' if each.file else 'line '}{each.line} ({escape(each.function)})"
            for each in section.resumptions
        ],
    )
    yield (
        "Compiled again",
        [
            _place(each) + (f": {_first_line(each.recompile_reason)}" if each.recompile_reason else "")
            for each in section.recompiles
        ],
    )
    yield (
        "Guards that failed, and the last of them",
        [
            f"{len(each.reasons)} × {escape(each.file)}:{each.line or '?'} ({escape(each.function)}): "
            f"{_first_line(each.reasons[-1])}"
            for each in section.guard_failures
            if each.reasons
        ],
    )
    yield from _code_and_options(section)


def _code_and_options(section: compile_section.CompileSection) -> Iterator[tuple[str, list[str]]]:
    yield (
        "Code with compiled code",
        [f"{escape(each.file)}:{each.line or '?'} ({escape(each.function)}): {each.entries}" for each in section.codes],
    )
    yield (
        "Kernels that Inductor wrote",
        [
            f"{escape(each.name)}: {escape(', '.join(each.operators)) or 'its name does not say which operators'}"
            f"  {escape(each.source)}"
            for each in section.kernels
        ],
    )
    yield "Options of torch._dynamo.config that were set", _options(section.settings)
    for tid, options in section.thread_settings.items():
        yield f"The same in thread {tid}", _options(options)
    yield "Options of torch._inductor.config that were set", _options(section.inductor_settings)
    yield "Options that are set to functions or objects", [escape(name) for name in section.unshown_settings]


def _options(options: Mapping[str, compile_section.ConfigValue]) -> list[str]:
    return [f"{escape(name)} = {escape(repr(value))}"[:_WIDTH] for name, value in options.items()]


def _now(section: compile_section.CompileSection) -> Iterator[str]:
    yield from (f"thread {each.tid} is in {_work(each)}" for each in section.now)


def _work(thread: compile_section.CompilingThread) -> str:
    place = f"{escape(thread.file)}:{thread.line or '?'} ({escape(thread.function)})" if thread.file else ""
    return f"{thread.stage or 'the compiler'}{' and compiles ' if place else ''}{place}"


def _processes(section: compile_section.CompileSection) -> Iterator[str]:
    for each in section.processes:
        what = f"it is in {_work(each.work)}" if each.work else _first_line(each.source or each.command)
        yield f"process {each.pid} ({escape(each.name)}), child of {each.parent}, {escape(each.doing)}: {what}"


def _pool(pool: compile_section.CompilePool) -> str:
    jobs = "an unknown number of jobs" if pool.pending is None else counted(pool.pending, "job")
    return f"thread {pool.tid} waits for the pool of process {pool.pid or '?'}: {jobs} not done"


def _lock(lock: compile_section.CompileLock) -> str:
    holders = f"held by {', '.join(map(str, lock.held_by))}" if lock.held_by else "held by nobody"
    return f"{escape(lock.path)}: {holders}, open in {', '.join(map(str, lock.open_in))}"


def _compiled_threads(frames: Sequence[compile_section.CompileFrame]) -> Iterator[str]:
    """The innermost compiled frame of each thread, and what it was made of."""
    seen: set[int] = set()
    for frame in frames:
        if frame.state is compile_section.FrameState.COMPILED and frame.tid not in seen:
            seen.add(frame.tid)
            place = f"thread {frame.tid}: {escape(frame.file)}:{frame.line or '?'} ({escape(frame.function)})"
            yield ", ".join([place, *_origin(frame)])


def _origin(frame: compile_section.CompileFrame) -> Iterator[str]:
    if frame.graph:
        number = f" [{escape(frame.compile_id)}]" if frame.compile_id else ""
        yield f"graph {escape(_NO_UUID.sub('', frame.graph))}{number}"
    if frame.source:
        where = "" if frame.source.exact else "the function at "
        place = f"{escape(frame.source.file)}:{frame.source.line or '?'} ({escape(frame.source.function)})"
        yield f"compiled from {where}{place}"
    if frame.source_nodes:
        yield f"source nodes {escape(frame.source_nodes)}"


def _failure(each: compile_section.Compilation) -> str:
    effect = "; suppressed, it runs eagerly" if each.suppressed else ""
    return f"{_place(each)}: {escape(each.fail_type or '')}: {_first_line(each.fail_reason or '')}{effect}"


def _place(each: compile_section.Compilation) -> str:
    number = f"[{escape(each.compile_id)}] " if each.compile_id else ""
    return f"{number}{escape(each.file or '?')}:{each.line or '?'} ({escape(each.function or '?')})"


def _first_line(text: str) -> str:
    """The first line of a text, with the second one where the first only announces it."""
    lines = text.split("\n")
    return escape(" ".join(lines[: 1 + lines[0].endswith(":")]))[:_WIDTH]


_RESUMED = re.compile(names.RESUME_FUNCTION)


def graph_breaks(counters: dict[str, dict[str, int]]) -> tuple[compile_section.GraphBreak, ...]:
    """Reasons of graph breaks, most frequent first."""
    counted = Counter(counters.get(names.GRAPH_BREAK, {})).most_common()
    return tuple(compile_section.GraphBreak(reason, count) for reason, count in counted)


def resumptions(
    counters: dict[str, dict[str, int]], compilations: tuple[compile_section.Compilation, ...]
) -> tuple[compile_section.Resumption, ...]:
    """Places where code goes on after graph breaks; the file is that of a recorded compilation of the rest."""
    files = {each.function: each.file for each in compilations}
    found = []
    for name, count in counters.get(names.RESUMES, {}).items():
        match = _RESUMED.match(name)
        line = number(match["line"]) if match else None
        if match and line is not None:
            found.append(compile_section.Resumption(match["function"], line, files.get(name), count))
    return tuple(found)
