"""Structures that CPython declares only in a .c file, so that no installed header has them.

Each is the same in every version from 3.8 to 3.13 (compared with the DWARF of 3.8.18, 3.9.18, 3.10.13, 3.11.7,
3.12.1 and 3.13.0; tests/integration/cpython/test_python_layouts.py repeats that wherever such a build is installed).
Sizes and offsets are bytes on a 64-bit platform without Py_TRACE_REFS: every member here is a PyObject header
(ob_refcnt, ob_type: 16 bytes), a pointer or a machine word unless noted.
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
    # Modules/_queuemodule.c, simplequeueobject, 3.8-3.12 (3.13 waits in a parking lot: _queuemodule.c there).
    "simplequeueobject": (56, {"lock": 16, "locked": 24, "lst": 32, "lst_pos": 40}),
}
"""Name to (size, field to offset)."""
