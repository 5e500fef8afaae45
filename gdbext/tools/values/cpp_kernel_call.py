"""The arguments of a kernel of Inductor's C++ backend, by its source and by the Python line or C++ frame that calls it.

C++ calls one in a model that was compiled ahead of time, or with ``cpp_wrapper``. The names and types of its parameters
are in the source that lies beside the library. Code that Inductor generated keeps handles of tensors
(``AtenTensorHandle``, an at::Tensor*) in variables of the function that calls a kernel, and references to handles of
constants (torch/csrc/inductor/aoti_runtime/model_base.h, utils.h, 2.13.0). So any word of its frame is tried as such a
handle, or as the address of one: a live tensor whose elements are just where the kernel was pointed to is the one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine.unwind import NativeStack
from gdbext.errors import GdbextError
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.torch.compile import generated_kernels

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module
    from gdbext.torch.state.tensor import TensorFacts

_FRAME_LIMIT = 1 << 17
"""Bytes of a frame that are searched; models of a thousand buffers have frames of tens of thousands."""


_SOURCE_LIMIT = 64 << 20


class CppParameter(NamedTuple):
    """``name``: what the calling code calls the argument, else the parameter; ``parameter`` as the source has it."""

    name: str
    parameter: str


class CppLibrary:
    """A library of generated code, its source, and the tensors of the functions that call it."""

    def __init__(self, session: Session, module: Module) -> None:
        self._session = session
        self._memory = session.memory
        self._path = module.path

    @cached_property
    def _reporter(self) -> TensorReporter:
        return TensorReporter(self._session)

    @cached_property
    def _source(self) -> str:
        path = f"{self._path.removesuffix('.so')}.cpp"
        try:
            return self._session.target.foreign.source(path, _SOURCE_LIMIT)[0].decode("utf-8", "replace")
        except OSError:
            return ""

    def parameters(self, kernel: str) -> tuple[CppParameter, ...]:
        """Those of a kernel; () where there is no source."""
        kinds = generated_kernels.cpp_parameters(self._source, kernel)
        names = generated_kernels.cpp_arguments(self._source, kernel)
        if len(names) != len(kinds):
            names = ("",) * len(kinds)
        return tuple(CppParameter(name or kind.split()[-1], kind) for name, kind in zip(names, kinds))

    def tensors(self, registers: Mapping[str, int], pointers: Mapping[int, str]) -> dict[int, int]:
        """Address of elements → the TensorImpl, of ``pointers`` to elements of the parameters that they were given for;
        without those of which it is not certain. ``registers`` are those at the kernel's first instruction."""
        self._memory.forget()
        try:
            tensors = self._tensors_of_caller(registers, pointers)
        except GdbextError:
            return {}
        certain = {}
        for address, kind in pointers.items():
            dtype = generated_kernels.pointed_dtype(kind)
            fitting = [facts for facts in tensors[address] if not dtype or facts.dtype == dtype]
            # All that begin there must have the same elements in the same shape.
            if len({(facts.dtype, facts.sizes, facts.strides) for facts in fitting}) == 1:
                certain[address] = fitting[0].address
        return certain

    def _tensors_of_caller(self, registers: Mapping[str, int], wanted: Collection[int]) -> dict[int, list[TensorFacts]]:
        """Address of elements → the tensors of the calling function that begin there. Raises MemoryFault."""
        tensors: dict[int, list[TensorFacts]] = {address: [] for address in wanted}
        seen = set()
        for word in self._words_of_caller(registers):
            for handle in (word, self._pointed(word)):
                implementation = self._pointed(handle)
                if not implementation or implementation in seen:
                    continue
                seen.add(implementation)
                if implementation & 7 or not self._pointed(implementation):
                    continue
                if not self._reporter.is_tensor(implementation):
                    continue
                with suppress(GdbextError):
                    facts = self._reporter.facts(implementation)
                    start = self._reporter.contents(facts).geometry.address
                    if start in tensors:
                        tensors[start].append(facts)
        return tensors

    def _words_of_caller(self, registers: Mapping[str, int]) -> Iterator[int]:
        """The words in the frame of the calling function, and in the registers that it may keep."""
        session = self._session
        yield from (registers[name] for name in self._memory.architecture.callee_saved)
        frames = NativeStack.walk(registers, session.unwinder, session.symbolizer, 2).frames
        if len(frames) >= 2:
            size = min(max(frames[1].cfa - frames[1].sp, 0), _FRAME_LIMIT)
            yield from dict.fromkeys(self._memory.words(frames[1].sp, size // 8))

    def _pointed(self, address: int) -> int:
        """The word at an address; 0 where there is none that may point to something."""
        if not address or address & 7 or address >= self._memory.architecture.user_limit:
            return 0
        return self._memory.try_u64(address) or 0


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
        if not stack:
            return None
        file, number = stack[0].file, stack[0].line or 0
        if file not in self._sources:
            self._sources[file] = SourceReader(session.target).texts(file)
        lines = self._sources[file]
        called = generated_kernels.called_kernel(lines[number - 1] if 0 < number <= len(lines) else "")
        if not called:
            return None
        kernel, names = called
        variables = stack.locals(stack[0])
        if (file, kernel) not in self._parameters:
            self._parameters[file, kernel] = generated_kernels.kernel_parameters("\n".join(lines), kernel)
        kinds = self._parameters[file, kernel]
        if len(kinds) != len(names):
            kinds = ("",) * len(names)
        if variables.fault:
            return None
        arguments = (KernelArgument(name, kind, variables[name]) for name, kind in zip(names, kinds))
        return KernelCall(kernel, tuple(arguments))
