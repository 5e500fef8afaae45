"""How PyTorch is set in a process: global settings, generators, libraries below, torch.compile, and each thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError, PythonUnsupported
from gdbext.inspection.target_reporting import torch_version
from gdbext.inspection.thread_settings import ThreadSettings
from gdbext.model.sections.settings_section import DEFAULT, NOT_SHOWN, Setting, SettingsSection, SettingValue
from gdbext.targets import environment
from gdbext.torch import symbols
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.dynamo_reader import DynamoReader
from gdbext.torch.state import allocator_settings, generators
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.recorded_functions import RecordedFunctions
from gdbext.torch.state.settings_reader import attempt
from gdbext.torch.state.thread_counts import ThreadCounts

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.compile.config_reader import Options

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
        variables = environment.public(self._session.target.environ())
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
        thread = next((each for each in self._session.target.threads() if each.tid == self._session.target.pid), None)
        if thread is None:
            raise BadData("the main thread has ended")
        return self._session.memory.architecture.thread_pointer(thread.registers())

    # --- generators, callbacks, allocators -------------------------------------------------------

    def _others(self) -> Iterator[Setting]:
        yield attempt("default_device", "cpu", lambda: self._thread_settings.default_device(self._main_pointer))
        yield attempt("generators", None, self._generators)
        yield attempt("record_function_callbacks", (), lambda: self._recorded.global_callbacks())
        yield attempt("profiler", "none", self._profiler)
        yield attempt("allocator", None, lambda: self._allocator(allocator_settings.GENERAL, sources.ALLOCATOR))
        if self._has_cuda:
            yield attempt("cuda_allocator", None,
                          lambda: self._allocator(allocator_settings.OF_CUDA, sources.CUDA_ALLOCATOR))  # fmt: skip

    @property
    def _has_cuda(self) -> bool:
        return self._session.modules.named(symbols.CUDA) is not None

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
            if vector is None:
                raise BadData(f"the generators of CUDA devices are not found in {symbols.CUDA}")
            found += generators.cuda_generators(self._session.memory, self._session.layout, vector)
        return tuple(found)

    @property
    def _cpu_generator(self) -> generators.CpuGenerator:
        session = self._session
        address = self._reader.object(sources.GENERATOR)
        return generators.CpuGenerator(session.memory, session.layout, address, self._reader.seed_offset())

    def _cpu_state(self) -> bytes | None:
        try:
            return self._cpu_generator.state()
        except GdbextError:
            return None

    def _profiler(self) -> SettingValue:
        """That of all threads (KINETO_ONDEMAND); each thread's own is among the threads."""
        owner = sources.GLOBAL_PROFILER
        state = self._reader.object(owner) if self._reader.exists(owner) else 0
        return (state and self._recorded.profiler_state(state)) or "none"

    def _allocator(self, kind: str, owner: sources.Owner) -> SettingValue:
        session = self._session
        if kind == allocator_settings.GENERAL and kind in session.layout.absent:
            return "none"
        if not self._reader.exists(owner):
            return "not used yet"
        address = self._reader.object(owner)
        return allocator_settings.allocator_settings(session.memory, session.layout, kind, address)

    # --- torch.compile ---------------------------------------------------------------------------

    def _compiler(self) -> Iterator[Setting]:
        """Options that differ from their defaults, of the main thread."""
        yield attempt("dynamo", {}, lambda: _shown(self._options(names.CONFIG)))
        yield attempt("inductor", {}, lambda: _shown(self._options(names.INDUCTOR_CONFIG)))

    def _options(self, module: str) -> Options | None:
        """None where the module is not imported. Raises BadData, PythonUnsupported."""
        if self._session.python is None:
            raise PythonUnsupported("Python cannot be read in this process")
        reader = DynamoReader(self._session.python)
        if not reader.has_module(module):
            return None
        version = torch_version(self._session) or "unknown"
        if not names.is_known(version):
            raise BadData(f"known for torch {', '.join(names.COMPARED)}, and this is {version}")
        options = reader.options(module)
        if reader.problems:
            raise BadData("; ".join(reader.problems))
        return options

    # --- threads ---------------------------------------------------------------------------------

    def _threads(self) -> Iterator[Setting]:
        yield attempt("threads", (), lambda: tuple(self._changed_threads()))

    def _changed_threads(self) -> Iterator[Mapping[str, SettingValue]]:
        """What threads have set for themselves; those that have nothing of the kind are left out."""
        threads = self._session.target.threads()
        table = self._session.python_threads
        known = table.names if table is not None else {}
        for thread in threads[:THREADS]:
            found = self._thread_settings.changed(thread)
            if found:
                yield {"tid": thread.tid, "name": known.get(thread.tid, thread.name or ""), **found}
        if len(threads) > THREADS:
            yield {"unknown": (f"{len(threads) - THREADS} threads more, truncated at {THREADS}",)}


def _shown(options: Options | None) -> SettingValue:
    if options is None:
        return {}
    return {**options.values, **dict.fromkeys(options.unshown, NOT_SHOWN)}
