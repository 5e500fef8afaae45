"""Structures that CPython declares only in a .c file, so that no installed header has them.

Each is the same in every version that has it (compared with the DWARF of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and
3.13.0; tests/integration/cpython/test_python_layouts.py repeats that wherever such a build is installed).
Sizes and offsets are bytes on a 64-bit platform without Py_TRACE_REFS: every member here is a PyObject header
(ob_refcnt, ob_type: 16 bytes; 32 in a free-threaded build, which moves the rest), a pointer or a machine word unless
noted.
"""

from __future__ import annotations

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
