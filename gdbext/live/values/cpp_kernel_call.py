"""What a kernel of Inductor's C++ backend is given where C++ calls it: a model that was compiled ahead of time, or one
compiled with ``cpp_wrapper``.

The names and types of its parameters are in the source that lies beside the library; which tensors the pointers belong
to is known from the frame of the calling function (caller_tensors.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.tensors.tensor_report import TensorReporter
from gdbext.live.values.caller_tensors import CallerTensors
from gdbext.model.record import Record
from gdbext.torch.compile.inductor_source import cpp_arguments, cpp_parameters, pointed_dtype

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module
    from gdbext.torch.state.tensor import TensorFacts

_SOURCE_LIMIT = 64 << 20


class CppParameter(Record):
    """``name``: what the calling code calls the argument, else the parameter; ``parameter`` as the source has it."""

    name: str
    parameter: str


class CppLibrary:
    """A library of generated code, and what its source says."""

    def __init__(self, session: Session, module: Module) -> None:
        self._session = session
        self._path = session.target.local_path(module.path)

    @cached_property
    def _tensors(self) -> CallerTensors:
        return CallerTensors(self._session, TensorReporter(self._session))

    def parameters(self, kernel: str) -> tuple[CppParameter, ...]:
        """Those of a kernel; () where there is no source."""
        kinds, names = cpp_parameters(self._source, kernel), cpp_arguments(self._source, kernel)
        if len(names) != len(kinds):
            names = ("",) * len(kinds)
        return tuple(CppParameter(name or kind.split()[-1], kind) for name, kind in zip(names, kinds))

    def tensors(self, registers: Mapping[str, int], pointers: Mapping[int, str]) -> dict[int, int]:
        """Address of elements → the TensorImpl, of ``pointers`` to elements of the parameters that they were given for;
        without those of which it is not certain. ``registers`` are those at the kernel's first instruction."""
        self._session.memory.forget()
        try:
            found = self._tensors.at(registers, pointers)
        except GdbextError:
            return {}
        chosen = {address: _one_of(found[address], pointed_dtype(kind)) for address, kind in pointers.items()}
        return {address: facts.address for address, facts in chosen.items() if facts is not None}

    @cached_property
    def _source(self) -> str:
        path = Path(f"{self._path.removesuffix('.so')}.cpp")
        try:
            return path.read_text("utf-8", "replace") if path.stat().st_size <= _SOURCE_LIMIT else ""
        except OSError:
            return ""


def _one_of(tensors: Collection[TensorFacts], dtype: str) -> TensorFacts | None:
    """The tensor, where all that begin there have the same elements in the same shape."""
    fitting = [facts for facts in tensors if not dtype or facts.dtype == dtype]
    shapes = {(facts.dtype, facts.sizes, facts.strides) for facts in fitting}
    return fitting[0] if len(shapes) == 1 else None
