"""The offsets that CPython publishes about itself at the start of ``_PyRuntime``, since 3.13.

Layout: struct _Py_DebugOffsets, Include/internal/pycore_runtime.h of 3.13 ("only guaranteed to be stable between
patch versions for a given minor version"): cookie[8], version, free_threaded, then groups of uint64_t, each
starting with the size of the structure it describes. Every minor version has a list of its own, below.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from gdbext.cpython.abi.python_layout import PythonLayout
    from gdbext.process.memory import Memory

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
"""Include/internal/pycore_debug_offsets.h of 3.14."""

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
    """What the structures of the CPython whose _PyRuntime is at ``runtime`` may be like, the likeliest first.

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
