"""Watches compiled code while the process runs: kernels of Inductor's C++ backend, and functions of AOTInductor.

A kernel gets bare pointers. If Python calls it, their tensors are the variables in the calling line. C++ calls it in a
model that was compiled ahead of time, or with ``cpp_wrapper``. Then the parameters' names and types are in the source
beside the library, and the calling function has handles of tensors (``AtenTensorHandle``, an at::Tensor*) in variables
(aoti_runtime/model_base.h, utils.h, 2.13.0). So each word of its frame is tried as a handle, or as the address of one:
an argument is the live tensor whose elements begin at the kernel's pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Optional

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.diagnosis.session import TORCH_LIBRARY, Session
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine.arch import Passing, Slot
from gdbext.engine.unwind import NativeStack
from gdbext.errors import GdbextError
from gdbext.live.host import HookSpec, RunControl
from gdbext.live.waiting import loader_state
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.values.launch import AFTER, KernelLaunch
from gdbext.tools.values.value_watch import CallWatch, ValueRequest, ValueSink
from gdbext.torch.assumed_symbols import KERNEL
from gdbext.torch.compile import generated_kernels
from gdbext.torch.values.cpp_values import FLOATS, Value, float_value

if TYPE_CHECKING:
    from gdbext.engine.process.modules import Module
    from gdbext.torch.state.tensor import TensorFacts

_FRAME_LIMIT = 1 << 17
"""Bytes of a frame that are searched; models of a thousand buffers have frames of tens of thousands."""


class CppLibrary:
    """A library of generated code, its source, and the tensors of the functions that call it."""

    def __init__(self, session: Session, module: Module) -> None:
        """``module``: the library."""
        self._session = session
        self._memory = session.memory
        self._path = module.path

    @cached_property
    def _reporter(self) -> TensorReporter:
        return TensorReporter(self._session)

    @cached_property
    def _source(self) -> str:
        """The C++ source, which Inductor writes beside the library; "" if it cannot be read."""
        path = f"{self._path.removesuffix('.so')}.cpp"
        try:
            return self._session.target.origin.foreign.source(path, 64 << 20)[0].decode("utf-8", "replace")
        except OSError:
            return ""

    def parameters(self, kernel: str) -> list[tuple[str, str]]:
        """(name, declaration) of each parameter of a kernel; [] without source. The name is that of the argument in the
        calling code if it is known."""
        kinds = generated_kernels.cpp_parameters(self._source, kernel)
        names = generated_kernels.cpp_arguments(self._source, kernel)
        if len(names) != len(kinds):
            names = ("",) * len(kinds)
        return [(name or kind.split()[-1], kind) for name, kind in zip(names, kinds)]

    def tensors(self, registers: Mapping[str, int], pointers: Mapping[int, str]) -> dict[int, int]:
        """Address of elements → address of their TensorImpl, where that is certain. ``pointers``: address of elements →
        declaration of its parameter; ``registers``: at the kernel's first instruction."""
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
            for handle in (word, self._word_at(word)):
                implementation = self._word_at(handle)
                if not implementation or implementation in seen:
                    continue
                seen.add(implementation)
                if implementation & 7 or not self._word_at(implementation):
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
        """The words in the calling function's frame, and in the callee-saved registers, where it may keep variables."""
        session = self._session
        yield from (registers[name] for name in self._memory.architecture.callee_saved)
        frames = NativeStack.walk(registers, session.unwinder, session.symbolizer, 2).frames
        if len(frames) >= 2:
            size = min(max(frames[1].cfa - frames[1].sp, 0), _FRAME_LIMIT)
            yield from dict.fromkeys(self._memory.words(frames[1].sp, size // 8))

    def _word_at(self, address: int) -> int:
        """The word at an address; 0 if that is no valid pointer."""
        if not address or address & 7 or address >= self._memory.architecture.user_limit:
            return 0
        return self._memory.try_u64(address) or 0


class KernelArgument(NamedTuple):
    """An argument in a call by Python."""

    name: str
    """Of the variable in the calling line."""
    parameter: str
    """The declaration of the parameter in the kernel's source, "" if unknown."""
    value: PyRef
    """The object; falsy without a variable of that name."""


class KernelCalls:
    """Reads calls of kernels by Python; caches the generated files."""

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}  # file → its lines
        self._parameters: dict[tuple[str, str], tuple[str, ...]] = {}
        """(file, kernel) → declarations of its parameters."""

    def current_call(self, session: Session, tid: int) -> tuple[str, list[KernelArgument]]:
        """(kernel, arguments) of the call by the thread's innermost Python frame; ("", []) if it cannot be read."""
        stack = session.python_threads.frames(tid)
        if not stack:
            return "", []
        file, number = stack[0].file, stack[0].line or 0
        if file not in self._sources:
            self._sources[file] = SourceReader(session.target).stripped_lines(file)
        lines = self._sources[file]
        called = generated_kernels.called_kernel(lines[number - 1] if 0 < number <= len(lines) else "")
        if not called:
            return "", []
        kernel, names = called
        variables = stack.locals(stack[0])
        if (file, kernel) not in self._parameters:
            self._parameters[file, kernel] = generated_kernels.kernel_parameters("\n".join(lines), kernel)
        kinds = self._parameters[file, kernel]
        if len(kinds) != len(names):
            kinds = ("",) * len(names)
        if variables.fault:
            return "", []
        return kernel, [KernelArgument(name, kind, variables[name]) for name, kind in zip(names, kinds)]


Entered = Callable[[int, int], bool]
"""Handles the entry of a function: (thread id, CFA) → True: the process stays stopped."""
NamedValue = tuple[str, str, Optional[Value]]
"""(name, type, value; None if it is unknown)."""


def is_compiled(pattern: str) -> bool:
    """True if the pattern is for functions of compiled code, not for operators."""
    return pattern.startswith((generated_kernels.CPP, generated_kernels.PREFIX))


class _Call(NamedTuple):
    """A call of a compiled function."""

    name: str
    number: int
    """Number of the function's call, from 0."""
    values: tuple[NamedValue, ...]
    """The arguments, as they were before the call."""
    results: tuple[tuple[str, int], ...]
    """(name, address at which the function writes a tensor's handle) of each result."""


class CompiledCodeWatch(CallWatch[_Call]):
    """The compiled code of one run of dispatch-values."""

    def __init__(self, session: Session, control: RunControl, request: ValueRequest, sink: ValueSink) -> None:
        super().__init__(session, control, request, sink)
        self._calls: dict[str, int] = {}  # function → number of its last call
        self._calling_lines = KernelCalls()
        self._hooked: set[int] = set()  # addresses of watched functions
        self._searched: set[tuple[int, str]] = set()  # (address, path) of libraries
        self._patterns: list[str] = []  # of the functions to watch

    def place(self, patterns: Sequence[str]) -> None:
        """Watch all matching functions, also in libraries that are loaded later. Raises NotTorch."""
        self._patterns = list(patterns)
        if any(pattern.startswith(generated_kernels.PREFIX) for pattern in patterns):
            self._place_shims()

        def loaded(_tid: int, _cfa: int, _value: int) -> bool:
            """Handle the dynamic loader's notice of a new library."""
            self._place_kernels(self._control.session())
            return False

        if any(pattern.startswith(generated_kernels.CPP) for pattern in patterns):
            self._place_kernels(self._session)
            self._control.place(HookSpec(loader_state(self._session), self._at_entry, loaded))

    def _place_kernels(self, session: Session) -> None:
        """Watch the kernels of libraries that were not searched yet."""
        for module in session.modules.modules:
            if (module.base, module.path) in self._searched:
                continue
            self._searched.add((module.base, module.path))
            library: CppLibrary | None = None
            for name, address in self._kernels_of(session, module):
                if name:
                    library = library or CppLibrary(session, module)
                    self._watch(address, partial(self._cpp_kernel_entered, name, library))
                else:
                    self._watch(address, self._python_kernel_entered)

    def _kernels_of(self, session: Session, module: Module) -> Iterator[tuple[str, int]]:
        """(name, address) of each wanted kernel of a library; the name is "" if only the calling Python code has it."""
        try:
            index = session.symbolizer.index(module)
            if not index:
                return
            kernel = index.exported(KERNEL) if index.exported(generated_kernels.KERNEL_MODULE) else None
            if kernel:
                yield "", module.base + kernel.vaddr
            elif any(index.exported(name) for name in generated_kernels.COMPILED_MODULES):
                for symbol in index.matching(generated_kernels.CPP.encode()):
                    if "." not in symbol.name and self._is_wanted(symbol.name):  # kernel.cold is a part of it
                        yield symbol.name, module.base + symbol.vaddr
        except GdbextError:
            return

    def _place_shims(self) -> None:
        """Watch the functions of AOTInductor."""
        module = self._session.modules.named(TORCH_LIBRARY)
        index = self._session.symbolizer.index(module) if module else None
        if not module or not index:
            return
        folder = PurePosixPath(module.path).parent.parent / "include/torch/csrc/inductor/aoti_torch"
        headers = []
        for name in generated_kernels.HEADERS:
            with suppress(OSError):
                header = self._session.target.origin.foreign.read(str(folder / name), 4 << 20)[0]
                headers.append(header.decode("utf-8", "replace"))
        signatures = generated_kernels.shim_signatures(headers)
        for symbol in index.matching(generated_kernels.PREFIX.encode()):
            if self._is_wanted(symbol.name):
                entered = partial(self._shim_entered, symbol.name, signatures.get(symbol.name, ()))
                self._watch(module.base + symbol.vaddr, entered)

    def _is_wanted(self, name: str) -> bool:
        return not self._request.key and any(
            fnmatchcase(name, pattern) and fnmatchcase(name, f"*{self._request.kernel}*") for pattern in self._patterns
        )

    def _watch(self, address: int, entered: Entered) -> None:
        """Watch the function at ``address``, once."""

        def handler(tid: int, cfa: int, _value: int) -> bool:
            """Call ``entered`` in a wanted thread."""
            if self._request.tid not in (None, tid):
                return False
            self._session.memory.forget()
            return entered(tid, cfa)

        if address not in self._hooked:
            self._hooked.add(address)
            self._hook(HookSpec(address, self._at_entry, handler))

    def _shim_entered(self, name: str, signature: Sequence[generated_kernels.Parameter], tid: int, cfa: int) -> bool:
        return self._called(tid, cfa, name, *self._shim_values(signature, cfa))

    def _cpp_kernel_entered(self, name: str, library: CppLibrary, tid: int, cfa: int) -> bool:
        return self._called(tid, cfa, name, self._cpp_values(name, library, cfa), ())

    def _python_kernel_entered(self, tid: int, cfa: int) -> bool:
        """Handle the entry of a kernel whose name and tensors are in the calling Python line."""
        kernel, arguments = self._calling_lines.current_call(self._control.session(), tid)
        if not kernel or not self._is_wanted(kernel):
            return False
        words = self._words([argument.parameter for argument in arguments], cfa)
        values = [
            (argument.name, argument.parameter, self._kernel_value(argument, word))
            for argument, word in zip(arguments, words)
        ]
        return self._called(tid, cfa, kernel, values, ())

    def _called(
        self, tid: int, cfa: int, name: str, values: Sequence[NamedValue], results: Sequence[tuple[str, int]]
    ) -> bool:
        """Count and report a call; True: the process must stay stopped. ``results``: see _Call."""
        number = self._calls[name] = self._calls.get(name, -1) + 1
        return self._begin(tid, cfa, _Call(name, number, tuple(values), tuple(results)))

    def _launch(self, moment: str, tid: int, call: _Call) -> KernelLaunch:
        """The report of a call of a compiled function; its results are read now."""
        results: list[NamedValue] = []
        if moment == AFTER:
            memory = self._session.memory
            results = [(name, "", self._tensor(memory.try_u64(address))) for name, address in call.results]
        values = [self._described.describe(name, value, kind) for name, kind, value in (*call.values, *results)]
        return KernelLaunch(moment, call.name, "", call.number, call.name, "", tid, tuple(values), len(results))

    def _words(self, kinds: Sequence[str], cfa: int) -> list[int | None]:
        """The first word of each argument, at the function's first instruction. ``kinds``: the arguments' C++ types."""
        architecture = self._architecture

        def word(slot: Slot) -> int | None:
            """The word in a register or on the stack; None if it cannot be read."""
            if slot.register is not None:
                return self._control.register(architecture.argument_registers[slot.register])
            if slot.float_register is not None:
                return self._control.float_register(architecture.float_argument_registers[slot.float_register])
            return None if slot.offset is None else self._session.memory.try_u64(cfa + slot.offset)

        passing = [Passing.FLOAT if "*" not in kind and _plain(kind) in FLOATS else Passing.WORD for kind in kinds]
        slots = architecture.place_arguments(passing)
        return [word(slots[number][0]) if number < len(slots) else None for number in range(len(kinds))]

    def _kernel_value(self, argument: KernelArgument, word: int | None) -> Value | None:
        """The value of an argument in a call by Python: the variable's tensor if its elements begin at ``word``, or a
        number; None if unknown."""
        if word is None:
            return None
        if "*" not in argument.parameter and argument.parameter:
            return _number(_plain(argument.parameter), word)
        try:
            tensor = self._reporter.tensor_or_none(argument.value)
            if tensor is None or self._reporter.contents(self._reporter.facts(tensor)).geometry.address != word:
                return None
            return self._values.tensor(tensor)
        except GdbextError:
            return None

    def _cpp_values(self, name: str, library: CppLibrary, cfa: int) -> list[NamedValue]:
        """The arguments of a kernel that C++ calls."""
        parameters = library.parameters(name)
        kinds = [kind for _, kind in parameters]
        words = self._words(kinds, cfa)
        pointers = {word: kind for kind, word in zip(kinds, words) if word is not None and "*" in kind}
        tensors: Mapping[int, int] = {}
        if pointers:
            registers = {name: self._control.register(name) for name in self._architecture.general_registers}
            tensors = library.tensors(registers, pointers)
        values: list[NamedValue] = []
        for (argument, kind), word in zip(parameters, words):
            value = None
            if word is not None:
                value = self._tensor_at(tensors.get(word, 0)) if "*" in kind else _number(_plain(kind), word)
            values.append((argument, kind, value))
        return values

    def _shim_values(
        self, signature: Sequence[generated_kernels.Parameter], cfa: int
    ) -> tuple[list[NamedValue], list[tuple[str, int]]]:
        """(the arguments, the results as in _Call) of a function of AOTInductor. A list and its length are one
        argument."""
        words = self._words([parameter.type for parameter in signature], cfa)
        values: list[NamedValue] = []
        results: list[tuple[str, int]] = []
        for number, (parameter, word) in enumerate(zip(signature, words)):
            if parameter.is_result:
                results.append((f"result{len(results)}", word or 0))
            elif not parameter.name.endswith("_len_"):
                is_list = number + 1 < len(signature) and signature[number + 1].name == f"{parameter.name}_len_"
                length = words[number + 1] if is_list else None
                values.append((parameter.name, parameter.type, self._shim_value(parameter.type, word, length)))
        return values, results

    def _shim_value(self, kind: str, word: int | None, length: int | None) -> Value | None:
        """The value of an argument of C++ type ``kind``, None if unknown. ``length``: number of items of a list, None
        for other arguments."""
        if word is None:
            return None
        plain, memory = kind.removeprefix("const ").strip(), self._session.memory
        try:
            if plain == generated_kernels.TENSOR:
                return self._tensor(word)
            if not plain.endswith("*"):
                return _number(plain, word)
            if length is not None:
                return self._list(plain[:-1].strip(), word, length)
            if not word:
                return Value("None")
            if plain == f"{generated_kernels.TENSOR}*":
                return self._tensor(memory.u64(word))
            return _number(plain[:-1].strip(), memory.u64(word)) if "const" not in kind else None
        except GdbextError:
            return None

    def _list(self, kind: str, first: int, length: int) -> Value | None:
        """The list of ``length`` items of C++ type ``kind`` at address ``first``; None if an item is unknown."""
        if length > 256 or kind not in (generated_kernels.TENSOR, "int64_t", "double"):
            return None
        items = []
        for word in self._session.memory.words(first, length):
            item = self._tensor(word) if kind == generated_kernels.TENSOR else _number(kind, word)
            if not item:
                return None
            items.append(item)
        tensors = tuple(tensor for item in items for tensor in item.tensors)
        return Value(f"[{', '.join(item.text for item in items)}]", tensors)

    def _tensor(self, handle: int | None) -> Value | None:
        """The tensor of an AtenTensorHandle."""
        return self._tensor_at(self._session.memory.try_u64(handle) or 0) if handle else None

    def _tensor_at(self, implementation: int) -> Value | None:
        """The tensor with the TensorImpl at that address; None for 0, or if it cannot be read."""
        try:
            return self._values.tensor(implementation) if implementation else None
        except GdbextError:
            return None


def _plain(kind: str) -> str:
    """The C++ type in a declaration: its first word without const."""
    return kind.removeprefix("const ").split()[0] if kind else ""


def _number(kind: str, word: int) -> Value | None:
    """The number of C++ type ``kind`` in an argument's word; None for other types."""
    if kind in FLOATS:
        return float_value(kind, word)
    size = {"int64_t": 8, "int32_t": 4, "int16_t": 2, "int8_t": 1, "bool": 1}.get(kind)
    if size is None:
        return None
    value = word & (1 << 8 * size) - 1
    if kind == "bool":
        return Value(str(bool(value)))
    return Value(str(value - (1 << 8 * size) if value >> 8 * size - 1 else value))
