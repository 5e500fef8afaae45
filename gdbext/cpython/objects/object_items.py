"""Items of sets, deques and ``queue.SimpleQueue``, values of context variables, and attributes in C structures.

Context variables (contextvars.ContextVar) are in a hash array mapped trie (HAMT): Include/internal/pycore_context.h,
pycore_hamt.h, Python/hamt.c, the same in 3.8 to 3.13. A node of it has pairs: a key with its value, or no key and a
node below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import python_structures as py
from gdbext.errors import BadData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.cpython.objects import DictReader, ObjectReader
    from gdbext.cpython.objects.py_space import PySpace


_LIMIT = 100_000
_ENTRY = 16  # sizeof(setentry): key and hash (Include/cpython/setobject.h)


def set_items(runtime: PySpace, address: int) -> list[int]:
    """Addresses of a set's items, and of CPython's dummy object for deleted ones. Raises MemoryFault, BadData."""
    if runtime.objects.type_of(address).name not in ("set", "frozenset"):
        raise BadData(f"no set at {address:#x}")
    table = py.PySetObject(runtime.space, address)
    count = table.mask + 1
    if count > _LIMIT:
        raise BadData(f"set at {address:#x} with {count} entries")
    words = runtime.memory.words(table.table, count * _ENTRY // 8)
    return [key for key in words[::2] if key]


def deque_items(runtime: PySpace, address: int, limit: int = 256) -> tuple[int, list[int]]:
    """The number of items of a deque, and the addresses of the first ``limit`` of them. Raises MemoryFault, BadData."""
    if runtime.objects.type_of(address).name != "collections.deque":
        raise BadData(f"no deque at {address:#x}")
    deque = py.DequeObject(runtime.space, address)
    size, block, index = deque.ob_size, deque.leftblock, deque.leftindex
    if size > 1 << 40 or index >= py.DequeBlock.LENGTH:
        raise BadData(f"no deque at {address:#x}")
    items: list[int] = []
    while len(items) < min(size, limit):
        take = min(py.DequeBlock.LENGTH - index, size - len(items))
        items += runtime.memory.words(block.data + 8 * index, take)
        block, index = block.rightlink, 0
    return size, items[:limit]


_QUEUE_LIMIT = 10_000
QUEUE_TYPE = "_queue.SimpleQueue"


def queued(runtime: PySpace, address: int) -> tuple[int, ...]:
    """Addresses of the items of a queue.SimpleQueue (Modules/_queuemodule.c), the next one first: a list and a position
    in it up to 3.12, then a ring of pointers. Raises MemoryFault; BadData for any other object."""
    if runtime.objects.type_of(address).name != QUEUE_TYPE:
        raise BadData(f"no SimpleQueue at {address:#x}")
    (form,) = runtime.layout.abi.lock_types_named(QUEUE_TYPE)
    if form.struct is not py.ParkingQueueObject:
        queue = py.SimpleQueueObject(runtime.space, address)
        return runtime.objects.list_items(queue.lst, _QUEUE_LIMIT)[queue.lst_pos :]
    ring = py.ParkingQueueObject(runtime.space, address)
    first, capacity, count = ring.get_idx, ring.items_cap, ring.num_items
    if not first < capacity <= _QUEUE_LIMIT or count > capacity:
        raise BadData(f"SimpleQueue at {address:#x} with {count} items")
    words = runtime.memory.words(ring.items, capacity)
    return (words * 2)[first : first + count]


_OBJECT_TYPES = (6, 16)  # types T_OBJECT and Py_T_OBJECT_EX (structmember.h)


def c_member(objects: ObjectReader, dicts: DictReader, address: int, name: str) -> int:
    """Address of the object in the member ``name`` of an extension class's instance, by the PyMemberDef of the class,
    whose words are name, type and offset (Include/structmember.h); 0 for none. Raises BadData, MemoryFault."""
    memory = objects.memory
    descriptor = dicts.inherited_attribute(objects.type_of(address).address, name)
    if not descriptor or objects.type_of(descriptor).name != "member_descriptor":
        return 0
    definition = py.PyMemberDescrObject(objects.space, descriptor).d_member
    text, kind, offset = memory.words(definition, 3)
    if memory.cstring(text, 256) != name.encode() or kind & 0xFFFFFFFF not in _OBJECT_TYPES:
        raise BadData(f"the member {name} at {descriptor:#x} is not an object")
    if not 0 < offset < objects.type_of(address).size:
        raise BadData(f"the member {name} at {descriptor:#x} is outside its object")
    return memory.u64(address + offset)


_MAX_TREE_DEPTH = 8  # _Py_HAMT_MAX_TREE_DEPTH
_CHILDREN = 32  # HAMT_ARRAY_NODE_SIZE; a bitmap node has at most as many pairs
_BITMAP, _ARRAY, _COLLISION = "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node"


def context_variables(runtime: PySpace, state: int) -> dict[int, int]:
    """ContextVar → value (addresses) in a PyThreadState's context; {} without one. Raises MemoryFault, BadData."""
    context = py.PyThreadState(runtime.space, state).context
    if not context:
        return {}
    if _class_name(runtime, context) != "Context":
        raise BadData(f"no context at {context:#x}")
    tree = py.PyContext(runtime.space, context).ctx_vars
    root, count = tree.h_root, tree.h_count
    variables = dict(_tree_pairs(runtime, root, _MAX_TREE_DEPTH)) if count <= _LIMIT else {}
    if len(variables) != count:
        raise BadData(f"the context at {context:#x} has {count} variables, but {len(variables)} can be read")
    return variables


def _class_name(runtime: PySpace, address: int) -> str:
    """The name of an object's class without its module."""
    return runtime.objects.type_of(address).name.rpartition(".")[2]


def _tree_pairs(runtime: PySpace, node: int, depth: int) -> Iterator[tuple[int, int]]:
    """(ContextVar, value), two addresses, of a HAMT node and of at most ``depth`` layers of nodes below it."""
    if not depth:
        raise BadData(f"the HAMT of a context is too deep at {node:#x}")
    kind = _class_name(runtime, node)
    if kind == _ARRAY:
        for child in runtime.memory.words(py.PyHamtNodeArray(runtime.space, node).a_array, _CHILDREN):
            yield from _tree_pairs(runtime, child, depth - 1) if child else ()
        return
    if kind not in (_BITMAP, _COLLISION):
        raise BadData(f"a {kind} is not a node of a context's HAMT")
    head = py.PyVarObject(runtime.space, node)
    count = head.ob_size
    if count > 2 * _CHILDREN:
        raise BadData(f"the HAMT node at {node:#x} has {count} words")
    array = py.PyHamtNodeBitmap.b_array if kind == _BITMAP else py.PyHamtNodeCollision.c_array
    words = runtime.memory.words(head.value(array), count)
    for key, value in zip(words[::2], words[1::2]):
        yield from ((key, value),) if key else _tree_pairs(runtime, value, depth - 1)
