"""TorchDynamo's own records, read as Python objects: counters, compilations, compiled code, options that were set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeVar

from gdbext.cpython.tasks.containers import deque_items
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_names import module_global
from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.compile_section import (
    Compilation,
    CompiledCode,
    ConfigValue,
    GraphBreak,
    Resumption,
)
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.python_values import PythonValues

CODE_LIMIT = 2000
METRICS_LIMIT = 256
_CONTEXT_VARIABLE = "PyContextVar"
_RESUMED = re.compile(names.RESUME_FUNCTION)
T = TypeVar("T")


class DynamoReader:
    """Reads them from one interpreter. ``problems`` says what could not be read."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._values = PythonValues(runtime)
        self.problems: list[str] = []
        self.truncated: list[str] = []

    @property
    def imported(self) -> bool:
        """torch._dynamo.utils is imported."""
        return self._global(names.UTILS, names.COUNTERS) is not None

    def _global(self, module: str, name: str) -> int | None:
        for interpreter in self._runtime.interpreters():
            try:
                found = module_global(self._runtime, interpreter, module, name)
            except GdbextError as error:
                self.problems.append(f"{module}.{name}: {error.what}")
                continue
            if found:
                return found
        return None

    def _read(self, module: str, name: str, read: Callable[[int], T], default: T) -> T:
        found = self._global(module, name)
        if found is None:
            self.problems.append(f"{module} has no {name} in this release")
            return default
        try:
            return read(found)
        except GdbextError as error:
            self.problems.append(f"{module}.{name}: {error.what}")
            return default

    # --- counters --------------------------------------------------------------------------------

    def counters(self) -> dict[str, dict[str, int]]:
        """``torch._dynamo.utils.counters``."""
        return self._read(names.UTILS, names.COUNTERS, self._counters, {})

    def _counters(self, address: int) -> dict[str, dict[str, int]]:
        return {key: self._values.counts(value) for key, value in self._values.items(address)}

    # --- compilations ----------------------------------------------------------------------------

    def compilations(self) -> tuple[Compilation, ...]:
        """The last ones that are recorded, oldest first."""
        return self._read(names.UTILS, names.METRICS, self._metrics, ())

    def _metrics(self, address: int) -> tuple[Compilation, ...]:
        count, items = deque_items(self._runtime, address, METRICS_LIMIT)
        if count > len(items):
            self.truncated.append(f"{count} compilations, truncated at {len(items)}")
        return tuple(self._compilation(item) for item in items)

    def _compilation(self, address: int) -> Compilation:
        found = self._values.attributes(address)
        return Compilation(
            compile_id=self._text(found, "compile_id"),
            function=self._text(found, "co_name"),
            file=self._text(found, "co_filename"),
            line=self._number(found, "co_firstlineno"),
            recompile_reason=self._text(found, "recompile_reason"),
            fail_type=self._text(found, "fail_type"),
            fail_reason=self._text(found, "fail_reason"),
            suppressed=self._flag(found, "config_suppress_errors"),
            has_code=self._flag(found, "has_guarded_code"),
        )

    def _value(self, attributes: dict[str, int], name: str) -> ConfigValue:
        try:
            return self._values.plain(attributes[name]) if name in attributes else None
        except GdbextError:
            return None

    def _text(self, attributes: dict[str, int], name: str) -> str | None:
        value = self._value(attributes, name)
        return value if isinstance(value, str) else None

    def _number(self, attributes: dict[str, int], name: str) -> int | None:
        value = self._value(attributes, name)
        return value if isinstance(value, int) else None

    def _flag(self, attributes: dict[str, int], name: str) -> bool | None:
        value = self._value(attributes, name)
        return value if isinstance(value, bool) else None

    # --- compiled code ---------------------------------------------------------------------------

    def original_codes(self) -> dict[int, int]:
        """Compiled code object to the one that it was made of."""
        return self._read(names.UTILS, names.ORIGINAL_CODES, self._original_codes, {})

    def _original_codes(self, address: int) -> dict[int, int]:
        values = self._runtime.dicts.attribute(address, names.VALUES)
        if not values:
            raise BadData("it has no values")
        integer = self._runtime.objects.integer
        return {integer(key): code for key, code in self._runtime.dicts.items(values)}

    def codes(self, originals: dict[int, int]) -> tuple[CompiledCode, ...]:
        """The original code objects, each with the number of its compiled ones, most first."""
        counted = Counter(originals.values()).most_common()
        if len(counted) > CODE_LIMIT:
            self.truncated.append(f"{len(counted)} compiled code objects, truncated at {CODE_LIMIT}")
        return tuple(self._codes(counted[:CODE_LIMIT]))

    def _codes(self, counted: list[tuple[int, int]]) -> Iterator[CompiledCode]:
        for address, entries in counted:
            try:
                code = self._runtime.codes.get(address)
            except GdbextError as error:
                self.problems.append(f"code object: {error.what}")
                continue
            yield CompiledCode(code.name, code.file, code.first_line, entries)

    # --- options ---------------------------------------------------------------------------------

    def settings(self) -> dict[str, ConfigValue]:
        """Options that were set and are plain values."""
        return self._read(names.CONFIG, names.CONFIG_ENTRIES, self._settings, {})

    def _settings(self, address: int) -> dict[str, ConfigValue]:
        found: dict[str, ConfigValue] = {}
        for name, entry in self._values.items(address):
            try:
                override = self._runtime.dicts.attribute(entry, names.USER_OVERRIDE)
                value = self._overriding(override) if override else 0
                if value:
                    found[name] = self._values.plain(value)
            except GdbextError:
                continue  # a list, a function: what cannot be shown in a word
        return found

    def _overriding(self, override: int) -> int:
        """The object that an option was set to; 0 for none. The default of the variable stands for "not set"."""
        kind = self._values.type_name(override)
        if kind == "object":
            return 0
        if kind.rpartition(".")[2] != "ContextVar":
            return override
        layout, memory = self._runtime.layout, self._runtime.memory
        default, cached, state, context = (
            memory.u64(override + layout.offset(_CONTEXT_VARIABLE, member))
            for member in ("var_default", "var_cached", "var_cached_tsid", "var_cached_tsver")
        )
        return cached if cached != default and (state, context) in self._contexts else 0

    @cached_property
    def _contexts(self) -> set[tuple[int, int]]:
        """Id of each thread state with the version of its context: what is cached for another is not believed."""
        layout, memory = self._runtime.layout, self._runtime.memory
        number, context = (layout.offset("PyThreadState", member) for member in ("id", "context_ver"))
        states = self._runtime.thread_states()
        return {(memory.u64(each.address + number), memory.u64(each.address + context)) for each in states}


def graph_breaks(counters: dict[str, dict[str, int]]) -> tuple[GraphBreak, ...]:
    """Reasons of graph breaks, most frequent first."""
    counted = Counter(counters.get(names.GRAPH_BREAK, {})).most_common()
    return tuple(GraphBreak(reason, count) for reason, count in counted)


def resumptions(counters: dict[str, dict[str, int]], compilations: tuple[Compilation, ...]) -> tuple[Resumption, ...]:
    """Where code goes on after graph breaks; the file is that of a recorded compilation of the rest."""
    files = {each.function: each.file for each in compilations}
    found = []
    for name, count in counters.get(names.RESUMES, {}).items():
        match = _RESUMED.match(name)
        if match:
            found.append(Resumption(match["function"], int(match["line"]), files.get(name), count))
    return tuple(found)
