"""TorchDynamo's own records, read as Python objects: counters, compilations, compiled code, options that were set.

Small Python values for a report: numbers, texts, flags, counters; and dicts by their keys.

Options of a configuration module (torch._dynamo.config, torch._inductor.config) that differ from their defaults.

Source: torch/utils/_config_module.py, ``_ConfigEntry``. An option has the value that an environment variable forces,
else the one that it was set to, else the one of an environment variable, else its default. Since 2.11 what it was set
to is a ContextVar: each thread has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, TypeVar

from gdbext.cpython.objects.code import Code
from gdbext.cpython.objects.py_ref import PyRef, PyVariables, integer, type_name
from gdbext.cpython.threads.frame_reader import ThreadState
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names

TEXT_LIMIT = 4000
ENTRY_LIMIT = 10_000
_NESTING = 4
_ITEMS = 200
"""Limits of a container that is shown as a value, how deep and how many."""


def shown(value: PyRef, nesting: int = _NESTING) -> compile_section.ConfigValue:
    """A plain value, or a list, tuple, set or dict of such; a set in order. Raises MemoryFault, BadData."""
    kind = value.read(type_name)
    if kind not in ("list", "tuple", "set", "dict"):
        return value.plain(TEXT_LIMIT)
    if not nesting:
        raise BadData("containers are nested too deep")
    if kind == "dict":
        return {str(key.plain(TEXT_LIMIT)): shown(each, nesting - 1) for key, each in value.items(_ITEMS).checked()}
    items = value.elements().checked()
    if kind == "set":
        return tuple(sorted((item.plain(TEXT_LIMIT) for item in items), key=repr))
    if len(items) > _ITEMS:
        raise BadData(f"{len(items)} items are not shown")
    return tuple(shown(item, nesting - 1) for item in items)


_UNSET = "object"
"""The class of the sentinel that stands for "not set"."""
_CONTEXT_VARIABLE = "ContextVar"


class CompileOptions(NamedTuple):
    """``values`` by name; ``unshown`` are names of options that are set to something that is not plain."""

    values: dict[str, compile_section.ConfigValue]
    unshown: tuple[str, ...]


def changed_options(entries: PyRef, context: Mapping[PyRef, PyRef]) -> CompileOptions:
    """Those of ``entries`` (a module's dict of them) that differ from their defaults, in a thread with these context
    variables. Raises MemoryFault, BadData."""
    values: dict[str, compile_section.ConfigValue] = {}
    unshown = []
    for name, entry in entries.variables(ENTRY_LIMIT).checked().items():
        own = entry.variables().checked()
        found, default = _set_to(own, context), own[names.DEFAULT]
        if not found or found == default:
            continue
        try:
            value = shown(found)
        except GdbextError:
            unshown.append(name)
            continue
        if not _is(value, default):
            values[name] = value
    return CompileOptions(values, tuple(unshown))


def _is(value: compile_section.ConfigValue, default: PyRef) -> bool:
    try:
        other = shown(default)
    except GdbextError:
        return False
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _set_to(entry: PyVariables, context: Mapping[PyRef, PyRef]) -> PyRef:
    """The value that an option is set to; missing for none, and for another name of an option elsewhere."""
    alias, missing = entry[names.ALIAS], PyRef(entry.python, 0)
    if alias and _kind(alias) not in ("NoneType", _UNSET):
        return missing
    for source in (names.FORCED_BY_ENVIRONMENT, names.USER_OVERRIDE, names.ENVIRONMENT_DEFAULT):
        value = entry[source]
        if value and _kind(value) == _CONTEXT_VARIABLE:
            value = context.get(value, missing)
        if value and _kind(value) != _UNSET:
            return value
    return missing


def _kind(value: PyRef) -> str:
    return value.read(type_name).rpartition(".")[2]


CODE_LIMIT = 2000
METRICS_LIMIT = 256
T = TypeVar("T")


class DynamoReader:
    """Reads them from one interpreter. ``problems`` says what could not be read."""

    def __init__(self, python: PythonRuntime) -> None:
        self._python = python
        self.problems: list[str] = []
        self.truncated: list[str] = []

    @property
    def imported(self) -> bool:
        """True if torch._dynamo.utils is imported."""
        return bool(self._global(names.UTILS, names.COUNTERS))

    def has_module(self, module: str) -> bool:
        """A configuration module is imported."""
        return bool(self._global(module, names.CONFIG_ENTRIES))

    def _global(self, module: str, name: str) -> PyRef:
        found = self._python.globals_of(module)[name]
        if found.fault:
            self.problems.append(f"{module}.{name}: {found.why}")
        return found

    def _read(self, module: str, name: str, read: Callable[[PyRef], T], default: T) -> T:
        found = self._global(module, name)
        if not found:
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
        return self._read(names.UTILS, names.COUNTERS, _counters, {})

    # --- compilations ----------------------------------------------------------------------------

    def compilations(self) -> tuple[compile_section.Compilation, ...]:
        """The last ones that are recorded, oldest first."""
        return self._read(names.UTILS, names.METRICS, self._metrics, ())

    def _metrics(self, recorded: PyRef) -> tuple[compile_section.Compilation, ...]:
        found = recorded.elements().checked()
        if len(found) > METRICS_LIMIT:
            self.truncated.append(f"{len(found)} compilations, truncated at {METRICS_LIMIT}")
        return tuple(map(_compilation, found[:METRICS_LIMIT]))

    def guard_failures(self) -> tuple[compile_section.GuardFailures, ...]:
        """The dictionary ``torch._dynamo.utils.guard_failures`` of the process."""
        return self._read(names.UTILS, names.GUARD_FAILURES, _guard_failures, ())

    # --- compiled code ---------------------------------------------------------------------------

    def original_codes(self) -> dict[int, PyRef]:
        """Address of a compiled code object to the one that it was made of."""
        return self._read(names.UTILS, names.ORIGINAL_CODES, _original_codes, {})

    def codes(self, originals: Mapping[int, PyRef]) -> tuple[compile_section.CompiledCode, ...]:
        """The original code objects, each with the number of its compiled ones, most first."""
        counted = Counter(originals.values()).most_common()
        if len(counted) > CODE_LIMIT:
            self.truncated.append(f"{len(counted)} compiled code objects, truncated at {CODE_LIMIT}")
        return tuple(self._codes(counted[:CODE_LIMIT]))

    def _codes(self, counted: Iterable[tuple[PyRef, int]]) -> Iterator[compile_section.CompiledCode]:
        for original, entries in counted:
            try:
                code = _code(original)
            except GdbextError as error:
                self.problems.append(f"code object: {error.what}")
                continue
            yield compile_section.CompiledCode(code.name, code.file, code.first_line, entries)

    # --- options ---------------------------------------------------------------------------------

    def options(self, module: str) -> CompileOptions:
        """Those of a configuration module that differ from their defaults, in the main thread."""
        return self._options(module, self._main_context)

    def inductor_options(self) -> CompileOptions:
        """The same of Inductor, if it is imported."""
        return self.options(names.INDUCTOR_CONFIG) if self.has_module(names.INDUCTOR_CONFIG) else CompileOptions({}, ())

    def _options(self, module: str, context: Mapping[PyRef, PyRef]) -> CompileOptions:
        nothing = CompileOptions({}, ())
        return self._read(module, names.CONFIG_ENTRIES, lambda entries: changed_options(entries, context), nothing)

    def thread_options(self, main: CompileOptions) -> dict[int, dict[str, compile_section.ConfigValue]]:
        """Options of torch._dynamo.config in each thread, by tid, that set some for itself, where they are not those
        of the main thread."""
        found = {}
        for state in self._python.thread_states():
            tid, context = self._python.tid_of(state), self._context(state)
            if tid and context and context != self._main_context:
                values = self._options(names.CONFIG, context).values
                if values and values != main.values:
                    found[tid] = values
        return found

    @cached_property
    def _main_context(self) -> dict[PyRef, PyRef]:
        states = self._python.thread_states()
        return self._context(states[-1]) if states else {}

    def _context(self, state: ThreadState) -> dict[PyRef, PyRef]:
        """The values of the context variables of a thread."""
        found = self._python.context_of(state)
        if found.fault:
            self.problems.append(f"context variables: {found.fault.what}")
        return dict(found)


def _counters(table: PyRef) -> dict[str, dict[str, int]]:
    return {
        name: {key.str(TEXT_LIMIT): value.read(integer) for key, value in counter.items(ENTRY_LIMIT).checked()}
        for name, counter in table.variables(ENTRY_LIMIT).checked().items()
    }


def _compilation(recorded: PyRef) -> compile_section.Compilation:
    found = recorded.variables().checked()
    return compile_section.Compilation(
        compile_id=_text(found["compile_id"]),
        function=_text(found["co_name"]),
        file=_text(found["co_filename"]),
        line=found["co_firstlineno"].int(),
        recompile_reason=_text(found["recompile_reason"]),
        fail_type=_text(found["fail_type"]),
        fail_reason=_text(found["fail_reason"]),
        suppressed=_flag(found["config_suppress_errors"]),
        has_code=_flag(found["has_guarded_code"]),
    )


def _text(value: PyRef) -> str | None:
    return value.str(TEXT_LIMIT) if value.type == "str" else None


def _flag(value: PyRef) -> bool | None:
    return bool(value.int()) if value.type == "bool" else None


def _guard_failures(table: PyRef) -> tuple[compile_section.GuardFailures, ...]:
    found = []
    for key, value in table.items(CODE_LIMIT).checked():
        code, reasons = _code(key), tuple(each.str(TEXT_LIMIT) for each in value.elements(METRICS_LIMIT).checked())
        found.append(compile_section.GuardFailures(code.name, code.file, code.first_line, reasons))
    return tuple(found)


def _original_codes(table: PyRef) -> dict[int, PyRef]:
    return {key.read(integer): code for key, code in table[names.VALUES].items().checked()}


def _code(value: PyRef) -> Code:
    return value.read(lambda python, at: python.codes.get(at))


def compilation_began(stack: PyStack) -> float | None:
    """The time (in seconds since the epoch) at which a thread began to compile a function; None where that is not
    known: MetricsContext of torch/_dynamo/metrics_context.py, which _compile of convert_frame.py has as a variable
    (2.6 and later)."""
    compiling = (frame for frame in stack if frame.file.endswith(names.COMPILER[0]))
    times = (stack.locals(frame)["metrics_context"]["_start_time_ns"].int() for frame in compiling)
    return next((began / 1e9 for began in times if began), None)


_EXPRESSION_LIMIT = 2000
"""Parts of an expression that are counted."""


def expression_size(stack: PyStack) -> int | None:
    """The number of different parts of the expression that the outermost function of SymPy on a stack works on, at
    most a limit of 2000; None without one."""
    for frame in reversed([frame for frame in stack if names.SYMPY in frame.file]):
        sizes = [size for value in stack.locals(frame).values() if (size := _parts(value)) is not None]
        if sizes:
            return max(sizes)
    return None


def _parts(expression: PyRef) -> int | None:
    """The parts of an expression, itself included; None for what is none."""
    seen, leaves, todo = set[PyRef](), set[PyRef](), [expression]
    while todo and len(seen) + len(leaves) < _EXPRESSION_LIMIT:
        each = todo.pop()
        if each in seen or each in leaves:
            continue
        parts = each[names.EXPRESSION_PARTS]
        (seen if parts else leaves).add(each)
        todo += parts.elements(_EXPRESSION_LIMIT)
    return None if expression in leaves else len(seen)
