"""PyTorch's global settings, read from its own variables: nothing is called, and what is not proven is unknown.

What operations on float32 may compute with, by backend and kind of operation (torch.backends.*.fp32_precision).

ATen/Context.{h,cpp}, 2.13.0: an unordered_map from (backend, operation) to a precision. What nobody has set follows the
backend's "all", and that the "all" of the generic one; cuDNN's convolutions and recurrent networks have a default of
their own, which is TF32. In 2.9 it is a map of maps of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from gdbext.torch.values.containers import hash_entries, hash_table, string_reader, tree_nodes, vector_span
from gdbext.torch.values.value_structures import ThreadPool
from gdbext.torch.values.value_text import python_name

_LIMIT = 64
_NONE, _DEFAULT, _TF32, _BF16 = "none", "default", "tf32", "bf16"
_TEXTS = {_NONE, "ieee", _TF32, _BF16}
_LINKS = 32
"""Bytes of std::_Rb_tree_node_base, before a node's value (bits/stl_tree.h)."""
_GENERIC, _CUDA, _ALL = "generic", "cuda", "all"

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
"""The value that is used as long as nobody has set anything."""


def precisions(memory: Memory, layout: Layout, context: int) -> dict[str, SettingValue]:
    """ "cuda.matmul" and the like to "tf32" and the like, as PyTorch uses them.

    Raises LayoutError, BadData, MemoryFault.
    ``context`` is the address of the at::Context.
    """
    own = own_precisions(memory, layout, context)
    return {f"{backend}.{operation}": _used(own, backend, operation) for backend, operation in sorted(own)}


def own_precisions(memory: Memory, layout: Layout, context: int) -> dict[tuple[str, str], str]:
    """(backend, operation) to what was set for it alone: "none" and "default" where nobody has. Raises as above."""
    table = context + Context.fp32_precision.field(layout).offset
    if "at::Float32Backend" in layout.absent:
        return _texts(memory, layout, table)
    names = [_names(layout, f"at::Float32{kind}") for kind in ("Backend", "Op", "Precision")]
    places = [member.field(layout) for member in PrecisionEntry.members()]
    size = PrecisionEntry.shape(layout).size
    entries = hash_entries(memory, table, hash_table(layout), -(-size // 8), _LIMIT)
    found = {}
    for words in entries:
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        numbers = [int.from_bytes(raw[at.offset : at.offset + at.size], "little") for at in places]
        backend, operation, precision = (_name(*pair) for pair in zip(names, numbers))
        found[backend, operation] = precision
    if not found or len(found) != len(entries):
        raise BadData(f"the table of float32 precisions has {len(found)} keys in {len(entries)} entries")
    return found


def _texts(memory: Memory, layout: Layout, table: int) -> dict[tuple[str, str], str]:
    """The same of 2.9, from its map at ``table``. Raises as above."""
    strings = string_reader(memory, layout)
    found = {}
    for backend in tree_nodes(memory, table, _LIMIT):
        value = backend + _LINKS + strings.size
        for operation in tree_nodes(memory, value, _LIMIT):
            key = strings.read(backend + _LINKS), strings.read(operation + _LINKS)
            found[key] = strings.read(operation + _LINKS + strings.size)
    if {".".join(key) for key in found} != UNSET.keys() or not set(found.values()) <= _TEXTS:
        raise BadData(f"the map of float32 precisions at {table:#x} has other entries than 2.9's")
    return found


def _used(own: Mapping[tuple[str, str], str], backend: str, operation: str) -> str:
    value = own[backend, operation]
    has_default = value == _DEFAULT
    for key in ((backend, _ALL), (_GENERIC, _ALL)):
        if value in (_NONE, _DEFAULT):
            value = own.get(key, _NONE)
    if value == _NONE and has_default:
        return _TF32
    return _NONE if backend == _CUDA and value == _BF16 else value


def _names(layout: Layout, enumeration: str) -> dict[int, str]:
    return {value: name.lower() for name, value in layout.enum(enumeration).items()}


def _name(names: Mapping[int, str], number: int) -> str:
    if number not in names:
        raise BadData(f"a float32 precision has the number {number}, which has no name")
    return names[number]


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

    def value(self, name: str) -> SettingValue:
        """The value of one setting, which every release has; None where it cannot be read."""
        return next(self._setting(source) for source in SETTINGS if source.name == name).value

    def _has(self, source: SettingSource) -> bool:
        """False for a member that the layout proves to be missing."""
        return source.member is None or not self._is_missing(source.member)

    def _is_missing(self, member: Member[int]) -> bool:
        layout = self._layout
        return layout is not None and layout.has_struct(member.owner) and not member.is_in(layout)

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
        """Offset in the CPU's generator from which its accessor loads the seed; None where it does anything else."""
        address = self._symbolizer.address_of(sources.SEED_ACCESSOR, CPU)
        code = self._memory.read(address, _ACCESSOR_SIZE) if address else b""
        load = self._memory.architecture.loaded_member(code)
        return load.offset if load else None

    def exists(self, owner: StaticOwner) -> bool:
        """The function that makes the object was called. Raises BadData, MemoryFault."""
        return self._memory.u8(self._address(owner.guard, owner.library)) == 1

    def object(self, owner: StaticOwner) -> int:
        """The address of the object, 0 for a pointer to none. Raises BadData where it is not made yet, MemoryFault."""
        if not self.exists(owner):
            raise BadData(f"{owner.made_by} was not used yet: the default holds")
        address = self._address(owner.variable, owner.library)
        return self._memory.u64(address) if owner.is_pointer else address

    def _address(self, symbol: str, library: str) -> int:
        """Address of a symbol. Raises BadData."""
        address = self._symbolizer.address_of(symbol, library)
        if not address:
            raise BadData(f"{symbol} is not found in {library}")
        return address

    def _need_layout(self) -> Layout:
        if not self._layout:
            raise BadData("there is no layout of this build")
        return self._layout

    def _dtype(self, number: int) -> str:
        names: Sequence[tuple[str, int]] = self._layout.dispatch("scalar_types") if self._layout else ()
        if number >= len(names):
            raise BadData(f"dtype {number} has no name here")
        return f"torch.{python_name(names[number][0])}"

    def _name(self, source: SettingSource, number: int, size: int) -> SettingValue:
        """The name that Python has for the enumerator; before there was an enumeration, a flag."""
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
        threads = pool + ThreadPool.threads_.field(self._need_layout()).offset
        _first, count = vector_span(self._memory, threads, _THREAD_SIZE, _POOL_LIMIT)
        if not count:
            raise BadData("its pool is in use and has no threads")
        return count

    def _precisions(self) -> Iterator[Setting]:
        """The precisions that float32 operations may compute with, which at::Context has since 2.9."""
        if self._is_missing(Context.fp32_precision):
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
