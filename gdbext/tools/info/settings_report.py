"""Reads how PyTorch is set in a process: global settings, generators, libraries below, torch.compile, and each thread.

What one thread has set for itself: grad mode, autocast, modes, hooks, callbacks, profiler, default device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.objects.py_ref import type_name
from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.targets.system import linux
from gdbext.errors import BadData, GdbextError
from gdbext.tools.info import library_settings
from gdbext.tools.info.library_settings import ThreadCounts
from gdbext.tools.info.recorded_functions import RecordedFunctions
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch import assumed_symbols
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.dispatch_state_reader import AutogradFlags, DispatchState
from gdbext.torch.state.setting_sources import DEFAULT, NOT_SHOWN, Setting, SettingsSection, SettingValue
from gdbext.torch.state.setting_structures import AllocatorConfig, CudaAllocatorConfig
from gdbext.torch.state.settings_reader import attempt
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.torch_symbol import DEVICE_MODE
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.torch.compile.dynamo_reader import CompileOptions

Described = dict[str, SettingValue]
_FLAGS = AutogradFlags()
"""The flags that a new thread has."""


class ThreadSettings:
    """Reads the threads of one session."""

    def __init__(self, session: Session, recorded: RecordedFunctions, counts: ThreadCounts) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._recorded = recorded
        self._counts = counts
        self._states = session.dispatch_states
        self._variables = ThreadVariables(session.memory, session.symbolizer)

    def changed(self, thread: TargetThread) -> Described:
        """The settings that differ from a new thread; "unknown" has what could not be read. Empty for nothing of
        either."""
        try:
            pointer = self._session.memory.architecture.thread_pointer(thread.registers())
        except GdbextError as error:
            return {"unknown": (error.what,)}
        state = self._states.read(pointer)
        own = self._variables.of(pointer)
        found = dict(_of_dispatch(state))
        unknown = list(state.problems)
        readers: dict[str, Callable[[], SettingValue]] = {
            "saved_tensor_hooks": lambda: tuple(map(self._pair, self._recorded.saved_tensor_hooks(own))),
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
                found[name] = value
        if unknown:
            found["unknown"] = tuple(unknown)
        return found

    def _pair(self, functions: tuple[int, int]) -> SettingValue:
        return tuple(map(self._function, functions))

    def _function(self, address: int) -> str:
        """A Python function with its place."""
        found = self._session.python_object(address).function
        if not found:
            return f"the Python object at {address:#x}"
        return f"{found.qualname} ({found.place})" if found.place else found.qualname

    def default_device(self, pointer: int) -> str:
        """torch.get_default_device() of the thread with its control block there, without the index of a device that
        has none. Raises GdbextError."""
        for mode in map(self._session.python_object, reversed(self._states.function_modes(pointer))):
            device = mode["device"] if mode.python and mode.read(type_name) == DEVICE_MODE else None
            if device:
                return self._device(device.body)
        return "cpu"

    def _device(self, address: int) -> str:
        """The c10::Device there as Python writes it."""
        session = self._session
        classes = ClassNames(session.memory, session.symbolizer)
        return TensorFields(session.memory, session.layout, classes).device_at(address)


def _of_dispatch(state: DispatchState) -> Iterator[tuple[str, SettingValue]]:
    """The state of dispatch, as far as it is not as a new thread has it."""
    for name, value in vars(state.autograd).items():
        if value is not None and value != getattr(_FLAGS, name):
            yield name, value
    autocast = {device: each.dtype for device, each in (state.autocast or {}).items() if each.enabled}
    if autocast:
        yield "autocast", autocast
    if state.autocast_cache is False:
        yield "autocast_cache", False
    if state.torch_function not in (None, "enabled"):
        yield "torch_function", state.torch_function
    if state.torch_function_modes:
        yield "torch_function_modes", state.torch_function_modes
    if state.python_modes:
        yield "torch_dispatch_modes", tuple(each.name for each in state.python_modes)
    if state.functorch:
        yield "functorch", tuple(each.transform for each in state.functorch)


THREADS = 500
"""Threads whose settings are read at most."""


def read_settings(session: Session, script: str | None = None) -> SettingsSection:
    """All of them; what cannot be read is unknown, with the reason. Raises NotTorch."""
    return _Settings(session).section(script)


class _Settings:
    """Collects them from one process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader = session.settings
        self._counts = ThreadCounts(session.memory, session.symbolizer)

    def section(self, script: str | None) -> SettingsSection:
        """All settings, in the order of the report."""
        settings = (*self._reader.read(), *self._libraries(), *self._others(), *self._compiler(), *self._threads())
        variables = linux.public(self._session.target.origin.environ())
        return SettingsSection(settings, variables, script, self._cpu_state(), self._session.target.pid)

    # --- libraries -------------------------------------------------------------------------------

    def _libraries(self) -> Iterator[Setting]:
        counts = self._counts
        yield attempt("openmp_threads", None, lambda: counts.openmp(self._main_pointer))
        yield attempt("mkl_threads", DEFAULT, counts.mkl)
        yield attempt("mkl_dynamic", True, counts.mkl_dynamic)
        if counts.has(sources.OPENBLAS):
            yield attempt("openblas_threads", None, counts.openblas)

    @property
    def _main_pointer(self) -> int:
        thread = next(
            (each for each in self._session.target.memory.threads() if each.tid == self._session.target.pid), None
        )
        if not thread:
            raise BadData("the main thread has ended")
        return self._session.memory.architecture.thread_pointer(thread.registers())

    # --- generators, callbacks, allocators -------------------------------------------------------

    def _others(self) -> Iterator[Setting]:
        yield attempt("default_device", "cpu", lambda: self._thread_settings.default_device(self._main_pointer))
        yield attempt("generators", None, self._generators)
        yield attempt("record_function_callbacks", (), lambda: self._recorded.global_callbacks())
        yield attempt("profiler", "none", self._profiler)
        of_any, of_cuda = AllocatorConfig.OF, CudaAllocatorConfig.OF
        yield attempt("allocator", None, lambda: self._allocator(of_any, sources.ALLOCATOR))
        if self._has_cuda:
            yield attempt("cuda_allocator", None, lambda: self._allocator(of_cuda, sources.CUDA_ALLOCATOR))

    @property
    def _has_cuda(self) -> bool:
        return bool(self._session.modules.named(assumed_symbols.CUDA))

    @cached_property
    def _recorded(self) -> RecordedFunctions:
        return RecordedFunctions(self._session.memory, self._session.symbolizer, self._session.layout)

    @cached_property
    def _thread_settings(self) -> ThreadSettings:
        return ThreadSettings(self._session, self._recorded, self._counts)

    def _generators(self) -> tuple[SettingValue, ...]:
        found: list[SettingValue] = [self._cpu_generator.described()]
        if self._has_cuda:
            vector = sources.CUDA_GENERATORS.address(self._session.symbolizer)
            if not vector:
                raise BadData(f"the generators of CUDA devices are not found in {assumed_symbols.CUDA}")
            found += library_settings.cuda_generators(self._session.memory, self._session.layout, vector)
        return tuple(found)

    @property
    def _cpu_generator(self) -> library_settings.CpuGenerator:
        session = self._session
        address = self._reader.object(sources.GENERATOR)
        return library_settings.CpuGenerator(session.memory, session.layout, address, self._reader.seed_offset())

    def _cpu_state(self) -> bytes | None:
        try:
            return self._cpu_generator.state()
        except GdbextError:
            return None

    def _profiler(self) -> SettingValue:
        """The profiler of all threads (KINETO_ONDEMAND); each thread's own is among the threads."""
        owner = sources.GLOBAL_PROFILER
        state = self._reader.object(owner) if self._reader.exists(owner) else 0
        return (state and self._recorded.profiler_state(state)) or "none"

    def _allocator(self, kind: str, owner: sources.StaticOwner) -> SettingValue:
        session = self._session
        if kind == AllocatorConfig.OF and kind in session.layout.absent:
            return "none"
        if not self._reader.exists(owner):
            return "not used yet"
        address = self._reader.object(owner)
        return library_settings.allocator_settings(session.memory, session.layout, kind, address)

    # --- torch.compile ---------------------------------------------------------------------------

    def _compiler(self) -> Iterator[Setting]:
        """Options that differ from their defaults, of the main thread."""
        yield attempt("dynamo", {}, lambda: _shown(self._options(names.CONFIG)))
        yield attempt("inductor", {}, lambda: _shown(self._options(names.INDUCTOR_CONFIG)))

    def _options(self, module: str) -> CompileOptions | None:
        """None where the module is not imported. Raises BadData, PythonUnsupported."""
        if not self._session.python:
            raise unsupported("Python cannot be read in this process")
        reader = DynamoReader(self._session.python)
        if not reader.has_module(module):
            return None
        version = torch_version(self._session) or "unknown"
        if not names.is_known(version):
            raise BadData(f"known for torch {', '.join(names.compared())}, and this is {version}")
        options = reader.options(module)
        if reader.problems:
            raise BadData("; ".join(reader.problems))
        return options

    # --- threads ---------------------------------------------------------------------------------

    def _threads(self) -> Iterator[Setting]:
        yield attempt("threads", (), lambda: tuple(self._changed_threads()))

    def _changed_threads(self) -> Iterator[Mapping[str, SettingValue]]:
        """The settings of threads of their own; threads that have none are left out."""
        threads = self._session.target.memory.threads()
        known = self._session.python_threads.names
        for thread in threads[:THREADS]:
            found = self._thread_settings.changed(thread)
            if found:
                yield {"tid": thread.tid, "name": known.get(thread.tid, thread.name or ""), **found}
        if len(threads) > THREADS:
            yield {"unknown": (f"{len(threads) - THREADS} threads more, truncated at {THREADS}",)}


def _shown(options: CompileOptions | None) -> SettingValue:
    if not options:
        return {}
    return {**options.values, **dict.fromkeys(options.unshown, NOT_SHOWN)}
