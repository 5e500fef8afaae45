"""Python objects in memory: strings, numbers, containers, types, instance attributes. All reads are bounded.
Readers raise MemoryFault (unmapped memory) or BadData (another type of object, or an implausible one).

Dicts and instance attributes have several forms: combined and split tables (Objects/dict-common.h of 3.8 to 3.10,
Include/internal/pycore_dict.h), managed dicts and inline values (pycore_object.h), and ``__slots__``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice, tee
from typing import NamedTuple

from gdbext.cpython.abi import DictKeysForm, InstanceDict, IntegerForm
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.python_layout import PythonLayout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError

TEXT_LIMIT = 64 * 1024  # longest str that is read whole, in characters; a source path or a name is shorter
ITEM_LIMIT = 100_000  # most items of a tuple, list or dict
DIGIT_LIMIT = 64  # most digits (30 bits each) of an int
NAME_LIMIT = 512  # most characters of a tp_name, and of the name of a variable

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
FLAG_EXCEPTION = 1 << 30
FLAG_TYPE = 1 << 31

_DIGIT_BITS = 30  # PyLong_SHIFT of every 64-bit build
_KIND, _COMPACT, _ASCII = 7, 1 << 3, 1 << 4
"""PyASCIIObject.state from ``kind`` on: three bits of it, then ``compact`` and ``ascii``."""
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class TypeInfo(NamedTuple):
    """The fields of a PyTypeObject that are used: ``name`` is tp_name; ``size`` (tp_basicsize) and ``dict_offset`` are
    bytes."""

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
        self.space = space = Space(memory, layout)
        self._types: dict[int, TypeInfo] = {}  # by the address of the type
        self._names: dict[int, str] = {}  # by the address of the str
        self._type_of = py.PyObject.ob_type.offset(space)
        self._length = py.PyASCIIObject.length.offset(space)
        self._state = py.PyASCIIObject.state.offset(space)
        self._kind_bit = layout.abi.kind_bit
        self._ascii_data = layout.size(py.PyASCIIObject)
        self._compact_data = layout.size(py.PyCompactUnicodeObject)
        self._any_data = py.PyUnicodeObject.data.offset(space)
        self._ob_size = py.PyVarObject.ob_size.offset(space)
        self._tuple_items = py.PyTupleObject.ob_item.offset(space)
        self._list_items = py.PyListObject.ob_item.offset(space)
        self._bytes_data = py.PyBytesObject.ob_sval.offset(space)

    def type_of(self, address: int) -> TypeInfo:
        """The type of the object at ``address``. Raises MemoryFault, BadData."""
        return self.type_info(self.memory.u64(address + self._type_of))

    def type_info(self, address: int) -> TypeInfo:
        """The PyTypeObject at ``address``, read once. Raises MemoryFault, BadData."""
        if address not in self._types:
            kind = py.PyTypeObject(self.space, address)
            name = self.memory.cstring(kind.tp_name, NAME_LIMIT).decode("utf-8", "replace")
            if not name:
                raise BadData(f"no type at {address:#x}: its name is empty")
            self._types[address] = TypeInfo(address, name, kind.tp_flags, kind.tp_basicsize, kind.tp_dictoffset)
        return self._types[address]

    def has_flag(self, address: int, flag: int) -> bool:
        """True if the object's type has the tp_flags bit ``flag``; False if it cannot be read."""
        try:
            return bool(self.type_of(address).flags & flag)
        except GdbextError:
            return False

    def _check(self, address: int, flag: int, kind: str) -> None:
        """Raise BadData unless the type of the object has the tp_flags bit ``flag``, as a ``kind`` must."""
        if not self.type_of(address).flags & flag:
            raise BadData(f"no {kind} at {address:#x}")

    def text(self, address: int, limit: int = TEXT_LIMIT) -> str:
        """A str, cut after ``limit`` characters. Raises MemoryFault, BadData for anything but a str."""
        self._check(address, FLAG_UNICODE, "str")
        head = self.memory.read(address, self._ascii_data)
        length = int.from_bytes(head[self._length : self._length + 8], "little")
        state = int.from_bytes(head[self._state : self._state + 2], "little") >> self._kind_bit
        if length > 1 << 40:
            raise BadData(f"the str at {address:#x} has an implausible length: {length}")
        length = min(length, limit)
        if state & _COMPACT and state & _ASCII:
            return self.memory.read(address + self._ascii_data, length).decode("ascii", "replace")
        kind = state & _KIND
        codec = _CODECS.get(kind)
        if not codec:
            raise BadData(f"the str at {address:#x} has an unknown kind: {kind}")
        data = address + self._compact_data if state & _COMPACT else self.memory.u64(address + self._any_data)
        return self.memory.read(data, length * kind).decode(codec, "replace")

    def name(self, address: int) -> str:
        """The name of a variable or attribute, cut after 512 characters, read once. Raises MemoryFault, BadData."""
        try:
            return self._names[address]
        except KeyError:
            text = self._names[address] = self.text(address, NAME_LIMIT)
            return text

    def length(self, address: int) -> int:
        """The number of characters of the str at ``address``. Raises MemoryFault."""
        return self.memory.u64(address + self._length)

    def text_equals(self, address: int, text: str) -> bool:
        """True if the str at ``address`` is ``text``; False for any other object, and if it cannot be read."""
        try:
            return self.memory.u64(address + self._length) == len(text) and self.text(address, len(text)) == text
        except GdbextError:
            return False

    def bytes(self, address: int, limit: int = TEXT_LIMIT * 16) -> bytes:
        """A bytes object. Raises MemoryFault, BadData when it is none or longer than ``limit`` bytes."""
        self._check(address, FLAG_BYTES, "bytes")
        return self.memory.read(address + self._bytes_data, self._count(address, limit))

    def integer(self, address: int) -> int:
        """An int (also a bool). Raises MemoryFault, BadData."""
        self._check(address, FLAG_LONG, "int")
        number = py.PyLongObject(self.space, address)
        if self.layout.abi.integers is IntegerForm.SIGNED_SIZE:
            size = self.memory.i64(address + self._ob_size)
            sign, count, digits = (-1 if size < 0 else 1), abs(size), number.ob_digit
        else:
            tag = number.lv_tag
            sign, count, digits = (1, 0, -1)[min(tag & 3, 2)], tag >> 3, number.value_digit
        if count > DIGIT_LIMIT:
            raise BadData(f"the int at {address:#x} has {count} digits")
        return sign * sum(self.memory.u32(digits + 4 * index) << (_DIGIT_BITS * index) for index in range(count))

    def number(self, address: int) -> float:
        """An int or a float (PyFloatObject, Include/cpython/floatobject.h). Raises MemoryFault, BadData."""
        if self.type_of(address).name != "float":
            return self.integer(address)
        return py.PyFloatObject(self.space, address).ob_fval

    def tuple_items(self, address: int, limit: int = ITEM_LIMIT, most: int = ITEM_LIMIT) -> tuple[int, ...]:
        """Addresses of a tuple's first ``most`` items. Raises MemoryFault, BadData (none, or longer than ``limit``)."""
        self._check(address, FLAG_TUPLE, "tuple")
        return self.memory.words(address + self._tuple_items, min(self._count(address, limit), most))

    def list_items(self, address: int, limit: int = ITEM_LIMIT, most: int = ITEM_LIMIT) -> tuple[int, ...]:
        """Addresses of a list's first ``most`` items. Raises MemoryFault, BadData (no list, longer than ``limit``)."""
        self._check(address, FLAG_LIST, "list")
        count = min(self._count(address, limit), most)
        return self.memory.words(self.memory.u64(address + self._list_items), count) if count else ()

    def _count(self, address: int, limit: int) -> int:
        """The ob_size of a bytes object, tuple or list. Raises BadData if it is more than ``limit``."""
        count = self.memory.u64(address + self._ob_size)
        if count > limit:
            raise BadData(f"the object at {address:#x} has too many items: {count}")
        return count


_BASES = 64
_POINTER = 8
_GENERAL = struct.Struct("<QQQ")
"""PyDictKeyEntry: hash, key and value (Objects/dict-common.h, 3.8; Include/internal/pycore_dict.h, 3.11 to 3.15)."""


def base_classes(objects: ObjectReader, kind: int) -> Iterator[int]:
    """Addresses of the class at ``kind`` and of at most 63 base classes, by tp_base. Raises MemoryFault, BadData."""
    for _ in range(_BASES):
        if not kind:
            return
        yield kind
        kind = py.PyTypeObject(objects.space, kind).tp_base


def slot_attributes(objects: ObjectReader, address: int) -> Iterator[Item]:
    """(name, value), two addresses, of the ``__slots__`` of an instance that are set. They come after the members of
    the base class, in the order of ht_slots (type_new_descriptors, Objects/typeobject.c). Raises MemoryFault,
    BadData."""
    classes, bases = tee(base_classes(objects, objects.type_of(address).address))
    for kind, base in zip(classes, islice(bases, 1, None)):
        info = objects.type_info(kind)
        slots = py.PyHeapTypeObject(objects.space, kind).ht_slots if info.flags & FLAG_HEAP_TYPE else 0
        names = objects.tuple_items(slots) if slots else ()
        start = objects.type_info(base).size if names else 0
        if names and start + _POINTER * len(names) <= info.size:
            values = objects.memory.words(address + start, len(names))
            yield from ((name, value) for name, value in zip(names, values) if value)


_MAX_LOG2 = 40  # more than 2**40 slots is not a dict
_KIND_GENERAL = 0  # dk_kind: DICT_KEYS_GENERAL; the others (UNICODE, SPLIT) have entries without a hash
_MANAGED_DICT = -3 * _POINTER  # MANAGED_DICT_OFFSET of a build with the GIL (pycore_object.h)
_MANAGED_DICT_FREE_THREADED = -1 * _POINTER  # the same without the GIL: there is no PyGC_Head in between
_MANAGED_VALUES = -4 * _POINTER  # _PyObject_ValuesPointer of 3.11

Item = tuple[int, int]  # addresses of a key and its value


class DictReader:
    """Reads dicts and instance attributes, in the order of insertion."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._layout = objects.layout
        self._space = objects.space
        self._shared: dict[int, list[int]] = {}  # address of a table of keys that objects share → its names
        self._compared: dict[tuple[int, str], bool] = {}  # (address of a name, text) → whether they are equal
        self._keys_form = objects.layout.abi.dict_keys
        self._instance_dict = objects.layout.abi.instance_dict
        self._managed_at = _MANAGED_DICT_FREE_THREADED if objects.layout.abi.free_threaded else _MANAGED_DICT

    def items(self, address: int, limit: int = ITEM_LIMIT) -> Iterator[Item]:
        """(key, value) addresses of the dict at ``address``, at most ``limit``. Raises MemoryFault, BadData."""
        if not self._objects.has_flag(address, FLAG_DICT):
            raise BadData(f"no dict at {address:#x}")
        table = py.PyDictObject(self._space, address)
        keys, values = table.ma_keys, table.ma_values
        if values:
            return islice(self._split_items(keys, self._values_start(values)), limit)
        return islice(((key, value) for key, value in self._entries(keys) if key and value), limit)

    def get(self, address: int, key: str) -> int:
        """Address of the value under a str key of the dict at ``address``; 0 for none. Raises MemoryFault, BadData."""
        equals = self._objects.text_equals
        return next((value for name, value in self.items(address) if equals(name, key)), 0)

    def class_items(self, kind: int) -> Iterator[Item]:
        """(name, value), two addresses, of a class itself, not of its bases. Raises MemoryFault, BadData."""
        namespace = py.PyTypeObject(self._space, kind).tp_dict
        return self.items(namespace) if namespace else iter(())  # none: a static built-in type of 3.12

    def inherited_attribute(self, kind: int, name: str) -> int:
        """Address of an attribute of the class at ``kind`` or its bases, by the MRO; 0 for none. Raises MemoryFault,
        BadData."""
        mro = py.PyTypeObject(self._space, kind).tp_mro
        classes = self._objects.tuple_items(mro, 1000) if mro else (kind,)
        items = (item for base in classes for item in self.class_items(base))
        equals = self._objects.text_equals
        return next((value for key, value in items if equals(key, name)), 0)

    def _values_start(self, values: int) -> int:
        """Address of the first value: a PyObject*[] (3.8-3.10) or inside a PyDictValues."""
        return values + (self._layout.find(py.PyDictValues.values) or 0)

    def _split_items(self, keys: int, values: int) -> Iterator[Item]:
        """(name, value) addresses of an instance whose class has the table of names at ``keys`` and whose values are at
        ``values``; unset ones are omitted."""
        if keys not in self._shared:
            self._shared[keys] = [key for key, _ in self._entries(keys)]
        names = self._shared[keys]
        addresses = self._memory.words(values, len(names)) if names else ()
        return ((key, value) for key, value in zip(names, addresses) if key and value)

    def _entries(self, keys: int) -> Iterator[Item]:
        """(key, value), two addresses, of the entries of the PyDictKeysObject at ``keys``; the value is 0 for a deleted
        entry, and in a table that instances share. Raises MemoryFault, BadData."""
        table = py.PyDictKeysObject(self._space, keys)
        count = table.dk_nentries
        if count > ITEM_LIMIT:
            raise BadData(f"the dict keys at {keys:#x} have {count} entries")
        if self._keys_form is DictKeysForm.LOG2_SIZES:
            log2, has_hashes = table.dk_log2_index_bytes, table.dk_kind == _KIND_GENERAL
            if log2 > _MAX_LOG2:
                raise BadData(f"the dict keys at {keys:#x} have 2**{log2} bytes of indices")
            start = table.dk_indices + (1 << log2)
        else:
            size, has_hashes = table.dk_size, True
            if size > 1 << _MAX_LOG2:
                raise BadData(f"the dict keys at {keys:#x} have {size} slots")
            width = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4 if size <= 0xFFFFFFFF else 8
            start = table.dk_indices + size * width
        if not has_hashes:
            raw = self._memory.read(start, 2 * _POINTER * count)
            return ((key, value) for key, value in struct.iter_unpack("<QQ", raw))
        size = self._layout.size(py.PyDictKeyEntry)
        if size != _GENERAL.size:
            raise BadData(f"the entries of a dict have {size} bytes in this layout, not {_GENERAL.size}")
        raw = self._memory.read(start, size * count)
        return ((key, value) for _, key, value in _GENERAL.iter_unpack(raw))

    def attribute(self, address: int, name: str) -> int:
        """Address of an instance's own attribute (not of its class); 0 if it has none or it cannot be read."""
        try:
            return next((value for key, value in self.attributes(address) if self.is_called(key, name)), 0)
        except GdbextError:
            return 0

    def is_called(self, key: int, name: str) -> bool:
        """True if the str at ``key`` is ``name``; False for anything else, also if it cannot be read."""
        try:
            return self._compared[key, name]
        except KeyError:
            is_equal = self._compared[key, name] = self._objects.text_equals(key, name)
            return is_equal

    def attributes(self, address: int) -> Iterator[Item]:
        """(name, value), two addresses, of an instance's ``__dict__``, in any of its forms. Raises MemoryFault,
        BadData."""
        info = self._objects.type_of(address)
        if self._instance_dict is not InstanceDict.DICT_OFFSET and info.flags & FLAG_MANAGED_DICT:
            return self._managed_attributes(address, info)
        if info.dict_offset <= 0:  # none, or counted from the end of a variable-sized object (a subclass of int)
            return iter(())
        namespace = self._memory.u64(address + info.dict_offset)
        return self.items(namespace) if namespace else iter(())

    def _managed_attributes(self, address: int, info: TypeInfo) -> Iterator[Item]:
        """``attributes`` of an instance whose class has FLAG_MANAGED_DICT (3.11 and later): its pointer to a dict lies
        in front of the object, unless the values are stored without one."""
        pointer = self._memory.u64(address + self._managed_at)
        if self._instance_dict is InstanceDict.VALUES_POINTER:
            values = self._memory.u64(address + _MANAGED_VALUES)
            if values:
                return self._inline_values(info, values)
        elif self._instance_dict is InstanceDict.TAGGED_POINTER:
            if pointer & 1:  # PyDictOrValues: values are tagged by being one byte short
                return self._inline_values(info, pointer + 1)
        elif not pointer and info.flags & FLAG_INLINE_VALUES:
            values = address + info.size  # _PyObject_InlineValues, pycore_object.h
            valid = py.PyDictValues(self._space, values).valid
            return self._inline_values(info, values) if valid else iter(())
        return self.items(pointer) if pointer else iter(())

    def _inline_values(self, info: TypeInfo, values: int) -> Iterator[Item]:
        """The attributes in the PyDictValues at ``values``, by the names that the instance's class ``info`` keeps."""
        keys = py.PyHeapTypeObject(self._space, info.address).ht_cached_keys
        return self._split_items(keys, self._values_start(values)) if keys else iter(())
