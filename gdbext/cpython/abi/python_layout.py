"""Offsets inside CPython's structures for one minor version: from generated tables, from this file, from the target
itself.

Three sources, the best last: the table below (types that exist only in a .c file), the generated tables of
``engine/layouts/data`` (made from the headers of each version), and the ``_Py_DebugOffsets`` of versions that publish
them at the start of ``_PyRuntime``.

The structures of this file are those that CPython declares only in a .c file, so that no installed header has them.

Each is the same in every version that has it (compared with the DWARF of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and
3.13.0; tests/integration/cpython/test_python_layouts.py repeats that wherever such a build is installed).
Sizes and offsets are bytes on a 64-bit platform without Py_TRACE_REFS: every member here is a PyObject header
(ob_refcnt, ob_type: 16 bytes; 32 in a free-threaded build, which moves the rest), a pointer or a machine word unless
noted.

Task and Future of the C module _asyncio are among them up to 3.13; later versions publish where they keep what is read
of them (cpython/tasks/task_lists.py).

FutureObj and TaskObj (Modules/_asynciomodule.c) are in no header; the offsets are those of the debug information of
CPython 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and 3.13.0 for 64 bits. tp_basicsize tells whether they fit.

Since 3.13 CPython publishes offsets about itself at the start of ``_PyRuntime``.

Layout: struct _Py_DebugOffsets, Include/internal/pycore_runtime.h of 3.13 ("only guaranteed to be stable between
patch versions for a given minor version"): cookie[8], version, free_threaded, then groups of uint64_t, each
starting with the size of the structure it describes. Every minor version has a list of its own, below.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_abi import PythonAbi
from gdbext.engine.layouts import store
from gdbext.engine.layouts.layout import Layout
from gdbext.engine.record import Record
from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory

UNPUBLISHED: dict[str, tuple[int, dict[str, int]]] = {
    # Modules/_threadmodule.c, lockobject: PyThread_type_lock lock_lock, PyObject *in_weakreflist, char locked.
    "lockobject": (40, {"lock_lock": 16, "in_weakreflist": 24, "locked": 32}),
    # Modules/_threadmodule.c, rlockobject: lock_lock, unsigned long rlock_owner, unsigned long rlock_count.
    "rlockobject": (48, {"rlock_lock": 16, "rlock_owner": 24, "rlock_count": 32, "in_weakreflist": 40}),
    # Modules/_functoolsmodule.c, partialobject.
    "partialobject": (64, {"fn": 16, "args": 24, "kw": 32, "dict": 40}),
    # Objects/moduleobject.c (3.8); Include/internal/pycore_moduleobject.h (3.9 and later).
    "PyModuleObject": (56, {"md_dict": 16, "md_name": 48}),
    # Objects/dict-common.h (3.8-3.10), struct _dictkeysobject; 3.11 has another one, in pycore_dict.h.
    "PyDictKeysObject": (40, {"dk_size": 8, "dk_usable": 24, "dk_nentries": 32, "dk_indices": 40}),
    # Objects/dict-common.h (3.8-3.10) and pycore_dict.h (3.11 and later).
    "PyDictKeyEntry": (24, {"me_hash": 0, "me_key": 8, "me_value": 16}),
    # Modules/_queuemodule.c, simplequeueobject, 3.8-3.12.
    "simplequeueobject": (56, {"lock": 16, "locked": 24, "lst": 32, "lst_pos": 40}),
    # The same since 3.13: a bool, RingBuf buf (put_idx, get_idx, items, items_cap, num_items), weak references.
    "parkingqueueobject": (
        72,
        {"has_threads_waiting": 16, "buf.get_idx": 32, "buf.items": 40, "buf.items_cap": 48, "buf.num_items": 56},
    ),
    # Modules/_threadmodule.c, lockobject of 3.14 (and of late patch versions of 3.13): PyMutex lock.
    "mutexlockobject": (24, {"lock": 16}),
    # Modules/_threadmodule.c, rlockobject of 3.14: _PyRecursiveMutex lock (mutex, thread, level: pycore_lock.h).
    "mutexrlockobject": (40, {"lock": 16, "lock.thread": 24, "lock.level": 32}),
    # Python/parking_lot.c, struct wait_entry, on the stack of a parked thread: void *park_arg, uintptr_t addr,
    # _PySemaphore sema (a sem_t), struct llist_node node, bool is_unparking.
    "wait_entry": (72, {"addr": 8, "sema": 16}),
    # Include/internal/pycore_context.h: PyContext *ctx_prev, PyHamtObject *ctx_vars.
    "PyContext": (48, {"ctx_prev": 16, "ctx_vars": 24}),
    # Include/internal/pycore_hamt.h: PyHamtNode *h_root, PyObject *h_weakreflist, Py_ssize_t h_count.
    "PyHamtObject": (40, {"h_root": 16, "h_count": 32}),
    # Python/hamt.c (pycore_hamt.h since 3.12): the nodes of the tree; two of them are PyVarObjects.
    "PyHamtNode_Bitmap": (40, {"b_bitmap": 24, "b_array": 32}),
    "PyHamtNode_Array": (280, {"a_array": 16, "a_count": 272}),
    "PyHamtNode_Collision": (40, {"c_hash": 24, "c_array": 32}),
    # Include/cpython/descrobject.h, PyDescrObject: PyTypeObject *d_type, PyObject *d_name, PyObject *d_qualname.
    "PyDescrObject": (40, {"d_type": 16, "d_name": 24}),
}
"""Name to (size, field to offset)."""

HEADER = 16
"""sizeof(PyObject) in what is stated here."""
HEADLESS = frozenset({"PyDictKeysObject", "PyDictKeyEntry", "wait_entry"})
"""Structures that are no objects."""


class TaskLayout(Record):
    """Offsets in bytes; ``task_size`` is that of the type."""

    task_size: int
    waiter: int
    coroutine: int
    name: int
    state: int
    """``enum fut_state``: 0 pending, 1 cancelled, 2 finished."""


TASK_LAYOUTS = {
    (3, 8): TaskLayout(144, 104, 112, 120, 72),
    (3, 9): TaskLayout(184, 144, 152, 160, 80),
    (3, 10): TaskLayout(192, 152, 160, 168, 88),
    (3, 11): TaskLayout(176, 128, 136, 144, 88),
    (3, 12): TaskLayout(176, 128, 136, 144, 88),
    (3, 13): TaskLayout(144, 112, 120, 128, 96),
}
FUTURE_LOOP, FUTURE_CALLBACK = 16, 24
"""The loop of a FutureObj or TaskObj, and the callback that was added first."""
FUTURE_ITERATOR_FUTURE = 16
"""The future of a FutureIter, which stands on the stack of a coroutine that awaits it (futureiterobject)."""

DEQUE_SIZE, DEQUE_LEFT, DEQUE_LEFT_INDEX = 16, 24, 40
BLOCK_ITEMS, BLOCK_DATA, BLOCK_RIGHT = 64, 8, 8 + 64 * 8
"""ob_size, leftblock and leftindex of dequeobject; BLOCKLEN, data and rightlink of its blocks
(Modules/_collectionsmodule.c, the same from 3.8 to 3.14)."""


class PythonLayout:
    """The places of the fields of CPython's structures: ``offset("PyThreadState", "interp")``, in bytes.

    Structures go by the names of their typedefs. A field of a nested struct is named by its path ("ceval.gil").
    """

    def __init__(self, abi: PythonAbi, table: Layout, overrides: Mapping[tuple[str, str], int] | None = None) -> None:
        self.abi = abi
        self.table = table
        self._known: dict[tuple[str, str], int | None] = dict(overrides or {})

    def offset(self, struct: str, field: str) -> int:
        """Bytes from the start of ``struct`` to ``field``. Raises LayoutError naming what is missing."""
        found = self.find(struct, field)
        if found is None:
            raise LayoutError(f"the layout of CPython {self.abi.text} has no {struct}.{field}")
        return found

    def find(self, struct: str, field: str) -> int | None:
        """Like offset(), but None where this version has no such field."""
        key = struct, field
        if key not in self._known:
            self._known[key] = self._look_up(struct, field)
        return self._known[key]

    def _look_up(self, struct: str, field: str) -> int | None:
        if self.table.has_struct(struct):
            member = self.table.struct(struct).fields.get(field)
            return member.offset if member is not None else None
        entry = UNPUBLISHED.get(struct)
        stated = entry[1].get(field) if entry is not None else None
        return stated + self._wider_header(struct) if stated is not None else None

    def size(self, struct: str) -> int:
        """sizeof(struct) in bytes. Raises LayoutError."""
        if not self.table.has_struct(struct) and struct in UNPUBLISHED:
            return UNPUBLISHED[struct][0] + self._wider_header(struct)
        return self.table.struct(struct).size

    def _wider_header(self, struct: str) -> int:
        """Bytes by which an object's header is larger than in a build with the GIL, for which UNPUBLISHED was
        written."""
        return 0 if struct in HEADLESS else self.table.struct("PyObject").size - HEADER

    def nested(self, struct: str, member: str, field: str) -> int:
        """Offset of ``field`` inside the struct that ``member`` holds by value. Raises LayoutError."""
        return self.offset(struct, f"{member}.{field}") - self.offset(struct, member)

    def with_overrides(self, overrides: Mapping[tuple[str, str], int]) -> PythonLayout:
        """The same layout where ``overrides`` (what the target says of itself) win over the tables."""
        return PythonLayout(self.abi, self.table, overrides)


@cache
def layout_for(abi: PythonAbi) -> PythonLayout:
    """The shipped layout of a version. Raises LayoutError where its table is missing."""
    return PythonLayout(abi, store.load(table_path(abi)))


def table_path(abi: PythonAbi) -> str:
    """The path of the shipped table's file."""
    return f"{store.DATA}/cpython-{abi.text}.json"


_HEADER = 24  # cookie, version, free_threaded
_MAX_OFFSET = 1 << 24  # PyInterpreterState, the largest, has 195 KB in 3.13.0
_PLAIN = ""  # published, but not used by us
_SIZE = "size"

Groups = tuple[tuple[str, tuple[str, ...]], ...]
"""Structures and their fields under the names of our layouts, in the order of _Py_DebugOffsets."""

GROUPS_3_13: Groups = (
    ("_PyRuntimeState", ("size", _PLAIN, "interpreters.head")),
    (
        "PyInterpreterState",
        ("size", "id", "next", "threads.head", _PLAIN, "imports.modules", "sysdict", _PLAIN, "ceval.gil",
         _PLAIN, _PLAIN, _PLAIN, _PLAIN),
    ),
    (
        "PyThreadState",
        ("size", "prev", "next", "interp", "current_frame", "thread_id", "native_thread_id", _PLAIN, "_status"),
    ),
    ("_PyInterpreterFrame", ("size", "previous", "f_executable", "instr_ptr", "localsplus", "owner")),
    (
        "PyCodeObject",
        ("size", "co_filename", "co_name", "co_qualname", "co_linetable", "co_firstlineno", "co_argcount",
         "co_localsplusnames", "co_localspluskinds", "co_code_adaptive"),
    ),
    ("PyObject", ("size", "ob_type")),
    ("PyTypeObject", ("size", "tp_name", "tp_repr", "tp_flags")),
    ("PyTupleObject", ("size", "ob_item", _PLAIN)),
    ("PyListObject", ("size", "ob_item", _PLAIN)),
    ("PyDictObject", ("size", "ma_keys", "ma_values")),
    ("PyFloatObject", ("size", "ob_fval")),
    ("PyLongObject", ("size", "long_value.lv_tag", "long_value.ob_digit")),
    ("PyBytesObject", ("size", _PLAIN, "ob_sval")),
    ("PyASCIIObject", ("size", "state", "length", _PLAIN)),
)  # fmt: skip


_NEXT_FIVE = (_PLAIN,) * 5

GROUPS_3_14: Groups = (
    ("_PyRuntimeState", ("size", _PLAIN, "interpreters.head")),
    (
        "PyInterpreterState",
        ("size", "id", "next", "threads.head", _PLAIN, _PLAIN, "imports.modules", "sysdict", _PLAIN, "ceval.gil",
         _PLAIN, *_NEXT_FIVE),
    ),
    (
        "PyThreadState",
        ("size", "prev", "next", "interp", "current_frame", "thread_id", "native_thread_id", _PLAIN, "_status"),
    ),
    (
        "_PyInterpreterFrame",
        ("size", "previous", "f_executable", "instr_ptr", "localsplus", "owner", "stackpointer", _PLAIN),
    ),
    (
        "PyCodeObject",
        ("size", "co_filename", "co_name", "co_qualname", "co_linetable", "co_firstlineno", "co_argcount",
         "co_localsplusnames", "co_localspluskinds", "co_code_adaptive", _PLAIN),
    ),
    ("PyObject", ("size", "ob_type")),
    ("PyTypeObject", ("size", "tp_name", "tp_repr", "tp_flags")),
    ("PyTupleObject", ("size", "ob_item", _PLAIN)),
    ("PyListObject", ("size", "ob_item", _PLAIN)),
    ("PySetObject", ("size", _PLAIN, _PLAIN, _PLAIN)),
    ("PyDictObject", ("size", "ma_keys", "ma_values")),
    ("PyFloatObject", ("size", "ob_fval")),
    ("PyLongObject", ("size", "long_value.lv_tag", "long_value.ob_digit")),
    ("PyBytesObject", ("size", _PLAIN, "ob_sval")),
    ("PyASCIIObject", ("size", "state", "length", _PLAIN)),
)  # fmt: skip
"""The groups of Include/internal/pycore_debug_offsets.h of 3.14."""

GROUPS_3_15: Groups = (
    *GROUPS_3_14[:2],
    (
        "PyThreadState",
        ("size", "prev", "next", "interp", "current_frame", "base_frame", _PLAIN, _PLAIN, "thread_id",
         "native_thread_id", _PLAIN, "_status", _PLAIN, _PLAIN, _PLAIN, _PLAIN),
    ),
    ("_PyErr_StackItem", (_PLAIN,)),
    *GROUPS_3_14[3:6],
    ("PyTypeObject", ("size", "tp_name", "tp_repr", "tp_flags", "tp_basicsize", "tp_dictoffset")),
    ("PyHeapTypeObject", ("size", "ht_cached_keys")),
    *GROUPS_3_14[7:],
)  # fmt: skip
"""Include/internal/pycore_debug_offsets.h of 3.15, as far as it is used."""


def layouts(memory: Memory, runtime: int, shipped: PythonLayout) -> list[PythonLayout]:
    """Possible layouts of the CPython whose _PyRuntime is at ``runtime``, the likeliest first.

    One, as a rule: its published offsets are those of the shipped table. Where they are not, it is another build, whose
    structures have other sizes, or they are damaged. Raises MemoryFault.
    """
    groups = shipped.abi.debug_offsets
    published = _read(memory, runtime, groups) if groups else {}
    offsets = {name: offset for name, offset in published.items() if name[1] != _SIZE}
    differing = {struct for struct, field in offsets if shipped.find(struct, field) != offsets[struct, field]}
    if not differing or max(published.values()) > _MAX_OFFSET:
        return [shipped]
    other = shipped.with_overrides(offsets)
    damaged = any(published[struct, _SIZE] == _size(shipped, struct) for struct in differing)
    return [shipped, other] if damaged else [other, shipped]


def _size(layout: PythonLayout, struct: str) -> int | None:
    try:
        return layout.size(struct)
    except LayoutError:
        return None


def _read(memory: Memory, runtime: int, groups: Groups) -> dict[tuple[str, str], int]:
    """(structure, field) to offset, as the target publishes them at ``runtime``. Raises MemoryFault."""
    names = [(struct_name, field) for struct_name, fields in groups for field in fields]
    raw = memory.read(runtime + _HEADER, 8 * len(names))
    published = zip(names, struct.unpack(f"<{len(names)}Q", raw))
    return {name: offset for name, offset in published if name[1] != _PLAIN}
