"""TorchDynamo's own records, read as Python objects: counters, compilations, compiled code, options that were set.

Small Python values for a report: numbers, texts, flags, counters; and dicts by their keys.

Options of a configuration module (torch._dynamo.config, torch._inductor.config) that differ from their defaults.

Source: torch/utils/_config_module.py, ``_ConfigEntry``. An option has the value that an environment variable forces,
else the one that it was set to, else the one of an environment variable, else its default. Since 2.11 what it was set
to is a ContextVar: each thread has its own.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

from gdbext.cpython.objects.object_items import ContextReader, deque_items, set_items
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import attributes, local_of, locals_of
from gdbext.cpython.threads.runtime import PythonRuntime, module_global
from gdbext.engine.record import Record
from gdbext.errors import BadData, GdbextError
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names

TEXT_LIMIT = 4000
ENTRY_LIMIT = 10_000
_NESTING = 4
_ITEMS = 200
"""Limits of a container that is shown as a value, how deep and how many."""


class PythonValues:
    """Reads the values of one Python; whatever is not plain raises BadData."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self.runtime = runtime
        self._texts: dict[int, str] = {}
        """Names of attributes by their objects, which all instances of a class share."""

    def type_name(self, address: int) -> str:
        """The name of an object's class. Raises MemoryFault, BadData."""
        return self.runtime.objects.type_of(address).name

    def plain(self, address: int) -> compile_section.ConfigValue:
        """A bool, int, float, str or None. Raises MemoryFault, BadData."""
        objects, kind = self.runtime.objects, self.type_name(address)
        if kind == "bool":
            return bool(objects.integer(address))
        if kind in ("int", "float"):
            return objects.number(address)
        if kind == "str":
            return objects.text(address, TEXT_LIMIT)
        if kind == "NoneType":
            return None
        raise BadData(f"a {kind} is not shown")

    def value(self, address: int, nesting: int = _NESTING) -> compile_section.ConfigValue:
        """A plain value, or a list, tuple, set or dict of such; a set in order. Raises MemoryFault, BadData."""
        objects, kind = self.runtime.objects, self.type_name(address)
        if kind not in ("list", "tuple", "set", "dict"):
            return self.plain(address)
        if not nesting:
            raise BadData("containers are nested too deep")
        if kind == "dict":
            pairs = itertools.islice(self.runtime.dicts.items(address), _ITEMS)
            return {str(self.plain(key)): self.value(value, nesting - 1) for key, value in pairs}
        if kind == "set":
            return tuple(sorted((self.plain(item) for item in set_items(self.runtime, address)), key=repr))
        items = objects.list_items(address, _ITEMS) if kind == "list" else objects.tuple_items(address, _ITEMS)
        return tuple(self.value(item, nesting - 1) for item in items)

    def items(self, address: int) -> Iterator[tuple[str, int]]:
        """(key, value) of a dict whose keys are texts; other keys are left out. Raises MemoryFault, BadData."""
        for key, value in self.runtime.dicts.items(address, ENTRY_LIMIT):
            try:
                yield self.runtime.objects.text(key, TEXT_LIMIT), value
            except GdbextError:
                continue

    def attributes(self, address: int) -> dict[str, int]:
        """An instance's own attributes. Raises MemoryFault, BadData."""
        return {self._text(key): value for key, value in self.runtime.dicts.attributes(address)}

    def _text(self, address: int) -> str:
        found = self._texts.get(address)
        if found is None:
            found = self._texts[address] = self.runtime.objects.text(address, 200)
        return found

    def counts(self, address: int) -> dict[str, int]:
        """A Counter by texts. Raises MemoryFault, BadData."""
        return {key: self.runtime.objects.integer(value) for key, value in self.items(address)}


_UNSET = "object"
"""The class of the sentinel that stands for "not set"."""
_CONTEXT_VARIABLE = "ContextVar"


class CompileOptions(Record):
    """``values`` by name; ``unshown`` are names of options that are set to something that is not plain."""

    values: dict[str, compile_section.ConfigValue]
    unshown: tuple[str, ...]


class ConfigReader:
    """Reads the entries of such a module."""

    def __init__(self, runtime: PythonRuntime, values: PythonValues) -> None:
        self._runtime = runtime
        self._values = values

    def changed(self, entries: int, variables: Mapping[int, int]) -> CompileOptions:
        """Those of ``entries`` (the module's dict of them) that differ from their defaults, in a thread whose context
        ``variables`` is. Raises MemoryFault, BadData."""
        values: dict[str, compile_section.ConfigValue] = {}
        unshown = []
        for name, entry in self._values.items(entries):
            attributes = self._values.attributes(entry)
            found, default = self._value(attributes, variables), attributes.get(names.DEFAULT, 0)
            if not found or found == default:
                continue
            try:
                value = self._values.value(found)
            except GdbextError:
                unshown.append(name)
                continue
            if not self._equals(value, default):
                values[name] = value
        return CompileOptions(values, tuple(unshown))

    def _equals(self, value: compile_section.ConfigValue, default: int) -> bool:
        try:
            other = self._values.value(default)
        except GdbextError:
            return False
        return value == other and isinstance(value, bool) == isinstance(other, bool)

    def _value(self, attributes: Mapping[str, int], variables: Mapping[int, int]) -> int:
        """The object that the option is set to; 0 for none, and for another name of an option elsewhere."""
        if self._is_set(attributes.get(names.ALIAS, 0)):
            return 0
        for source in (names.FORCED_BY_ENVIRONMENT, names.USER_OVERRIDE, names.ENVIRONMENT_DEFAULT):
            value = attributes.get(source, 0)
            if value and self._kind(value) == _CONTEXT_VARIABLE:
                value = variables.get(value, 0)
            if value and self._kind(value) != _UNSET:
                return value
        return 0

    def _is_set(self, value: int) -> bool:
        return bool(value) and self._kind(value) not in ("NoneType", _UNSET)

    def _kind(self, value: int) -> str:
        return self._values.type_name(value).rpartition(".")[2]


CODE_LIMIT = 2000
METRICS_LIMIT = 256
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
        """True if torch._dynamo.utils is imported."""
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
        """The dictionary ``torch._dynamo.utils.counters`` of the process."""
        return self._read(names.UTILS, names.COUNTERS, self._counters, {})

    def _counters(self, address: int) -> dict[str, dict[str, int]]:
        return {key: self._values.counts(value) for key, value in self._values.items(address)}

    # --- compilations ----------------------------------------------------------------------------

    def compilations(self) -> tuple[compile_section.Compilation, ...]:
        """The last ones that are recorded, oldest first."""
        return self._read(names.UTILS, names.METRICS, self._metrics, ())

    def _metrics(self, address: int) -> tuple[compile_section.Compilation, ...]:
        count, items = deque_items(self._runtime, address, METRICS_LIMIT)
        if count > len(items):
            self.truncated.append(f"{count} compilations, truncated at {len(items)}")
        return tuple(self._compilation(item) for item in items)

    def _compilation(self, address: int) -> compile_section.Compilation:
        found = self._values.attributes(address)
        return compile_section.Compilation(
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

    def _value(self, attributes: dict[str, int], name: str) -> compile_section.ConfigValue:
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

    def guard_failures(self) -> tuple[compile_section.GuardFailures, ...]:
        """The dictionary ``torch._dynamo.utils.guard_failures`` of the process."""
        return self._read(names.UTILS, names.GUARD_FAILURES, self._guard_failures, ())

    def _guard_failures(self, address: int) -> tuple[compile_section.GuardFailures, ...]:
        objects, found = self._runtime.objects, []
        for key, value in self._runtime.dicts.items(address, CODE_LIMIT):
            code = self._runtime.codes.get(key)
            reasons = tuple(objects.text(each, TEXT_LIMIT) for each in objects.list_items(value, METRICS_LIMIT))
            found.append(compile_section.GuardFailures(code.name, code.file, code.first_line, reasons))
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

    def codes(self, originals: dict[int, int]) -> tuple[compile_section.CompiledCode, ...]:
        """The original code objects, each with the number of its compiled ones, most first."""
        counted = Counter(originals.values()).most_common()
        if len(counted) > CODE_LIMIT:
            self.truncated.append(f"{len(counted)} compiled code objects, truncated at {CODE_LIMIT}")
        return tuple(self._codes(counted[:CODE_LIMIT]))

    def _codes(self, counted: list[tuple[int, int]]) -> Iterator[compile_section.CompiledCode]:
        for address, entries in counted:
            try:
                code = self._runtime.codes.get(address)
            except GdbextError as error:
                self.problems.append(f"code object: {error.what}")
                continue
            yield compile_section.CompiledCode(code.name, code.file, code.first_line, entries)

    # --- options ---------------------------------------------------------------------------------

    def options(self, module: str) -> CompileOptions:
        """Those of a configuration module that differ from their defaults, in the main thread."""
        return self._options(module, self._main_variables)

    def inductor_options(self) -> CompileOptions:
        """The same of Inductor, if it is imported."""
        return self.options(names.INDUCTOR_CONFIG) if self.has_module(names.INDUCTOR_CONFIG) else CompileOptions({}, ())

    def _options(self, module: str, variables: Mapping[int, int]) -> CompileOptions:
        reader = ConfigReader(self._runtime, self._values)
        return self._read(
            module, names.CONFIG_ENTRIES, lambda at: reader.changed(at, variables), CompileOptions({}, ())
        )

    def thread_options(self, main: CompileOptions) -> dict[int, dict[str, compile_section.ConfigValue]]:
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
        """The values of the context variables of the main thread."""
        states = self._runtime.thread_states()
        return self._variables(states[-1].address) if states else {}

    def _variables(self, state: int) -> dict[int, int]:
        try:
            return ContextReader(self._runtime.objects).of_thread(state)
        except GdbextError as error:
            self.problems.append(f"context variables: {error.what}")
            return {}


def compilation_began(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> float | None:
    """The time (in seconds since the epoch) at which a thread began to compile a function; None where that is not
    known: MetricsContext of torch/_dynamo/metrics_context.py, which _compile of convert_frame.py has as a variable
    (2.6 and later)."""
    for frame in frames:
        context = local_of(runtime, frame, "metrics_context") if frame.file.endswith(names.COMPILER[0]) else 0
        began = attributes(runtime, context).get("_start_time_ns", 0) if context else 0
        if began:
            try:
                return runtime.objects.integer(began) / 1e9
            except GdbextError:
                return None
    return None


_EXPRESSION_LIMIT = 2000
"""Parts of an expression that are counted."""


def expression_size(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> int | None:
    """The number of different parts of the expression that the outermost function of SymPy on a stack works on, at
    most a limit of 2000; None without one. Raises nothing."""
    inside = [frame for frame in frames if names.SYMPY in frame.file]
    for frame in reversed(inside):
        try:
            values = locals_of(runtime, frame).values()
        except GdbextError:
            continue
        sizes = [size for value in values if (size := _parts(runtime, value)) is not None]
        if sizes:
            return max(sizes)
    return None


def _parts(runtime: PythonRuntime, expression: int) -> int | None:
    """The parts of an expression, itself included; None for what is none."""
    seen, leaves, todo = set[int](), set[int](), [expression]
    while todo and len(seen) + len(leaves) < _EXPRESSION_LIMIT:
        each = todo.pop()
        if each in seen or each in leaves:
            continue
        parts = attributes(runtime, each).get(names.EXPRESSION_PARTS, 0)
        (seen if parts else leaves).add(each)
        if parts:
            with suppress(GdbextError):
                todo += runtime.objects.tuple_items(parts, _EXPRESSION_LIMIT)
    if expression in leaves:
        return None
    return len(seen)
