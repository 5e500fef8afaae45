"""Reads how PyTorch is set in a process: global settings, generators, libraries below, torch.compile, and each
thread."""

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
from gdbext.torch.compile import dynamo_names
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.state import setting_sources
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


class ThreadSettings:
    """Reads the threads of one session."""

    def __init__(self, session: Session, recorded: RecordedFunctions) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._recorded = recorded
        self._states = session.dispatch_states
        self._variables = ThreadVariables(session.memory, session.symbolizer)

    def changed(self, thread: TargetThread) -> dict[str, SettingValue]:
        """The settings that differ from a new thread's; "unknown" has the reasons for what could not be read."""
        try:
            pointer = self._session.memory.architecture.thread_pointer(thread.registers())
        except GdbextError as error:
            return {"unknown": (error.what,)}
        state = self._states.read(pointer)
        own = self._variables.of(pointer)
        changed = dict(_of_dispatch(state))
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
        """``hook (train.py:7)`` for a Python function."""
        function = self._session.python_object(address).function
        if not function:
            return f"the Python object at {address:#x}"
        return f"{function.qualname} ({function.place})" if function.place else function.qualname

    def default_device(self, pointer: int) -> str:
        """torch.get_default_device() of the thread whose control block is there, without the index of a device that has
        none. Raises GdbextError."""
        session = self._session
        for mode in map(session.python_object, reversed(self._states.function_modes(pointer))):
            device = mode["device"] if mode.python and mode.read(type_name) == DEVICE_MODE else None
            if device:
                classes = ClassNames(session.memory, session.symbolizer)
                return TensorFields(session.memory, session.layout, classes).device_at(device.body)
        return "cpu"


def _of_dispatch(state: DispatchState) -> Iterator[tuple[str, SettingValue]]:
    """The dispatch state, as far as it differs from a new thread's."""
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
    file that sets them again. Raises NotTorch."""
    reader = _Settings(session)
    try:
        cpu_state = reader.cpu_generator().state()
    except GdbextError:
        cpu_state = None
    settings = (*session.settings.read(), *reader.read())
    variables = linux.public_variables(session.target.origin.environ())
    return SettingsSection(settings, variables, script, cpu_state, session.target.pid)


class _Settings:
    """Reads the settings that are not plain variables of libtorch, from one process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader = session.settings
        self._has_cuda = bool(session.modules.named(assumed_symbols.CUDA))

    def read(self) -> Iterator[Setting]:
        counts = ThreadCounts(self._session.memory, self._session.symbolizer)
        yield attempt("openmp_threads", None, lambda: counts.openmp(self._main_pointer()))
        yield attempt("mkl_threads", DEFAULT, counts.mkl)
        yield attempt("mkl_dynamic", True, counts.mkl_dynamic)
        if counts.has(setting_sources.OPENBLAS):
            yield attempt("openblas_threads", None, counts.openblas)
        yield attempt("default_device", "cpu", lambda: self._thread_settings.default_device(self._main_pointer()))
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
            raise BadData("the main thread has ended")
        return self._session.memory.architecture.thread_pointer(main.registers())

    @cached_property
    def _recorded(self) -> RecordedFunctions:
        return RecordedFunctions(self._session.memory, self._session.symbolizer, self._session.layout)

    @cached_property
    def _thread_settings(self) -> ThreadSettings:
        return ThreadSettings(self._session, self._recorded)

    def cpu_generator(self) -> library_settings.CpuGenerator:
        """The default generator of the CPU. Raises GdbextError."""
        session = self._session
        address = self._reader.object(setting_sources.GENERATOR)
        return library_settings.CpuGenerator(session.memory, session.layout, address, self._reader.seed_offset())

    def _generators(self) -> tuple[SettingValue, ...]:
        generators: list[SettingValue] = [self.cpu_generator().description()]
        if self._has_cuda:
            vector = setting_sources.CUDA_GENERATORS.address(self._session.symbolizer)
            if not vector:
                raise BadData(f"the generators of CUDA devices are not found in {assumed_symbols.CUDA}")
            generators += library_settings.cuda_generators(self._session.memory, self._session.layout, vector)
        return tuple(generators)

    def _profiler(self) -> SettingValue:
        """The profiler of all threads (KINETO_ONDEMAND); each thread's own is among the threads."""
        owner = setting_sources.GLOBAL_PROFILER
        state = self._reader.object(owner) if self._reader.exists(owner) else 0
        return (state and self._recorded.profiler_state(state)) or "none"

    def _allocator(self, kind: str, owner: setting_sources.StaticOwner) -> SettingValue:
        session = self._session
        if kind == AllocatorConfig.OF and kind in session.layout.absent:
            return "none"
        if not self._reader.exists(owner):
            return "not used yet"
        address = self._reader.object(owner)
        return library_settings.allocator_settings(session.memory, session.layout, kind, address)

    def _options(self, module: str) -> SettingValue:
        """Options of torch.compile that differ from their defaults, of the main thread; none if the module is not
        imported. Raises BadData, PythonUnsupported."""
        if not self._session.python:
            raise unsupported("Python cannot be read in this process")
        reader = DynamoReader(self._session.python)
        if not reader.has_module(module):
            return {}
        version = torch_version(self._session) or "unknown"
        if not dynamo_names.is_known(version):
            raise BadData(f"known for torch {', '.join(dynamo_names.compared())}, and this is {version}")
        options = reader.options(module)
        if reader.problems:
            raise BadData("; ".join(reader.problems))
        return {**options.values, **dict.fromkeys(options.unshown, NOT_SHOWN)} if options else {}

    def _threads(self) -> Iterator[Mapping[str, SettingValue]]:
        """What threads have set for themselves; threads without such settings are left out."""
        threads = self._session.target.memory.threads()
        names = self._session.python_threads.names
        for thread in threads[:THREADS]:
            changed = self._thread_settings.changed(thread)
            if changed:
                yield {"tid": thread.tid, "name": names.get(thread.tid, thread.name or ""), **changed}
        if len(threads) > THREADS:
            yield {"unknown": (f"{len(threads) - THREADS} threads more, truncated at {THREADS}",)}

    # --- threads ---------------------------------------------------------------------------------
