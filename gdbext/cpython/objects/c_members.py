"""Attributes that a class of an extension module keeps in its C structure, by the class's own description of them.

PyMemberDescrObject (Include/cpython/descrobject.h): three pointers behind the head of an object, then the PyMemberDef,
whose ``name`` comes first and whose ``offset`` is the third word (Include/structmember.h); the same from 3.8 to 3.15.
"""

from __future__ import annotations

from gdbext.cpython.objects.dicts import DictReader
from gdbext.cpython.objects.objects import ObjectReader
from gdbext.errors import BadData

_DESCRIPTOR = "member_descriptor"
_POINTERS = 3
_WORD = 8
_OBJECT_TYPES = (6, 16)
"""T_OBJECT and Py_T_OBJECT_EX (structmember.h)."""


def c_member(objects: ObjectReader, dicts: DictReader, address: int, name: str) -> int:
    """The object that an instance keeps under that name; 0 for none. Raises BadData, MemoryFault."""
    memory = objects.memory
    descriptor = dicts.inherited_attribute(objects.type_of(address).address, name)
    if not descriptor or objects.type_of(descriptor).name != _DESCRIPTOR:
        return 0
    definition = memory.u64(descriptor + objects.layout.size("PyObject") + _POINTERS * _WORD)
    text, kind, offset = memory.words(definition, 3)
    if memory.cstring(text, 256) != name.encode() or kind & 0xFFFFFFFF not in _OBJECT_TYPES:
        raise BadData(f"the member {name} at {descriptor:#x} is not an object")
    if not 0 < offset < objects.type_of(address).size:
        raise BadData(f"the member {name} at {descriptor:#x} is outside of its object")
    return memory.u64(address + offset)
