"""The kernels that Inductor has generated for Triton, and the handles by which the device's driver launches them.

torch/_inductor/runtime/triton_heuristics.py (2.6 to 2.15): each is an object of a module that Inductor wrote, whose
launchers are there once it was called; before, nothing is loaded that could be launched.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.threads.namespaces import attributes, items
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.generated_kernels import MODULE_LIMIT, module_variables, written_modules
from gdbext.torch.compile.inductor_source import TRITON

LAUNCHING = (("cuLaunchKernel", 0), ("cuLaunchKernelEx", 1))
"""Functions of libcuda (cuda.h), and which of their arguments is the CUfunction."""


class TritonKernel(Record):
    """``handles`` are the CUfunctions of its launchers, one for each configuration that it was tuned to."""

    name: str
    handles: tuple[int, ...]


def triton_kernels(runtime: PythonRuntime) -> list[TritonKernel]:
    """Those that can be launched. Raises nothing: what cannot be read is not there."""
    found: dict[str, set[int]] = {}
    try:
        for module in written_modules(runtime)[:MODULE_LIMIT]:
            for name, value in module_variables(runtime, module):
                if name.startswith(TRITON) and runtime.objects.type_of(value).name in names.AUTOTUNERS:
                    found.setdefault(name, set()).update(_handles(runtime, value))
    except GdbextError:
        pass  # what was read until then
    return [TritonKernel(name, tuple(sorted(handles))) for name, handles in found.items() if handles]


def _handles(runtime: PythonRuntime, autotuner: int) -> Iterator[int]:
    for launcher in items(runtime, attributes(runtime, autotuner).get(names.LAUNCHERS, 0)):
        handle = _handle(runtime, launcher)
        if handle:
            yield handle


def _handle(runtime: PythonRuntime, launcher: int) -> int | None:
    """The CUfunction that a launcher launches; None where it cannot be read."""
    objects, layout, memory = runtime.objects, runtime.layout, runtime.memory
    try:
        if objects.type_of(launcher).name != "function":
            return None
        scope = memory.u64(launcher + layout.offset("PyFunctionObject", "func_globals"))
        function, runner = (runtime.dicts.get(scope, name) for name in (names.LAUNCHED, names.RUNNER))
        if not function and runner and objects.type_of(runner).name == "method":
            owner = memory.u64(runner + layout.offset("PyMethodObject", "im_self"))
            function = attributes(runtime, owner).get(names.LAUNCHED)
        return objects.integer(function) if function and objects.type_of(function).name == "int" else None
    except GdbextError:
        return None
