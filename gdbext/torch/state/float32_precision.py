"""What operations on float32 may compute with, by backend and kind of operation (torch.backends.*.fp32_precision).

ATen/Context.{h,cpp}, 2.13.0: an unordered_map from (backend, operation) to a precision. What nobody has set follows the
backend's "all", and that the "all" of the generic one; cuDNN's convolutions and recurrent networks have a default of
their own, which is TF32. In 2.9 it is a map of maps of texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.errors import BadData
from gdbext.layouts.layout import Layout
from gdbext.model.sections.settings_section import SettingValue
from gdbext.process.memory import Memory
from gdbext.torch.values.containers import hash_entries, hash_table, string_reader, tree_nodes

_TABLE, _ENTRY = "fp32_precision", "at::Context::fp32_precision.entry"
_LIMIT = 64
_NONE, _DEFAULT, _TF32, _BF16 = "none", "default", "tf32", "bf16"
_TEXTS = {_NONE, "ieee", _TF32, _BF16}
_LINKS = 32
"""Bytes of std::_Rb_tree_node_base, before a node's value (bits/stl_tree.h)."""
_GENERIC, _CUDA, _ALL = "generic", "cuda", "all"

UNSET: Mapping[str, SettingValue] = {
    "cuda.all": _NONE, "cuda.conv": _TF32, "cuda.matmul": _NONE, "cuda.rnn": _TF32, "generic.all": _NONE,
    "mkldnn.all": _NONE, "mkldnn.conv": _NONE, "mkldnn.matmul": _NONE, "mkldnn.rnn": _NONE,
}  # fmt: skip
"""What is used as long as nobody has set anything."""


def precisions(memory: Memory, layout: Layout, context: int) -> dict[str, SettingValue]:
    """ "cuda.matmul" and the like to "tf32" and the like, as PyTorch uses them.

    Raises LayoutError, BadData, MemoryFault.
    ``context`` is the address of the at::Context.
    """
    own = own_precisions(memory, layout, context)
    return {f"{backend}.{operation}": _used(own, backend, operation) for backend, operation in sorted(own)}


def own_precisions(memory: Memory, layout: Layout, context: int) -> dict[tuple[str, str], str]:
    """(backend, operation) to what was set for it alone: "none" and "default" where nobody has. Raises as above."""
    table = context + layout.struct("at::Context").offset(_TABLE)
    if "at::Float32Backend" in layout.absent:
        return _texts(memory, layout, table)
    entry = layout.struct(_ENTRY)
    names = [_names(layout, f"at::Float32{kind}") for kind in ("Backend", "Op", "Precision")]
    places = [entry.field(name) for name in ("first.first", "first.second", "second")]
    entries = hash_entries(memory, table, hash_table(layout), -(-entry.size // 8), _LIMIT)
    found = {}
    for words in entries:
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        numbers = [int.from_bytes(raw[at.offset : at.offset + at.size], "little") for at in places]
        backend, operation, precision = (_name(*pair) for pair in zip(names, numbers))
        found[backend, operation] = precision
    if not found or len(found) != len(entries):
        raise BadData(f"the table of float32 precisions has {len(found)} keys in {len(entries)} entries")
    return found


def _texts(memory: Memory, layout: Layout, table: int) -> dict[tuple[str, str], str]:
    """The same of 2.9, from its map at ``table``. Raises as above."""
    strings = string_reader(memory, layout)
    found = {}
    for backend in tree_nodes(memory, table, _LIMIT):
        value = backend + _LINKS + strings.size
        for operation in tree_nodes(memory, value, _LIMIT):
            key = strings.read(backend + _LINKS), strings.read(operation + _LINKS)
            found[key] = strings.read(operation + _LINKS + strings.size)
    if {".".join(key) for key in found} != UNSET.keys() or not set(found.values()) <= _TEXTS:
        raise BadData(f"the map of float32 precisions at {table:#x} has other entries than 2.9's")
    return found


def _used(own: Mapping[tuple[str, str], str], backend: str, operation: str) -> str:
    value = own[backend, operation]
    has_default = value == _DEFAULT
    for key in ((backend, _ALL), (_GENERIC, _ALL)):
        if value in (_NONE, _DEFAULT):
            value = own.get(key, _NONE)
    if value == _NONE and has_default:
        return _TF32
    return _NONE if backend == _CUDA and value == _BF16 else value


def _names(layout: Layout, enumeration: str) -> dict[int, str]:
    return {value: name.lower() for name, value in layout.enum(enumeration).items()}


def _name(names: Mapping[int, str], number: int) -> str:
    if number not in names:
        raise BadData(f"a float32 precision has the number {number}, which has no name")
    return names[number]
