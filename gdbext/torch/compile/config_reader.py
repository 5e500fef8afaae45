"""Options of a configuration module (torch._dynamo.config, torch._inductor.config) that differ from their defaults.

Source: torch/utils/_config_module.py, ``_ConfigEntry``. An option has the value that an environment variable forces,
else the one that it was set to, else the one of an environment variable, else its default. Since 2.11 what it was set
to is a ContextVar: each thread has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.model.sections.compile_section import ConfigValue
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.python_values import PythonValues

_UNSET = "object"
"""The class of the sentinel that stands for "not set"."""
_CONTEXT_VARIABLE = "ContextVar"


class Options(Record):
    """``values`` by name; ``unshown`` are names of options that are set to something that is not plain."""

    values: dict[str, ConfigValue]
    unshown: tuple[str, ...]


class ConfigReader:
    """Reads the entries of such a module."""

    def __init__(self, runtime: PythonRuntime, values: PythonValues) -> None:
        self._runtime = runtime
        self._values = values

    def changed(self, entries: int, variables: Mapping[int, int]) -> Options:
        """Those of ``entries`` (the module's dict of them) that differ from their defaults, in a thread whose context
        ``variables`` is. Raises MemoryFault, BadData."""
        values: dict[str, ConfigValue] = {}
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
        return Options(values, tuple(unshown))

    def _equals(self, value: ConfigValue, default: int) -> bool:
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
