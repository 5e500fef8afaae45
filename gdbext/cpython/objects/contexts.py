"""What context variables (contextvars.ContextVar) are set to in a thread: the tree behind its current context.

Layouts: Include/internal/pycore_context.h, pycore_hamt.h, Python/hamt.c, the same in 3.8 to 3.13. A node of the tree
has pairs: a key with its value, or no key and a node below.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.objects.objects import ObjectReader
from gdbext.errors import BadData

_DEPTH = 8
"""_Py_HAMT_MAX_TREE_DEPTH."""
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
