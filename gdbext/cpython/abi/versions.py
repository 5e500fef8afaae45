"""The versions of CPython that can be read, one row each: a later row says only what changed.

A new version is a row here, with its list of debug offsets, and a table in layouts/data; see "How to add a CPython
version" in docs/architecture.md. And which of them a process runs: where its ``_PyRuntime`` is and which
versions it can be, without debug information.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython import abi as python_abi
from gdbext.cpython.abi import Published, PythonAbi
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.engine.numbers import integer, number
from gdbext.errors import PythonUnsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.cpython.abi import Groups
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer

_SEQUENCES: Groups = (
    py.PyTupleObject,
    py.PyTupleObject.ob_item,
    None,
    py.PyListObject,
    py.PyListObject.ob_item,
    None,
)
_VALUES: Groups = (
    py.PyDictObject,
    py.PyDictObject.ma_keys,
    py.PyDictObject.ma_values,
    py.PyFloatObject,
    py.PyFloatObject.ob_fval,
    py.PyLongObject,
    py.PyLongObject.lv_tag,
    py.PyLongObject.value_digit,
    py.PyBytesObject,
    None,
    py.PyBytesObject.ob_sval,
    py.PyASCIIObject,
    py.PyASCIIObject.state,
    py.PyASCIIObject.length,
    None,
)
_CODE: Groups = (
    py.PyCodeObject,
    py.PyCodeObject.co_filename,
    py.PyCodeObject.co_name,
    py.PyCodeObject.co_qualname,
    py.PyCodeObject.co_linetable,
    py.PyCodeObject.co_firstlineno,
    py.PyCodeObject.co_argcount,
    py.PyCodeObject.co_localsplusnames,
    py.PyCodeObject.co_localspluskinds,
    py.PyCodeObject.co_code_adaptive,
)
_TYPE: Groups = (
    py.PyTypeObject,
    py.PyTypeObject.tp_name,
    py.PyTypeObject.tp_repr,
    py.PyTypeObject.tp_flags,
)
GROUPS_3_13: Groups = (
    py.PyRuntimeState,
    None,
    py.PyRuntimeState.interpreters_head,
    py.PyInterpreterState,
    py.PyInterpreterState.id,
    py.PyInterpreterState.next,
    py.PyInterpreterState.threads_head,
    None,
    py.PyInterpreterState.imports_modules,
    py.PyInterpreterState.sysdict,
    None,
    py.PyInterpreterState.gil,
    None,
    None,
    None,
    None,
    py.PyThreadState,
    py.PyThreadState.prev,
    py.PyThreadState.next,
    py.PyThreadState.interp,
    py.PyThreadState.current_frame,
    py.PyThreadState.thread_id,
    py.PyThreadState.native_thread_id,
    None,
    py.PyThreadState.status,
    py.PyInterpreterFrame,
    py.PyInterpreterFrame.previous,
    py.PyInterpreterFrame.f_executable,
    py.PyInterpreterFrame.instr_ptr,
    py.PyInterpreterFrame.localsplus,
    py.PyInterpreterFrame.owner,
    *_CODE,
    py.PyObject,
    py.PyObject.ob_type,
    *_TYPE,
    *_SEQUENCES,
    *_VALUES,
)
_TO_INTERPRETER_3_14: Groups = (
    py.PyRuntimeState,
    None,
    py.PyRuntimeState.interpreters_head,
    py.PyInterpreterState,
    py.PyInterpreterState.id,
    py.PyInterpreterState.next,
    py.PyInterpreterState.threads_head,
    None,
    None,
    py.PyInterpreterState.imports_modules,
    py.PyInterpreterState.sysdict,
    None,
    py.PyInterpreterState.gil,
    None,
    None,
    None,
    None,
    None,
    None,
)
_FROM_FRAME_3_14: Groups = (
    py.PyInterpreterFrame,
    py.PyInterpreterFrame.previous,
    py.PyInterpreterFrame.f_executable,
    py.PyInterpreterFrame.instr_ptr,
    py.PyInterpreterFrame.localsplus,
    py.PyInterpreterFrame.owner,
    py.PyInterpreterFrame.stackpointer,
    None,
    *_CODE,
    None,
    py.PyObject,
    py.PyObject.ob_type,
    *_TYPE,
)
_FROM_TUPLE_3_14: Groups = (*_SEQUENCES, py.PySetObject, None, None, None, *_VALUES)
GROUPS_3_14: Groups = (
    *_TO_INTERPRETER_3_14,
    py.PyThreadState,
    py.PyThreadState.prev,
    py.PyThreadState.next,
    py.PyThreadState.interp,
    py.PyThreadState.current_frame,
    py.PyThreadState.thread_id,
    py.PyThreadState.native_thread_id,
    None,
    py.PyThreadState.status,
    *_FROM_FRAME_3_14,
    *_FROM_TUPLE_3_14,
)
"""The groups of Include/internal/pycore_debug_offsets.h of 3.14."""
GROUPS_3_15: Groups = (
    *_TO_INTERPRETER_3_14,
    py.PyThreadState,
    py.PyThreadState.prev,
    py.PyThreadState.next,
    py.PyThreadState.interp,
    py.PyThreadState.current_frame,
    py.PyThreadState.base_frame,
    None,
    None,
    py.PyThreadState.thread_id,
    py.PyThreadState.native_thread_id,
    None,
    py.PyThreadState.status,
    None,
    None,
    None,
    None,
    None,
    *_FROM_FRAME_3_14,
    py.PyTypeObject.tp_basicsize,
    py.PyTypeObject.tp_dictoffset,
    py.PyHeapTypeObject,
    py.PyHeapTypeObject.ht_cached_keys,
    *_FROM_TUPLE_3_14,
)
"""Include/internal/pycore_debug_offsets.h of 3.15, as far as it is used."""

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

EVAL_FUNCTIONS = tuple(dict.fromkeys(name for abi in SUPPORTED for name in abi.evaluation_functions))
"""The C functions that run Python code (Python/ceval.c), in any version."""


def unsupported(what: str) -> PythonUnsupported:
    """The error for a CPython that cannot be read, which says which versions can."""
    usual = [row.text for row in SUPPORTED if not row.free_threaded]
    free_threaded = " and ".join(row.text for row in SUPPORTED if row.free_threaded)
    known = f"{usual[0]} to {usual[-1]}, and {free_threaded}, are known"
    return PythonUnsupported(what, why=f"{PythonUnsupported.why}; {known}")


def abi_of_hexversion(hexversion: int, free_threaded: bool = False) -> python_abi.PythonAbi:
    """The row of a sys.hexversion. Raises PythonUnsupported, naming the whole version."""
    wanted = python_abi.minor_of(hexversion), free_threaded
    found = next((row for row in SUPPORTED if (row.version, row.free_threaded) == wanted), None)
    if not found and free_threaded:
        raise unsupported(f"a free-threaded CPython {version_text(hexversion)} is not supported")
    if not found:
        raise unsupported(f"CPython {version_text(hexversion)} is not supported")
    return found


_RELEASE_LEVELS = {0xA: "a", 0xB: "b", 0xC: "rc"}


def version_text(hexversion: int) -> str:
    """PY_VERSION_HEX as text: 0x030b07f0 is "3.11.7", 0x030d00c2 is "3.13.0rc2" (Include/patchlevel.h)."""
    text = f"{hexversion >> 24 & 0xFF}.{hexversion >> 16 & 0xFF}.{hexversion >> 8 & 0xFF}"
    level = _RELEASE_LEVELS.get(hexversion >> 4 & 0xF)
    return f"{text}{level}{hexversion & 0xF}" if level else text


RUNTIME = "_PyRuntime"
"""The runtime's global state; exported by every build since 3.7 (Include/internal/pycore_runtime.h)."""

_COOKIE = b"xdebugpy"  # _Py_Debug_Cookie, Include/internal/pycore_runtime.h of 3.13
_PYTHON_NAME = re.compile(r"^(lib)?python(\d(\.\d+)?)?t?[dm]*(\.so|$)")
_VERSION_IN_PATH = re.compile(r"python(\d)\.(\d+)")
_STRING_TABLE_LIMIT = 1 << 20
"""A .dynstr larger than this is a compute library's, not an interpreter's."""


class RuntimeLocation(NamedTuple):
    """The module that holds CPython, and the address of its _PyRuntime."""

    module: Module
    address: int


class VersionEvidence(NamedTuple):
    """The knowledge before the runtime is read: ``hexversion`` (as sys.hexversion) where it is published,
    ``candidates`` the versions to try, the likeliest first, ``source`` where that comes from ("" for nowhere)."""

    hexversion: int | None
    candidates: tuple[PythonAbi, ...]
    source: str


def find_runtimes(modules: ModuleTable, symbolizer: Symbolizer) -> Iterator[RuntimeLocation]:
    """Modules that define _PyRuntime, the likeliest first; nothing when there is no CPython (since 3.7).

    There can be two: a program that contains CPython, and a libpython that some extension was linked with and that
    never runs.
    """
    for module in _candidates(modules):
        address = _address_in(module, RUNTIME, symbolizer)
        if address:
            yield RuntimeLocation(module, address)


def find_old_python(modules: ModuleTable, symbolizer: Symbolizer) -> Module | None:
    """The module of a CPython before 3.7 (it has no _PyRuntime), None if there is none."""
    for module in modules.modules:
        if _PYTHON_NAME.match(module.name) and _address_in(module, "Py_GetVersion", symbolizer):
            return module
    return None


def _candidates(modules: ModuleTable) -> Iterator[Module]:
    """Modules in the order of likelihood: named python, the executable, small libraries that mention it."""
    named = [module for module in modules.modules if _PYTHON_NAME.match(module.name)]
    programs = [module for module in modules.modules if ".so" not in module.name and module not in named]
    yield from named
    yield from programs
    for module in modules.modules:
        if module not in named and module not in programs and _mentions_runtime(module):
            yield module


def _mentions_runtime(module: Module) -> bool:
    section = module.image.sections.get(".dynstr") if module.image else None
    if not module.image or not section or section.size > _STRING_TABLE_LIMIT:
        return False
    return b"\0_PyRuntime\0" in module.image.contents(section.offset, section.size)


def _address_in(module: Module, name: str, symbolizer: Symbolizer) -> int:
    """Address of an exported symbol of the module, 0 if it has none of that name."""
    index = symbolizer.index(module)
    symbol = index.exported(name) if index else None
    return module.base + symbol.vaddr if symbol else 0


def evidence(memory: Memory, location: RuntimeLocation, symbolizer: Symbolizer) -> VersionEvidence:
    """The version that the target publishes. Raises PythonUnsupported (free-threaded, unknown version)."""
    header = memory.try_read(location.address, 24)
    if header.startswith(_COOKIE):
        version, free_threaded = int.from_bytes(header[8:16], "little"), int.from_bytes(header[16:24], "little")
        return VersionEvidence(version, (abi_of_hexversion(version, bool(free_threaded)),), "_Py_DebugOffsets")
    version_at = _address_in(location.module, "Py_Version", symbolizer)
    if version_at:
        version = memory.u32(version_at)
        abi = abi_of_hexversion(version)
        if abi.published is Published.DEBUG_OFFSETS:
            raise unsupported(f"CPython {version_text(version)} without its _Py_DebugOffsets")
        return VersionEvidence(version, (abi,), "Py_Version")
    return _from_path(location.module)


def _from_path(module: Module) -> VersionEvidence:
    """The order in which the layouts of a version that publishes nothing are tried, by its path."""
    silent = tuple(abi for abi in SUPPORTED if abi.published is Published.NOTHING)
    found = _VERSION_IN_PATH.search(module.name) or _VERSION_IN_PATH.search(module.path)
    minor = number(found.group(2)) if found else None
    if not found or minor is None:
        return VersionEvidence(None, silent, "")
    version = integer(found.group(1)), minor
    if version < silent[0].version:
        raise unsupported("CPython {}.{} is not supported".format(*version))
    named = tuple(abi for abi in silent if abi.version == version)
    if not named:  # a link or a renamed file: the versions that publish theirs would have done so
        return VersionEvidence(None, silent, "")
    return VersionEvidence(None, (*named, *(abi for abi in silent if abi not in named)), module.path)
