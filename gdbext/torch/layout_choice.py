"""Chooses the layout by which the dispatcher is read: by build-id, by version with a probe, a measured one, or none.

A probe checks whether a layout that was measured on another build makes sense of the live dispatcher. It reads a few
dozen operators of ``c10::Dispatcher::operators_`` and checks what is true of any dispatcher: names parse as ns::name,
the list and the lookup table count the same operators, kernels are in executable memory, those that torchgen named
after a dispatch key are at the index of that key, and so are the fallbacks whose functions are named after their key.
Sources: ATen/core/dispatch/Dispatcher.h, OperatorEntry.h, DispatchKeyExtractor.h.
"""

from __future__ import annotations

import os
import re
from stat import S_ISDIR
from typing import TYPE_CHECKING

from gdbext.engine.layouts import store
from gdbext.engine.layouts.declarations import Space, required_in
from gdbext.engine.layouts.validate import unusable
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError, LayoutError, NotTorch
from gdbext.log import logger
from gdbext.torch import structures
from gdbext.torch.registry.kernel import kernel_parser
from gdbext.torch.values import value_structures
from gdbext.torch.values.containers import string_reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Callable, Optional

    from gdbext.engine.layouts import AnyPath, Layout
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer

    Measure = Callable[[str, Optional[str]], Layout]
    """The layout of the PyTorch that a libtorch_cpu.so with that build-id belongs to. Raises LayoutError."""

_RECORDED = "torch layout"
"""The name under which a recording keeps a layout that was generated on its machine."""
_log = logger(__name__)


def torch_layout(
    modules: ModuleTable,
    memory: Memory,
    symbolizer: Symbolizer,
    find_dispatcher: Callable[[], int],
    file: str | None = None,
    folder: AnyPath | None = None,
    measure: Measure | None = None,
) -> Layout:
    """The layout for the PyTorch in the target, from the layout files in ``folder``, by default those that are shipped
    for the architecture of the process.

    In this order: ``file`` if the user named one; the file measured on this very build ("exact", or "generated" if it
    was measured on this machine and the live structures do not contradict it); a shipped one of the same release whose
    probe passes ("probed"), or, where the target's release is newer than all, of the newest one, whose probe must then
    prove more; one that ``measure`` makes now of the headers beside the library; a shipped one of the same minor
    version whose probe passes. A probe asks ``find_dispatcher`` for the address of the c10::Dispatcher.

    Raises NotTorch, and LayoutError with every candidate and why it was refused.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if not module:
        raise NotTorch("no PyTorch is loaded in this process")
    folder = store.data_of(memory.architecture.name) if folder is None else folder
    candidates = _Candidates(modules, memory, symbolizer, find_dispatcher)
    if file is not None:
        return candidates.from_file(file, module)
    layout = candidates.measured_on_build(module, folder)
    recorded = "" if layout else modules.files.stored_text(_RECORDED)
    if recorded:
        layout = complete(store.parse(recorded, "the recording", "generated"))
        if layout.build_ids.get(store.TORCH_LIBRARY) != module.build_id:
            layout = None
    layout = layout or candidates.of_other_build(module, folder, measure)
    _log.info("layout %s (%s) for build-id %s", layout.id, layout.match, module.build_id)
    if candidates.unsound:
        layout.unsound = tuple(candidates.unsound)
    if layout.match == "generated":
        modules.files.store_text(_RECORDED, layout.text)
    return layout


def complete(layout: Layout) -> Layout:
    """Return the layout if it has every member that reading a dispatcher needs. Raises LayoutError."""
    layout.require(required_in(structures, value_structures))
    count, entry = layout.constant("num_runtime_entries"), structures.KernelFunctionStruct.shape(layout).size
    table = structures.OperatorEntry.dispatchTable_.checked(layout).size
    if count * entry != table:
        what = f"{count} runtime entries do not make a dispatch table of {table} bytes"
        raise unusable(f"layout {layout.id}", what)
    return layout


class _Candidates:
    """Tries layouts on the target; ``unsound`` has the error of each layout file that cannot be used."""

    def __init__(
        self, modules: ModuleTable, memory: Memory, symbolizer: Symbolizer, find_dispatcher: Callable[[], int]
    ) -> None:
        """``find_dispatcher`` is as in Probe."""
        self._modules = modules
        self._memory = memory
        self._symbolizer = symbolizer
        self._find_dispatcher = find_dispatcher
        self._refused: list[str] = []
        self.unsound: list[LayoutError] = []
        self._headers_mismatch = False

    def measured_on_build(self, module: Module, folder: AnyPath) -> Layout | None:
        """The layout that was measured on this very build; None without one, or if its file is unsound."""
        try:
            layout = store.by_build_id(module.build_id, folder)
            return layout and self._checked_if_generated(complete(layout))
        except LayoutError as error:
            self._note_unsound(error)
            return None

    def _note_unsound(self, error: LayoutError) -> None:
        """Keep the error of a layout file that cannot be used, once."""
        if error.what not in self._refused:
            self._refused.append(error.what)
            self.unsound.append(error)

    def _checked_if_generated(self, layout: Layout) -> Layout | None:
        """The layout; None if it was measured on this machine and the target's structures contradict it, since the
        headers were those of another build."""
        if layout.match != "generated":
            return layout
        try:
            self._find_dispatcher()
        except GdbextError:
            return layout  # no live structure can contradict it
        reason = self._misfit(layout)
        if not reason:
            return layout
        self._headers_mismatch = True
        self._refused.append(
            f"{layout.id}, measured here, does not fit ({reason}): the headers beside libtorch_cpu.so are of another "
            f"build (replace them, then remove the layout from {store.layout_cache()})"
        )
        return None

    def of_other_build(self, module: Module, folder: AnyPath, measure: Measure | None) -> Layout:
        """The first layout of another build that fits, or a newly measured one. Raises LayoutError."""
        version = torch_version(self._modules)
        same = store.of_release(version, folder)
        layout = (
            self._first_fitting(same)
            or self._first_fitting(store.nearest_older(version, folder), other_minor=True)
            or self._measured(module, measure)
            or self._first_fitting([path for path, _ in store.by_version(version, folder) if path not in same])
        )
        if not layout:
            raise LayoutError(
                f"no layout for PyTorch {version or 'of unknown version'} (build-id {module.build_id or 'unknown'}): "
                + "; ".join(self._refused or ["none of this minor version is shipped"])
            )
        return layout

    def from_file(self, file: str, module: Module) -> Layout:
        """The layout in the file that the user named. Raises LayoutError."""
        layout = complete(store.load(file, full=True))
        if module.build_id and layout.build_ids.get(store.TORCH_LIBRARY) == module.build_id:
            return layout
        reason = self._misfit(layout)
        if reason:
            raise LayoutError(f"{file} does not fit this process: {reason}")
        layout.match = "probed"
        return layout

    def _first_fitting(self, paths: list[str], other_minor: bool = False) -> Layout | None:
        """The first of the layouts in these files whose probe passes, None for none; the reasons against the others go
        into ``_refused``. ``other_minor``: as in ``Probe.run``."""
        for path in paths:
            try:
                layout = complete(store.shipped(path))
            except LayoutError as error:
                self._note_unsound(error)
                continue
            reason = self._misfit(layout, other_minor)
            if not reason:
                return layout
            self._refused.append(f"{layout.id} does not fit ({reason})")
        return None

    def _misfit(self, layout: Layout, other_minor: bool = False) -> str:
        """The reason why the layout does not fit the target by a probe, "" if it does; sets the layout's evidence."""
        probe = Probe(self._memory, self._modules, self._symbolizer, layout, self._find_dispatcher)
        reason = probe.run(other_minor)
        layout.evidence = tuple(probe.evidence)
        return reason

    def _measured(self, module: Module, measure: Measure | None) -> Layout | None:
        """The layout that ``measure`` makes of the headers beside the library; None if it cannot."""
        if not measure or self._headers_mismatch:
            return None
        package = _package_folder(module)
        files = self._modules.files
        try:
            is_folder = bool(package and S_ISDIR(files.foreign.status(package).st_mode))
        except OSError:
            is_folder = False
        if not module.image or not files.are_here or not is_folder:
            self._refused.append(
                f"none can be measured: the file {module.path} is not the one in memory, or is not on this machine"
            )
            return None
        try:
            return self._checked_if_generated(complete(measure(module.image.path, module.build_id)))
        except LayoutError as error:
            self._refused.append(f"none can be measured: {error.what}")
            return None


def torch_version(modules: ModuleTable) -> str:
    """The target's torch.__version__, "" if it is unknown.

    It is read from torch/version.py (or the dist-info folder) beside the library, as text, if the library there is the
    one in memory; else from the library's name (Debian's libtorch_cpu.so.1.13.0); else from beside the extension
    torch/_C, since distributions (conda-forge, Debian) keep the libraries in a folder of the system.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if not module:
        return ""
    folder = _package_folder(module)
    version = store.torch_version(folder, modules.files)[0] if folder is not None else ""
    if version:
        return version
    in_name = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", module.name)
    if in_name:
        return in_name.group(1)
    for extension in modules.modules:
        if extension.image and extension.status == "ok" and re.search(r"/torch/_C\.[^/]*\.so$", extension.image.path):
            return store.torch_version(os.path.dirname(extension.image.path), modules.files)[0]
    return ""


def _package_folder(module: Module) -> str | None:
    """The folder site-packages/torch that libtorch_cpu.so is in; None if the file there is not the one in memory."""
    if not module.image or module.status != "ok" or not module.image.path.startswith("/"):
        return None
    return store.package_of(module.image.path)


# --- the probe ---

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
_PROBED_OPERATORS = 64
"""Operators that a probe reads."""


class Probe:
    """Checks whether one layout makes sense of one target's dispatcher; ``run`` adds sentences to ``evidence``."""

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

        For a layout of an ``other_minor`` version, all fallbacks must be found, which proves the numbers of their keys.
        """
        try:
            dispatcher = structures.DispatcherStruct(self._space, self._find_dispatcher())
            walked = kernels = 0
            for operator in self._operators(dispatcher):
                self._check_name(operator)
                self._check_members_behind_table(operator)
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
            return f"the numbers of dispatch keys such as {unproven[0]} are not proven"
        self.evidence.append(
            f"{walked} operators checked: their names parse, {kernels} kernels are in executable memory, "
            f"{self._named_kernels} are named after the key at their index"
        )
        return ""

    def _operators(self, dispatcher: structures.DispatcherStruct) -> Iterator[structures.OperatorEntry]:
        """The first operators of the std::list ``operators_``, a ring of nodes: next, previous, then the value. Raises
        BadData for a broken link."""
        head = previous = dispatcher.operators_
        current = self._memory.u64(head)
        for _ in range(_PROBED_OPERATORS):
            if current == head:
                return
            if self._memory.u64(current + 8) != previous:
                raise BadData(f"the list of operators is broken at {current:#x}")
            yield structures.OperatorNode(self._space, current)._M_storage.op
            previous, current = current, self._memory.u64(current)

    def _check_name(self, operator: structures.OperatorEntry) -> None:
        """Check that the operator's name parses as ns::name. Raises BadData."""
        strings, name = string_reader(self._memory, self._layout), operator.name_
        text, overload = strings.read(name.name, 512), strings.read(name.overload_name, 512)
        if not re.fullmatch(r"[A-Za-z_][\w.]*::[\w.]+", text) or not re.fullmatch(r"[\w.]*", overload):
            raise BadData(f"{text[:40]!r} is not an operator's name")

    def _check_members_behind_table(self, operator: structures.OperatorEntry) -> None:
        """Check the members behind the dispatch table, which a wrong table size would shift: masks of keys, two flags,
        a hash table. Raises BadData."""
        extractor = operator.dispatchKeyExtractor_
        mask = (1 << self._layout.constant("num_backends") + self._layout.constant("num_functionality_keys") - 1) - 1
        backends = self._layout.constant("full_backend_mask")
        keysets = self._memory.words(extractor.nonFallthroughKeysPerBackend_, self._layout.constant("num_backends"))
        for bits in (extractor.nonFallthroughKeys_, *keysets):
            if bits & ~mask or bits & backends != backends:  # only functionalities fall through, never backends
                raise BadData(f"{bits:#x} is not a set of keys without fallthrough kernels")
        flags = (extractor.requiresBitsetPerBackend_, operator.is_observed_)
        if max(flags) > 1:
            raise BadData(f"{max(flags)} is not the value of a flag")
        slots, used = operator.kernels_.num_slots_minus_one + 1, operator.kernels_.num_elements
        if slots & slots - 1 or used > slots or used > 4096:
            raise BadData(f"{used} registrations in a table of {slots}")

    def _check_table(self, operator: structures.OperatorEntry) -> int:
        """Check that the entries of the operator's dispatch table can be kernels, and are at the key that torchgen
        named them after. Returns the number of kernels. Raises BadData."""
        size, parse = structures.KernelFunctionStruct.size(self._space), kernel_parser(self._layout)
        entries = self._layout.constant("num_runtime_entries")
        raw = self._memory.read(operator.dispatchTable_, size * entries)
        kernels = [parse(raw, index * size) for index in range(entries)]
        for index, kernel in enumerate(kernels):
            if not all(self._is_code(pointer) for pointer in kernel.same_code if pointer):
                raise BadData(f"entry {index} of a dispatch table points outside executable memory")
            if kernel.functor and not self._is_object(kernel.functor):
                raise BadData(f"entry {index} of a dispatch table has a functor that is not an object")
            if kernel.unboxed and kernel.sym_unboxed:  # it takes SymInt or int, never both (KernelFunction_impl.h)
                raise BadData(f"entry {index} of a dispatch table has two unboxed kernels")
            # torchgen names a kernel after its key (wrapper_CPU__mm): then it must be at that key's index
            unboxed = kernel.unboxed or kernel.sym_unboxed
            names = self._symbolizer.names_at(unboxed) if unboxed else ()
            keys = {key for name in names for key in re.findall(r"wrapper_([A-Za-z]+[0-9]?)_", name)}
            expected = {self._indices[key] for key in keys if key in self._indices}
            if expected and index not in expected:
                raise BadData(f"a kernel for {', '.join(sorted(keys))} is at entry {index} of a dispatch table")
            self._named_kernels += bool(expected)
        return sum(any(kernel.same_code) for kernel in kernels)

    def _is_object(self, address: int) -> bool:
        """True if an object with virtual functions is at ``address``: its first word points to data, whose first word
        points to code."""
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
                        raise BadData(f"the fallback of {key} is at entry {index}")
                    self._proven.add(key)

    def _is_code(self, address: int) -> bool:
        """True if the address is in executable memory."""
        mapping = self._modules.mapping_at(address)
        if mapping and mapping.permissions:
            return "x" in mapping.permissions
        module = self._modules.find(address)  # old cores do not say what is executable
        return bool(module and (not module.image or module.image.is_code(module.vaddr(address))))

    def _check_counts(self, dispatcher: structures.DispatcherStruct, walked: int) -> None:
        """Check that list and lookup table count the same operators, as many as were ``walked``. Raises BadData."""
        counts: dict[str, int] = {}
        if value_structures.List.length.is_in(self._layout):  # a std::list before the C++11 ABI does not keep it
            counts["list"] = self._list_count(dispatcher)
        if self._layout.has_struct(structures.LookupTable.OF):
            counts["lookup table"] = self._lookup_table_count(dispatcher)
        if not counts:
            return
        (name, count), last = next(iter(counts.items())), [*counts.values()][-1]
        if not 0 < count <= 1_000_000 or walked != min(count, _PROBED_OPERATORS):
            raise BadData(f"the {name} says {count} operators, {walked} were found")
        # A registration in progress has put its operator into one of the two and not yet into the other.
        if abs(count - last) > 1:
            raise BadData(f"the list holds {count} operators, the lookup table {last}")
        subject = f"{' and '.join(counts)} both count" if len(counts) > 1 else f"the {name} counts"
        self.evidence.append(f"{subject} {count} operators")

    def _list_count(self, dispatcher: structures.DispatcherStruct) -> int:
        """Number of operators in the list, as that keeps it."""
        return value_structures.List(self._space, dispatcher.operators_).length

    def _lookup_table_count(self, dispatcher: structures.DispatcherStruct) -> int:
        """Number of operators in the lookup table's foreground copy. Raises BadData."""
        lookup = dispatcher.operatorLookupTable_
        foreground = lookup._foregroundDataIndex
        if foreground > 1:
            raise BadData(f"the lookup table's foreground copy is number {foreground}")
        address = lookup._data + foreground * structures.LookupMap.size(self._space)
        return structures.LookupMap(self._space, address).num_elements
