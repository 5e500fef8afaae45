"""The structures of CPython that are read: objects, frames, threads, locks.

Each class has the name of the C structure's typedef and the members that readers want. Readers ask with ``has`` for
members that some version lacks, or the version's row chooses (cpython/abi/versions.py). Offsets are measured from the
headers of 3.8 to 3.15 (torch/measure/wants.json).

A member with an offset (``at``, in bytes) belongs to a structure that CPython declares only in a .c file, the same in
every version that has it (compared with DWARF). It counts from a header of 16 bytes (ob_refcnt, ob_type); that has 32
in a free-threaded build, which moves the members of classes derived from ``PyObject``.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import F64, I32, I64, U8, U32, U64, Inner, Link, Member, Place, Struct

# --- objects: Include/object.h, and a header of Include/cpython for each type -----------------------------------------


class PyObject(Struct, of="PyObject"):  # The head of each object. ``ob_mutex`` is in free-threaded builds only
    ob_type = U64(required=True)
    ob_mutex = Place()


class PyVarObject(PyObject, of="PyVarObject"):
    ob_size = U64()


class PyTypeObject(PyVarObject, of="PyTypeObject"):
    tp_name = U64()
    tp_basicsize = U64()
    tp_repr = U64()
    tp_flags = U64()
    tp_base = U64()
    tp_dict = U64()
    tp_dictoffset = I64()
    tp_mro = U64()


class PyHeapTypeObject(PyVarObject, of="PyHeapTypeObject"):
    """The members that a class has which was made while the program ran."""

    ht_slots = U64()
    ht_cached_keys = U64()


class PyASCIIObject(PyObject, of="PyASCIIObject"):  # The beginning of a str (cpython/unicodeobject.h)
    length = U64()
    state = Place()


class PyCompactUnicodeObject(PyObject, of="PyCompactUnicodeObject"):
    """A str whose characters come behind it."""


class PyUnicodeObject(PyObject, of="PyUnicodeObject"):
    data = U64()


class PyBytesObject(PyVarObject, of="PyBytesObject"):
    ob_sval = Place()


class PyTupleObject(PyVarObject, of="PyTupleObject"):
    ob_item = Place()


class PyListObject(PyVarObject, of="PyListObject"):
    ob_item = U64()


class PySetObject(PyObject, of="PySetObject"):  # A set or frozenset (cpython/setobject.h)
    mask = U64()
    table = U64()


class PyFloatObject(PyObject, of="PyFloatObject"):
    ob_fval = F64()


class PyLongObject(PyObject, of="PyLongObject", cpp="struct _longobject"):
    """An int: up to 3.11 with its digits behind ob_size, later with a tag in front of them (longintrepr.h)."""

    ob_digit = Place()
    lv_tag = U64("long_value.lv_tag")
    value_digit = Place("long_value.ob_digit")


class PyDictObject(PyObject, of="PyDictObject"):  # A dict; ``ma_values`` is 0 where the keys are its own
    ma_keys = U64()
    ma_values = U64()


class PyDictKeysObject(Struct, of="PyDictKeysObject", cpp="struct _dictkeysobject"):
    """The table of a dict: Objects/dict-common.h up to 3.10, pycore_dict.h later."""

    dk_size = U64()
    dk_log2_index_bytes = U8()
    dk_kind = U8()
    dk_nentries = U64()
    dk_indices = Place()


class PyDictKeyEntry(Struct, of="PyDictKeyEntry"):
    """A hash, a key and a value."""


class PyDictValues(Struct, of="PyDictValues", cpp="struct _dictvalues"):
    """The values of an instance, since 3.11 (pycore_dict.h)."""

    values = Place()
    valid = U8()


class PyModuleObject(PyObject, of="PyModuleObject"):  # A module: Objects/moduleobject.c (3.8), pycore_moduleobject.h
    md_dict = U64()


class PyCellObject(PyObject, of="PyCellObject"):
    ob_ref = U64()


class PyWeakReference(PyObject, of="PyWeakReference", cpp="struct _PyWeakReference"):
    wr_object = U64()


class DequeObject(PyVarObject, of="dequeobject", cpp=""):
    """A deque: Modules/_collectionsmodule.c, the same from 3.8 to 3.14."""

    leftblock = Link(lambda: DequeBlock, at=24)
    leftindex = U64(at=40)


class DequeBlock(Struct, of="deque block", cpp=""):  # A block of its items: leftlink, data[BLOCKLEN], rightlink
    LENGTH = 64  # items of a block: BLOCKLEN
    data = Place(at=8)
    rightlink = Link(lambda: DequeBlock, at=8 + 8 * LENGTH)


# --- callables and code: cpython/funcobject.h, cpython/code.h ---------------------------------------------------------


class PyFunctionObject(PyObject, of="PyFunctionObject"):
    func_code = U64()
    func_globals = U64()
    func_name = U64()
    func_qualname = U64()
    func_closure = U64()
    func_dict = U64()


class PyMethodObject(PyObject, of="PyMethodObject"):
    im_func = U64()
    im_self = U64()


class PyCFunctionObject(PyObject, of="PyCFunctionObject"):
    m_ml = U64()
    m_self = U64()


class PartialObject(PyObject, of="partialobject", cpp="", size=64):
    """A functools.partial with its function: Modules/_functoolsmodule.c."""

    fn = U64(at=16)


class PyDescrObject(PyObject, of="PyDescrObject", cpp="", size=40):
    """The head of a descriptor: Include/cpython/descrobject.h."""

    d_name = U64(at=24)


class PyMemberDescrObject(PyDescrObject, of="PyMemberDescrObject", cpp="", size=48):
    d_member = U64(at=40)


class PyCodeObject(PyVarObject, of="PyCodeObject"):
    co_argcount = U32()
    co_flags = U32()
    co_stacksize = U32()
    co_firstlineno = U32()
    co_nlocalsplus = U32()
    co_ncellvars = U32()
    co_nfreevars = U32()
    co_consts = U64()
    co_names = U64()
    co_varnames = U64()
    co_cellvars = U64()
    co_freevars = U64()
    co_localsplusnames = U64()
    co_localspluskinds = U64()
    co_filename = U64()
    co_name = U64()
    co_qualname = U64()
    co_code = U64()
    co_lnotab = U64()
    co_linetable = U64()
    co_exceptiontable = U64()
    co_tlbc = U64()
    co_firsttraceable = U32("_co_firsttraceable")
    co_code_adaptive = Place()


# --- interpreters, threads and their frames: pycore_runtime.h, pycore_interp.h, cpython/pystate.h, pycore_frame.h -----


class PyRuntimeState(Struct, of="_PyRuntimeState"):  # All of CPython in a process. ``gil`` is there up to 3.11
    interpreters_head = U64("interpreters.head")
    gil = Place("ceval.gil")
    stoptheworld = Inner(lambda: StopTheWorld)


class PyInterpreterState(Struct, of="PyInterpreterState"):
    """An interpreter: the list of its threads, and its modules, under the names that versions have for them."""

    id = I64()
    next = U64()
    tstate_head = U64()
    threads_head = U64("threads.head")
    modules = U64()
    imports_modules = U64("imports.modules")
    sysdict = U64()
    gil = U64("ceval.gil")
    gc_generations = Place("gc.generations")
    gc_young = Place("gc.young")
    stoptheworld = Inner(lambda: StopTheWorld)


class StopTheWorld(Struct, of="PyInterpreterState.stoptheworld", cpp=""):
    """The state of a pause of all threads, in free-threaded builds (struct _stoptheworld_state)."""

    mutex = Place()
    requested = U8()
    world_stopped = U8()
    stop_event = Place("stop_event.v")
    requester = U64()


class PyThreadState(Struct, of="PyThreadState"):
    """A thread: ``frame`` up to 3.10, ``cframe`` from 3.10 to 3.12, then ``current_frame``; ``base_frame`` since
    3.15."""

    prev = U64()
    next = U64()
    interp = U64(required=True)
    thread_id = U64()
    native_thread_id = U64()
    status = Place("_status")
    state = U32()
    context = U64()
    exc_info = Link(lambda: PyErrStackItem)
    critical_section = U64()
    frame = U64()
    cframe = U64()
    root_cframe = Inner(lambda: CFrame)
    current_frame = U64()
    base_frame = U64()


class PyErrStackItem(Struct, of="_PyErr_StackItem"):  # An exception that a thread handles
    exc_value = U64()
    previous_item = Link(lambda: PyErrStackItem)


class CFrame(Struct, of="PyThreadState.root_cframe", cpp=""):
    """An evaluation loop of 3.10 to 3.12: CFrame, later _PyCFrame."""

    current_frame = U64()
    previous = U64()


class PyFrameObject(PyObject, of="PyFrameObject", cpp="struct _frame"):
    """A frame up to 3.10; since 3.11 the object of one, with the frame in ``f_frame``."""

    f_back = U64()
    f_code = U64()
    f_globals = U64()
    f_locals = U64()
    f_valuestack = U64()
    f_stacktop = U64()
    f_stackdepth = I32()
    f_gen = U64()
    f_lasti = I32()
    f_iblock = I32()
    f_blockstack = Place()
    f_localsplus = Place()
    f_frame = U64()


class PyTryBlock(Struct, of="PyTryBlock", cpp="", size=12):
    """An enclosing block of a frame: cpython/frameobject.h of 3.8."""

    b_handler = I32(at=4)
    b_level = I32(at=8)


class PyInterpreterFrame(Struct, of="_PyInterpreterFrame"):
    """A frame since 3.11, under the names that versions have for its members."""

    previous = U64()
    f_code = U64()
    f_executable = U64()
    f_globals = U64()
    f_locals = U64()
    prev_instr = U64()
    instr_ptr = U64()
    stacktop = I32()
    stackpointer = U64()
    owner = U8()
    localsplus = Place()


class PyCoroObject(PyObject, of="PyCoroObject"):  # A coroutine, and what generators have alike
    cr_frame = Link(lambda: PyFrameObject)
    cr_iframe = Inner(lambda: PyInterpreterFrame)


class CoroutineWrapper(PyObject, of="PyCoroWrapper", cpp=""):
    """The iterator of a coroutine (Objects/genobject.c); asynchronous generators have such ones, too."""

    cw_coroutine = U64(at=16)


class FutureObj(PyObject, of="FutureObj", cpp=""):
    """The beginning of a future or task of the C module: its loop, the callback that was added first, and its exception
    (Modules/_asynciomodule.c, 3.8 to 3.15)."""

    fut_loop = U64(at=16)
    fut_callback0 = U64(at=24)
    fut_exception = U64(at=48)


class PyTracebackObject(PyObject, of="PyTracebackObject", cpp="", size=40):
    """One frame of a traceback, the outermost first (Include/cpython/traceback.h, 3.8 to 3.15)."""

    tb_next = Link(lambda: PyTracebackObject, at=16)
    tb_frame = Link(lambda: PyFrameObject, at=24)
    tb_lasti = I32(at=32)  # in bytes of code


class FutureIterator(PyObject, of="futureiterobject", cpp="", size=24):
    future = U64(at=16)


class PyContext(PyObject, of="PyContext", cpp="", size=48):  # The context variables of a thread: pycore_context.h
    ctx_vars = Link(lambda: PyHamtObject, at=24)


class PyHamtObject(PyObject, of="PyHamtObject", cpp="", size=40):  # The tree of them: pycore_hamt.h
    h_root = U64(at=16)
    h_count = U64(at=32)


class PyHamtNodeBitmap(PyVarObject, of="PyHamtNode_Bitmap", cpp="", size=40):
    """A node of the tree: Python/hamt.c (pycore_hamt.h since 3.12)."""

    b_array = Place(at=32)


class PyHamtNodeArray(PyObject, of="PyHamtNode_Array", cpp="", size=280):
    a_array = Place(at=16)


class PyHamtNodeCollision(PyVarObject, of="PyHamtNode_Collision", cpp="", size=40):  # A node whose keys have one hash
    c_array = Place(at=32)


# --- locks: pycore_gil.h, Modules/_threadmodule.c, Modules/_queuemodule.c, Python/parking_lot.c -----------------------


class GilRuntimeState(Struct, of="_gil_runtime_state", cpp="struct _gil_runtime_state"):
    """A global interpreter lock; ``enabled`` is in free-threaded builds only."""

    enabled = I32()
    interval = U64()
    last_holder = U64()
    locked = I32()
    cond = Place()
    mutex = Place()
    switch_cond = Place()
    switch_mutex = Place()


class LockObject(PyObject, of="lockobject", cpp="gdbext_lock", size=40):
    """A Lock up to 3.13: PyThread_type_lock lock_lock, PyObject *in_weakreflist, char locked."""

    lock_lock = U64(at=16)


class RLockObject(PyObject, of="rlockobject", cpp="gdbext_rlock", size=48):
    """An RLock up to 3.13: lock_lock, unsigned long rlock_owner, unsigned long rlock_count."""

    rlock_lock = U64(at=16)
    rlock_owner = U64(at=24)
    rlock_count = U64(at=32)


class MutexLockObject(PyObject, of="mutexlockobject", cpp="", size=24):
    """A Lock of 3.14, and of late patch versions of 3.13: PyMutex lock."""

    lock = Place(at=16)


class MutexRLockObject(PyObject, of="mutexrlockobject", cpp="", size=40):
    """An RLock of 3.14: _PyRecursiveMutex lock (mutex, thread, level: pycore_lock.h)."""

    lock = Place(at=16)
    thread = U64("lock.thread", at=24)
    level = U64("lock.level", at=32)


class SimpleQueueObject(PyObject, of="simplequeueobject", cpp="", size=56):  # A queue.SimpleQueue, up to 3.12
    lock = U64(at=16)
    lst = U64(at=32)
    lst_pos = U64(at=40)


class ParkingQueueObject(PyObject, of="parkingqueueobject", cpp="", size=72):
    """A SimpleQueue since 3.13: bool, RingBuf buf (put_idx, get_idx, items, items_cap, num_items), weak references."""

    has_threads_waiting = Place(at=16)
    get_idx = U64("buf.get_idx", at=32)
    items = U64("buf.items", at=40)
    items_cap = U64("buf.items_cap", at=48)
    num_items = U64("buf.num_items", at=56)


class SemLockObject(PyObject, of="SemLockObject", cpp=""):
    """A lock of multiprocessing: Modules/_multiprocessing/semaphore.c, 3.8 to 3.15."""

    handle = U64(at=16)
    count = U32(at=32)
    maxvalue = U32(at=36)


class WaitEntry(Struct, of="wait_entry", cpp="", size=72):
    """struct wait_entry, on the stack of a parked thread: void *park_arg, uintptr_t addr, _PySemaphore sema (a sem_t),
    struct llist_node node, bool is_unparking."""

    addr = U64(at=8)
    sema = Place(at=16)


STATED: dict[str, type[Struct]] = {
    structure.OF: structure
    for structure in list(globals().values())
    if isinstance(structure, type) and issubclass(structure, Struct)
    if any(isinstance(member, Member) and member.at is not None for member in vars(structure).values())
}
"""The structures whose offsets this file states, by name."""
