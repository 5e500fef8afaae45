"""Checks whether a layout that was measured on another build makes sense of the live dispatcher.

It reads a few dozen operators of ``c10::Dispatcher::operators_`` and checks what is true of any dispatcher: names parse
as ns::name, the list and the lookup table count the same operators, kernels lie in executable memory, those that
torchgen named after a dispatch key are at the index of that key, and so are the fallbacks whose functions are named
after their key. A layout of another minor version must find all of these fallbacks. Sources:
ATen/core/dispatch/Dispatcher.h, OperatorEntry.h, DispatchKeyExtractor.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError
from gdbext.torch import structures
from gdbext.torch.registry.kernel import kernel_parser
from gdbext.torch.values import value_structures
from gdbext.torch.values.containers import string_reader

_FALLBACKS = {
    "Python": "pythonFallback",  # ATen/core/PythonFallbackKernel.cpp, as the next three
    "PythonDispatcher": "pythonDispatcherFallback",
    "PythonTLSSnapshot": "pythonTLSSnapshotFallback",
    "PreDispatch": "preDispatchFallback",
    "FuncTorchDynamicLayerBackMode": "dynamicLayerBackFallback",  # ATen/functorch/DynamicLayer.cpp
    "FuncTorchDynamicLayerFrontMode": "dynamicLayerFrontFallback",
    "FuncTorchGradWrapper": "dead_tensor_wrapper_fallback",  # ATen/functorch/TensorWrapper.cpp
    "Functionalize": "functionalizeFallback",  # ATen/FunctionalizeFallbackKernel.cpp
    "Conjugate": "conjugateFallback",  # ATen/ConjugateFallback.cpp
    "Negative": "negationFallback",  # ATen/native/NegateFallback.cpp
    "ZeroTensor": "zeroTensorFallback",  # ATen/ZeroTensorFallback.cpp
}
"""The function that is registered for all operators of a key; the names are those of torch 2.0 to 2.13."""
_WALKED = 64
"""Operators that are read."""


class Probe:
    """Compares one layout with one target; ``run`` adds sentences to ``evidence``."""

    def __init__(
        self,
        memory: Memory,
        modules: ModuleTable,
        symbolizer: Symbolizer,
        layout: Layout,
        find_dispatcher: Callable[[], int],
    ) -> None:
        """``find_dispatcher`` returns the address of the c10::Dispatcher; it may raise any GdbextError."""
        self._memory = memory
        self._modules = modules
        self._symbolizer = symbolizer
        self._layout = layout
        self._space = Space(memory, layout)
        self._find_dispatcher = find_dispatcher
        self.evidence: list[str] = []
        self._named_kernels = 0
        self._proven: set[str] = set()
        indices = layout.dispatch("table_index")
        self._indices = {name: index for name, index in zip(layout.dispatch("key_names"), indices) if index > 0}

    def run(self, other_minor: bool = False) -> str:
        """The reason why the layout does not fit, "" if it does; a fault in the target is such a reason.

        For a layout of an ``other_minor`` version, fallbacks must also prove that dispatch keys have the same numbers.
        """
        try:
            dispatcher = structures.DispatcherStruct(self._space, self._find_dispatcher())
            walked = kernels = 0
            for operator in self._operators(dispatcher):
                self._check_name(operator)
                self._check_rest(operator)
                kernels += self._check_table(operator)
                walked += 1
            self._check_counts(dispatcher, walked)
            self._check_fallbacks(dispatcher)
        except GdbextError as error:
            return error.args[0] if error.args else type(error).__name__
        if not kernels:
            return f"none of {walked} operators has a kernel"
        unproven = [key for key in _FALLBACKS if key in self._indices and key not in self._proven]
        if other_minor and unproven:
            return f"nothing proves the numbers of dispatch keys such as {unproven[0]}"
        self.evidence.append(
            f"{walked} operators walked: names parse, {kernels} kernels lie in executable memory, "
            f"{self._named_kernels} are named after the key at whose index they stand"
        )
        return ""

    def _operators(self, dispatcher: structures.DispatcherStruct) -> Iterator[structures.OperatorEntry]:
        """The first operators of the std::list, a ring of nodes: next, previous, then the value."""
        head = previous = dispatcher.operators_
        current = self._memory.u64(head)
        for _ in range(_WALKED):
            if current == head:
                return
            if self._memory.u64(current + 8) != previous:
                raise BadData(f"the list of operators is broken at {current:#x}")
            yield structures.OperatorNode(self._space, current)._M_storage.op
            previous, current = current, self._memory.u64(current)

    def _check_name(self, operator: structures.OperatorEntry) -> None:
        strings, name = string_reader(self._memory, self._layout), operator.name_
        text, overload = strings.read(name.name, 512), strings.read(name.overload_name, 512)
        if not re.fullmatch(r"[A-Za-z_][\w.]*::[\w.]+", text) or not re.fullmatch(r"[\w.]*", overload):
            raise BadData(f"{text[:40]!r} is not an operator's name")

    def _check_rest(self, operator: structures.OperatorEntry) -> None:
        """Check the members after the table: masks of keys, two flags, a hash table whose numbers fit each other."""
        extractor = operator.dispatchKeyExtractor_
        full = (1 << self._layout.constant("num_backends") + self._layout.constant("num_functionality_keys") - 1) - 1
        backends = self._layout.constant("full_backend_mask")
        keysets = self._memory.words(extractor.nonFallthroughKeysPerBackend_, self._layout.constant("num_backends"))
        for bits in (extractor.nonFallthroughKeys_, *keysets):
            if bits & ~full or bits & backends != backends:  # only functionalities fall through, never backends
                raise BadData(f"{bits:#x} is not a set of keys without fallthrough kernels")
        flags = (extractor.requiresBitsetPerBackend_, operator.is_observed_)
        if max(flags) > 1:
            raise BadData(f"{max(flags)} stands where a truth value should")
        slots, used = operator.kernels_.num_slots_minus_one + 1, operator.kernels_.num_elements
        if slots & slots - 1 or used > slots or used > 4096:
            raise BadData(f"{used} registrations in a table of {slots}")

    def _check_table(self, operator: structures.OperatorEntry) -> int:
        """Number of kernels in the operator's table, each of which must look like one and be where its name says."""
        size, parse = structures.KernelFunctionStruct.size(self._space), kernel_parser(self._layout)
        entries = self._layout.constant("num_runtime_entries")
        raw = self._memory.read(operator.dispatchTable_, size * entries)
        kernels = [parse(raw, index * size) for index in range(entries)]
        for index, kernel in enumerate(kernels):
            if not all(self._is_code(pointer) for pointer in kernel.same_code if pointer):
                raise BadData(f"entry {index} of a dispatch table points outside executable memory")
            if kernel.functor and not self._is_object(kernel.functor):
                raise BadData(f"entry {index} of a dispatch table has no object for its functor")
            if kernel.unboxed and kernel.sym_unboxed:  # it takes SymInt or int, never both (KernelFunction_impl.h)
                raise BadData(f"entry {index} of a dispatch table has two unboxed kernels")
            # torchgen names a kernel after its key (wrapper_CPU__mm): then it must be at that key's index
            unboxed = kernel.unboxed or kernel.sym_unboxed
            names = self._symbolizer.names_at(unboxed) if unboxed else ()
            keys = {key for name in names for key in re.findall(r"wrapper_([A-Za-z]+[0-9]?)_", name)}
            expected = {self._indices[key] for key in keys if key in self._indices}
            if expected and index not in expected:
                raise BadData(f"a kernel for {', '.join(sorted(keys))} stands at entry {index} of a dispatch table")
            self._named_kernels += bool(expected)
        return sum(any(kernel.same_code) for kernel in kernels)

    def _is_object(self, address: int) -> bool:
        """An object with virtual functions: its first word leads into a library's data, whose first word is code."""
        if address % 8 or self._is_code(address):
            return False
        table = self._memory.try_u64(address)
        if not table or self._is_code(table) or not self._modules.find(table):
            return False
        first = self._memory.try_u64(table)
        return bool(first) and self._is_code(first or 0)

    def _check_fallbacks(self, dispatcher: structures.DispatcherStruct) -> None:
        """Check that each fallback whose function is named after a key is at that key's index."""
        entries = self._layout.constant("num_runtime_entries")
        fallbacks = structures.AnnotatedKernel.array(self._space, dispatcher.backendFallbackKernels_, entries)
        for index, fallback in enumerate(fallbacks):
            function = fallback.kernel.boxed_kernel_func_.boxed_kernel_func_
            names = self._symbolizer.names_at(function) if function else ()
            for key, name in _FALLBACKS.items():
                if any(f"{len(name)}{name}E" in symbol for symbol in names):
                    if self._indices.get(key) != index:
                        raise BadData(f"the fallback of {key} stands at entry {index}")
                    self._proven.add(key)

    def _is_code(self, address: int) -> bool:
        mapping = self._modules.mapping_at(address)
        if mapping and mapping.permissions:
            return "x" in mapping.permissions
        module = self._modules.find(address)  # old cores do not say what is executable
        return bool(module and (not module.image or module.image.is_code(module.vaddr(address))))

    def _check_counts(self, dispatcher: structures.DispatcherStruct, walked: int) -> None:
        counts = {"list": self._listed(dispatcher), "lookup table": self._mapped(dispatcher)}
        known = {name: count for name, count in counts.items() if count is not None}
        if not known:
            return
        (name, count), last = next(iter(known.items())), [*known.values()][-1]
        if not 0 < count <= 1_000_000 or walked != min(count, _WALKED):
            raise BadData(f"the {name} says {count} operators, {walked} were walked")
        # A registration in progress has put its operator into one of the two and not yet into the other.
        if abs(count - last) > 1:
            raise BadData(f"the list holds {count} operators, the lookup table {last}")
        subject = f"{' and '.join(known)} both count" if len(known) > 1 else f"the {name} counts"
        self.evidence.append(f"{subject} {count} operators")

    def _listed(self, dispatcher: structures.DispatcherStruct) -> int | None:
        """The size of the list of operators; None for a std::list from before the C++11 ABI, which does not keep it."""
        operators = value_structures.List(self._space, dispatcher.operators_)
        return operators.length if operators.has(value_structures.List.length) else None

    def _mapped(self, dispatcher: structures.DispatcherStruct) -> int | None:
        if not self._layout.has_struct(structures.LookupTable.OF):
            return None
        lookup = dispatcher.operatorLookupTable_
        foreground = lookup._foregroundDataIndex
        if foreground > 1:
            raise BadData(f"the lookup table's foreground copy is number {foreground}")
        return structures.LookupMap(
            self._space, lookup._data + foreground * structures.LookupMap.size(self._space)
        ).num_elements
