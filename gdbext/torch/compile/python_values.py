"""Small Python values for a report: numbers, texts, flags, counters; and dicts by their keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gdbext.cpython.tasks.containers import set_items
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.compile_section import ConfigValue

TEXT_LIMIT = 4000
ENTRY_LIMIT = 10_000
_NESTING = 4
_ITEMS = 200
"""Of a container that is shown as a value, how deep and how many."""


class PythonValues:
    """Reads the values of one Python; whatever is not plain raises BadData."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self.runtime = runtime

    def type_name(self, address: int) -> str:
        """The name of an object's class. Raises MemoryFault, BadData."""
        return self.runtime.objects.type_of(address).name

    def plain(self, address: int) -> ConfigValue:
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

    def value(self, address: int, nesting: int = _NESTING) -> ConfigValue:
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
        return {self.runtime.objects.text(key, 200): value for key, value in self.runtime.dicts.attributes(address)}

    def counts(self, address: int) -> dict[str, int]:
        """A Counter by texts. Raises MemoryFault, BadData."""
        return {key: self.runtime.objects.integer(value) for key, value in self.items(address)}
