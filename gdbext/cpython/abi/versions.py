"""The versions of CPython that can be read, one row each (a later row says only what changed), and the search for the
``_PyRuntime`` of a process and its version, without debug information.

A new version is a row here, with its list of debug offsets, and a table in layouts/data; see "How to add a CPython
version" in docs/architecture.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import (
    CodeForm,
    DictKeysForm,
    ExitForm,
    FrameObjects,
    GilPlace,
    InstanceDict,
    IntegerForm,
    InterpreterFrames,
    LineTable,
    LockForm,
    LockType,
    LoopAnchor,
    Published,
    PythonAbi,
    minor_of,
)
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.engine.numbers import integer, number
from gdbext.errors import PythonUnsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.cpython.abi import Groups
    from gdbext.engine.layouts.declarations import Struct
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer


def _group(structure: type[Struct], members: str) -> Groups:
    """The words of one group: a structure (its size), then its members by name; "-" for an unused word."""
    return (structure, *(None if name == "-" else getattr(structure, name) for name in members.split()))


_SEQUENCES = (*_group(py.PyTupleObject, "ob_item -"), *_group(py.PyListObject, "ob_item -"))
_VALUES = (
    *_group(py.PyDictObject, "ma_keys ma_values"),
    *_group(py.PyFloatObject, "ob_fval"),
    *_group(py.PyLongObject, "lv_tag value_digit"),
    *_group(py.PyBytesObject, "- ob_sval"),
    *_group(py.PyASCIIObject, "state length -"),
)
_CODE = _group(
    py.PyCodeObject,
    "co_filename co_name co_qualname co_linetable co_firstlineno co_argcount co_localsplusnames co_localspluskinds "
    "co_code_adaptive",
)
_OBJECT_AND_TYPE = (*_group(py.PyObject, "ob_type"), *_group(py.PyTypeObject, "tp_name tp_repr tp_flags"))
GROUPS_3_13: Groups = (
    *_group(py.PyRuntimeState, "- interpreters_head"),
    *_group(py.PyInterpreterState, "id next threads_head - imports_modules sysdict - gil - - - -"),
    *_group(py.PyThreadState, "prev next interp current_frame thread_id native_thread_id - status"),
    *_group(py.PyInterpreterFrame, "previous f_executable instr_ptr localsplus owner"),
    *_CODE,
    *_OBJECT_AND_TYPE,
    *_SEQUENCES,
    *_VALUES,
)
_TO_INTERPRETER_3_14 = (
    *_group(py.PyRuntimeState, "- interpreters_head"),
    *_group(py.PyInterpreterState, "id next threads_head - - imports_modules sysdict - gil - - - - - -"),
)
_FROM_FRAME_3_14 = (
    *_group(py.PyInterpreterFrame, "previous f_executable instr_ptr localsplus owner stackpointer -"),
    *_CODE,
    None,
    *_OBJECT_AND_TYPE,
)
_FROM_TUPLE_3_14 = (*_SEQUENCES, *_group(py.PySetObject, "- - -"), *_VALUES)
GROUPS_3_14: Groups = (
    *_TO_INTERPRETER_3_14,
    *_group(py.PyThreadState, "prev next interp current_frame thread_id native_thread_id - status"),
    *_FROM_FRAME_3_14,
    *_FROM_TUPLE_3_14,
)
"""The groups of Include/internal/pycore_debug_offsets.h of 3.14."""
GROUPS_3_15: Groups = (
    *_TO_INTERPRETER_3_14,
    *_group(
        py.PyThreadState, "prev next interp current_frame base_frame - - thread_id native_thread_id - status - - - - -"
    ),
    *_FROM_FRAME_3_14,
    py.PyTypeObject.tp_basicsize,
    py.PyTypeObject.tp_dictoffset,
    *_group(py.PyHeapTypeObject, "ht_cached_keys"),
    *_FROM_TUPLE_3_14,
)
"""Include/internal/pycore_debug_offsets.h of 3.15, as far as it is used."""

_LOCK = LockType("_thread.lock", Waitable.LOCK, py.LockObject, py.LockObject.lock_lock)
_RLOCK = LockType("_thread.RLock", Waitable.RLOCK, py.RLockObject, py.RLockObject.rlock_lock)
_SIMPLE_QUEUE = LockType("_queue.SimpleQueue", Waitable.SIMPLE_QUEUE, py.SimpleQueueObject, py.SimpleQueueObject.lock)
_MUTEX_LOCK = LockType("_thread.lock", Waitable.LOCK, py.MutexLockObject, py.MutexLockObject.lock, LockForm.MUTEX)
_MUTEX_RLOCK = LockType(
    "_thread.RLock", Waitable.RLOCK, py.MutexRLockObject, py.MutexRLockObject.lock, LockForm.RECURSIVE_MUTEX
)
_PARKING_QUEUE = LockType(
    "_queue.SimpleQueue",
    Waitable.SIMPLE_QUEUE,
    py.ParkingQueueObject,
    py.ParkingQueueObject.has_threads_waiting,
    LockForm.WAITING_FLAG,
)

_3_8 = PythonAbi(
    version=(3, 8),
    published=Published.NOTHING,
    frames=FrameObjects(lasti_unit=1),
    line_table=LineTable.LINE_INCREMENTS,
    code_form=CodeForm.BYTES_OBJECT,
    code_name=py.PyCodeObject.co_name,
    local_names=(py.PyCodeObject.co_varnames, py.PyCodeObject.co_cellvars, py.PyCodeObject.co_freevars),
    dict_keys=DictKeysForm.SLOT_COUNT,
    instance_dict=InstanceDict.DICT_OFFSET,
    integers=IntegerForm.SIGNED_SIZE,
    gil=GilPlace.RUNTIME,
    first_thread=py.PyInterpreterState.tstate_head,
    modules=py.PyInterpreterState.modules,
    lock_types=(_LOCK, _RLOCK, _SIMPLE_QUEUE),
)
_3_9 = _3_8._replace(version=(3, 9))
_3_10 = _3_9._replace(version=(3, 10), frames=FrameObjects(lasti_unit=2), line_table=LineTable.LINE_RANGES)
_3_11 = _3_10._replace(
    version=(3, 11),
    published=Published.VERSION_SYMBOL,
    frames=InterpreterFrames(
        LoopAnchor.C_FRAME, code=py.PyInterpreterFrame.f_code, instruction=py.PyInterpreterFrame.prev_instr
    ),
    line_table=LineTable.LOCATIONS,
    code_form=CodeForm.INLINE,
    code_name=py.PyCodeObject.co_qualname,
    local_names=(py.PyCodeObject.co_localsplusnames,),
    dict_keys=DictKeysForm.LOG2_SIZES,
    instance_dict=InstanceDict.VALUES_POINTER,
    first_thread=py.PyInterpreterState.threads_head,
)
_3_12 = _3_11._replace(
    version=(3, 12),
    frames=InterpreterFrames(
        LoopAnchor.C_FRAME,
        code=py.PyInterpreterFrame.f_code,
        instruction=py.PyInterpreterFrame.prev_instr,
        codeless_owners=(3,),
    ),
    instance_dict=InstanceDict.TAGGED_POINTER,
    integers=IntegerForm.TAG,
    gil=GilPlace.INTERPRETER,
    modules=py.PyInterpreterState.imports_modules,
)
_FRAMES_3_13 = InterpreterFrames(
    LoopAnchor.ENTRY_FRAME,
    code=py.PyInterpreterFrame.f_executable,
    instruction=py.PyInterpreterFrame.instr_ptr,
    entry_owner=3,
    codeless_owners=(3,),
)
_3_13 = _3_12._replace(
    version=(3, 13),
    published=Published.DEBUG_OFFSETS,
    debug_offsets=GROUPS_3_13,
    frames=_FRAMES_3_13,
    instance_dict=InstanceDict.INLINE_VALUES,
    lock_types=(_LOCK, _MUTEX_LOCK, _RLOCK, _PARKING_QUEUE),  # a lock is a mutex since some patch version of 3.13
)
_3_14 = _3_13._replace(
    version=(3, 14),
    debug_offsets=GROUPS_3_14,
    frames=_FRAMES_3_13._replace(codeless_owners=(3, 4), tag_bits=3, exit_form=ExitForm.FUNCTION_AND_SELF),
    lock_types=(_MUTEX_LOCK, _MUTEX_RLOCK, _PARKING_QUEUE),
)
_3_15 = _3_14._replace(
    version=(3, 15),
    debug_offsets=GROUPS_3_15,
    # awaited_slot: the index of an iteration lies above it
    frames=_FRAMES_3_13._replace(tag_bits=3, exit_form=ExitForm.FUNCTION_AND_SELF, awaited_slot=2),
)

_3_13T = _3_13._replace(free_threaded=True)
_3_14T = _3_14._replace(free_threaded=True, kind_bit=8)

SUPPORTED = (_3_8, _3_9, _3_10, _3_11, _3_12, _3_13, _3_13T, _3_14, _3_14T, _3_15)  # all rows of versions, oldest first


def unsupported(what: str) -> PythonUnsupported:
    """The error for a CPython that cannot be read; it names the versions that can."""
    usual = [row.text for row in SUPPORTED if not row.free_threaded]
    free_threaded = " and ".join(row.text for row in SUPPORTED if row.free_threaded)
    versions = f"{usual[0]} to {usual[-1]}, {free_threaded} are supported"
    return PythonUnsupported(what, why=f"{PythonUnsupported.why}; {versions}")


def abi_of_hexversion(hexversion: int, free_threaded: bool = False) -> PythonAbi:
    """The row of a sys.hexversion. Raises PythonUnsupported, naming the whole version."""
    version = minor_of(hexversion), free_threaded
    abi = next((row for row in SUPPORTED if (row.version, row.free_threaded) == version), None)
    if not abi and free_threaded:
        raise unsupported(f"a free-threaded CPython {version_text(hexversion)} is not supported")
    if not abi:
        raise unsupported(f"CPython {version_text(hexversion)} is not supported")
    return abi


def version_text(hexversion: int) -> str:
    """PY_VERSION_HEX as text: 0x030b07f0 is "3.11.7", 0x030d00c2 is "3.13.0rc2" (Include/patchlevel.h)."""
    text = f"{hexversion >> 24 & 0xFF}.{hexversion >> 16 & 0xFF}.{hexversion >> 8 & 0xFF}"
    level = {0xA: "a", 0xB: "b", 0xC: "rc"}.get(hexversion >> 4 & 0xF)
    return f"{text}{level}{hexversion & 0xF}" if level else text


RUNTIME = "_PyRuntime"
"""The runtime's global state; exported by every build since 3.7 (Include/internal/pycore_runtime.h)."""

_COOKIE = b"xdebugpy"  # _Py_Debug_Cookie, Include/internal/pycore_runtime.h of 3.13
_PYTHON_NAME = re.compile(r"^(lib)?python(\d(\.\d+)?)?t?[dm]*(\.so|$)")
_VERSION_IN_PATH = re.compile(r"python(\d)\.(\d+)")
_STRING_TABLE_LIMIT = 1 << 20  # A .dynstr larger than this is a compute library's, not an interpreter's


class RuntimeLocation(NamedTuple):
    """The module that holds CPython, and the address of its _PyRuntime."""

    module: Module
    address: int


class VersionEvidence(NamedTuple):
    """``hexversion`` (as sys.hexversion) if it is published; ``candidates``: the versions to try, likeliest first;
    ``source``: where they are from, "" if all are tried."""

    hexversion: int | None
    candidates: tuple[PythonAbi, ...]
    source: str


def find_runtimes(modules: ModuleTable, symbolizer: Symbolizer) -> Iterator[RuntimeLocation]:
    """Modules that define _PyRuntime (since 3.7), likeliest first: a program that contains CPython may have loaded a
    libpython that never runs, for an extension that was linked with it."""
    locations = (RuntimeLocation(module, _address_in(module, RUNTIME, symbolizer)) for module in _candidates(modules))
    return (location for location in locations if location.address)


def find_old_python(modules: ModuleTable, symbolizer: Symbolizer) -> Module | None:
    """The module of a CPython before 3.7 (it has no _PyRuntime), None if there is none."""
    named = (module for module in modules.modules if _PYTHON_NAME.match(module.name))
    return next((module for module in named if _address_in(module, "Py_GetVersion", symbolizer)), None)


def _candidates(modules: ModuleTable) -> Iterator[Module]:
    """Modules that may contain CPython: those named python, then the executable, then small libraries that mention
    _PyRuntime."""
    named = [module for module in modules.modules if _PYTHON_NAME.match(module.name)]
    likely = [*named, *(module for module in modules.modules if ".so" not in module.name and module not in named)]
    yield from likely
    for module in modules.modules:
        section = module.image.sections.get(".dynstr") if module.image and module not in likely else None
        is_small = section is not None and section.size <= _STRING_TABLE_LIMIT
        names = module.image.contents(section.offset, section.size) if module.image and section and is_small else b""
        if b"\0_PyRuntime\0" in names:
            yield module


def _address_in(module: Module, name: str, symbolizer: Symbolizer) -> int:
    """Address of an exported symbol of the module, 0 if it has none of that name."""
    index = symbolizer.index(module)
    symbol = index.exported(name) if index else None
    return module.base + symbol.vaddr if symbol else 0


def evidence(memory: Memory, location: RuntimeLocation, symbolizer: Symbolizer) -> VersionEvidence:
    """The version that the target publishes, else the likely ones by the module's path. Raises PythonUnsupported."""
    header = memory.try_read(location.address, 24)
    if header.startswith(_COOKIE):
        version, free_threaded = int.from_bytes(header[8:16], "little"), int.from_bytes(header[16:24], "little")
        return VersionEvidence(version, (abi_of_hexversion(version, bool(free_threaded)),), "_Py_DebugOffsets")
    version_at = _address_in(location.module, "Py_Version", symbolizer)
    if version_at:
        version = memory.u32(version_at)
        abi = abi_of_hexversion(version)
        if abi.published is Published.DEBUG_OFFSETS:
            raise unsupported(f"CPython {version_text(version)} lacks its _Py_DebugOffsets")
        return VersionEvidence(version, (abi,), "Py_Version")
    # a version that does not publish itself: those in the path are tried first
    module, silent = location.module, [abi for abi in SUPPORTED if abi.published is Published.NOTHING]
    match = _VERSION_IN_PATH.search(module.name) or _VERSION_IN_PATH.search(module.path)
    minor = number(match.group(2)) if match else None
    path_version = (integer(match.group(1)), minor) if match and minor is not None else None
    if path_version and path_version < silent[0].version:
        raise unsupported("CPython {}.{} is not supported".format(*path_version))
    is_named = any(abi.version == path_version for abi in silent)  # else the path has a link's or another name
    candidates = sorted(silent, key=lambda abi: is_named and abi.version != path_version)
    return VersionEvidence(None, tuple(candidates), module.path if is_named else "")
