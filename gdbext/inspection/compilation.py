"""What torch.compile did in a process, and what it does now, as ``dispatch-compile`` reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError, NotTorch
from gdbext.inspection.compiled_frames import CompiledFrames
from gdbext.inspection.compiling_processes import compile_locks, compiling_processes
from gdbext.inspection.kernel_comments import KernelComments
from gdbext.inspection.target_reporting import torch_version
from gdbext.model.sections.compile_section import (
    CompiledKernel,
    CompileFrame,
    CompileSection,
    CompilingThread,
    ConfigValue,
    FrameState,
)
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.dynamo_reader import DynamoReader, graph_breaks, recompilations, resumptions
from gdbext.torch.compile.frame_states import is_compiler, stage
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
        return _nothing(session, imported=False, known=True)
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
        self._session = session
        self._runtime = runtime
        self._compiled = compiled
        self.frames: list[CompileFrame] = []
        self.compiling: list[CompilingThread] = []
        self.truncated: list[str] = []
        for thread in session.target.threads():
            try:
                self._add(thread.tid)
            except GdbextError as error:
                session.errors.note(error, f"thread {thread.tid}")

    def _add(self, tid: int) -> None:
        table = self._session.python_threads
        own = table.states.get(tid, ()) if table is not None else ()
        frames = [frame for state in own for frame in self._runtime.frames.stack(state).frames]
        found = self._compiled.of_thread(tid, frames[:_FRAME_LIMIT])
        if all(each.state is FrameState.EAGER for each in found):
            return
        kept = found[: _FRAME_LIMIT - len(self.frames)]
        self.frames += kept
        if len(kept) < len(frames):
            self.truncated.append(f"frames, truncated at {_FRAME_LIMIT}")
        if any(each.state is FrameState.COMPILING for each in found):
            self.compiling.append(self._at_work(tid, frames))

    def _at_work(self, tid: int, frames: list[PythonFrame]) -> CompilingThread:
        """What the innermost call of the compiler compiles."""
        inner = next(index for index, frame in enumerate(frames) if is_compiler(frame))
        part = stage(frames[: inner + 1])
        for frame in frames[inner:]:
            if is_compiler(frame) and frame.file.endswith(names.COMPILER[0]):
                return self._named(tid, part, frame)
        return CompilingThread(tid, part, "", None, None)

    def _named(self, tid: int, part: str, frame: PythonFrame) -> CompilingThread:
        try:
            code = locals_of(self._runtime, frame).get(names.COMPILED_LOCAL)
            found = self._runtime.codes.get(code) if code else None
        except GdbextError:
            found = None
        if found is None:
            return CompilingThread(tid, part, "", None, None)
        return CompilingThread(tid, part, found.name, found.file, found.first_line)
