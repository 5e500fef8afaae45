"""PyTorch's global settings, read from its own variables: nothing is called, and what is not proven is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.errors import BadData, GdbextError
from gdbext.layouts.layout import Layout
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingValue
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.state.setting_sources import CPU, SETTINGS, THREADS_IN_USE, Kind, Owner, SettingSource
from gdbext.torch.values.dtype import python_name

_ACCESSOR_SIZE = 16
"""Bytes of code that are read of an accessor; more than one that is nothing but a load can have."""
_SIZES = {Kind.FLAG: 1, Kind.THREADS: 4, Kind.DTYPE: 1}


class SettingsReader:
    """Reads them all, each for itself. ``layout`` names the dtypes."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout | None) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout

    def read(self) -> tuple[Setting, ...]:
        """Every setting; the value is None, with the reason, where it cannot be read."""
        return tuple(map(self._setting, SETTINGS))

    def _setting(self, source: SettingSource) -> Setting:
        try:
            return Setting(source.name, self._value(source), source.default)
        except GdbextError as error:
            return Setting(source.name, None, source.default, error.what)

    def _value(self, source: SettingSource) -> SettingValue:
        address, size = self._place(source)
        number = int.from_bytes(self._memory.read(address, size), "little", signed=source.kind is Kind.THREADS)
        if source.kind is Kind.FLAG:
            if number > 1:
                raise BadData(f"{source.name} is {number}, which is not a bool")
            return bool(number)
        if source.kind is Kind.THREADS:
            return _threads(number)
        return self._dtype(number) if source.kind is Kind.DTYPE else number

    def _place(self, source: SettingSource) -> tuple[int, int]:
        """Address and size of the setting. Raises BadData, MemoryFault."""
        if source.owner is None:
            return self._address(source.symbol, source.library), _SIZES[source.kind]
        code = self._memory.read(self._address(source.symbol, source.library), _ACCESSOR_SIZE)
        load = self._memory.architecture.loaded_member(code)
        if load is None:
            raise BadData(f"the accessor of {source.name} is not a plain load in this build")
        if load.size != _SIZES.get(source.kind, load.size):
            raise BadData(f"{source.name} has {load.size} bytes in this build")
        return self._object(source.owner) + load.offset, load.size

    def _object(self, owner: Owner) -> int:
        """The address of the object. Raises BadData where it does not exist yet."""
        if self._memory.u8(self._address(owner.guard, CPU)) != 1:
            raise BadData(f"{owner.made_by} was not used yet: the default holds")
        address = self._address(owner.variable, CPU)
        return self._memory.u64(address) if owner.is_pointer else address

    def _address(self, symbol: str, library: str) -> int:
        address = self._symbolizer.address_of(symbol, library)
        if address is None:
            raise BadData(f"{symbol} is not found in {library}")
        return address

    def _dtype(self, number: int) -> str:
        names: Sequence[tuple[str, int]] = self._layout.dispatch("scalar_types") if self._layout is not None else ()
        if number >= len(names):
            raise BadData(f"dtype {number} has no name here")
        return f"torch.{python_name(names[number][0])}"


def _threads(number: int) -> SettingValue:
    if number == THREADS_IN_USE:
        raise BadData("the pool runs, and its size is not read")
    return number if number > 0 else DEFAULT


