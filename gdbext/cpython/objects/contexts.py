"""Values of context variables in a thread, and attributes that extension classes keep in C structures.

Context variables (contextvars.ContextVar) are in a tree. Layouts: Include/internal/pycore_context.h, pycore_hamt.h,
Python/hamt.c, the same in 3.8 to 3.13. A node of the tree has pairs: a key with its value, or no key and a node below.

Members of extension classes are read by the class's own description. PyMemberDescrObject
(Include/cpython/descrobject.h): three pointers behind the head of an object, then the PyMemberDef, whose ``name`` comes
first and whose ``offset`` is the third word (Include/structmember.h); the same from 3.8 to 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.objects.objects import DictReader, ObjectReader
from gdbext.errors import BadData

_DESCRIPTOR = "member_descriptor"
_POINTERS = 3
_WORD = 8
_OBJECT_TYPES = (6, 16)
"""Types T_OBJECT and Py_T_OBJECT_EX (structmember.h)."""


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


_DEPTH = 8
"""The largest depth of a tree: _Py_HAMT_MAX_TREE_DEPTH."""
_CHILDREN = 32
"""HAMT_ARRAY_NODE_SIZE; a bitmap node has at most as many pairs."""
_LIMIT = 100_000
_BITMAP, _ARRAY, _COLLISION = "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node"


class ContextReader:
    """Reads the variables of contexts."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._offset = objects.layout.offset

    def of_thread(self, state: int) -> dict[int, int]:
        """ContextVar to value, both as addresses, in the current context of a PyThreadState; empty as long as the
        thread has none. Raises MemoryFault, BadData."""
        context = self._memory.u64(state + self._offset("PyThreadState", "context"))
        return self.variables(context) if context else {}

    def variables(self, context: int) -> dict[int, int]:
        """The same of a PyContext. Raises MemoryFault, BadData."""
        if self._kind(context) != "Context":
            raise BadData(f"no context at {context:#x}")
        tree = self._memory.u64(context + self._offset("PyContext", "ctx_vars"))
        root = self._memory.u64(tree + self._offset("PyHamtObject", "h_root"))
        count = self._memory.u64(tree + self._offset("PyHamtObject", "h_count"))
        if count > _LIMIT:
            raise BadData(f"context at {context:#x} with {count} variables")
        found = dict(self._pairs(root, _DEPTH))
        if len(found) != count:
            raise BadData(f"context at {context:#x} with {len(found)} of {count} variables")
        return found

    def _kind(self, address: int) -> str:
        return self._objects.type_of(address).name.rpartition(".")[2]

    def _pairs(self, node: int, depth: int) -> Iterator[tuple[int, int]]:
        if not depth:
            raise BadData(f"the tree of a context is too deep at {node:#x}")
        kind = self._kind(node)
        if kind == _ARRAY:
            for child in self._memory.words(node + self._offset("PyHamtNode_Array", "a_array"), _CHILDREN):
                yield from self._pairs(child, depth - 1) if child else ()
            return
        if kind not in (_BITMAP, _COLLISION):
            raise BadData(f"a {kind} is no node of a context")
        words = self._words(node, "PyHamtNode_Bitmap" if kind == _BITMAP else "PyHamtNode_Collision")
        for key, value in zip(words[::2], words[1::2]):
            yield from ((key, value),) if key else self._pairs(value, depth - 1)

    def _words(self, node: int, struct: str) -> tuple[int, ...]:
        count = self._memory.u64(node + self._offset("PyVarObject", "ob_size"))
        if count > 2 * _CHILDREN:
            raise BadData(f"node of a context at {node:#x} of {count} words")
        member = "b_array" if struct == "PyHamtNode_Bitmap" else "c_array"
        return self._memory.words(node + self._offset(struct, member), count)
