"""TorchDynamo's own records, read as Python objects: counters, compilations, compiled code, options that were set.

An option of a configuration module (torch._dynamo.config, torch._inductor.config) has the value that an environment
variable forces, else the one that it was set to, else the one of an environment variable, else its default. Since 2.11
what it was set to is a ContextVar: each thread has its own. Source: torch/utils/_config_module.py, ``_ConfigEntry``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeVar

from gdbext.cpython.objects.code import Code
from gdbext.cpython.objects.py_ref import PyRef, PyVariables, integer, type_name
from gdbext.cpython.threads.frame_reader import ThreadState
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names

TEXT_LIMIT = 4000
ENTRY_LIMIT = 10_000
_ITEMS = 200
"""Items of a container that is shown as a value, at most."""


def plain_value(value: PyRef, nesting: int = 4) -> compile_section.ConfigValue:
    """The value of a Python object: a number, a text, None, or a tuple or dict of such, ``nesting`` levels deep at most
    (lists and sets become tuples). Raises BadData for all others, MemoryFault."""
    kind = value.read(type_name)
    if kind not in ("list", "tuple", "set", "dict"):
        return value.plain(TEXT_LIMIT)
    if not nesting:
        raise BadData("containers are nested too deep")
    if kind == "dict":
        return {
            str(key.plain(TEXT_LIMIT)): plain_value(item, nesting - 1) for key, item in value.items(_ITEMS).checked()
        }
    items = value.elements().checked()
    if kind == "set":
        return tuple(sorted((item.plain(TEXT_LIMIT) for item in items), key=repr))
    if len(items) > _ITEMS:
        raise BadData(f"{len(items)} items are not shown")
    return tuple(plain_value(item, nesting - 1) for item in items)


_UNSET = "object"
"""The class of the sentinel that stands for "not set"."""


class CompileOptions(NamedTuple):
    """The options of a configuration module that differ from their defaults."""

    values: dict[str, compile_section.ConfigValue]
    """Name → value."""
    unshown: tuple[str, ...]
    """Names of options that are set to functions or other objects."""


def changed_options(entries: PyRef, context: Mapping[PyRef, PyRef]) -> CompileOptions:
    """The options of ``entries`` (a configuration module's dict ``_config``) that differ from their defaults, in a
    thread with these context variables. Raises MemoryFault, BadData."""
    values: dict[str, compile_section.ConfigValue] = {}
    unshown = []
    for name, entry in entries.variables(ENTRY_LIMIT).checked().items():
        own = entry.variables().checked()
        value, default = _value_set(own, context), own[names.DEFAULT]
        if not value or value == default:
            continue
        try:
            plain = plain_value(value)
        except GdbextError:
            unshown.append(name)
            continue
        is_default = False
        with suppress(GdbextError):
            other = plain_value(default)
            is_default = plain == other and isinstance(plain, bool) == isinstance(other, bool)
        if not is_default:
            values[name] = plain
    return CompileOptions(values, tuple(unshown))


def _value_set(entry: PyVariables, context: Mapping[PyRef, PyRef]) -> PyRef:
    """The value that an option's ``entry`` (a _ConfigEntry) is set to, in a thread with these context variables; a
    missing PyRef if it is not set, or is an alias of another module's option."""

    def kind(value: PyRef) -> str:
        """The name of a value's class."""
        return value.read(type_name).rpartition(".")[2]

    alias, missing = entry[names.ALIAS], PyRef(entry.python, 0)
    if alias and kind(alias) not in ("NoneType", _UNSET):
        return missing
    for source in (names.FORCED_BY_ENVIRONMENT, names.USER_OVERRIDE, names.ENVIRONMENT_DEFAULT):
        value = entry[source]
        if value and kind(value) == "ContextVar":
            value = context.get(value, missing)
        if value and kind(value) != _UNSET:
            return value
    return missing


CODE_LIMIT = 2000
METRICS_LIMIT = 256
T = TypeVar("T")


class DynamoReader:
    """Reads the records of one interpreter. ``problems`` says what could not be read."""

    def __init__(self, python: PythonRuntime) -> None:
        self._python = python
        self.problems: list[str] = []
        self.truncated: list[str] = []

    @property
    def imported(self) -> bool:
        """True if torch._dynamo.utils is imported."""
        return bool(self._global(names.UTILS, names.COUNTERS))

    def has_module(self, module: str) -> bool:
        """True if the configuration module of that name is imported."""
        return bool(self._global(module, names.CONFIG_ENTRIES))

    def _global(self, module: str, name: str) -> PyRef:
        """A global variable of a module; missing, with the reason in ``problems``, if it cannot be read."""
        value = self._python.globals_of(module)[name]
        if value.fault:
            self.problems.append(f"{module}.{name}: {value.why}")
        return value

    def _read(self, module: str, name: str, read: Callable[[PyRef], T], default: T) -> T:
        """The result of ``read`` for a global variable; ``default``, with the reason in ``problems``, if it fails."""
        value = self._global(module, name)
        if not value:
            self.problems.append(f"{module} has no {name} in this release")
            return default
        try:
            return read(value)
        except GdbextError as error:
            self.problems.append(f"{module}.{name}: {error.what}")
            return default

    def counters(self) -> dict[str, dict[str, int]]:
        """Group → name → count: ``torch._dynamo.utils.counters``."""

        def read(table: PyRef) -> dict[str, dict[str, int]]:
            """The counts in that dict. Raises MemoryFault, BadData."""
            return {
                name: {key.str(TEXT_LIMIT): value.read(integer) for key, value in counter.items(ENTRY_LIMIT).checked()}
                for name, counter in table.variables(ENTRY_LIMIT).checked().items()
            }

        return self._read(names.UTILS, names.COUNTERS, read, {})

    def compilations(self) -> tuple[compile_section.Compilation, ...]:
        """The last compilations that are recorded, oldest first."""

        def read(recorded: PyRef) -> tuple[compile_section.Compilation, ...]:
            """The CompilationMetrics in that deque. Raises MemoryFault, BadData."""
            metrics = recorded.elements().checked()
            if len(metrics) > METRICS_LIMIT:
                self.truncated.append(f"{len(metrics)} compilations, truncated at {METRICS_LIMIT}")
            members = (compilation.variables().checked() for compilation in metrics[:METRICS_LIMIT])
            return tuple(
                compile_section.Compilation(
                    compile_id=_text_or_none(own["compile_id"]),
                    function=_text_or_none(own["co_name"]),
                    file=_text_or_none(own["co_filename"]),
                    line=own["co_firstlineno"].int(),
                    recompile_reason=_text_or_none(own["recompile_reason"]),
                    fail_type=_text_or_none(own["fail_type"]),
                    fail_reason=_text_or_none(own["fail_reason"]),
                    suppressed=_bool_or_none(own["config_suppress_errors"]),
                    has_code=_bool_or_none(own["has_guarded_code"]),
                )
                for own in members
            )

        return self._read(names.UTILS, names.METRICS, read, ())

    def guard_failures(self) -> tuple[compile_section.GuardFailures, ...]:
        """The guards that failed, by code object: ``torch._dynamo.utils.guard_failures``."""

        def read(table: PyRef) -> tuple[compile_section.GuardFailures, ...]:
            """The lists of texts in that dict. Raises MemoryFault, BadData."""
            failures = []
            for key, value in table.items(CODE_LIMIT).checked():
                code = _code(key)
                reasons = tuple(reason.str(TEXT_LIMIT) for reason in value.elements(METRICS_LIMIT).checked())
                failures.append(compile_section.GuardFailures(code.name, code.file, code.first_line, reasons))
            return tuple(failures)

        return self._read(names.UTILS, names.GUARD_FAILURES, read, ())

    def original_codes(self) -> dict[int, PyRef]:
        """Address of a compiled code object → the code object that it was compiled from."""

        def read(table: PyRef) -> dict[int, PyRef]:
            """The pairs in that ExactWeakKeyDictionary. Raises MemoryFault, BadData."""
            return {key.read(integer): code for key, code in table[names.VALUES].items().checked()}

        return self._read(names.UTILS, names.ORIGINAL_CODES, read, {})

    def codes(self, originals: Mapping[int, PyRef]) -> tuple[compile_section.CompiledCode, ...]:
        """The code objects among the values of ``originals`` (as ``original_codes`` returns them), each with the number
        of its compiled ones, most first."""
        counted = Counter(originals.values()).most_common()
        if len(counted) > CODE_LIMIT:
            self.truncated.append(f"{len(counted)} compiled code objects, truncated at {CODE_LIMIT}")
        codes = []
        for original, entries in counted[:CODE_LIMIT]:
            try:
                code = _code(original)
            except GdbextError as error:
                self.problems.append(f"code object: {error.what}")
            else:
                codes.append(compile_section.CompiledCode(code.name, code.file, code.first_line, entries))
        return tuple(codes)

    def options(self, module: str, context: Mapping[PyRef, PyRef] | None = None) -> CompileOptions:
        """The options of a configuration module that differ from their defaults, in a thread with these context
        variables (default: those of the main thread)."""
        variables = self._main_context if context is None else context
        nothing = CompileOptions({}, ())
        return self._read(module, names.CONFIG_ENTRIES, lambda entries: changed_options(entries, variables), nothing)

    def inductor_options(self) -> CompileOptions:
        """The options of Inductor that differ from their defaults; none if it is not imported."""
        return self.options(names.INDUCTOR_CONFIG) if self.has_module(names.INDUCTOR_CONFIG) else CompileOptions({}, ())

    def thread_options(self, main: CompileOptions) -> dict[int, dict[str, compile_section.ConfigValue]]:
        """tid → options of torch._dynamo.config that differ from their defaults, for each thread whose options are not
        those of the main thread (``main``)."""
        options = {}
        for state in self._python.thread_states():
            tid, context = self._python.tid_of(state), self._context(state)
            if tid and context and context != self._main_context:
                values = self.options(names.CONFIG, context).values
                if values and values != main.values:
                    options[tid] = values
        return options

    @cached_property
    def _main_context(self) -> dict[PyRef, PyRef]:
        """The context variables of the main thread, whose state is the oldest."""
        states = self._python.thread_states()
        return self._context(states[-1]) if states else {}

    def _context(self, state: ThreadState) -> dict[PyRef, PyRef]:
        """ContextVar → value in the thread with that state."""
        variables = self._python.context_of(state)
        if variables.fault:
            self.problems.append(f"context variables: {variables.fault.what}")
        return dict(variables)


def _text_or_none(value: PyRef) -> str | None:
    return value.str(TEXT_LIMIT) if value.type == "str" else None


def _bool_or_none(value: PyRef) -> bool | None:
    return bool(value.int()) if value.type == "bool" else None


def _code(value: PyRef) -> Code:
    return value.read(lambda python, at: python.codes.get(at))


def compilation_began(stack: PyStack) -> float | None:
    """The time (in seconds since the epoch) at which a thread began to compile a function; None if it is unknown.

    _compile of convert_frame.py has it in a variable, a MetricsContext (torch/_dynamo/metrics_context.py; since 2.6).
    """
    compiling = (frame for frame in stack if frame.file.endswith(names.COMPILER[0]))
    times = (stack.locals(frame)["metrics_context"]["_start_time_ns"].int() for frame in compiling)
    return next((began / 1e9 for began in times if began), None)


def expression_size(stack: PyStack) -> int | None:
    """The number of different subexpressions (2000 at most) of the largest expression in the variables of the outermost
    function of SymPy on a stack; None without one."""
    for frame in reversed([frame for frame in stack if names.SYMPY in frame.file]):
        sizes = [size for value in stack.locals(frame).values() if (size := _count_parts(value)) is not None]
        if sizes:
            return max(sizes)
    return None


def _count_parts(expression: PyRef) -> int | None:
    """The number of different subexpressions that have parts, up to 2000, of a SymPy expression; None for any other
    object, which has no parts."""
    compound, leaves, waiting = set[PyRef](), set[PyRef](), [expression]
    while waiting and len(compound) + len(leaves) < 2000:
        part = waiting.pop()
        if part not in compound and part not in leaves:
            parts = part[names.EXPRESSION_PARTS]
            (compound if parts else leaves).add(part)
            waiting += parts.elements(2000)
    return None if expression in leaves else len(compound)
