"""TorchDynamo's own records, read as Python objects: counters, compilations, compiled code, options that were set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

from gdbext.cpython.objects.contexts import ContextReader
from gdbext.cpython.tasks.containers import deque_items
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_names import module_global
from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.compile_section import (
    Compilation,
    CompiledCode,
    ConfigValue,
    GraphBreak,
    GuardFailures,
    Resumption,
)
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.config_reader import ConfigReader, Options
from gdbext.torch.compile.python_values import TEXT_LIMIT, PythonValues

CODE_LIMIT = 2000
METRICS_LIMIT = 256
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

    def has_module(self, module: str) -> bool:
        """A configuration module is imported."""
        return self._global(module, names.CONFIG_ENTRIES) is not None

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

    def guard_failures(self) -> tuple[GuardFailures, ...]:
        """``torch._dynamo.utils.guard_failures``."""
        return self._read(names.UTILS, names.GUARD_FAILURES, self._guard_failures, ())

    def _guard_failures(self, address: int) -> tuple[GuardFailures, ...]:
        objects, found = self._runtime.objects, []
        for key, value in self._runtime.dicts.items(address, CODE_LIMIT):
            code = self._runtime.codes.get(key)
            reasons = tuple(objects.text(each, TEXT_LIMIT) for each in objects.list_items(value, METRICS_LIMIT))
            found.append(GuardFailures(code.name, code.file, code.first_line, reasons))
        return tuple(found)

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

    def options(self, module: str) -> Options:
        """Those of a configuration module that differ from their defaults, in the main thread."""
        return self._options(module, self._main_variables)

    def inductor_options(self) -> Options:
        """The same of Inductor, if it is imported."""
        return self.options(names.INDUCTOR_CONFIG) if self.has_module(names.INDUCTOR_CONFIG) else Options({}, ())

    def _options(self, module: str, variables: Mapping[int, int]) -> Options:
        reader = ConfigReader(self._runtime, self._values)
        return self._read(module, names.CONFIG_ENTRIES, lambda at: reader.changed(at, variables), Options({}, ()))

    def thread_options(self, main: Options) -> dict[int, dict[str, ConfigValue]]:
        """Options of torch._dynamo.config in each thread, by tid, that set some for itself, where they are not those
        of the main thread."""
        found = {}
        for state in self._runtime.thread_states():
            tid = self._runtime.tid_of(state)
            variables = self._variables(state.address)
            if tid is not None and variables and variables != self._main_variables:
                values = self._options(names.CONFIG, variables).values
                if values and values != main.values:
                    found[tid] = values
        return found

    @cached_property
    def _main_variables(self) -> dict[int, int]:
        """What the context variables of the main thread are set to."""
        states = self._runtime.thread_states()
        return self._variables(states[-1].address) if states else {}

    def _variables(self, state: int) -> dict[int, int]:
        try:
            return ContextReader(self._runtime.objects).of_thread(state)
        except GdbextError as error:
            self.problems.append(f"context variables: {error.what}")
            return {}


def graph_breaks(counters: dict[str, dict[str, int]]) -> tuple[GraphBreak, ...]:
    """Reasons of graph breaks, most frequent first."""
    counted = Counter(counters.get(names.GRAPH_BREAK, {})).most_common()
    return tuple(GraphBreak(reason, count) for reason, count in counted)


def recompilations(compilations: tuple[Compilation, ...]) -> tuple[Compilation, ...]:
    """Those of code that had been compiled before."""
    return tuple(each for each in compilations if each.recompile_reason or _again(each))


def _again(each: Compilation) -> bool:
    return bool(re.match(names.COMPILED_AGAIN, each.compile_id or ""))


def resumptions(counters: dict[str, dict[str, int]], compilations: tuple[Compilation, ...]) -> tuple[Resumption, ...]:
    """Where code goes on after graph breaks; the file is that of a recorded compilation of the rest."""
    files = {each.function: each.file for each in compilations}
    found = []
    for name, count in counters.get(names.RESUMES, {}).items():
        match = _RESUMED.match(name)
        if match:
            found.append(Resumption(match["function"], int(match["line"]), files.get(name), count))
    return tuple(found)
