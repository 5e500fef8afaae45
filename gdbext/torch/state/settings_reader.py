"""PyTorch's global settings, read from its own variables: nothing is called, and what is not proven is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gdbext.errors import BadData, GdbextError
from gdbext.layouts.layout import Layout
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingValue
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.float32_precision import UNSET, precisions
from gdbext.torch.state.setting_sources import SETTINGS, THREADS_IN_USE, Kind, Owner, SettingSource
from gdbext.torch.symbols import CPU
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.dtype import python_name

CONTEXT_CLASS = "at::Context"
_ACCESSOR_SIZE = 16
"""Bytes of code that are read of an accessor; more than one that is nothing but a load can have."""
_SIZES = {Kind.FLAG: 1, Kind.THREADS: 4, Kind.DTYPE: 1}
_POOL_LIMIT = 10_000
_THREAD_SIZE = 8
"""Bytes of a std::thread: a pthread_t."""


class SettingsReader:
    """Reads them all, each for itself. ``layout`` names the dtypes, and has the members without an accessor."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout | None) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout

    def read(self) -> tuple[Setting, ...]:
        """Every setting that this release has; the value is None, with the reason, where it cannot be read."""
        return (*(self._setting(source) for source in SETTINGS if self._has(source)), *self._precisions())

    def _has(self, source: SettingSource) -> bool:
        """False for a member that the layout proves to be missing."""
        known = self._layout is not None and self._layout.has_struct(CONTEXT_CLASS)
        return not (source.member and known) or source.member in self._context_fields()

    def _context_fields(self) -> Mapping[str, object]:
        assert self._layout is not None
        return self._layout.struct(CONTEXT_CLASS).fields

    def _setting(self, source: SettingSource) -> Setting:
        return attempt(source.name, source.default, lambda: self._value(source))

    def _value(self, source: SettingSource) -> SettingValue:
        address, size = self._place(source)
        number = int.from_bytes(self._memory.read(address, size), "little", signed=source.kind is Kind.THREADS)
        if source.kind is Kind.FLAG:
            if number > 1:
                raise BadData(f"{source.name} is {number}, which is not a bool")
            return bool(number)
        if source.kind is Kind.THREADS:
            return self._threads(number)
        if source.kind is Kind.NAME:
            return self._name(source, number, size)
        return self._dtype(number) if source.kind is Kind.DTYPE else number

    def _place(self, source: SettingSource) -> tuple[int, int]:
        """Address and size of the setting. Raises BadData, LayoutError, MemoryFault."""
        if source.member:
            field = self._need_layout().struct(CONTEXT_CLASS).field(source.member)
            return self.object(sources.CONTEXT) + field.offset, field.size
        if source.owner is None:
            return self._address(source.symbol, source.library), _SIZES[source.kind]
        code = self._memory.read(self._address(source.symbol, source.library), _ACCESSOR_SIZE)
        load = self._memory.architecture.loaded_member(code)
        if load is None:
            raise BadData(f"the accessor of {source.name} is not a plain load in this build")
        if load.size != _SIZES.get(source.kind, load.size):
            raise BadData(f"{source.name} has {load.size} bytes in this build")
        return self.object(source.owner) + load.offset, load.size

    def seed_offset(self) -> int | None:
        """Where in the CPU's generator its accessor loads the seed from; None where it does anything else."""
        address = self._symbolizer.address_of(sources.SEED_ACCESSOR, CPU)
        code = self._memory.read(address, _ACCESSOR_SIZE) if address is not None else b""
        load = self._memory.architecture.loaded_member(code)
        return load.offset if load is not None else None

    def exists(self, owner: Owner) -> bool:
        """The function that makes the object was called. Raises BadData, MemoryFault."""
        return self._memory.u8(self._address(owner.guard, owner.library)) == 1

    def object(self, owner: Owner) -> int:
        """The address of the object, 0 for a pointer to none. Raises BadData where it is not made yet, MemoryFault."""
        if not self.exists(owner):
            raise BadData(f"{owner.made_by} was not used yet: the default holds")
        address = self._address(owner.variable, owner.library)
        return self._memory.u64(address) if owner.is_pointer else address

    def _address(self, symbol: str, library: str) -> int:
        """Of a symbol. Raises BadData."""
        address = self._symbolizer.address_of(symbol, library)
        if address is None:
            raise BadData(f"{symbol} is not found in {library}")
        return address

    def _need_layout(self) -> Layout:
        if self._layout is None:
            raise BadData("there is no layout of this build")
        return self._layout

    def _dtype(self, number: int) -> str:
        names: Sequence[tuple[str, int]] = self._layout.dispatch("scalar_types") if self._layout is not None else ()
        if number >= len(names):
            raise BadData(f"dtype {number} has no name here")
        return f"torch.{python_name(names[number][0])}"

    def _name(self, source: SettingSource, number: int, size: int) -> SettingValue:
        """What Python calls the enumerator; before there was an enumeration, a flag."""
        layout = self._need_layout()
        if source.name in sources.FLAGS_ONCE and not self._has_enumeration(source):
            if size != 1 or number > 1:
                raise BadData(f"{source.name} is {number}, which is not a bool")
            return bool(number)
        names = {value: name for name, value in layout.enum(source.enumeration).items()}
        if number not in names:
            raise BadData(f"{source.enumeration} has no value {number}")
        return sources.REDUCTIONS.get(names[number], names[number].lower())

    def _has_enumeration(self, source: SettingSource) -> bool:
        return source.enumeration not in self._need_layout().absent

    def _threads(self, number: int) -> SettingValue:
        """A number that was set, or, where the pool took it, the size of the pool: only inter-op threads do that."""
        if number != THREADS_IN_USE:
            return number if number > 0 else DEFAULT
        pool = self.object(sources.INTEROP_POOL)
        threads = pool + self._need_layout().struct("c10::ThreadPool").offset("threads_")
        _first, count = vector_span(self._memory, threads, _THREAD_SIZE, _POOL_LIMIT)
        if not count:
            raise BadData("the pool runs, and has no threads")
        return count

    def _precisions(self) -> Iterator[Setting]:
        """What float32 operations may compute with, which at::Context has since 2.9."""
        layout = self._layout
        if layout is not None and layout.has_struct(CONTEXT_CLASS) and "fp32_precision" not in self._context_fields():
            return
        yield attempt(
            "float32_precision",
            UNSET,
            lambda: precisions(self._memory, self._need_layout(), self.object(sources.CONTEXT)),
        )


def attempt(name: str, default: SettingValue, read: Callable[[], SettingValue]) -> Setting:
    """The setting, with the reason where ``read`` cannot read it."""
    try:
        return Setting(name, read(), default)
    except GdbextError as error:
        return Setting(name, None, default, error.what)
