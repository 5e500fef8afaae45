"""What a thread that is in a compiler compiles: TorchDynamo's frame, or Triton's kernel."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.cpython.threads.namespaces import attributes
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.slots import local_of
from gdbext.errors import GdbextError
from gdbext.model.sections.compile_section import CompilingThread, SourcePlace
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.frame_states import is_compiler, stage


def at_work(runtime: PythonRuntime, tid: int, frames: Sequence[PythonFrame]) -> CompilingThread | None:
    """What the innermost call of a compiler compiles; None where there is none on the stack."""
    inner = next((index for index, frame in enumerate(frames) if is_compiler(frame)), None)
    if inner is None:
        return None
    part = stage(frames[: inner + 1])
    for frame in frames[inner:]:
        found = _compiled(runtime, frame) if is_compiler(frame) else None
        if found is not None:
            return CompilingThread(tid, part, found.function, found.file, found.line)
    return CompilingThread(tid, part, "", None, None)


def _compiled(runtime: PythonRuntime, frame: PythonFrame) -> SourcePlace | None:
    """What one call of a compiler compiles, as far as its variables say."""
    try:
        if frame.file.endswith(names.COMPILER[0]):
            return _code(runtime, local_of(runtime, frame, names.COMPILED_LOCAL))
        if frame.file.endswith(names.TRITON_COMPILER[0]):
            return _kernel(runtime, frame)
    except GdbextError:
        pass  # another release's variables: the stage alone is an answer
    return None


def _code(runtime: PythonRuntime, address: int) -> SourcePlace | None:
    found = runtime.codes.get(address) if address else None
    return SourcePlace(found.name, found.file, found.first_line) if found is not None else None


def _kernel(runtime: PythonRuntime, frame: PythonFrame) -> SourcePlace | None:
    """The function behind Triton's JITFunction, which its source has."""
    source = local_of(runtime, frame, names.TRITON_SOURCE)
    kernel = attributes(runtime, source).get(names.TRITON_FUNCTION, 0) if source else 0
    function = attributes(runtime, kernel).get(names.TRITON_FUNCTION, 0) if kernel else 0
    found = runtime.functions.source(function) if function else None
    return SourcePlace(found.qualname, found.file, found.line) if found is not None and found.file else None
