"""PyTorch's global settings, read from its own variables: no function is called, and what is not proven is unknown.

What operations on float32 may compute with, by backend and kind of operation (torch.backends.*.fp32_precision), is in
ATen/Context.{h,cpp}, 2.13.0: an unordered_map from (backend, operation) to a precision. An unset one follows the
backend's "all", and that the "all" of the generic one; cuDNN's convolutions and recurrent networks have a default of
their own, which is TF32. In 2.9 it is a map of maps of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Member
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import CPU
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.setting_sources import (
    DEFAULT,
    SETTINGS,
    THREADS_IN_USE,
    Kind,
    Setting,
    SettingSource,
    SettingValue,
    StaticOwner,
)
from gdbext.torch.state.setting_structures import Context, PrecisionEntry
from gdbext.torch.values.containers import hash_entries, string_reader, tree_nodes, vector_span
from gdbext.torch.values.value_structures import ThreadPool
from gdbext.torch.values.value_text import python_name

_LIMIT = 64
_NONE, _DEFAULT, _TF32, _BF16 = "none", "default", "tf32", "bf16"
_LINKS = 32
"""Bytes of std::_Rb_tree_node_base, before a node's value (bits/stl_tree.h)."""

UNSET: Mapping[str, SettingValue] = {
    "cuda.all": _NONE,
    "cuda.conv": _TF32,
    "cuda.matmul": _NONE,
    "cuda.rnn": _TF32,
    "generic.all": _NONE,
    "mkldnn.all": _NONE,
    "mkldnn.conv": _NONE,
    "mkldnn.matmul": _NONE,
    "mkldnn.rnn": _NONE,
}
"""The value that is used as long as none is set."""


def used_precisions(memory: Memory, layout: Layout, context: int) -> dict[str, SettingValue]:
    """ "BACKEND.OPERATION" → the precision that PyTorch uses ({"cuda.conv": "tf32"}), by the at::Context at
    ``context``. An unset one follows the backend's "all", then the generic "all". Raises LayoutError, BadData,
    MemoryFault."""
    own = own_precisions(memory, layout, context)
    used: dict[str, SettingValue] = {}
    for backend, operation in sorted(own):
        value = own[backend, operation]
        has_default = value == _DEFAULT
        for key in ((backend, "all"), ("generic", "all")):
            if value in (_NONE, _DEFAULT):
                value = own.get(key, _NONE)
        if value == _NONE and has_default:
            value = _TF32
        elif backend == "cuda" and value == _BF16:
            value = _NONE
        used[f"{backend}.{operation}"] = value
    return used


def own_precisions(memory: Memory, layout: Layout, context: int) -> dict[tuple[str, str], str]:
    """(backend, operation) → the precision that was set for just that; "none" or "default" if none was. Raises
    LayoutError, BadData, MemoryFault."""
    table = context + Context.fp32_precision.field(layout).offset
    if "at::Float32Backend" in layout.absent:
        return _own_precisions_in_2_9(memory, layout, table)
    enums = [layout.enum(f"at::Float32{kind}") for kind in ("Backend", "Op", "Precision")]
    names = [{value: name.lower() for name, value in enum.items()} for enum in enums]
    fields = [member.field(layout) for member in PrecisionEntry.members()]
    size = PrecisionEntry.shape(layout).size
    entries = hash_entries(memory, layout, table, -(-size // 8), _LIMIT)
    precisions = {}
    for words in entries:
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        numbers = [int.from_bytes(raw[field.offset : field.offset + field.size], "little") for field in fields]
        for enumerators, number in zip(names, numbers):
            if number not in enumerators:
                raise BadData(f"a float32 precision has the unknown value {number}")
        backend, operation, precision = (enumerators[number] for enumerators, number in zip(names, numbers))
        precisions[backend, operation] = precision
    if not precisions or len(precisions) != len(entries):
        raise BadData(f"the table of float32 precisions has {len(precisions)} keys in {len(entries)} entries")
    return precisions


def _own_precisions_in_2_9(memory: Memory, layout: Layout, table: int) -> dict[tuple[str, str], str]:
    """As ``own_precisions``, from the map of maps of texts at ``table`` that 2.9 has."""
    strings = string_reader(memory, layout)
    precisions = {}
    for backend in tree_nodes(memory, table, _LIMIT):
        value = backend + _LINKS + strings.size
        for operation in tree_nodes(memory, value, _LIMIT):
            key = strings.read(backend + _LINKS), strings.read(operation + _LINKS)
            precisions[key] = strings.read(operation + _LINKS + strings.size)
    is_known = set(precisions.values()) <= {_NONE, "ieee", _TF32, _BF16}
    if {".".join(key) for key in precisions} != UNSET.keys() or not is_known:
        raise BadData(f"the map of float32 precisions at {table:#x} does not have the entries of 2.9")
    return precisions


_ACCESSOR_SIZE = 16
"""Bytes of code that are read of an accessor; more than one that is nothing but a load can have."""
_SIZES = {Kind.FLAG: 1, Kind.THREADS: 4, Kind.DTYPE: 1}


class SettingsReader:
    """Reads the settings of one process."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout | None) -> None:
        """``layout`` has the names of dtypes and the members without an accessor; without one these are unknown."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout

    def read(self) -> tuple[Setting, ...]:
        """Every setting that this release has; the value is None, with the reason, if it cannot be read."""
        present = [source for source in SETTINGS if source.member is None or not self._is_missing(source.member)]
        settings = [attempt(source.name, source.default, partial(self._value, source)) for source in present]
        if not self._is_missing(Context.fp32_precision):  # at::Context has it since 2.9
            settings.append(
                attempt(
                    "float32_precision",
                    UNSET,
                    lambda: used_precisions(self._memory, self._need_layout(), self.object(sources.CONTEXT)),
                )
            )
        return tuple(settings)

    def value(self, name: str) -> SettingValue:
        """The value of one setting, which every release has; None if it cannot be read."""
        source = next(source for source in SETTINGS if source.name == name)
        return attempt(name, source.default, lambda: self._value(source)).value

    def _is_missing(self, member: Member[int]) -> bool:
        """True if the layout proves that this release does not have the member."""
        layout = self._layout
        return layout is not None and layout.has_struct(member.owner) and not member.is_in(layout)

    def _value(self, source: SettingSource) -> SettingValue:
        """The value of a setting. Raises BadData, LayoutError, MemoryFault."""
        address, size = self._address_and_size(source)
        number = int.from_bytes(self._memory.read(address, size), "little", signed=source.kind is Kind.THREADS)
        if source.kind is Kind.FLAG:
            return self._boolean(source, number)
        if source.kind is Kind.THREADS:
            return self._threads(number)
        if source.kind is Kind.NAME:
            return self._name(source, number, size)
        if source.kind is not Kind.DTYPE:
            return number
        scalar_types: Sequence[tuple[str, int]] = self._layout.dispatch("scalar_types") if self._layout else ()
        if number >= len(scalar_types):
            raise BadData(f"dtype {number} has no name in this build")
        return f"torch.{python_name(scalar_types[number][0])}"

    @staticmethod
    def _boolean(source: SettingSource, number: int, size: int = 1) -> bool:
        """``number``, which ``size`` bytes hold, as a bool. Raises BadData if that is none."""
        if size != 1 or number > 1:
            raise BadData(f"{source.name} is {number}, which is not a bool")
        return bool(number)

    def _address_and_size(self, source: SettingSource) -> tuple[int, int]:
        """(address, size in bytes) of a setting: a member that the layout has, a variable, or the member that its
        accessor loads. Raises BadData, LayoutError, MemoryFault."""
        if source.member:
            field = source.member.field(self._need_layout())
            return self.object(sources.CONTEXT) + field.offset, field.size
        if not source.owner:
            return self._address(source.symbol, source.library), _SIZES[source.kind]
        code = self._memory.read(self._address(source.symbol, source.library), _ACCESSOR_SIZE)
        load = self._memory.architecture.loaded_member(code)
        if not load:
            raise BadData(f"the accessor of {source.name} is not a plain load in this build")
        if load.size != _SIZES.get(source.kind, load.size):
            raise BadData(f"{source.name} has {load.size} bytes in this build")
        return self.object(source.owner) + load.offset, load.size

    def seed_offset(self) -> int | None:
        """Offset of the seed in the CPU's generator, as its accessor loads it; None if that does anything else."""
        address = self._symbolizer.address_of(sources.SEED_ACCESSOR, CPU)
        code = self._memory.read(address, _ACCESSOR_SIZE) if address else b""
        load = self._memory.architecture.loaded_member(code)
        return load.offset if load else None

    def exists(self, owner: StaticOwner) -> bool:
        """True if the function that constructs the static object was called. Raises BadData, MemoryFault."""
        return self._memory.u8(self._address(owner.guard, owner.library)) == 1

    def object(self, owner: StaticOwner) -> int:
        """The address of the static object, 0 for a null pointer. Raises BadData if it is not constructed yet,
        MemoryFault."""
        if not self.exists(owner):
            raise BadData(f"{owner.description} was not used yet: its default applies")
        address = self._address(owner.variable, owner.library)
        return self._memory.u64(address) if owner.is_pointer else address

    def _address(self, symbol: str, library: str) -> int:
        """Address of a symbol. Raises BadData if it is not found."""
        address = self._symbolizer.address_of(symbol, library)
        if not address:
            raise BadData(f"{symbol} is not found in {library}")
        return address

    def _need_layout(self) -> Layout:
        """The layout. Raises BadData without one."""
        if not self._layout:
            raise BadData("this build has no layout")
        return self._layout

    def _name(self, source: SettingSource, number: int, size: int) -> SettingValue:
        """The enumerator ``number``, in ``size`` bytes, as Python writes it; a bool in releases that have a flag in
        place of the enumeration."""
        layout = self._need_layout()
        if source.enumeration == "at::CuBLASReductionOption" and source.enumeration in layout.absent:
            return self._boolean(source, number, size)
        names = {value: name for name, value in layout.enum(source.enumeration).items()}
        if number not in names:
            raise BadData(f"{source.enumeration} has no value {number}")
        return sources.REDUCTIONS.get(names[number], names[number].lower())

    def _threads(self, number: int) -> SettingValue:
        """The number of threads that the variable's ``number`` means: itself, DEFAULT if none was set, or the size of
        the pool of inter-op threads if that exists (THREADS_IN_USE)."""
        if number != THREADS_IN_USE:
            return number if number > 0 else DEFAULT
        pool = self.object(sources.INTEROP_POOL)
        threads = pool + ThreadPool.threads_.field(self._need_layout()).offset
        _first, count = vector_span(self._memory, threads, 8, 10_000)  # a std::thread is a pthread_t
        if not count:
            raise BadData("its pool is in use and has no threads")
        return count


def attempt(name: str, default: SettingValue, read: Callable[[], SettingValue]) -> Setting:
    """The setting with the value that ``read`` returns; unknown, with the reason, if it raises."""
    try:
        return Setting(name, read(), default)
    except GdbextError as error:
        return Setting(name, None, default, error.what)
