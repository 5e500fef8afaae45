"""Reads PyTorch's settings in a process: random generators, thread counts, allocators, callbacks, and each thread's.

Sources (2.13.0): c10/core/AllocatorConfig.h (since 2.9), c10/cuda/CUDAAllocatorConfig.h, ATen/core/MT19937RNGEngine.h,
ATen/CPUGeneratorImpl.{h,cpp}, ATen/cuda/CUDAGeneratorImpl.{h,cpp}, ATen/record_function.{h,cpp},
ATen/SavedTensorHooks.{h,cpp}, c10/util/ThreadLocalDebugInfo.{h,cpp}, torch/csrc/profiler/orchestration/observer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.objects.py_ref import type_name
from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Place, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.system import linux
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch import assumed_symbols, structures
from gdbext.torch.assumed_symbols import CPU
from gdbext.torch.compile import dynamo_names
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.state import setting_sources, setting_structures
from gdbext.torch.state.dispatch_state_reader import AutogradFlags, DispatchState
from gdbext.torch.state.setting_sources import DEFAULT, NOT_SHOWN, Setting, SettingsSection, SettingValue
from gdbext.torch.state.setting_structures import (
    AllocatorConfig,
    CpuGeneratorImpl,
    CudaAllocatorConfig,
    CudaGeneratorImpl,
    MersenneData,
)
from gdbext.torch.state.settings_reader import attempt
from gdbext.torch.state.thread_variable import ThreadVariables, VariablesOfThread
from gdbext.torch.torch_symbol import DEVICE_MODE, TorchSymbol
from gdbext.torch.values import value_structures
from gdbext.torch.values.containers import string_reader, vector_span
from gdbext.torch.values.cpp_objects import ClassNames, plain_class

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

_TEXTS = (AllocatorConfig.last_allocator_settings_.path, CudaAllocatorConfig.m_last_allocator_settings.path)
_LISTS = (AllocatorConfig.roundup_power2_divisions_.path, CudaAllocatorConfig.m_roundup_power2_divisions.path)
UNLIMITED = (1 << 64) - 1
"""std::numeric_limits<size_t>::max(): no limit is set."""


def allocator_settings(memory: Memory, layout: Layout, kind: str, address: int) -> dict[str, SettingValue]:
    """Member → value of the object of class ``kind`` at ``address``; None for no limit. Reads the members that the
    layout of this release has, if they are numbers, flags or texts. Raises LayoutError, BadData, MemoryFault."""
    strings = string_reader(memory, layout)
    settings: dict[str, SettingValue] = {}
    for field in layout.struct(kind).fields.values():
        name = field.name.removeprefix("m_").rstrip("_")
        at = address + field.offset
        type_name = field.type.removeprefix("std::atomic<").removesuffix(">")
        if field.name in _TEXTS:
            settings[name] = strings.read(at)
        elif field.name in _LISTS:
            first, count = vector_span(memory, at, 8, 64)
            settings[name] = tuple(memory.words(first, count)) if count else ()
        elif "." in field.name:
            continue
        elif type_name == "bool":
            settings[name] = memory.u8(at) != 0
        elif type_name == "double":
            settings[name] = float(struct.unpack("<d", memory.read(at, 8))[0])
        elif type_name == "long unsigned int" and field.size == 8:
            value = memory.u64(at)
            settings[name] = None if value == UNLIMITED else value
    return settings


class ThreadCounts:
    """Reads thread counts from the variables of OpenMP, MKL and OpenBLAS. All methods raise MemoryFault, and BadData if
    the library is not loaded or not a known one."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer

    def openmp(self, thread_pointer: int) -> int:
        """The result of omp_get_max_threads() of GNU's OpenMP in the thread with that control block. The function's
        code shows where the count is: in the thread's task, or without one in a global variable."""
        module = self._module(setting_sources.OPENMP)
        address = self._address(setting_sources.OPENMP_THREADS, module)
        load = self._memory.architecture.threads_or_global(self._memory.read(address, 64), address)
        if not load:
            raise BadData(f"{setting_sources.OPENMP_THREADS} of {module.name} is not a plain load in this build")
        offset = self._memory.u64(load.slot) + load.displacement
        task = self._memory.u64((thread_pointer + offset) % (1 << 64))
        return _checked_count(self._memory.u64(task + load.member if task else load.otherwise))

    def mkl(self) -> SettingValue:
        """The number set by mkl_set_num_threads() or MKL_NUM_THREADS; DEFAULT without one (all physical cores)."""
        number = self._mkl(setting_sources.MKL_THREADS)
        return _checked_count(number) if number > 0 else DEFAULT

    def mkl_dynamic(self) -> bool:
        """True if MKL may use fewer threads (MKL_DYNAMIC, mkl_set_dynamic())."""
        return self._mkl(setting_sources.MKL_DYNAMIC) != 0

    def _mkl(self, symbol: str) -> int:
        """The int32 variable ``symbol`` of the MKL in libtorch_cpu.so."""
        ready = self._symbolizer.address_of(setting_sources.MKL_READY, CPU)
        address = self._symbolizer.address_of(symbol, CPU)
        if not ready or not address:
            raise BadData("libtorch_cpu.so has no MKL, or one of another version")
        if not self._memory.u8(ready):
            raise BadData("MKL was not used yet: its environment variables will decide")
        return self._memory.i32(address)

    def openblas(self) -> int:
        """The number of threads of the only OpenBLAS that is loaded, in most programs NumPy's."""
        module = self._module(setting_sources.OPENBLAS)
        if not self._memory.u32(self._address(setting_sources.OPENBLAS_READY, module)):
            raise BadData("OpenBLAS was not used yet: its environment variables will decide")
        return _checked_count(self._memory.u32(self._address(setting_sources.OPENBLAS_THREADS, module)))

    def _module(self, name: str) -> Module:
        """The only loaded library with ``name`` in its name."""
        modules = [module for module in self._symbolizer.modules.modules if name in module.name]
        if len(modules) != 1:
            raise BadData(f"expected one {name} library, but {len(modules)} are loaded")
        return modules[0]

    def has(self, name: str) -> bool:
        """True if a library with ``name`` in its name is loaded."""
        return any(name in module.name for module in self._symbolizer.modules.modules)

    def _address(self, symbol: str, module: Module) -> int:
        """The address of a symbol in the library."""
        address = self._symbolizer.address_of(symbol, module.name)
        if not address:
            raise BadData(f"{module.name} has no {symbol}")
        return address


def _checked_count(number: int) -> int:
    if not 0 < number < 1 << 16:
        raise BadData(f"{number} is not a number of threads")
    return number


N, M = 624, 397
"""Sizes MERSENNE_STATE_N and MERSENNE_STATE_M of the generator."""
_BLOCKS = 200
"""Blocks of N numbers that are regenerated to find out how many were drawn, at most: 125,000 numbers, 0.05 s."""
_LEGACY = f"<Qii Q {N}Q 3d i 4x"
"""CPUGeneratorImplStateLegacy: seed, left, seeded, next, state, three numbers of a normal distribution, a flag."""
_NEWER = "<f?3x"
"""The fields that CPUGeneratorImplState adds: the next float of a normal distribution, and a flag."""


class CpuGenerator:
    """The default random generator of the CPU. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, layout: Layout, address: int, seed_offset: int | None) -> None:
        """``seed_offset``: where the generator's accessor loads the seed, to check the layout; None if unknown."""
        self._whole = CpuGeneratorImpl(Space(memory, layout), address)
        self._engine = self._whole.engine_.data_
        if seed_offset is not None and address + seed_offset != self._engine.place(MersenneData.seed_):
            raise LayoutError("the layout of the CPU's generator is not that of this build")
        self.seed = self._engine.seed_
        self.left, self.next = self._engine.left_, self._engine.next_
        self.words = struct.unpack(f"<{N}I", self._engine.bytes_of(MersenneData.state_))
        if not 0 <= self.left <= N or self.next > N:
            raise BadData(f"the CPU's generator has {self.left} numbers left, the next at {self.next}")

    def description(self) -> dict[str, SettingValue]:
        """The generator's entry in the report."""
        digest = sha256(self.state()).hexdigest()
        return {"device": "cpu", "seed": self.seed, "drawn": self.drawn(), "state_sha256": digest}

    def state(self) -> bytes:
        """The bytes that torch.get_rng_state() gives."""

        def second_of_pair(member: Place, code: str) -> tuple[float, bool]:
            """(the second number of a pair that a normal distribution made, whether there is one)."""
            space, size = self._whole.space, struct.calcsize(code)
            raw, field = space.memory.read(self._whole.place(member), 2 * size), member.field(space.layout)
            # The older type c10::optional, before it became the standard one's name, has the flag first.
            flag, value = (0, raw[size:]) if field.type.startswith("c10::optional") else (size, raw[:size])
            return (struct.unpack(code, value)[0], True) if raw[flag] else (0.0, False)

        double, has_double = second_of_pair(CpuGeneratorImpl.next_double_normal_sample_, "<d")
        single, has_single = second_of_pair(CpuGeneratorImpl.next_float_normal_sample_, "<f")
        seeded = self._engine.seeded_
        legacy = (self.seed, self.left, seeded, self.next, *self.words, 0.0, double, 0.0, has_double)
        return struct.pack(_LEGACY, *legacy) + struct.pack(_NEWER, single, has_single)

    def drawn(self) -> int | None:
        """Number of 32-bit numbers drawn since the generator was seeded, found by regenerating its blocks; None if
        there are more than _BLOCKS."""
        words = [self.seed & 0xFFFFFFFF]
        for index in range(1, N):
            last = words[-1]
            words.append((1812433253 * (last ^ last >> 30) + index) & 0xFFFFFFFF)
        if self.left == 1 and self.next == 0:
            return 0 if words == list(self.words) else None
        for block in range(_BLOCKS):
            for index in range(N):  # the next block, in place (Matsumoto and Nishimura's MT19937)
                following = words[(index + 1) % N]
                mixed = (words[index] & 0x80000000) | (following & 0x7FFFFFFF)
                words[index] = words[(index + M) % N] ^ mixed >> 1 ^ (0x9908B0DF if following & 1 else 0)
            if words == list(self.words):
                return block * N + self.next
        return None


def cuda_generators(memory: Memory, layout: Layout, vector: int) -> Iterator[dict[str, SettingValue]]:
    """The entries of the generators of CUDA devices that were used, from the std::vector at ``vector``. Raises
    LayoutError, BadData, MemoryFault."""
    first, count = vector_span(memory, vector, 8, 64)
    for device in range(count):
        generator = memory.u64(first + 8 * device)
        if generator:
            state = CudaGeneratorImpl(Space(memory, layout), generator).state_
            yield {"device": f"cuda:{device}", "seed": state.seed_, "offset": state.philox_offset_per_thread_}


_LIMIT = 256
_CHAIN = 32


class RecordedFunctions:
    """Reads callbacks of RecordFunction, profilers, and the hooks that saved tensors pass through. All methods raise
    LayoutError, BadData, ThreadLocalUnknown, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout
        self._space = Space(memory, layout)
        self._classes = ClassNames(memory, symbolizer)

    def global_callbacks(self) -> tuple[SettingValue, ...]:
        """The callbacks of RecordFunction in all threads."""
        manager = self._symbolizer.address_of(setting_sources.CALLBACKS, CPU)
        if not manager:
            raise BadData(f"{setting_sources.CALLBACKS} is not found in {CPU}")
        return tuple(self._callbacks(manager + setting_sources.CALLBACKS_VECTOR))

    def thread_callbacks(self, thread: VariablesOfThread) -> tuple[SettingValue, ...]:
        """The callbacks of RecordFunction in one thread."""
        own = constructed(thread, setting_sources.THREAD_CALLBACKS, setting_sources.THREAD_CALLBACKS_GUARD)
        if not own:
            return ()
        return tuple(self._callbacks(value_structures.RecordFunctionTls(self._space, own).sorted_tls_callbacks_))

    def _callbacks(self, vector: int) -> Iterator[dict[str, SettingValue]]:
        """The entries of the callbacks in the std::vector at ``vector``."""
        size = setting_structures.RecordFunctionEntry.size(self._space)
        first, count = vector_span(self._memory, vector, size, _LIMIT)
        scope_names = sorted(self._layout.enum("at::RecordScope").items(), key=lambda item: item[1]) if count else []

        def function_name(address: int) -> str | None:
            function = self._symbolizer.function(address) if address else None
            name = function.demangled[0] if function and function.demangled else f"{address:#x}"
            return name if address else None

        for entry in setting_structures.RecordFunctionEntry.array(self._space, first, count):
            callback = entry.callback_
            flags = callback.bytes_of(
                setting_structures.RecordFunctionCallback.scopes_
            )  # the last enumerator counts them
            yield {
                "start": function_name(callback.start_),
                "end": function_name(callback.end_),
                "enabled": entry.enabled_,
                "sampling": callback.sampling_prob_,
                "scopes": tuple(name for name, value in scope_names if value < len(flags) and flags[value]),
            }

    def profiler(self, thread: VariablesOfThread) -> dict[str, SettingValue] | None:
        """The profiler of one thread, which is in its chain of ThreadLocalDebugInfo; None for none."""
        pointer = constructed(thread, setting_sources.DEBUG_INFO, setting_sources.DEBUG_INFO_GUARD)
        node = self._memory.u64(pointer) if pointer else 0
        for _ in range(_CHAIN):
            if not node:
                return None
            info = setting_structures.DebugInfo(self._space, node)
            state = info.info_
            profiler = self.profiler_state(state) if state else None
            if profiler:
                return profiler
            node = info.parent_info_
        raise BadData(f"the thread's debug info has more than {_CHAIN} parts")

    def profiler_state(self, address: int) -> dict[str, SettingValue] | None:
        """The configuration of the profiler at ``address``; None for an object of another class."""
        if not any(plain_class(name) in setting_sources.PROFILER_STATES for name in self._classes.of(address)):
            return None
        config = setting_structures.ProfilerState(self._space, address).config_
        names = {value: name for name, value in self._layout.enum("torch::profiler::impl::ProfilerState").items()}
        number = config.state
        if number not in names:
            raise BadData(f"a profiler has the state {number}, which has no name")
        flags = ("report_input_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        return {"state": names[number], **{flag: getattr(config, flag) for flag in flags}}

    def saved_tensor_hooks(self, thread: VariablesOfThread) -> tuple[tuple[int, int], ...]:
        """The addresses of a thread's pairs of Python functions (pack, unpack), outermost first."""
        own = thread.address(setting_sources.SAVED_TENSOR_HOOKS)
        if not own:
            return ()
        stack = value_structures.SavedTensorHooks.stack.field(self._layout)
        size, data = 8, 0  # up to 2.4 a pair of PyObject*; then of c10::SafePyObject, which has an interpreter besides
        if not stack.type.startswith("std::stack<std::pair<_object*"):
            size, data = structures.SafePyObject.size(self._space), structures.SafePyObject.data_.offset(self._space)
        pairs = self._deque(own + stack.offset, 2 * size)
        return tuple((self._memory.u64(at + data), self._memory.u64(at + size + data)) for at in pairs)

    def saved_tensor_hooks_disabled(self, thread: VariablesOfThread) -> bool:
        """True inside torch.autograd.graph.disable_saved_tensors_hooks, which stores an error message."""
        own = thread.address(setting_sources.SAVED_TENSOR_HOOKS)
        if not own:
            return False
        message = value_structures.SavedTensorHooks(self._space, own).disabled_error_message
        return self._memory.u8(message + value_structures.String.size(self._space)) != 0

    def _deque(self, address: int, element: int) -> list[int]:
        """Addresses of the elements of the ``std::deque`` at ``address``; ``element``: bytes of one. Its blocks have
        512 bytes (bits/stl_deque.h, _GLIBCXX_DEQUE_BUF_SIZE)."""
        deque = value_structures.Deque(self._space, address)
        current, last, node, end = deque.first, deque.block_end, deque.block, deque.end
        elements: list[int] = []
        while current != end:
            if len(elements) == _LIMIT:
                raise BadData(f"the deque at {address:#x} has more than {_LIMIT} elements")
            elements.append(current)
            current += element
            if current == last and current != end:
                node += 8
                current = self._memory.u64(node)
                last = current + 512 // element * element
        return elements


def constructed(thread: VariablesOfThread, variable: TorchSymbol, guard: TorchSymbol) -> int:
    """The address of a thread-local variable inside a function, 0 if the thread has not executed its declaration, which
    sets ``guard``."""
    flag = thread.address(guard)
    return thread.address(variable) if flag and thread.memory.u8(flag) else 0


def _changed_dispatch_state(state: DispatchState) -> Iterator[tuple[str, SettingValue]]:
    """(name, value) of each part of the dispatch state that differs from a new thread's."""
    usual = AutogradFlags()
    for name, value in vars(state.autograd).items():
        if value is not None and value != getattr(usual, name):
            yield name, value
    autocast = {device: entry.dtype for device, entry in (state.autocast or {}).items() if entry.enabled}
    if autocast:
        yield "autocast", autocast
    if state.autocast_cache is False:
        yield "autocast_cache", False
    if state.torch_function not in (None, "enabled"):
        yield "torch_function", state.torch_function
    if state.torch_function_modes:
        yield "torch_function_modes", state.torch_function_modes
    if state.python_modes:
        yield "torch_dispatch_modes", tuple(mode.name for mode in state.python_modes)
    if state.functorch:
        yield "functorch", tuple(level.transform for level in state.functorch)


THREADS = 500
"""Threads whose settings are read, at most."""


def read_settings(session: Session, script: str | None = None) -> SettingsSection:
    """All settings in the order of the report; one that cannot be read is unknown, with the reason. ``script``: the
    file of --reproduce. Raises NotTorch."""
    reader = _Settings(session)
    try:
        cpu_state = reader.cpu_generator().state()
    except GdbextError:
        cpu_state = None
    settings = (*session.settings.read(), *reader.read())
    variables = linux.public_variables(session.target.origin.environ())
    return SettingsSection(settings, variables, script, cpu_state, session.target.pid)


class _Settings:
    """Reads the settings of a process that are not plain variables of libtorch (Session.settings reads those)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader = session.settings
        self._has_cuda = bool(session.modules.named(assumed_symbols.CUDA))
        self._variables = ThreadVariables(session.memory, session.symbolizer)

    def read(self) -> Iterator[Setting]:
        """The settings in the order of the report."""
        counts = ThreadCounts(self._session.memory, self._session.symbolizer)
        yield attempt("openmp_threads", None, lambda: counts.openmp(self._main_pointer()))
        yield attempt("mkl_threads", DEFAULT, counts.mkl)
        yield attempt("mkl_dynamic", default=True, read=counts.mkl_dynamic)
        if counts.has(setting_sources.OPENBLAS):
            yield attempt("openblas_threads", None, counts.openblas)
        yield attempt("default_device", "cpu", self._default_device)
        yield attempt("generators", None, self._generators)
        yield attempt("record_function_callbacks", (), lambda: self._recorded.global_callbacks())
        yield attempt("profiler", "none", self._profiler)
        general, cuda = AllocatorConfig.OF, CudaAllocatorConfig.OF
        yield attempt("allocator", None, lambda: self._allocator(general, setting_sources.ALLOCATOR))
        if self._has_cuda:
            yield attempt("cuda_allocator", None, lambda: self._allocator(cuda, setting_sources.CUDA_ALLOCATOR))
        yield attempt("dynamo", {}, lambda: self._options(dynamo_names.CONFIG))
        yield attempt("inductor", {}, lambda: self._options(dynamo_names.INDUCTOR_CONFIG))
        yield attempt("threads", (), lambda: tuple(self._threads()))

    def _main_pointer(self) -> int:
        """The control block of the main thread. Raises BadData."""
        threads = self._session.target.memory.threads()
        main = next((thread for thread in threads if thread.tid == self._session.target.pid), None)
        if not main:
            raise BadData("the main thread has exited")
        return self._session.memory.architecture.thread_pointer(main.registers())

    @cached_property
    def _recorded(self) -> RecordedFunctions:
        return RecordedFunctions(self._session.memory, self._session.symbolizer, self._session.layout)

    def cpu_generator(self) -> CpuGenerator:
        """The default generator of the CPU. Raises GdbextError."""
        session = self._session
        address = self._reader.object(setting_sources.GENERATOR)
        return CpuGenerator(session.memory, session.layout, address, self._reader.seed_offset())

    def _generators(self) -> tuple[SettingValue, ...]:
        """The entries of the generators of the CPU and of CUDA devices."""
        generators: list[SettingValue] = [self.cpu_generator().description()]
        if self._has_cuda:
            vector = setting_sources.CUDA_GENERATORS.address(self._session.symbolizer)
            if not vector:
                raise BadData(f"the generators of CUDA devices are not found in {assumed_symbols.CUDA}")
            generators += cuda_generators(self._session.memory, self._session.layout, vector)
        return tuple(generators)

    def _profiler(self) -> SettingValue:
        """The profiler of all threads (KINETO_ONDEMAND); each thread's own is among the threads."""
        owner = setting_sources.GLOBAL_PROFILER
        state = self._reader.object(owner) if self._reader.exists(owner) else 0
        return (state and self._recorded.profiler_state(state)) or "none"

    def _allocator(self, kind: str, owner: setting_sources.StaticOwner) -> SettingValue:
        """The settings of an allocator of class ``kind`` that ``owner`` holds, or "not used yet" or "none"."""
        session = self._session
        if kind == AllocatorConfig.OF and kind in session.layout.absent:
            return "none"
        if not self._reader.exists(owner):
            return "not used yet"
        address = self._reader.object(owner)
        return allocator_settings(session.memory, session.layout, kind, address)

    def _options(self, module: str) -> SettingValue:
        """The main thread's options of a configuration module of torch.compile that differ from their defaults; none if
        it is not imported. Raises BadData, PythonUnsupported."""
        if not self._session.python:
            raise unsupported("Python cannot be read in this process")
        reader = DynamoReader(self._session.python)
        if not reader.has_module(module):
            return {}
        version = torch_version(self._session) or "unknown"
        if not dynamo_names.is_known(version):
            raise BadData(f"it is known for torch {', '.join(dynamo_names.compared())}; this is {version}")
        options = reader.options(module)
        if reader.problems:
            raise BadData("; ".join(reader.problems))
        return {**options.values, **dict.fromkeys(options.unshown, NOT_SHOWN)} if options else {}

    def _threads(self) -> Iterator[Mapping[str, SettingValue]]:
        """An entry for each thread whose settings differ from a new thread's."""
        threads = self._session.target.memory.threads()
        names = self._session.python_threads.names
        for thread in threads[:THREADS]:
            changed = self._changed_settings(thread)
            if changed:
                yield {"tid": thread.tid, "name": names.get(thread.tid, thread.name or ""), **changed}
        if len(threads) > THREADS:
            yield {"unknown": (f"{len(threads) - THREADS} more threads, truncated at {THREADS}",)}

    def _changed_settings(self, thread: TargetThread) -> dict[str, SettingValue]:
        """The settings that differ from a new thread's; "unknown" has the reasons for what could not be read."""
        states = self._session.dispatch_states
        try:
            pointer = self._session.memory.architecture.thread_pointer(thread.registers())
        except GdbextError as error:
            return {"unknown": (error.what,)}
        state = states.read(pointer)
        own = self._variables.of(pointer)
        changed = dict(_changed_dispatch_state(state))
        unknown = list(state.problems)

        def hooks() -> SettingValue:
            pairs = self._recorded.saved_tensor_hooks(own)
            return tuple(tuple(map(self._function_text, pair)) for pair in pairs)

        readers: dict[str, Callable[[], SettingValue]] = {
            "saved_tensor_hooks": hooks,
            "saved_tensor_hooks_disabled": lambda: self._recorded.saved_tensor_hooks_disabled(own),
            "record_function_callbacks": lambda: self._recorded.thread_callbacks(own),
            "profiler": lambda: self._recorded.profiler(own),
        }
        for name, read in readers.items():
            try:
                value = read()
            except GdbextError as error:
                unknown.append(f"{name}: {error.what}")
                continue
            if value:
                changed[name] = value
        if unknown:
            changed["unknown"] = tuple(unknown)
        return changed

    def _function_text(self, address: int) -> str:
        """The Python function at ``address`` as ``hook (train.py:7)``."""
        function = self._session.python_object(address).function
        if not function:
            return f"the Python object at {address:#x}"
        return f"{function.qualname} ({function.place})" if function.place else function.qualname

    def _default_device(self) -> str:
        """torch.get_default_device() of the main thread, without an index if it has none. Raises GdbextError."""
        session = self._session
        modes = session.dispatch_states.function_modes(self._main_pointer())
        for mode in map(session.python_object, reversed(modes)):
            device = mode["device"] if mode.python and mode.read(type_name) == DEVICE_MODE else None
            if device:
                classes = ClassNames(session.memory, session.symbolizer)
                return TensorFields(session.memory, session.layout, classes).device_at(device.body)
        return "cpu"
