"""The versions of CPython that can be read, one row each: a later row says only what changed.

A new version is a row here, its list of debug offsets in ``python_layout.py`` and a table in layouts/data; see
"How to add a CPython version" in docs/architecture.md.
"""

from __future__ import annotations

from gdbext.cpython.abi import python_abi
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.abi.python_layout import GROUPS_3_13, GROUPS_3_14, GROUPS_3_15
from gdbext.errors import PythonUnsupported

_LOCK = python_abi.LockType("_thread.lock", Waitable.LOCK, py.LockObject, py.LockObject.lock_lock)
_RLOCK = python_abi.LockType("_thread.RLock", Waitable.RLOCK, py.RLockObject, py.RLockObject.rlock_lock)
_SIMPLE_QUEUE = python_abi.LockType(
    "_queue.SimpleQueue", Waitable.SIMPLE_QUEUE, py.SimpleQueueObject, py.SimpleQueueObject.lock
)
_MUTEX_LOCK = python_abi.LockType(
    "_thread.lock", Waitable.LOCK, py.MutexLockObject, py.MutexLockObject.lock, python_abi.LockForm.MUTEX
)
_MUTEX_RLOCK = python_abi.LockType(
    "_thread.RLock", Waitable.RLOCK, py.MutexRLockObject, py.MutexRLockObject.lock, python_abi.LockForm.RECURSIVE_MUTEX
)
_PARKING_QUEUE = python_abi.LockType(
    "_queue.SimpleQueue",
    Waitable.SIMPLE_QUEUE,
    py.ParkingQueueObject,
    py.ParkingQueueObject.has_threads_waiting,
    python_abi.LockForm.WAITING_FLAG,
)

_3_8 = python_abi.PythonAbi(
    version=(3, 8),
    published=python_abi.Published.NOTHING,
    frames=python_abi.FrameObjects(lasti_unit=1),
    line_table=python_abi.LineTable.LINE_INCREMENTS,
    code_form=python_abi.CodeForm.BYTES_OBJECT,
    code_name=py.PyCodeObject.co_name,
    local_names=(py.PyCodeObject.co_varnames, py.PyCodeObject.co_cellvars, py.PyCodeObject.co_freevars),
    dict_keys=python_abi.DictKeysForm.SLOT_COUNT,
    instance_dict=python_abi.InstanceDict.DICT_OFFSET,
    integers=python_abi.IntegerForm.SIGNED_SIZE,
    gil=python_abi.GilPlace.RUNTIME,
    first_thread=py.PyInterpreterState.tstate_head,
    modules=py.PyInterpreterState.modules,
    lock_types=(_LOCK, _RLOCK, _SIMPLE_QUEUE),
)
_3_9 = _3_8._replace(version=(3, 9))
_3_10 = _3_9._replace(
    version=(3, 10),
    frames=python_abi.FrameObjects(lasti_unit=2),
    line_table=python_abi.LineTable.LINE_RANGES,
)
_3_11 = _3_10._replace(
    version=(3, 11),
    published=python_abi.Published.VERSION_SYMBOL,
    frames=python_abi.InterpreterFrames(
        python_abi.LoopAnchor.C_FRAME, code=py.PyInterpreterFrame.f_code, instruction=py.PyInterpreterFrame.prev_instr
    ),
    line_table=python_abi.LineTable.LOCATIONS,
    code_form=python_abi.CodeForm.INLINE,
    code_name=py.PyCodeObject.co_qualname,
    local_names=(py.PyCodeObject.co_localsplusnames,),
    dict_keys=python_abi.DictKeysForm.LOG2_SIZES,
    instance_dict=python_abi.InstanceDict.VALUES_POINTER,
    first_thread=py.PyInterpreterState.threads_head,
)
_3_12 = _3_11._replace(
    version=(3, 12),
    frames=python_abi.InterpreterFrames(
        python_abi.LoopAnchor.C_FRAME,
        code=py.PyInterpreterFrame.f_code,
        instruction=py.PyInterpreterFrame.prev_instr,
        codeless_owners=(3,),
    ),
    instance_dict=python_abi.InstanceDict.TAGGED_POINTER,
    integers=python_abi.IntegerForm.TAG,
    gil=python_abi.GilPlace.INTERPRETER,
    modules=py.PyInterpreterState.imports_modules,
)
_3_13 = _3_12._replace(
    version=(3, 13),
    published=python_abi.Published.DEBUG_OFFSETS,
    debug_offsets=GROUPS_3_13,
    frames=python_abi.InterpreterFrames(
        python_abi.LoopAnchor.ENTRY_FRAME,
        code=py.PyInterpreterFrame.f_executable,
        instruction=py.PyInterpreterFrame.instr_ptr,
        entry_owner=3,
        codeless_owners=(3,),
    ),
    instance_dict=python_abi.InstanceDict.INLINE_VALUES,
    lock_types=(_LOCK, _MUTEX_LOCK, _RLOCK, _PARKING_QUEUE),  # a lock is a mutex since some patch version of 3.13
)
_3_14 = _3_13._replace(
    version=(3, 14),
    debug_offsets=GROUPS_3_14,
    frames=python_abi.InterpreterFrames(
        python_abi.LoopAnchor.ENTRY_FRAME,
        code=py.PyInterpreterFrame.f_executable,
        instruction=py.PyInterpreterFrame.instr_ptr,
        entry_owner=3,
        codeless_owners=(3, 4),
        tag_bits=3,
        exit_form=python_abi.ExitForm.FUNCTION_AND_SELF,
    ),
    lock_types=(_MUTEX_LOCK, _MUTEX_RLOCK, _PARKING_QUEUE),
)
_3_15 = _3_14._replace(
    version=(3, 15),
    debug_offsets=GROUPS_3_15,
    frames=python_abi.InterpreterFrames(
        python_abi.LoopAnchor.ENTRY_FRAME,
        code=py.PyInterpreterFrame.f_executable,
        instruction=py.PyInterpreterFrame.instr_ptr,
        entry_owner=3,
        codeless_owners=(3,),
        tag_bits=3,
        exit_form=python_abi.ExitForm.FUNCTION_AND_SELF,
        awaited_slot=2,  # the index of an iteration lies above it
    ),
)

_3_13T = _3_13._replace(free_threaded=True)
_3_14T = _3_14._replace(free_threaded=True, kind_bit=8)

SUPPORTED = (_3_8, _3_9, _3_10, _3_11, _3_12, _3_13, _3_13T, _3_14, _3_14T, _3_15)
"""All rows of versions, oldest first."""

EVALUATES = tuple(dict.fromkeys(name for abi in SUPPORTED for name in abi.evaluation_functions))
"""The C functions that run Python code (Python/ceval.c), in any version."""


def abi_of_hexversion(hexversion: int, free_threaded: bool = False) -> python_abi.PythonAbi:
    """The row of a sys.hexversion. Raises PythonUnsupported, naming the whole version."""
    wanted = python_abi.minor_of(hexversion), free_threaded
    found = next((row for row in SUPPORTED if (row.version, row.free_threaded) == wanted), None)
    if found is None and free_threaded:
        raise PythonUnsupported(f"a free-threaded CPython {version_text(hexversion)} is not supported")
    if found is None:
        raise PythonUnsupported(f"CPython {version_text(hexversion)} is not supported")
    return found


_RELEASE_LEVELS = {0xA: "a", 0xB: "b", 0xC: "rc"}


def version_text(hexversion: int) -> str:
    """PY_VERSION_HEX as text: 0x030b07f0 is "3.11.7", 0x030d00c2 is "3.13.0rc2" (Include/patchlevel.h)."""
    text = f"{hexversion >> 24 & 0xFF}.{hexversion >> 16 & 0xFF}.{hexversion >> 8 & 0xFF}"
    level = _RELEASE_LEVELS.get(hexversion >> 4 & 0xF)
    return f"{text}{level}{hexversion & 0xF}" if level else text
