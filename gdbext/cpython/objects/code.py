"""Code objects and callables: names, file, lines, and the Python function that a callable runs. Each is read once.

Line tables: Objects/lnotab_notes.txt (3.8 to 3.10), Objects/locations.md (3.11, 3.12), InternalDocs/code_objects.md
(since 3.13). All offsets are bytes from the start of the bytecode; a line is None if the table says that there is none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import CodeForm, LineTable
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.objects import FLAG_TYPE, DictReader, ObjectReader
from gdbext.errors import BadData, GdbextError, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional

    from gdbext.engine.layouts.declarations import Number

    Range = tuple[int, int, Optional[int]]  # first byte, end byte (exclusive), line


_NO_LINE = -128  # 3.10: "this range has no line number"
CODE_UNIT = 2  # size of a _Py_CODEUNIT, in bytes
_LONG, _NO_COLUMNS, _NONE = 14, 13, 15  # 3.11 location codes; 10-12 are "one line" forms, below are "short"


def line_at(ranges: list[Range], offset: int) -> int | None:
    """The line of the instruction at byte ``offset``; None if it has none or no range covers it."""
    return next((line for start, end, line in ranges if start <= offset < end), None)


def parse(form: LineTable, table: bytes, first_line: int) -> list[Range]:
    """All ranges of a code object's line table; ``first_line``: its co_firstlineno."""
    parsers = {LineTable.LINE_INCREMENTS: _lnotab, LineTable.LINE_RANGES: _linetable, LineTable.LOCATIONS: _locations}
    return list(parsers[form](table, first_line))


def _signed(byte: int) -> int:
    """The byte as an int8_t."""
    return byte - 256 if byte > 127 else byte


def _lnotab(table: bytes, line: int) -> Iterator[Range]:
    """The ranges of a co_lnotab (3.8, 3.9): pairs of (unsigned address increment, signed line increment). Either may be
    zero: long distances take several pairs."""
    start = end = 0
    for index in range(0, len(table) - 1, 2):
        end += table[index]
        if end > start:
            yield start, end, line
            start = end
        line += _signed(table[index + 1])
    yield start, 1 << 62, line


def _linetable(table: bytes, line: int) -> Iterator[Range]:
    """The ranges of a co_linetable of 3.10 (PEP 626): pairs of (unsigned length, signed line increment), -128 for a
    range without a line. A range of length zero only moves the line."""
    start = 0
    for index in range(0, len(table) - 1, 2):
        length, delta = table[index], _signed(table[index + 1])
        if delta != _NO_LINE:
            line += delta
        if length:
            yield start, start + length, None if delta == _NO_LINE else line
            start += length


def _locations(table: bytes, line: int) -> Iterator[Range]:
    """The ranges of a location table (3.11 and later), without columns: only the first byte of an entry has its top bit
    set."""
    start = position = 0
    size = len(table)
    while position < size:
        first = table[position]
        code = (first >> 3) & 15
        end = start + ((first & 7) + 1) * CODE_UNIT
        position += 1
        if code in (_LONG, _NO_COLUMNS):
            line += _signed_varint(table, position)
        elif 10 <= code <= 12:
            line += code - 10
        yield start, end, None if code == _NONE else line
        start = end
        while position < size and not table[position] & 0x80:
            position += 1


def _signed_varint(table: bytes, position: int) -> int:
    """The number at byte ``position``: six bits a byte, least significant first, 0x40 means that more follow; the
    lowest bit of the result is the sign."""
    value = 0
    for index, byte in enumerate(table[position : position + 10]):
        value |= (byte & 63) << 6 * index
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1


_TABLE_LIMIT = 4 << 20  # longest line table, in bytes; a generated module of 100,000 lines has about 1 MiB
_NAME_LIMIT = 1024
_PATH_LIMIT = 4096
_LOCALS_LIMIT = 10_000
_COPIES_LIMIT = 1 << 16  # copies of the bytecode of one code object; there is one for each thread that runs it often


class Code:
    """One PyCodeObject: ``name`` is co_qualname where the version has it, else co_name; ``file`` and ``first_line`` are
    co_filename and co_firstlineno; ``bytecode`` is the address of the first instruction (0 if co_code is a bytes
    object); a frame whose instruction is below ``first_traceable`` code units is still being set up."""

    def __init__(self, objects: ObjectReader, address: int) -> None:
        layout, space = objects.layout, objects.space
        self._objects = objects
        self._ranges: list[Range] | None = None
        self._local_names: list[str] | None = None
        self.address = address
        self.lines: dict[int, int | None] = {}
        raw = objects.memory.read(address, layout.size(py.PyCodeObject))

        def word(member: Number) -> int:
            """The value of a member, from the bytes of the whole object."""
            at = member.offset(space)
            return int.from_bytes(raw[at : at + member.width], "little")

        inline = layout.abi.code_form is CodeForm.INLINE
        self.file = objects.text(word(py.PyCodeObject.co_filename), _PATH_LIMIT)
        self.name = objects.text(word(layout.abi.code_name), _NAME_LIMIT)
        self.first_line = word(py.PyCodeObject.co_firstlineno)
        self.bytecode = address + py.PyCodeObject.co_code_adaptive.offset(space) if inline else 0
        self.first_traceable = word(py.PyCodeObject.co_firsttraceable) if inline else 0
        self._copies = word(py.PyCodeObject.co_tlbc) if py.PyCodeObject.co_tlbc.is_in(layout) else 0
        self._size = word(py.PyCodeObject.ob_size) * CODE_UNIT if self._copies else 0

    def offset_of(self, instruction: int) -> int:
        """The byte offset in the code of the instruction at that address, which may be in one of the copies that
        free-threaded builds make of the code for each thread (_PyCodeArray)."""
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
        """The source line of the instruction at byte ``offset``; the first line for a negative offset, as in a frame
        that has not begun. Raises MemoryFault, BadData."""
        if offset < 0:
            return self.first_line
        if offset not in self.lines:
            if self._ranges is None:
                form, code = self._objects.layout.abi.line_table, py.PyCodeObject(self._objects.space, self.address)
                table = code.co_lnotab if form is LineTable.LINE_INCREMENTS else code.co_linetable
                self._ranges = parse(form, self._objects.bytes(table, _TABLE_LIMIT), self.first_line)
            self.lines[offset] = line_at(self._ranges, offset)
        return self.lines[offset]

    def opcode(self, offset: int) -> int | None:
        """The opcode at byte ``offset``, as executed (specialized or instrumented); None if it cannot be read."""
        objects = self._objects
        try:
            if self.bytecode:
                return objects.memory.u8(self.bytecode + offset)
            code = py.PyCodeObject(objects.space, self.address).co_code
            return objects.bytes(code, _TABLE_LIMIT)[offset]
        except (GdbextError, IndexError):
            return None

    @property
    def argument_count(self) -> int:
        """The number of parameters by position. Raises MemoryFault, LayoutError."""
        return py.PyCodeObject(self._objects.space, self.address).co_argcount

    @property
    def keyword_count(self) -> int:
        """The number of parameters for keywords alone: ``co_kwonlyargcount`` is the second int behind ``co_argcount``
        (3.8 to 3.14). Raises MemoryFault, LayoutError."""
        code = py.PyCodeObject(self._objects.space, self.address)
        return self._objects.memory.u32(code.place(py.PyCodeObject.co_argcount) + 8)

    @property
    def takes_more(self) -> bool:
        """True if it has ``*args`` (CO_VARARGS, Include/cpython/code.h). Raises MemoryFault, LayoutError."""
        return bool(py.PyCodeObject(self._objects.space, self.address).co_flags & 0x04)

    @property
    def takes_keywords(self) -> bool:
        """True if it has ``**kwargs`` (CO_VARKEYWORDS, Include/cpython/code.h). Raises MemoryFault, LayoutError."""
        return bool(py.PyCodeObject(self._objects.space, self.address).co_flags & 0x08)

    def local_names(self) -> list[str]:
        """Names of the fast locals in the order of their slots: locals, then cells and free variables."""
        if self._local_names is None:
            objects, code = self._objects, py.PyCodeObject(self._objects.space, self.address)
            tuples = filter(None, map(code.value, objects.layout.abi.local_names))
            names = [name for items in tuples for name in objects.tuple_items(items, _LOCALS_LIMIT)]
            self._local_names = [objects.text(name, _NAME_LIMIT) for name in names]
        return self._local_names


class CodeCache:
    """Reads each code object once."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._codes: dict[int, Code | None] = {}  # address → None if no code object is there, or it cannot be read

    def get(self, address: int) -> Code:
        """The code object at ``address``. Raises BadData for anything else, MemoryFault if it cannot be read."""
        if address not in self._codes:
            self._codes[address] = None
            if self._objects.type_of(address).name == "code":
                self._codes[address] = Code(self._objects, address)
        code = self._codes[address]
        if not code:
            raise BadData(f"no code object at {address:#x}")
        return code


_DEPTH = 8  # most wrappers (partial, bound method, __wrapped__) that are followed
_FUNCTION_NAME_LIMIT = 512


class PythonFunction(NamedTuple):
    """A callable: ``qualname`` as in __qualname__ (module not included), source ``file`` and first ``line`` (None if it
    has no Python source); ``kind`` is "function", "builtin", "class", "instance" or "object"."""

    qualname: str
    file: str | None
    line: int | None
    kind: str
    address: int
    code: int = 0  # address of the code object; 0 without Python source

    @property
    def place(self) -> str:
        """ "file:line", or "" if there is none."""
        return f"{self.file}:{self.line}" if self.file is not None else ""


class FunctionReader:
    """Finds the Python function that a callable object runs."""

    def __init__(self, objects: ObjectReader, dicts: DictReader, codes: CodeCache) -> None:
        self._objects = objects
        self._dicts = dicts
        self._codes = codes
        self._space = objects.space

    def source(self, address: int) -> PythonFunction | None:
        """The function that the callable at ``address`` runs, which may be a bound method, a functools.partial or have
        ``__wrapped__``; None if it cannot be read."""
        try:
            for _ in range(_DEPTH):
                kind, inner = self._objects.type_of(address).name, 0
                if kind == "method":
                    inner = py.PyMethodObject(self._space, address).im_func
                elif kind == "functools.partial":
                    inner = py.PartialObject(self._space, address).fn
                elif kind == "function":
                    namespace = py.PyFunctionObject(self._space, address).func_dict
                    inner = self._dicts.get(namespace, "__wrapped__") if namespace else 0
                if not inner:
                    break
                address = inner
            return self._describe(address)
        except GdbextError:
            return None

    def _describe(self, address: int) -> PythonFunction:
        """The record of a callable that does not wrap another one. Raises GdbextError."""
        info = self._objects.type_of(address)
        if info.name == "function":
            return self._function(address)
        if info.name == "builtin_function_or_method":
            method = py.PyCFunctionObject(self._space, address).m_ml
            memory = self._objects.memory
            name = memory.cstring(memory.u64(method), _FUNCTION_NAME_LIMIT).decode("utf-8", "replace")
            return PythonFunction(name, file=None, line=None, kind="builtin", address=address)
        if info.flags & FLAG_TYPE:
            return PythonFunction(self._objects.type_info(address).name, None, None, "class", address)
        call = self._dicts.inherited_attribute(info.address, "__call__")
        if call and self._objects.type_of(call).name == "function":
            return self._function(call)._replace(kind="instance", address=address)
        return PythonFunction(info.name, file=None, line=None, kind="object", address=address)

    def _function(self, address: int) -> PythonFunction:
        """The record of a function object; its code's name if ``__qualname__`` is damaged. Raises GdbextError."""
        function = py.PyFunctionObject(self._space, address)
        code = self._codes.get(function.func_code)
        qualname = code.name
        with suppress(BadData, MemoryFault):
            qualname = self._objects.text(function.func_qualname, _FUNCTION_NAME_LIMIT)
        return PythonFunction(qualname, code.file, code.first_line, "function", address, code.address)
