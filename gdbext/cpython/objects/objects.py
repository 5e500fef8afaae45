"""Python objects in the target's memory: strings, numbers, containers, types. Everything is bounded.

Layouts: Include/cpython/unicodeobject.h, longintrepr.h, tupleobject.h, listobject.h, bytesobject.h, object.h.
Readers raise MemoryFault (the object is not there) or BadData (it cannot be what it should be).
"""

from __future__ import annotations

import struct

from gdbext.cpython.abi.python_abi import IntegerForm
from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.errors import BadData, GdbextError
from gdbext.model.record import Record
from gdbext.process.memory import Memory

TEXT_LIMIT = 64 * 1024
"""Longest str that is read whole, in characters; a source path or a name is shorter."""
ITEM_LIMIT = 100_000
"""Most items of a tuple, list or dict."""
DIGIT_LIMIT = 64
"""Most digits (30 bits each) of an int."""
NAME_LIMIT = 512
"""Longest tp_name."""

# Py_TPFLAGS_*_SUBCLASS and others (Include/object.h), the same in every version that has them.
FLAG_INLINE_VALUES = 1 << 2
FLAG_MANAGED_DICT = 1 << 4
FLAG_HEAP_TYPE = 1 << 9
FLAG_LONG = 1 << 24
FLAG_LIST = 1 << 25
FLAG_TUPLE = 1 << 26
FLAG_BYTES = 1 << 27
FLAG_UNICODE = 1 << 28
FLAG_DICT = 1 << 29
FLAG_TYPE = 1 << 31

_DIGIT_BITS = 30  # PyLong_SHIFT of every 64-bit build
_KIND, _COMPACT, _ASCII = 7, 1 << 3, 1 << 4
"""PyASCIIObject.state from ``kind`` on: three bits of it, then ``compact`` and ``ascii``."""
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class TypeInfo(Record):
    """What is used of a PyTypeObject: ``name`` is tp_name; ``size`` (tp_basicsize) and ``dict_offset`` are bytes."""

    address: int
    name: str
    flags: int
    size: int
    dict_offset: int


class ObjectReader:
    """Readers for the built-in types of one Python."""

    def __init__(self, memory: Memory, layout: PythonLayout) -> None:
        self.memory = memory
        self.layout = layout
        self._types: dict[int, TypeInfo] = {}
        self._type_of = layout.offset("PyObject", "ob_type")
        self._length = layout.offset("PyASCIIObject", "length")
        self._state = layout.offset("PyASCIIObject", "state")
        self._kind_bit = layout.abi.kind_bit
        self._ascii_data = layout.size("PyASCIIObject")
        self._compact_data = layout.size("PyCompactUnicodeObject")
        self._any_data = layout.offset("PyUnicodeObject", "data")
        self._ob_size = layout.offset("PyVarObject", "ob_size")
        self._tuple_items = layout.offset("PyTupleObject", "ob_item")
        self._list_items = layout.offset("PyListObject", "ob_item")
        self._bytes_data = layout.offset("PyBytesObject", "ob_sval")

    def type_of(self, address: int) -> TypeInfo:
        """The type of the object at ``address``. Raises MemoryFault, BadData."""
        return self.type_info(self.memory.u64(address + self._type_of))

    def type_info(self, address: int) -> TypeInfo:
        """The PyTypeObject at ``address``. Raises MemoryFault, BadData."""
        known = self._types.get(address)
        if known is None:
            known = self._types[address] = self._read_type(address)
        return known

    def _read_type(self, address: int) -> TypeInfo:
        offset = self.layout.offset
        memory = self.memory
        name = memory.cstring(memory.u64(address + offset("PyTypeObject", "tp_name")), NAME_LIMIT)
        if not name:
            raise BadData(f"no type at {address:#x}: its name is empty")
        return TypeInfo(
            address,
            name.decode("utf-8", "replace"),
            memory.u64(address + offset("PyTypeObject", "tp_flags")),
            memory.u64(address + offset("PyTypeObject", "tp_basicsize")),
            memory.i64(address + offset("PyTypeObject", "tp_dictoffset")),
        )

    def has_flag(self, address: int, flag: int) -> bool:
        """Whether the object's type has that tp_flags bit; False where it cannot be read."""
        try:
            return bool(self.type_of(address).flags & flag)
        except GdbextError:
            return False

    def is_dict(self, address: int) -> bool:
        """Whether this is a dict or of a subclass of it."""
        return self.has_flag(address, FLAG_DICT)

    def text(self, address: int, limit: int = TEXT_LIMIT) -> str:
        """A str, cut after ``limit`` characters. Raises MemoryFault, BadData for anything but a str."""
        if not self.type_of(address).flags & FLAG_UNICODE:
            raise BadData(f"no str at {address:#x}")
        head = self.memory.read(address, self._ascii_data)
        length = int.from_bytes(head[self._length : self._length + 8], "little")
        state = int.from_bytes(head[self._state : self._state + 2], "little") >> self._kind_bit
        if length > 1 << 40:
            raise BadData(f"str at {address:#x} of {length} characters")
        length = min(length, limit)
        if state & _COMPACT and state & _ASCII:
            return self.memory.read(address + self._ascii_data, length).decode("ascii", "replace")
        kind = state & _KIND
        codec = _CODECS.get(kind)
        if codec is None:
            raise BadData(f"str at {address:#x} of unknown kind {kind}")
        data = address + self._compact_data if state & _COMPACT else self.memory.u64(address + self._any_data)
        return self.memory.read(data, length * kind).decode(codec, "replace")

    def text_equals(self, address: int, text: str) -> bool:
        """Whether the str at ``address`` is ``text``; False for anything else, also for what cannot be read."""
        try:
            return self.memory.u64(address + self._length) == len(text) and self.text(address, len(text)) == text
        except GdbextError:
            return False

    def bytes(self, address: int, limit: int = TEXT_LIMIT * 16) -> bytes:
        """A bytes object. Raises MemoryFault, BadData when it is none or longer than ``limit`` bytes."""
        if not self.type_of(address).flags & FLAG_BYTES:
            raise BadData(f"no bytes at {address:#x}")
        size = self.memory.u64(address + self._ob_size)
        if size > limit:
            raise BadData(f"bytes at {address:#x} of size {size}")
        return self.memory.read(address + self._bytes_data, size)

    def integer(self, address: int) -> int:
        """An int (also a bool). Raises MemoryFault, BadData."""
        if not self.type_of(address).flags & FLAG_LONG:
            raise BadData(f"no int at {address:#x}")
        sign, count, digits = self._digits(address)
        if count > DIGIT_LIMIT:
            raise BadData(f"int at {address:#x} of {count} digits")
        raw = struct.unpack(f"<{count}I", self.memory.read(digits, 4 * count))
        value = 0
        for place, digit in enumerate(raw):
            value |= int(digit) << (_DIGIT_BITS * place)
        return sign * value

    def number(self, address: int) -> float:
        """An int or a float (PyFloatObject, Include/cpython/floatobject.h). Raises MemoryFault, BadData."""
        if self.type_of(address).name != "float":
            return self.integer(address)
        raw = self.memory.read(address + self.layout.offset("PyFloatObject", "ob_fval"), 8)
        return float(struct.unpack("<d", raw)[0])

    def _digits(self, address: int) -> tuple[int, int, int]:
        """Sign, number of digits and their address."""
        offset = self.layout.offset
        if self.layout.abi.integers is IntegerForm.SIGNED_SIZE:
            size = self.memory.i64(address + self._ob_size)
            return (-1 if size < 0 else 1), abs(size), address + offset("PyLongObject", "ob_digit")
        tag = self.memory.u64(address + offset("PyLongObject", "long_value.lv_tag"))
        sign = (1, 0, -1)[min(tag & 3, 2)]
        return sign, tag >> 3, address + offset("PyLongObject", "long_value.ob_digit")

    def tuple_items(self, address: int, limit: int = ITEM_LIMIT) -> tuple[int, ...]:
        """Addresses of a tuple's items. Raises MemoryFault, BadData when it is none or longer than ``limit``."""
        if not self.type_of(address).flags & FLAG_TUPLE:
            raise BadData(f"no tuple at {address:#x}")
        return self.memory.words(address + self._tuple_items, self._count(address, limit))

    def list_items(self, address: int, limit: int = ITEM_LIMIT) -> tuple[int, ...]:
        """Addresses of a list's items. Raises MemoryFault, BadData when it is none or longer than ``limit``."""
        if not self.type_of(address).flags & FLAG_LIST:
            raise BadData(f"no list at {address:#x}")
        count = self._count(address, limit)
        return self.memory.words(self.memory.u64(address + self._list_items), count) if count else ()

    def _count(self, address: int, limit: int) -> int:
        count = self.memory.u64(address + self._ob_size)
        if count > limit:
            raise BadData(f"container at {address:#x} of {count} items")
        return count
