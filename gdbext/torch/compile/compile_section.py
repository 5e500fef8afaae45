"""The report of ``dispatch-compile``: what torch.compile has compiled, what broke or failed, and what compiles now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple, Union

from gdbext.engine.vocabulary import Section
from gdbext.torch.compile import dynamo_names as names

ConfigValue = Union[bool, int, float, str, None, tuple["ConfigValue", ...], Mapping[str, "ConfigValue"]]


class FrameState(Enum):
    """The relation of a Python frame to torch.compile."""

    EAGER = "eager"
    """It runs as it was written."""
    COMPILED = "compiled"
    """It runs code that was generated: TorchDynamo's bytecode, a graph's function, Inductor's module."""
    COMPILING = "compiling"
    """It is part of the compiler, at work."""


class SourcePlace(NamedTuple):
    """A place in the program; ``line`` is that of the function's first line where ``exact`` is False."""

    function: str
    file: str
    line: int | None
    exact: bool = True


class CompileFrame(NamedTuple):
    """A Python frame of a thread that runs compiled code, or the compiler."""

    tid: int
    level: int
    """Counted among the thread's Python frames, 0 for the innermost."""
    state: FrameState
    function: str
    file: str
    line: int | None
    graph: str = ""
    """The graph that it belongs to: TorchDynamo's name of it, or the one that AOTAutograd gave it, "" if unknown."""
    compile_id: str | None = None
    """The compilation that it came of, where only one of its code is recorded."""
    source: SourcePlace | None = None
    """The function and the line of the program that it was made of."""
    source_nodes: str = ""
    """Nodes of the graph at that line, as the file says."""


class Compilation(NamedTuple):
    """One of the last compilations (torch._dynamo.utils.CompilationMetrics). None is what is not recorded."""

    compile_id: str | None
    function: str | None
    file: str | None
    line: int | None
    """The line at which the code begins."""
    recompile_reason: str | None
    """The guard that failed, of an earlier compilation of the same code."""
    fail_type: str | None
    fail_reason: str | None
    suppressed: bool | None
    """suppress_errors was on: where it failed, the code ran eagerly, and nobody was told by an exception."""
    has_code: bool | None
    """Guarded code came of it."""


class CompiledCode(NamedTuple):
    """A code object that has compiled code; ``entries`` of them are alive."""

    function: str
    file: str
    line: int | None
    entries: int


class GraphBreak(NamedTuple):
    """The reason why a graph ended, and how often that was counted."""

    reason: str
    times: int


class Resumption(NamedTuple):
    """The place where code goes on after a graph break: in ``function`` at ``line``; ``file`` None where it is not
    recorded."""

    function: str
    line: int
    file: str | None
    times: int


class GuardFailures(NamedTuple):
    """A code object, and the guards of its compiled code that failed, oldest first: each made torch compile it again,
    or give up."""

    function: str
    file: str
    line: int | None
    reasons: tuple[str, ...]


class CompiledKernel(NamedTuple):
    """A kernel that Inductor wrote in C++: ``operators`` are those that its name says are fused in it, none where it
    does not say; ``source`` is its C++ file, ``library`` what that was compiled to, ``file`` the Python module that
    calls it, ``source_nodes`` what a comment there says, "" for nothing."""

    name: str
    operators: tuple[str, ...]
    source: str
    library: str
    file: str
    source_nodes: str


class CompilingThread(NamedTuple):
    """A thread that is in the compiler. ``stage`` is "TorchDynamo", "AOTAutograd", "Inductor" or "Triton";
    ``function``, ``file`` and ``line`` are the code that it compiles, "" and None where that cannot be read."""

    tid: int
    stage: str
    function: str
    file: str | None
    line: int | None


class CompilingProcess(NamedTuple):
    """A process that compiles for this one: a C++ compiler, ptxas, a worker of Inductor. ``source`` is the file that a
    compiler compiles, "" where its command does not say."""

    pid: int
    name: str
    command: str
    doing: str
    parent: int
    source: str
    work: CompilingThread | None = None
    """The work of a worker: what it compiles, by its own stack."""


class CompilePool(NamedTuple):
    """A pool of workers that Inductor started: the thread that waits for it, its process, and the jobs that are not
    done. None is what could not be read."""

    tid: int
    pid: int | None
    pending: int | None


class CompileLock(NamedTuple):
    """A lock file of Inductor's cache. ``open_in``: the processes that have it open, of this one and its children:
    they hold it, or wait for it. ``held_by``: the processes that hold it, of all of this machine."""

    path: str
    open_in: tuple[int, ...]
    held_by: tuple[int, ...]


@dataclass(frozen=True)
class CompileSection(Section):
    """Everything that is known. ``enabled``: None where that cannot be told."""

    name: ClassVar[str] = "compile"
    imported: bool
    """True if torch._dynamo is imported."""
    enabled: bool | None
    disabled_by: str
    """The cause that disables it: an environment variable, or "torch._dynamo.config.disable"."""
    counters: Mapping[str, Mapping[str, int]]
    """The contents of ``torch._dynamo.utils.counters``, by group and name."""
    graph_breaks: tuple[GraphBreak, ...]
    resumptions: tuple[Resumption, ...]
    compilations: tuple[Compilation, ...]
    """The last ones, oldest first; torch keeps 64."""
    recompiles: tuple[Compilation, ...]
    """Those of them that were not the first of their code. Before 2.7 the reasons are in ``guard_failures`` alone."""
    failures: tuple[Compilation, ...]
    codes: tuple[CompiledCode, ...]
    frames: tuple[CompileFrame, ...]
    now: tuple[CompilingThread, ...]
    processes: tuple[CompilingProcess, ...]
    settings: Mapping[str, ConfigValue]
    """Options of torch._dynamo.config that differ from their defaults, in the main thread."""
    guard_failures: tuple[GuardFailures, ...] = ()
    inductor_settings: Mapping[str, ConfigValue] = field(default_factory=dict)
    """The settings of torch._inductor.config that differ."""
    unshown_settings: tuple[str, ...] = ()
    """Options of either that are set to something that is not plain: functions, objects."""
    thread_settings: Mapping[int, Mapping[str, ConfigValue]] = field(default_factory=dict)
    """``settings`` of threads, by tid, that have others: since 2.13 each thread has its own."""
    locks: tuple[CompileLock, ...] = ()
    """Locks of a live process on files."""
    pools: tuple[CompilePool, ...] = ()
    kernels: tuple[CompiledKernel, ...] = ()
    """The kernels that are loaded."""
    known: bool = True
    """False where nobody knows what this release of torch keeps: nothing is read, then."""
    truncated: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def recompilations(compilations: tuple[Compilation, ...]) -> tuple[Compilation, ...]:
    """The compilations of code that had been compiled before."""
    return tuple(
        compilation
        for compilation in compilations
        if compilation.recompile_reason or re.match(names.COMPILED_AGAIN, compilation.compile_id or "")
    )
