"""The arguments of a kernel of Inductor's C++ backend where C++ calls it: a model that was compiled ahead of time, or
one compiled with ``cpp_wrapper``.

The names and types of its parameters are in the source that lies beside the library; which tensors the pointers belong
to is known from the frame of the calling function.

Tensors that a calling C++ function holds, by where their elements are.

Code that Inductor generated keeps handles of tensors (``AtenTensorHandle``, an at::Tensor*) in variables of the
function that calls a kernel, and references to handles of constants (torch/csrc/inductor/aoti_runtime/model_base.h,
utils.h, 2.13.0). So any word of its frame is tried as such a handle, or as the address of one: a live tensor whose
elements are just where the kernel was pointed to is the one.

Which kernel of Inductor's C++ backend a thread calls, and with what: from the Python line that calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine.unwind import NativeStack
from gdbext.errors import GdbextError
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.torch.compile import generated_kernels

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module
    from gdbext.torch.state.tensor import TensorFacts

_FRAME_LIMIT = 1 << 17
"""Bytes of a frame that are searched; models of a thousand buffers have frames of tens of thousands."""


class CallerTensors:
    """Searches the frames of one session's process. The library of the calling code is one that the session knows."""

    def __init__(self, session: Session, reporter: TensorReporter) -> None:
        self._session = session
        self._memory = session.memory
        self._reporter = reporter

    def at(self, registers: Mapping[str, int], wanted: Collection[int]) -> dict[int, list[TensorFacts]]:
        """Address of elements → the tensors that begin there, of the function that called the one at whose first
        instruction the ``registers`` are. Raises MemoryFault."""
        found: dict[int, list[TensorFacts]] = {address: [] for address in wanted}
        seen = set()
        for word in self._words(registers):
            for handle in (word, self._pointed(word)):
                implementation = self._pointed(handle)
                if implementation and implementation not in seen:
                    seen.add(implementation)
                    facts, start = self._tensor(implementation)
                    if facts and start in found:
                        found[start].append(facts)
        return found

    def _words(self, registers: Mapping[str, int]) -> Iterator[int]:
        session, architecture = self._session, self._memory.architecture
        yield from (registers[name] for name in architecture.callee_saved)
        frames = NativeStack.walk(registers, session.unwinder, session.symbolizer, 2).frames
        if len(frames) < 2:
            return
        size = min(max(frames[1].cfa - frames[1].sp, 0), _FRAME_LIMIT)
        yield from dict.fromkeys(self._memory.words(frames[1].sp, size // 8))

    def _pointed(self, address: int) -> int:
        """The word at an address; 0 where there is none that may point to something."""
        if not address or address & 7 or address >= self._memory.architecture.user_limit:
            return 0
        return self._memory.try_u64(address) or 0

    def _tensor(self, address: int) -> tuple[TensorFacts | None, int]:
        """The live tensor at an address, and where its elements begin."""
        if address & 7 or not self._pointed(address) or not self._reporter.is_tensor(address):
            return None, 0
        try:
            facts = self._reporter.facts(address)
            return facts, self._reporter.contents(facts).geometry.address
        except GdbextError:
            return None, 0


_SOURCE_LIMIT = 64 << 20


class CppParameter(NamedTuple):
    """``name``: what the calling code calls the argument, else the parameter; ``parameter`` as the source has it."""

    name: str
    parameter: str


class CppLibrary:
    """A library of generated code, and what its source says."""

    def __init__(self, session: Session, module: Module) -> None:
        self._session = session
        self._path = module.path

    @cached_property
    def _tensors(self) -> CallerTensors:
        return CallerTensors(self._session, TensorReporter(self._session))

    def parameters(self, kernel: str) -> tuple[CppParameter, ...]:
        """Those of a kernel; () where there is no source."""
        kinds, names = (
            generated_kernels.cpp_parameters(self._source, kernel),
            generated_kernels.cpp_arguments(self._source, kernel),
        )
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
        chosen = {
            address: _one_of(found[address], generated_kernels.pointed_dtype(kind))
            for address, kind in pointers.items()
        }
        return {address: facts.address for address, facts in chosen.items() if facts}

    @cached_property
    def _source(self) -> str:
        path = f"{self._path.removesuffix('.so')}.cpp"
        try:
            return self._session.target.origin.foreign.source(path, _SOURCE_LIMIT)[0].decode("utf-8", "replace")
        except OSError:
            return ""


def _one_of(tensors: Collection[TensorFacts], dtype: str) -> TensorFacts | None:
    """The tensor, where all that begin there have the same elements in the same shape."""
    fitting = [facts for facts in tensors if not dtype or facts.dtype == dtype]
    shapes = {(facts.dtype, facts.sizes, facts.strides) for facts in fitting}
    return fitting[0] if len(shapes) == 1 else None


class KernelArgument(NamedTuple):
    """``name`` is that of the Python variable, ``parameter`` as the kernel's source has it ("" where it is not known),
    ``value`` the object, missing where there is none of that name."""

    name: str
    parameter: str
    value: PyRef


class KernelCall(NamedTuple):
    """A call of a kernel."""

    kernel: str
    arguments: tuple[KernelArgument, ...]


class KernelCalls:
    """Reads calls; keeps the generated files."""

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}
        self._parameters: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, session: Session, tid: int) -> KernelCall | None:
        """The call that the thread's innermost Python frame makes; None where that cannot be read."""
        stack = session.python_threads.frames(tid)
        found = generated_kernels.called_kernel(self._line(session, stack[0])) if stack else None
        if not found:
            return None
        kernel, names = found
        variables, kinds = stack.locals(stack[0]), self._kinds(stack[0].file, kernel, len(names))
        if variables.fault:
            return None
        arguments = (KernelArgument(name, kind, variables[name]) for name, kind in zip(names, kinds))
        return KernelCall(kernel, tuple(arguments))

    def _line(self, session: Session, frame: PythonFrame) -> str:
        if frame.file not in self._sources:
            self._sources[frame.file] = SourceReader(session.target).texts(frame.file)
        lines, number = self._sources[frame.file], frame.line or 0
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _kinds(self, file: str, kernel: str, count: int) -> tuple[str, ...]:
        if (file, kernel) not in self._parameters:
            self._parameters[file, kernel] = generated_kernels.kernel_parameters("\n".join(self._sources[file]), kernel)
        found = self._parameters[file, kernel]
        return found if len(found) == count else ("",) * count
