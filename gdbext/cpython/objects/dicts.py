"""Dicts and instance attributes: combined and split tables, managed dicts and inline values.

Layouts: Objects/dict-common.h (3.8-3.10), Include/internal/pycore_dict.h (3.11 and later),
Include/internal/pycore_object.h (where a managed dict or the values of an instance are).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from gdbext.cpython.abi.python_abi import DictKeysForm, InstanceDict
from gdbext.cpython.objects.objects import FLAG_INLINE_VALUES, FLAG_MANAGED_DICT, ITEM_LIMIT, ObjectReader, TypeInfo
from gdbext.errors import BadData, GdbextError

_POINTER = 8  # bytes
_BASES = 1000
_MAX_LOG2 = 40  # more than 2**40 slots is not a dict
_KIND_GENERAL = 0  # dk_kind: DICT_KEYS_GENERAL; the others (UNICODE, SPLIT) have entries without a hash
_MANAGED_DICT = -3 * _POINTER  # MANAGED_DICT_OFFSET of a build with the GIL (pycore_object.h)
_MANAGED_DICT_FREE_THREADED = -1 * _POINTER  # the same without the GIL: there is no PyGC_Head in between
_MANAGED_VALUES = -4 * _POINTER  # _PyObject_ValuesPointer of 3.11

Item = tuple[int, int]
"""Addresses of a key and its value."""


class DictReader:
    """Walks dicts. Iteration order is that of the entries, which is the order of insertion."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._layout = objects.layout
        self._keys_form = objects.layout.abi.dict_keys
        self._instance_dict = objects.layout.abi.instance_dict
        self._managed_at = _MANAGED_DICT_FREE_THREADED if objects.layout.abi.free_threaded else _MANAGED_DICT

    def items(self, address: int, limit: int = ITEM_LIMIT) -> Iterator[Item]:
        """(key, value) addresses of the dict at ``address``, at most ``limit``. Raises MemoryFault, BadData."""
        if not self._objects.is_dict(address):
            raise BadData(f"no dict at {address:#x}")
        offset = self._layout.offset
        keys = self._memory.u64(address + offset("PyDictObject", "ma_keys"))
        values = self._memory.u64(address + offset("PyDictObject", "ma_values"))
        if values:
            return islice(self._split_items(keys, self._values_start(values)), limit)
        return islice(((key, value) for key, value in self._entries(keys) if key and value), limit)

    def get(self, address: int, key: str) -> int | None:
        """The value under a str key, None if there is none. Raises MemoryFault, BadData."""
        equals = self._objects.text_equals
        return next((value for name, value in self.items(address) if equals(name, key)), None)

    def class_attribute(self, kind: int, name: str) -> int | None:
        """An attribute of the class itself, not of its bases. Raises MemoryFault, BadData."""
        namespace = self._memory.u64(kind + self._layout.offset("PyTypeObject", "tp_dict"))
        return self.get(namespace, name) if namespace else None  # 0: a static built-in type of 3.12

    def inherited_attribute(self, kind: int, name: str) -> int | None:
        """An attribute of a class or of its bases, by the method resolution order. Raises MemoryFault, BadData."""
        mro = self._memory.u64(kind + self._layout.offset("PyTypeObject", "tp_mro"))
        bases = self._objects.tuple_items(mro, _BASES) if mro else (kind,)
        found = (self.class_attribute(base, name) for base in bases)
        return next((each for each in found if each is not None), None)

    def _values_start(self, values: int) -> int:
        """Address of the first value: a PyObject*[] (3.8-3.10) or inside a PyDictValues."""
        return values + (self._layout.find("PyDictValues", "values") or 0)

    def _split_items(self, keys: int, values: int) -> Iterator[Item]:
        """Keys of a shared table with an instance's own values; slots that are not set are left out."""
        names = [key for key, _ in self._entries(keys)]
        found = self._memory.words(values, len(names)) if names else ()
        return ((key, value) for key, value in zip(names, found) if key and value)

    def _entries(self, keys: int) -> Iterator[Item]:
        """All used entries of a PyDictKeysObject, deleted ones (value NULL) included."""
        offset = self._layout.offset
        count = self._memory.u64(keys + offset("PyDictKeysObject", "dk_nentries"))
        if count > ITEM_LIMIT:
            raise BadData(f"dict keys at {keys:#x} with {count} entries")
        start, general = self._entry_table(keys)
        if general:
            size = self._layout.size("PyDictKeyEntry")
            raw = self._memory.read(start, size * count)
            return ((key, value) for _, key, value in struct.iter_unpack("<QQQ", raw))
        raw = self._memory.read(start, 2 * _POINTER * count)
        return ((key, value) for key, value in struct.iter_unpack("<QQ", raw))

    def _entry_table(self, keys: int) -> tuple[int, bool]:
        """Where the entries start, and whether they carry a hash (PyDictKeyEntry)."""
        offset = self._layout.offset
        indices = keys + offset("PyDictKeysObject", "dk_indices")
        if self._keys_form is DictKeysForm.LOG2_SIZES:
            log2 = self._memory.u8(keys + offset("PyDictKeysObject", "dk_log2_index_bytes"))
            kind = self._memory.u8(keys + offset("PyDictKeysObject", "dk_kind"))
            if log2 > _MAX_LOG2:
                raise BadData(f"dict keys at {keys:#x} with 2**{log2} bytes of indices")
            return indices + (1 << log2), kind == _KIND_GENERAL
        size = self._memory.u64(keys + offset("PyDictKeysObject", "dk_size"))
        if size > 1 << _MAX_LOG2:
            raise BadData(f"dict keys at {keys:#x} of size {size}")
        width = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4 if size <= 0xFFFFFFFF else 8
        return indices + size * width, True

    def attribute(self, address: int, name: str) -> int | None:
        """An instance's own attribute (not of its class), None if it has none or it cannot be read."""
        try:
            equals = self._objects.text_equals
            return next((value for key, value in self.attributes(address) if equals(key, name)), None)
        except GdbextError:
            return None

    def attributes(self, address: int) -> Iterator[Item]:
        """(name, value) of an instance's __dict__ without creating it. Raises MemoryFault, BadData."""
        info = self._objects.type_of(address)
        if self._instance_dict is not InstanceDict.DICT_OFFSET and info.flags & FLAG_MANAGED_DICT:
            return self._managed(address, info)
        if info.dict_offset <= 0:  # none, or counted from the end of a variable-sized object (a subclass of int)
            return iter(())
        found = self._memory.u64(address + info.dict_offset)
        return self.items(found) if found else iter(())

    def _managed(self, address: int, info: TypeInfo) -> Iterator[Item]:
        found = self._memory.u64(address + self._managed_at)
        if self._instance_dict is InstanceDict.VALUES_POINTER:
            values = self._memory.u64(address + _MANAGED_VALUES)
            if values:
                return self._inline(info, values)
        elif self._instance_dict is InstanceDict.TAGGED_POINTER:
            if found & 1:  # PyDictOrValues: values are tagged by being one byte short
                return self._inline(info, found + 1)
        elif not found and info.flags & FLAG_INLINE_VALUES:
            values = address + info.size  # _PyObject_InlineValues, pycore_object.h
            valid = self._memory.u8(values + self._layout.offset("PyDictValues", "valid"))
            return self._inline(info, values) if valid else iter(())
        return self.items(found) if found else iter(())

    def _inline(self, info: TypeInfo, values: int) -> Iterator[Item]:
        keys = self._memory.u64(info.address + self._layout.offset("PyHeapTypeObject", "ht_cached_keys"))
        return self._split_items(keys, self._values_start(values)) if keys else iter(())
