"""Items of sets, deques and ``queue.SimpleQueue``, values of context variables, attributes in C structures, and all
objects that the garbage collector knows.

SimpleQueue: Modules/_queuemodule.c: a list and the position of the first item up to 3.12, a ring of pointers since
3.13.

Context variables (contextvars.ContextVar) are in a tree. Layouts: Include/internal/pycore_context.h, pycore_hamt.h,
Python/hamt.c, the same in 3.8 to 3.13. A node of the tree has pairs: a key with its value, or no key and a node below.

The collector's lists: PyGC_Head (Include/internal/pycore_gc.h: _gc_next, _gc_prev, in front of each object), struct
gc_generation, of 3.9 to 3.13. A build without the GIL has no such lists, and 3.14 others.

Members of extension classes are read by the class's own description. PyMemberDescrObject
(Include/cpython/descrobject.h): three pointers behind the head of an object, then the PyMemberDef, whose ``name`` comes
first and whose ``offset`` is the third word (Include/structmember.h); the same from 3.8 to 3.15.
"""

from __future__ import annotations

import struct

from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.python_structures import PyInterpreterState
from gdbext.cpython.abi.versions import unsupported
from gdbext.engine.record import Record
from gdbext.errors import BadData, GdbextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.cpython.objects import DictReader, ObjectReader
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.engine.layouts.declarations import Place


_LIMIT = 100_000
_ENTRY = 16
"""sizeof(setentry): key and hash (Include/cpython/setobject.h)."""


def set_items(runtime: PythonRuntime, address: int) -> list[int]:
    """Addresses of a set's items; those of deleted entries are among them, and are no objects of any use.

    Raises MemoryFault, BadData.
    """
    if runtime.objects.type_of(address).name not in ("set", "frozenset"):
        raise BadData(f"no set at {address:#x}")
    table = py.PySetObject(runtime.space, address)
    count = table.mask + 1
    if count > _LIMIT:
        raise BadData(f"set at {address:#x} with {count} entries")
    words = runtime.memory.words(table.table, count * _ENTRY // 8)
    return [key for key in words[::2] if key]


def deque_items(runtime: PythonRuntime, address: int, limit: int = 256) -> tuple[int, list[int]]:
    """The number of items of a deque, and the addresses of the first ``limit`` of them. Raises MemoryFault, BadData."""
    if runtime.objects.type_of(address).name != "collections.deque":
        raise BadData(f"no deque at {address:#x}")
    deque = py.DequeObject(runtime.space, address)
    size, block, index = deque.ob_size, deque.leftblock, deque.leftindex
    if size > 1 << 40 or index >= py.DequeBlock.LENGTH:
        raise BadData(f"no deque at {address:#x}")
    found: list[int] = []
    while len(found) < min(size, limit):
        take = min(py.DequeBlock.LENGTH - index, size - len(found))
        found += runtime.memory.words(block.data + 8 * index, take)
        block, index = block.rightlink, 0
    return size, found[:limit]


_QUEUE_LIMIT = 10_000
_TYPE = "_queue.SimpleQueue"


def queued(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    """Addresses of the queue's items, the next one first. Raises MemoryFault, BadData: there is no such queue."""
    if runtime.objects.type_of(address).name != _TYPE:
        raise BadData(f"no SimpleQueue at {address:#x}")
    (form,) = runtime.layout.abi.lock_types_named(_TYPE)
    if form.struct is py.ParkingQueueObject:
        return _in_ring(runtime, address)
    queue = py.SimpleQueueObject(runtime.space, address)
    return runtime.objects.list_items(queue.lst, _QUEUE_LIMIT)[queue.lst_pos :]


def _in_ring(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    ring = py.ParkingQueueObject(runtime.space, address)
    first, capacity, count = ring.get_idx, ring.items_cap, ring.num_items
    if not first < capacity <= _QUEUE_LIMIT or count > capacity:
        raise BadData(f"SimpleQueue at {address:#x} with {count} items")
    words = runtime.memory.words(ring.items, capacity)
    return (words * 2)[first : first + count]


_DESCRIPTOR = "member_descriptor"
_OBJECT_TYPES = (6, 16)
"""Types T_OBJECT and Py_T_OBJECT_EX (structmember.h)."""


def c_member(objects: ObjectReader, dicts: DictReader, address: int, name: str) -> int:
    """The object that an instance keeps under that name; 0 for none. Raises BadData, MemoryFault."""
    memory = objects.memory
    descriptor = dicts.inherited_attribute(objects.type_of(address).address, name)
    if not descriptor or objects.type_of(descriptor).name != _DESCRIPTOR:
        return 0
    definition = py.PyMemberDescrObject(objects.space, descriptor).d_member
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
_BITMAP, _ARRAY, _COLLISION = "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node"


class ContextReader:
    """Reads the variables of contexts."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._space = objects.space

    def of_thread(self, state: int) -> dict[int, int]:
        """ContextVar to value, both as addresses, in the current context of a PyThreadState; empty as long as the
        thread has none. Raises MemoryFault, BadData."""
        context = py.PyThreadState(self._space, state).context
        return self.variables(context) if context else {}

    def variables(self, context: int) -> dict[int, int]:
        """The same of a PyContext. Raises MemoryFault, BadData."""
        if self._kind(context) != "Context":
            raise BadData(f"no context at {context:#x}")
        tree = py.PyContext(self._space, context).ctx_vars
        root, count = tree.h_root, tree.h_count
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
            for child in self._memory.words(py.PyHamtNodeArray(self._space, node).a_array, _CHILDREN):
                yield from self._pairs(child, depth - 1) if child else ()
            return
        if kind not in (_BITMAP, _COLLISION):
            raise BadData(f"a {kind} is no node of a context")
        form = py.PyHamtNodeBitmap.b_array if kind == _BITMAP else py.PyHamtNodeCollision.c_array
        words = self._words(py.PyVarObject(self._space, node), form)
        for key, value in zip(words[::2], words[1::2]):
            yield from ((key, value),) if key else self._pairs(value, depth - 1)

    def _words(self, node: py.PyVarObject, words: Place) -> tuple[int, ...]:
        count = node.ob_size
        if count > 2 * _CHILDREN:
            raise BadData(f"node of a context at {node.address:#x} of {count} words")
        return self._memory.words(node.value(words), count)


_HEAD = 16
"""Size of a PyGC_Head in bytes."""
_POINTER = ~7
"""The collector keeps flags in the lowest bits of both pointers."""
_GENERATIONS = 3
_GENERATION = 24
"""Number and size of struct gc_generation: a head, threshold and count."""
_READ = struct.Struct("<2Q8xQ")
"""The head's pointers, and ob_type behind ob_refcnt."""


def collected_objects(runtime: PythonRuntime, limit: int) -> Iterator[tuple[int, int]]:
    """Address and type of each object in the garbage collector's lists, at most ``limit``; of the youngest generation
    first.

    Raises PythonUnsupported for a Python whose lists are not known, BadData, MemoryFault.
    """
    layout = runtime.layout
    place = layout.find(py.PyInterpreterState.gc_generations)
    if place is None or layout.abi.free_threaded or layout.find(py.PyInterpreterState.gc_young) is not None:
        raise unsupported(f"the lists of Python {runtime.version}'s garbage collector are not known")
    heads = [
        interpreter.address + place + number * _GENERATION
        for interpreter in runtime.interpreters()
        for number in range(_GENERATIONS)
    ]
    read, unpack, size, left = runtime.memory.read, _READ.unpack, _READ.size, limit
    for head in heads:
        following, at = head, runtime.memory.u64(head + 8) & _POINTER
        while at != head and left:
            after, before, kind = unpack(read(at, size))
            if after & _POINTER != following or not before:
                raise BadData(f"the list of collected objects is torn at {at:#x}: a collection runs, or it is damaged")
            yield at + _HEAD, kind
            following, at, left = at, before & _POINTER, left - 1


_OLDEST = 2
"""The oldest generation of the garbage collector."""


class Collection(Record):
    """A run of the garbage collector that is not over."""

    generation: int
    """The oldest generation that it looks at: 0, 1 or 2."""
    survivors: int
    """Objects that the last full run left; it is gone through again in each full one."""
    done: int = 0
    """Runs over this generation that were over before."""

    @property
    def is_full(self) -> bool:
        """It looks at all objects: those of the oldest generation, too."""
        return self.generation == _OLDEST

    def is_same(self, other: Collection) -> bool:
        """None of this generation has ended between the two."""
        return (self.generation, self.done) == (other.generation, other.done)


_COLLECTING, _GARBAGE, _LONG_LIVED, _COUNTS, _DONE = 176, 184, 200, 20, 104
"""Offsets in struct _gc_runtime_state behind its generations (Include/internal/pycore_gc.h, 3.8 to 3.13): three
generations of 24 bytes, a pointer, the permanent generation, three statistics of 24 bytes, ``collecting``, ``garbage``,
``callbacks``, ``long_lived_total``. The count of a generation is 0 while it is collected."""


def running_collection(runtime: PythonRuntime) -> Collection | None:
    """The run of the garbage collector; None where none runs, or its state is not known of this version. Raises
    nothing."""
    layout = runtime.layout
    place = layout.find(PyInterpreterState.gc_generations)
    if place is None or layout.abi.free_threaded or layout.find(PyInterpreterState.gc_young) is not None:
        return None
    try:
        for interpreter in runtime.interpreters():
            start = interpreter.address + place
            garbage = runtime.objects.type_of(runtime.memory.u64(start + _GARBAGE)).name
            if garbage == "list" and runtime.memory.u32(start + _COLLECTING) == 1:
                older = [runtime.memory.u32(start + _COUNTS + 24 * number) for number in (1, _OLDEST)]
                generation = next((number for number, count in enumerate(older) if count), _OLDEST)
                done = runtime.memory.u64(start + _DONE + 24 * generation)
                return Collection(generation, runtime.memory.u64(start + _LONG_LIVED), done)
    except GdbextError:
        pass
    return None
