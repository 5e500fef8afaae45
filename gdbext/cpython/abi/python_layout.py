"""Offsets inside CPython's structures for one minor version.

Three sources, the best last: ``python_structures`` (types that exist only in a .c file), the tables of
``engine/layouts/data`` (generated from the headers of each version), and the ``_Py_DebugOffsets`` at the start of
``_PyRuntime`` (since 3.13, Include/internal/pycore_runtime.h): cookie[8], version, free_threaded, then groups of
uint64_t, each after the size of the structure (versions.py has each minor version's list).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import python_structures as py
from gdbext.engine.layouts import store
from gdbext.engine.layouts.declarations import Member, Struct, required_in
from gdbext.engine.process.memory import FieldLayout, StructLayout
from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gdbext.cpython.abi import PythonAbi
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory


class TaskLayout(NamedTuple):
    """Offsets in TaskObj (Modules/_asynciomodule.c), in bytes; ``task_size`` is the type's tp_basicsize, which proves
    them."""

    task_size: int
    waiter: int
    coroutine: int
    name: int
    state: int  # ``enum fut_state``: 0 pending, 1 cancelled, 2 finished


TASK_LAYOUTS = {
    (3, 8): TaskLayout(144, 104, 112, 120, 72),
    (3, 9): TaskLayout(184, 144, 152, 160, 80),
    (3, 10): TaskLayout(192, 152, 160, 168, 88),
    (3, 11): TaskLayout(176, 128, 136, 144, 88),
    (3, 12): TaskLayout(176, 128, 136, 144, 88),
    (3, 13): TaskLayout(144, 112, 120, 128, 96),
}
"""No header has them: from the debug information of CPython 3.8.18 to 3.13.0. Later versions publish theirs
(cpython/tasks/loops.py)."""


class PythonLayout:
    """The offsets of the members of CPython's structures, of one version."""

    def __init__(self, abi: PythonAbi, table: Layout, overrides: Mapping[Member[Any], int] | None = None) -> None:
        """``overrides``: offsets that the target publishes about itself, which win over the tables."""
        self.abi = abi
        self.table = table
        self._overrides = dict(overrides or {})
        self._structs: dict[str, StructLayout] = {}

    def struct(self, name: str) -> StructLayout:
        """The structure of that name; one with a dot is a member of another structure. Raises LayoutError."""
        layout = self._structs.get(name)
        if not layout:
            outer, _, member = name.partition(".")
            layout = self._structs[name] = self._inner(outer, member) if member else self._outer(name)
        return layout

    def _outer(self, name: str) -> StructLayout:
        """The structure from the table, else from ``python_structures``, with the published offsets."""
        structure = py.STATED.get(name)
        if self.table.has_struct(name) or not structure:
            measured = self.table.struct(name)  # raises for an unknown structure
            size, fields = measured.size, measured.fields
        else:
            # python_structures counts from a header of 16 bytes; that of a free-threaded build is wider
            wider = self.table.struct(py.PyObject.OF).size - 16 if issubclass(structure, py.PyObject) else 0
            own = [member for member in structure.members() if member.owner == name]
            fields = {
                member.path: FieldLayout(member.path, wider + member.at, 0) for member in own if member.at is not None
            }
            size = structure.SIZE and structure.SIZE + wider
        for member, offset in self._overrides.items():
            if member.owner == name:
                field = fields.get(member.path, FieldLayout(member.path, offset, 0))
                fields = {**fields, member.path: field._replace(offset=offset)}
        return StructLayout(f"CPython {self.abi.text}'s {name}", size, fields)

    def _inner(self, outer: str, member: str) -> StructLayout:
        """The structure that is the ``member`` of another one, with offsets from its own start."""
        whole = self.struct(outer)
        itself, prefix = whole.field(member), f"{member}."
        fields = {
            name[len(prefix) :]: field._replace(offset=field.offset - itself.offset)
            for name, field in whole.fields.items()
            if name.startswith(prefix)
        }
        return StructLayout(f"{whole.name}.{member}", itself.size, fields)

    def find(self, member: Member[Any]) -> int | None:
        """The offset of a member in its structure, in bytes; None if this version does not have it."""
        return member.find(self)

    def size(self, structure: type[Struct]) -> int:
        """``sizeof``, in bytes. Raises LayoutError."""
        return self.struct(structure.OF).size


@cache
def layout_for(abi: PythonAbi, architecture: str = "") -> PythonLayout:
    """The shipped layout of a version (default: for this machine's architecture). Raises LayoutError if missing."""
    folder = store.data_of(architecture) if architecture else store.DATA
    return PythonLayout(abi, store.load(f"{folder}/cpython-{abi.text}.json").require(required_in(py)))


def layouts(memory: Memory, runtime: int, shipped: PythonLayout) -> list[PythonLayout]:
    """Possible layouts of the CPython whose _PyRuntime is at ``runtime``, likeliest first: one if its published offsets
    are those of the shipped table, two if it is another build or they are damaged. Raises MemoryFault."""
    groups = shipped.abi.debug_offsets
    words = memory.words(runtime + 24, len(groups)) if groups else ()  # behind cookie, version and free_threaded
    published = {entry: word for entry, word in zip(groups, words) if entry}
    offsets = {entry: offset for entry, offset in published.items() if isinstance(entry, Member)}
    differing = {member.owner for member, offset in offsets.items() if shipped.find(member) != offset}
    # PyInterpreterState, the largest structure, has 195 KB in 3.13.0
    if not differing or max(published.values()) > 1 << 24:
        return [shipped]
    is_damaged = False
    for entry, size in published.items():
        if not isinstance(entry, Member) and entry.OF in differing:
            with suppress(LayoutError):
                is_damaged = is_damaged or shipped.size(entry) == size  # other offsets in a structure of the same size
    other = PythonLayout(shipped.abi, shipped.table, offsets)
    return [shipped, other] if is_damaged else [other, shipped]
