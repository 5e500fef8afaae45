"""Small Python values for a report: numbers, texts, flags, counters; and dicts by their keys."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.compile_section import ConfigValue

TEXT_LIMIT = 4000
ENTRY_LIMIT = 10_000


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
        if kind == "int":
            return objects.integer(address)
        if kind == "str":
            return objects.text(address, TEXT_LIMIT)
        if kind == "float":
            at = self.runtime.layout.offset("PyFloatObject", "ob_fval")
            number: float = struct.unpack("<d", self.runtime.memory.read(address + at, 8))[0]
            return number
        if kind == "NoneType":
            return None
        raise BadData(f"a {kind} is not shown")

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
