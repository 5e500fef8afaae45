"""What torch.compile did in a process, and what it does now, as ``dispatch-compile`` reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.errors import NotTorch
from gdbext.inspection.compile_workers import pool_of, python_stacks
from gdbext.inspection.compiled_frames import CompiledFrames
from gdbext.inspection.compiling_processes import compile_locks, compiling_processes
from gdbext.inspection.compiling_threads import at_work
from gdbext.inspection.kernel_comments import KernelComments
from gdbext.inspection.target_reporting import torch_version
from gdbext.model.sections.compile_section import (
    CompiledKernel,
    CompileFrame,
    CompilePool,
    CompileSection,
    CompilingThread,
    ConfigValue,
    FrameState,
)
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.dynamo_reader import DynamoReader, graph_breaks, recompilations, resumptions
from gdbext.torch.compile.generated_kernels import fused_operators

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.inspection.session import Session

_FRAME_LIMIT = 2000
"""Frames of all threads that have to do with torch.compile."""


def read_compilation(session: Session) -> CompileSection:
    """All of it; what cannot be read is one of the problems. Raises NotTorch without torch or Python."""
    runtime = session.python
    if runtime is None or not session.has_torch:
        raise NotTorch("no PyTorch for Python is loaded in this process")
    version = torch_version(session) or "unknown"
    reader = DynamoReader(runtime)
    if not reader.imported:
        return _not_used(session, runtime)
    if not names.is_known(version):
        compared = ", ".join(names.COMPARED)
        problem = f"what torch.compile did: known for torch {compared}, and this is {version}"
        return _nothing(session, imported=True, known=False, problems=(problem,))
    return _recorded(session, runtime, reader)


def _nothing(session: Session, imported: bool, known: bool, problems: tuple[str, ...] = ()) -> CompileSection:
    """Where there is nothing to read, or nobody knows how."""
    enabled, disabled_by = _enabled(session.target.environ(), {}, False)
    return CompileSection(
        imported, enabled, disabled_by, {}, (), (), (), (), (), (), (), (), compiling_processes(session), {},
        known=known, problems=problems,
    )  # fmt: skip


def _not_used(session: Session, runtime: PythonRuntime) -> CompileSection:
    """Without torch.compile; a thread may still compile a kernel of Triton's own."""
    threads = _Threads(session, runtime, CompiledFrames(runtime, {}, (), KernelComments(session.target)))
    plain = _nothing(session, imported=False, known=True)
    return replace(plain, frames=tuple(threads.frames), now=tuple(threads.compiling))


def _recorded(session: Session, runtime: PythonRuntime, reader: DynamoReader) -> CompileSection:
    counters, compilations, originals = reader.counters(), reader.compilations(), reader.original_codes()
    dynamo, inductor = reader.options(names.CONFIG), reader.inductor_options()
    comments = KernelComments(session.target)
    threads = _Threads(session, runtime, CompiledFrames(runtime, originals, compilations, comments))
    enabled, disabled_by = _enabled(session.target.environ(), dynamo.values, bool(counters))
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


def _kernels(session: Session, comments: KernelComments) -> Iterator[CompiledKernel]:
    """What Inductor wrote and loaded, with the operators in each name."""
    kernels = session.generated_kernels.all
    operators = _operators(session) if kernels else frozenset()
    for each in kernels:
        fused = fused_operators(each.name, operators)
        yield CompiledKernel(each.name, fused, each.source, each.library, each.file, comments.of(each.file, each.name))


def _operators(session: Session) -> frozenset[str]:
    """Base names of all operators; none where the dispatcher cannot be read."""
    if session.dispatcher_error is not None:
        return frozenset()
    return frozenset(name.rpartition("::")[2].partition(".")[0] for name in session.dispatcher.names)


def _enabled(
    environment: Mapping[str, str], settings: Mapping[str, ConfigValue], compiled: bool
) -> tuple[bool | None, str]:
    """Whether torch.compile compiles, and what keeps it from that."""
    if settings.get(names.DISABLE) is True:
        return False, f"{names.CONFIG}.{names.DISABLE}"
    for variable in names.DISABLING_VARIABLES:
        if environment.get(variable) == "1" and settings.get(names.DISABLE) is not False:
            return False, f"{variable}=1"
    return True if compiled else None, ""


class _Threads:
    """The Python frames of all threads that have to do with torch.compile."""

    def __init__(self, session: Session, runtime: PythonRuntime, compiled: CompiledFrames) -> None:
        self._runtime = runtime
        self._compiled = compiled
        self.frames: list[CompileFrame] = []
        self.compiling: list[CompilingThread] = []
        self.truncated: list[str] = []
        self.pools: list[CompilePool] = []
        for tid, frames in python_stacks(session):
            self._add(tid, frames)

    def _add(self, tid: int, frames: list[PythonFrame]) -> None:
        found = self._compiled.of_thread(tid, frames[:_FRAME_LIMIT])
        pool = pool_of(self._runtime, tid, frames)
        self.pools += [pool] if pool is not None else []
        if all(each.state is FrameState.EAGER for each in found):
            return
        kept = found[: _FRAME_LIMIT - len(self.frames)]
        self.frames += kept
        if len(kept) < len(frames) and not self.truncated:
            self.truncated.append(f"frames, truncated at {_FRAME_LIMIT}")
        work = at_work(self._runtime, tid, frames)
        self.compiling += [work] if work is not None else []
