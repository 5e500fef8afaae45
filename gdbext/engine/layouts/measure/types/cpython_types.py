"""The wants from CPython's headers, 3.8 to 3.15, the internal ones included (-DPy_BUILD_CORE).

A type that a version lacks does not compile there and is recorded as absent: that is how versions differ here.
Some structures are private to a .c file; they are declared below as that file has them (source named at each),
compiled with the rest, and checked in the tests against the debug information of real interpreters.
"""

from __future__ import annotations

from gdbext.engine.layouts.measure.types.wants import Wants

_HEADERS = (
    "frameobject.h", "internal/pycore_runtime.h", "internal/pycore_interp.h", "internal/pycore_pystate.h",
    "internal/pycore_gil.h", "internal/pycore_ceval.h", "internal/pycore_ceval_state.h", "internal/pycore_frame.h",
    "internal/pycore_code.h", "internal/pycore_dict.h", "internal/pycore_lock.h", "internal/pycore_parking_lot.h",
    "internal/pycore_moduleobject.h", "internal/pycore_pythread.h", "internal/pycore_tstate.h",
    "internal/pycore_genobject.h", "internal/pycore_typeobject.h", "internal/pycore_unicodeobject.h",
)  # fmt: skip

# Until 3.10 these were in .c files or headers that are not installed.
_DECLARATIONS = """
#include <pthread.h>
#include <semaphore.h>
#if PY_VERSION_HEX < 0x030B0000
/* Objects/dict-common.h, 3.8 to 3.10 */
typedef struct { Py_hash_t me_hash; PyObject *me_key; PyObject *me_value; } PyDictKeyEntry;
struct _dictkeysobject {
  Py_ssize_t dk_refcnt; Py_ssize_t dk_size; void *dk_lookup; Py_ssize_t dk_usable; Py_ssize_t dk_nentries;
  char dk_indices[];
};
/* Objects/moduleobject.c, 3.8 and 3.9; internal/pycore_moduleobject.h in 3.10 */
#if PY_VERSION_HEX < 0x030A0000
typedef struct {
  PyObject_HEAD
  PyObject *md_dict; struct PyModuleDef *md_def; void *md_state; PyObject *md_weaklist; PyObject *md_name;
} PyModuleObject;
#endif
#endif
/* Modules/_threadmodule.c, up to 3.13 */
#if PY_VERSION_HEX < 0x030E0000
typedef struct {
  PyObject_HEAD
  PyThread_type_lock lock_lock; PyObject *in_weakreflist; char locked;
} gdbext_lock;
typedef struct {
  PyObject_HEAD
  PyThread_type_lock rlock_lock; unsigned long rlock_owner; unsigned long rlock_count; PyObject *in_weakreflist;
} gdbext_rlock;
#endif
/* Python/thread_pthread.h, without POSIX semaphores; with them a lock is a sem_t */
typedef struct { char locked; pthread_cond_t lock_released; pthread_mutex_t mut; } gdbext_pthread_lock;
"""

STRUCTS = {
    "_PyRuntimeState": "",
    "PyInterpreterState": "",
    "PyThreadState": "",
    "_PyThreadStateImpl": "",
    "_gil_runtime_state": "struct _gil_runtime_state",
    "_gilstate_runtime_state": "struct _gilstate_runtime_state",
    "_ceval_runtime_state": "struct _ceval_runtime_state",
    "_ceval_state": "struct _ceval_state",
    "_pending_calls": "struct _pending_calls",
    "_Py_DebugOffsets": "",
    "_PyInterpreterFrame": "",
    "_PyCFrame": "",
    "_PyStackChunk": "",
    "PyFrameObject": "struct _frame",
    "PyCodeObject": "",
    "_PyErr_StackItem": "",
    "PyObject": "",
    "PyVarObject": "",
    "PyTypeObject": "",
    "PyHeapTypeObject": "",
    "PyASCIIObject": "",
    "PyCompactUnicodeObject": "",
    "PyUnicodeObject": "",
    "PyBytesObject": "",
    "PyByteArrayObject": "",
    "PyDictObject": "",
    "PyDictKeysObject": "struct _dictkeysobject",
    "PyDictKeyEntry": "",
    "PyDictUnicodeEntry": "",
    "PyDictValues": "struct _dictvalues",
    "PyLongObject": "struct _longobject",
    "PyFloatObject": "",
    "PyListObject": "",
    "PyTupleObject": "",
    "PySetObject": "",
    "PyFunctionObject": "",
    "PyMethodObject": "",
    "PyCFunctionObject": "",
    "PyMethodDef": "",
    "PyModuleObject": "",
    "PyCellObject": "",
    "PyGenObject": "",
    "PyCoroObject": "",
    "PyAsyncGenObject": "",
    "PyWeakReference": "struct _PyWeakReference",
    "PyMutex": "",
    "_PyRawMutex": "",
    "_PyRecursiveMutex": "",
    "_PyOnceFlag": "",
    "_PyRWMutex": "",
    "PyEvent": "",
    "lockobject": "gdbext_lock",
    "rlockobject": "gdbext_rlock",
    "pthread_lock": "gdbext_pthread_lock",
    "pthread_mutex_t": "",
    "pthread_cond_t": "",
    "sem_t": "",
}

ENUMS = {
    "_frameowner": "enum _frameowner",
    "_framestate": "enum _framestate",
    "PyFrameState": "PyFrameState",
    "_PyStatus_type": "__typeof__(((PyStatus*)0)->_type)",
}

_FLAGS = ("CO_OPTIMIZED", "CO_NEWLOCALS", "CO_VARARGS", "CO_VARKEYWORDS", "CO_GENERATOR", "CO_COROUTINE",
          "CO_ASYNC_GENERATOR", "CO_FAST_LOCAL", "CO_FAST_CELL", "CO_FAST_FREE", "CO_FAST_HIDDEN",
          "Py_TPFLAGS_LONG_SUBCLASS", "Py_TPFLAGS_LIST_SUBCLASS", "Py_TPFLAGS_TUPLE_SUBCLASS",
          "Py_TPFLAGS_BYTES_SUBCLASS", "Py_TPFLAGS_UNICODE_SUBCLASS", "Py_TPFLAGS_DICT_SUBCLASS",
          "Py_TPFLAGS_TYPE_SUBCLASS", "Py_TPFLAGS_MANAGED_DICT", "Py_TPFLAGS_INLINE_VALUES",
          "DICT_KEYS_GENERAL", "DICT_KEYS_UNICODE", "DICT_KEYS_SPLIT", "PyLong_SHIFT", "_PyLong_NON_SIZE_BITS",
          "_PyLong_SIGN_MASK", "Py_MONITORING_MAJOR", "WAITING_FOR_GIL", "_Py_THREAD_DETACHED",
          "_Py_THREAD_ATTACHED", "_Py_THREAD_SUSPENDED", "_Py_THREAD_GC", "_Py_LOCKED", "_Py_HAS_PARKED",
          "MANAGED_DICT_OFFSET", "MANAGED_WEAKREF_OFFSET", "FRAME_SPECIALS_SIZE", "Py_GIL_DISABLED")  # fmt: skip

CONSTANTS = {
    "PY_VERSION_HEX": "",
    "sizeof_codeunit": "sizeof(_Py_CODEUNIT)",
    "sizeof_pyobject": "sizeof(PyObject)",
    **dict.fromkeys(_FLAGS, ""),
}


def wants() -> Wants:
    """The table, with one guarded #include for each header."""
    includes = "\n".join(f"#if __has_include(<{h}>)\n#include <{h}>\n#endif" for h in _HEADERS)
    return Wants(f"#include <Python.h>\n{includes}\n{_DECLARATIONS}", STRUCTS, ENUMS, CONSTANTS, cplusplus=False)
