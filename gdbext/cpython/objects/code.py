"""Code objects: names, file, lines. Read once each, then kept: the same code runs in many frames and threads.

Layout: Include/cpython/code.h (Include/code.h of 3.8).
"""

from __future__ import annotations

from contextlib import suppress

from gdbext.cpython.abi.python_abi import CodeForm, LineTable
from gdbext.cpython.objects import linetable
from gdbext.cpython.objects.objects import ObjectReader
from gdbext.errors import BadData, GdbextError, MemoryFault

_TABLE_LIMIT = 4 << 20
"""Longest line table, in bytes; that of a generated module of 100,000 lines has about one."""
_NAME_LIMIT = 1024
_PATH_LIMIT = 4096
_LOCALS_LIMIT = 10_000
_COPIES_LIMIT = 1 << 16
"""Copies of the bytecode of one code object; there is one for each thread that runs it often."""
_LINE_TABLE_FIELDS = {
    LineTable.LINE_INCREMENTS: "co_lnotab",
    LineTable.LINE_RANGES: "co_linetable",
    LineTable.LOCATIONS: "co_linetable",
}


class Code:
    """One PyCodeObject.

    ``name`` is co_qualname where the version has it, else co_name, ``file`` co_filename, ``first_line``
    co_firstlineno, ``bytecode`` the address of the first instruction (0 where co_code is a bytes object), and
    ``first_traceable`` the number of code units before which a frame of it is not complete.
    """

    __slots__ = (
        "_copies", "_objects", "_ranges", "_size", "address", "bytecode", "file", "first_line", "first_traceable",
        "lines", "name",
    )  # fmt: skip

    def __init__(self, objects: ObjectReader, address: int) -> None:
        layout, memory = objects.layout, objects.memory
        self._objects = objects
        self._ranges: list[linetable.Range] | None = None
        self.address = address
        self.lines: dict[int, int | None] = {}
        raw = memory.read(address, layout.size("PyCodeObject"))

        def word(field: str, size: int = 8) -> int:
            at = layout.offset("PyCodeObject", field)
            return int.from_bytes(raw[at : at + size], "little")

        inline = layout.abi.code_form is CodeForm.INLINE
        self.file = objects.text(word("co_filename"), _PATH_LIMIT)
        self.name = objects.text(word(layout.abi.code_name), _NAME_LIMIT)
        self.first_line = word("co_firstlineno", 4)
        self.bytecode = address + layout.offset("PyCodeObject", "co_code_adaptive") if inline else 0
        self.first_traceable = word("_co_firsttraceable", 4) if inline else 0
        self._copies = word("co_tlbc") if layout.find("PyCodeObject", "co_tlbc") is not None else 0
        at = layout.offset("PyVarObject", "ob_size")
        self._size = int.from_bytes(raw[at : at + 8], "little") * linetable.CODE_UNIT if self._copies else 0

    def offset_of(self, instruction: int) -> int:
        """The byte offset of an instruction; in a free-threaded build each thread may run a copy of the bytecode
        (_PyCodeArray, cpython/code.h)."""
        offset = instruction - self.bytecode
        if not self._copies or 0 <= offset <= self._size:
            return offset
        memory = self._objects.memory
        with suppress(MemoryFault):
            for start in memory.words(self._copies + 8, min(memory.u64(self._copies), _COPIES_LIMIT)):
                if start <= instruction <= start + self._size:
                    return instruction - start
        return offset

    def line(self, offset: int) -> int | None:
        """The source line of the instruction at byte ``offset``; the first line for a frame that has not begun."""
        if offset < 0:
            return self.first_line
        if offset in self.lines:
            return self.lines[offset]
        if self._ranges is None:
            self._ranges = self._read_ranges()
        line = self.lines[offset] = linetable.line_at(self._ranges, offset)
        return line

    def _read_ranges(self) -> list[linetable.Range]:
        layout = self._objects.layout
        form = layout.abi.line_table
        table = self._objects.memory.u64(self.address + layout.offset("PyCodeObject", _LINE_TABLE_FIELDS[form]))
        return linetable.parse(form, self._objects.bytes(table, _TABLE_LIMIT), self.first_line)

    def opcode(self, offset: int) -> int | None:
        """The opcode at byte ``offset``, None where it cannot be read. As executed: specialised and instrumented."""
        objects = self._objects
        try:
            if self.bytecode:
                return objects.memory.u8(self.bytecode + offset)
            code = objects.memory.u64(self.address + objects.layout.offset("PyCodeObject", "co_code"))
            return objects.bytes(code, _TABLE_LIMIT)[offset]
        except (GdbextError, IndexError):
            return None

    def local_names(self) -> list[str]:
        """Names of the fast locals in the order of their slots: locals, then cells and free variables."""
        objects, layout = self._objects, self._objects.layout
        names: list[str] = []
        for field in layout.abi.local_names:
            items = objects.memory.u64(self.address + layout.offset("PyCodeObject", field))
            if items:
                names += [objects.text(name, _NAME_LIMIT) for name in objects.tuple_items(items, _LOCALS_LIMIT)]
        return names


class CodeCache:
    """All code objects that were asked for, by address."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._known: dict[int, Code | None] = {}

    def get(self, address: int) -> Code:
        """The code object at ``address``. Raises BadData for anything else, MemoryFault when it is not there."""
        if address in self._known:
            code = self._known[address]
            if code is None:
                raise BadData(f"no code object at {address:#x}")
            return code
        self._known[address] = None
        if self._objects.type_of(address).name != "code":
            raise BadData(f"no code object at {address:#x}")
        code = self._known[address] = Code(self._objects, address)
        return code
