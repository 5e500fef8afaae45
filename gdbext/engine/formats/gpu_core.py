"""Reads cores of an NVIDIA GPU: the kernels that ran, their grids, and the exceptions that they hit.

They are ELF files of machine EM_CUDA with tables in sections (cudacoredump.h of NVIDIA; cuda-gdb, driver r346 to r575).
Newer drivers add fields at the ends of rows, so the section tells the size of a row. Exceptions: cudadebugger.h of CUDA
13. No core of a real device was at hand: every number is checked before use.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.formats.eh_frame import sleb128, uleb128
from gdbext.engine.formats.elf import ElfSection
from gdbext.engine.formats.elf_header import EHDR, Data, parse_header
from gdbext.errors import BadCore, BadData, SymbolFileError

_LOUSER = 0x80000000
_ELF_RELOCATED, _DEVICES, _SMS, _GRIDS, _LANES, _MODULES = (_LOUSER + kind for kind in (7, 9, 11, 12, 15, 16))
"""Types of sections: CUDBG_SHT_RELF_IMG, _DEV_TABLE, _SM_TABLE, _GRID_TABLE, _LN_TABLE, _MOD_TABLE."""
_SYMTAB, _STRTAB, _STT_FUNC = 2, 3, 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MOST_SECTIONS, _MOST_SYMBOLS, _MOST_GRIDS = 1_000_000, 200_000, 1024
_GRID_ROW, _DEVICE_ROW, _LANE_ROW, _SM_ROW = 96, 24, 36, 24  # least bytes of a row
_LANE_PC, _LANE_EXCEPTION, _SM_EXCEPTION = 0, 32, 8  # offsets in a row; an SM's exception is there since r555
_EXCEPTIONS = {
    1: "an illegal address",
    2: "a user stack overflow",
    3: "a device stack overflow",
    4: "an illegal instruction",
    5: "an address out of range",
    6: "a misaligned address",
    7: "an invalid address space",
    8: "an invalid program counter",
    9: "a hardware stack overflow",
    10: "an illegal address",
    11: "a misaligned address",
    12: "an assertion",
    13: "a system call error",
    14: "an illegal address",
    17: "an address out of range in a cluster",
    18: "a cluster block that is not present",
    19: "a stack canary",
}
_NAMED = 4  # most grids and exceptions that the text names


class GpuGrid(NamedTuple):
    """One grid; ``kernel`` is "" if no symbol is at its entry."""

    kernel: str
    entry: int
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]

    @property
    def text(self) -> str:
        """``spins<int>(int*) (grid 1×1×1 of 32×1×1)``."""
        shape = "grid {} of {}".format(*("×".join(map(str, sizes)) for sizes in (self.blocks, self.threads)))
        return f"{self.kernel or f'a kernel at {self.entry:#x}'} ({shape})"


class GpuCore(NamedTuple):
    """The contents of a GPU's core."""

    devices: tuple[str, ...]
    grids: tuple[GpuGrid, ...]
    exceptions: tuple[tuple[str, int], ...]
    """(kind of exception, number of the GPU's threads, or of its processors, that hit it)."""
    lines: tuple[tuple[str, int], ...] = ()
    """("file:line", number of the GPU's threads there), of threads that hit an exception, else of all; empty if the
    kernels were compiled without lines (nvcc -lineinfo)."""

    @property
    def text(self) -> str:
        """The sentence that names devices, kernels, exceptions and lines."""
        kernels = _listed([grid.text for grid in self.grids]) or "no kernel"
        hit = _listed([f"{name} ({count} times)" for name, count in self.exceptions]) or "no exception"
        names = _listed(self.devices)
        lines = _listed([f"{line} ({count})" for line, count in self.lines])
        threads = f"; its threads are at {lines}" if lines else ""
        return f"a core of a GPU{f' ({names})' if names else ''}, with {kernels}, and {hit}{threads}"


def _listed(texts: Sequence[str]) -> str:
    """The first texts, with the number of the others: ``a, b, c, d and 3 more``."""
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


class _Sections:
    """The sections of one ELF file of 64 bits."""

    def __init__(self, data: Data, path: str) -> None:
        """Raises BadCore if the file is truncated; ``path`` is for errors."""
        self._data = data
        self._path = path
        try:
            header = parse_header(data)
        except SymbolFileError as error:
            raise BadCore(f"{path} is truncated: its ELF header is not all there") from error
        start, count = header.shoff, header.shnum
        self.names_number = header.shstrndx  # the number of the section with the sections' names
        if header.shentsize != _SECTION.size or not EHDR.size <= start <= len(data) - _SECTION.size:
            raise BadCore(f"{path} is truncated: its section headers are not there")
        if not count:  # so many that the first one has the number
            count = _SECTION.unpack(data[start : start + _SECTION.size])[5]
        if count > _MOST_SECTIONS or start + count * _SECTION.size > len(data):
            raise BadCore(f"{path} is truncated: its {count} section headers are not all there")
        rows = list(_SECTION.iter_unpack(data[start : start + count * _SECTION.size]))
        self._name_offsets = [row[0] for row in rows]
        self.sections = [ElfSection(number, "", *row[1:8], *row[9:]) for number, row in enumerate(rows)]
        """Without their names: see ``named``."""

    def of_type(self, kind: int) -> list[ElfSection]:
        """The sections whose type (sh_type) is ``kind``."""
        return [section for section in self.sections if section.type == kind]

    def contents(self, section: ElfSection) -> bytes:
        """The section's bytes. Raises BadCore if the file is truncated before their end."""
        if section.offset + section.size > len(self._data):
            raise BadCore(f"{self._path} is truncated: section {section.number} is not all there")
        return self._data[section.offset : section.offset + section.size]

    def rows(self, kind: int, needed: int) -> Iterator[bytes]:
        """The rows of all tables of type ``kind`` whose rows have at least ``needed`` bytes."""
        for section in self.of_type(kind):
            yield from self.rows_of(section, needed)

    def rows_of(self, section: ElfSection, needed: int) -> Iterator[bytes]:
        """The rows of one table; none if they are shorter than ``needed`` bytes."""
        if section.entsize >= needed:
            raw = self.contents(section)
            for at in range(0, len(raw) - section.entsize + 1, section.entsize):
                yield raw[at : at + section.entsize]

    def named(self, name: bytes) -> bytes:
        """The contents of the first section of that name, b"" if there is none."""
        names = self.contents(self.sections[self.names_number]) if self.names_number < len(self.sections) else b""
        for section, offset in zip(self.sections, self._name_offsets):
            if names[offset:].startswith(name + b"\0"):
                return self.contents(section)
        return b""


def read_gpu_core(data: Data, path: str) -> GpuCore:
    """Read the tables of the core. Raises BadCore."""
    core = _Sections(data, path)
    return GpuCore(tuple(_devices(core)), tuple(_grids(core, path)), tuple(_exceptions(core)), _lines(core, path))


def _devices(core: _Sections) -> Iterator[str]:
    """The name and kind of each device."""
    tables = [section for section in core.sections if section.type == _STRTAB]
    # not the table with the sections' names, if there is another one
    table = next(iter(sorted(tables, key=lambda section: section.number == core.names_number)), None)
    for row in core.rows(_DEVICES, _DEVICE_ROW):
        name, _, kind = struct.unpack_from("<QQQ", row)
        texts = [_text(core.contents(table), offset) for offset in (name, kind)] if table else []
        yield " ".join(filter(None, texts)) or "of an unknown name"


def _text(table: bytes, at: int) -> str:
    """The text at an offset of a string table, "" if it is not printable ASCII."""
    raw = table[at : at + 128].split(b"\0", 1)[0] if at < len(table) else b""
    return raw.decode("ascii") if raw.isascii() and raw.decode("ascii").isprintable() else ""


def _grids(core: _Sections, path: str) -> Iterator[GpuGrid]:
    """The grids of the core at ``path``, with the names of their kernels."""
    functions: dict[int, dict[int, str]] = {}  # handle of a module → address → function
    for row in islice(core.rows(_GRIDS, _GRID_ROW), _MOST_GRIDS):
        entry, module = struct.unpack_from("<QQ", row, 24)
        sizes = struct.unpack_from("<6I", row, 72)
        if module not in functions:
            functions[module] = _functions(core, module, path)
        yield GpuGrid(functions[module].get(entry, ""), entry, sizes[:3], sizes[3:])


def _functions(core: _Sections, module: int, path: str) -> dict[int, str]:
    """Address → function of the module with the handle ``module``, from its relocated image."""
    for table in core.of_type(_MODULES):
        handles = [struct.unpack_from("<Q", row)[0] for row in core.rows_of(table, 8)]
        for image in core.of_type(_ELF_RELOCATED):
            if image.link == table.number and image.info < len(handles) and handles[image.info] == module:
                return dict(_symbols(_Sections(core.contents(image), path)))
    return {}


def _symbols(image: _Sections) -> Iterator[tuple[int, str]]:
    """(address, demangled name) of each function."""
    for section in image.of_type(_SYMTAB):
        if section.link >= len(image.sections):
            continue
        texts = image.contents(image.sections[section.link])
        for number, row in enumerate(image.rows_of(section, _SYMBOL.size)):
            name, info, _, _, value, _ = _SYMBOL.unpack_from(row)
            if number >= _MOST_SYMBOLS:
                return
            if info & 15 == _STT_FUNC and value and name < len(texts):
                yield value, demangle(texts[name : name + 4096].split(b"\0", 1)[0].decode("utf-8", "replace"))


def _exceptions(core: _Sections) -> list[tuple[str, int]]:
    """(kind of exception, number of the GPU's threads that hit it), or of its processors if no thread has one: the
    warps may have exited."""
    for kind, offset, needed in ((_LANES, _LANE_EXCEPTION, _LANE_ROW), (_SMS, _SM_EXCEPTION, _SM_ROW)):
        counts = Counter(struct.unpack_from("<I", row, offset)[0] for row in core.rows(kind, needed))
        del counts[0]
        if counts:
            return [(_EXCEPTIONS.get(number, f"exception {number}"), count) for number, count in counts.most_common()]
    return []


def _lines(core: _Sections, path: str) -> tuple[tuple[str, int], ...]:
    """("file:line", number of threads there), the most frequent first."""
    rows = list(core.rows(_LANES, _LANE_ROW))
    hit_exception = [row for row in rows if struct.unpack_from("<I", row, _LANE_EXCEPTION)[0]]
    rows = hit_exception or rows
    counts = Counter(struct.unpack_from("<Q", row, _LANE_PC)[0] for row in rows)
    lines: Counter[str] = Counter()
    for image in core.of_type(_ELF_RELOCATED):
        with suppress(*_TORN):
            table = list(_line_rows(_Sections(core.contents(image), path).named(b".debug_line")))
            for (start, line), (end, _) in zip(table, table[1:]):
                if line:
                    lines[line] += sum(count for pc, count in counts.items() if start <= pc < end)
    return tuple((line, count) for line, count in lines.most_common() if count)


_TORN = (BadData, IndexError, ValueError, ZeroDivisionError, struct.error)
"""The errors of reading a damaged line table: then its module has no lines."""


def _line_rows(raw: bytes) -> Iterator[tuple[int, str]]:
    """(first address, "file:line") of the rows of a .debug_line, with "" for the end of each sequence. Raises the
    errors of _TORN."""
    at = 0
    while at + 4 < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        unit, at = raw[at + 4 : at + 4 + length], at + 4 + length
        # versions of DWARF's line table that contain the names of files; nvcc writes 2
        if struct.unpack_from("<H", unit)[0] in (2, 3, 4):
            yield from islice(_LineProgram(unit).rows(), 200_000)


class _LineProgram:
    """One unit of DWARF's line table (DWARF 4, section 6.2). Raises the errors of _TORN."""

    def __init__(self, unit: bytes) -> None:
        """Read the header of ``unit``, the bytes of the unit behind its length."""
        version, length = struct.unpack_from("<HI", unit)
        at = 7 if version < 4 else 8  # since 4 there is the number of operations of an instruction
        self._step = unit[6]
        self._base, self._range, self._first = struct.unpack_from("<bBB", unit, at + 1)
        self._operands = unit[at + 4 : at + 3 + self._first]
        self._code, self._at = unit, at + 3 + self._first
        while unit[self._at]:  # the folders
            self._name()
        self._at += 1
        self._files = []
        while unit[self._at]:
            self._files.append(self._name().decode("utf-8", "replace").rpartition("/")[2])
            for _ in range(3):  # folder, time, size
                self._number()
        self._at = 6 + length

    def _name(self) -> bytes:
        """The next text up to its NUL."""
        start, self._at = self._at, self._code.index(b"\0", self._at) + 1
        return self._code[start : self._at - 1]

    def _number(self) -> int:
        """The next ULEB128 number."""
        value, self._at = uleb128(self._code, self._at)
        return value

    def rows(self) -> Iterator[tuple[int, str]]:
        """(first address, "file:line") of each row, as in _line_rows."""
        address, file, line = 0, 1, 1
        while self._at < len(self._code):
            operation = self._code[self._at]
            self._at += 1
            if operation >= self._first:  # a special opcode advances both
                steps, lines = divmod(operation - self._first, self._range)
                address, line = address + steps * self._step, line + self._base + lines
                yield address, self._text(file, line)
            elif operation == 0:  # an extended opcode, behind its size
                size = self._number()
                extended, self._at = self._code[self._at : self._at + size], self._at + size
                if extended[0] == 1:  # DW_LNE_end_sequence
                    yield address, ""
                    address, file, line = 0, 1, 1
                elif extended[0] == 2:  # DW_LNE_set_address
                    (address,) = struct.unpack_from("<Q", extended, 1)
            elif operation == 1:  # DW_LNS_copy
                yield address, self._text(file, line)
            elif operation == 3:  # DW_LNS_advance_line
                change, self._at = sleb128(self._code, self._at)
                line += change
            elif operation == 9:  # DW_LNS_fixed_advance_pc
                address += struct.unpack_from("<H", self._code, self._at)[0]
                self._at += 2
            elif operation == 8:  # DW_LNS_const_add_pc
                address += (255 - self._first) // self._range * self._step
            else:  # DW_LNS_advance_pc (2), DW_LNS_set_file (4), and those without effect here
                operands = [self._number() for _ in range(self._operands[operation - 1])]
                address += operands[0] * self._step if operation == 2 else 0
                file = operands[0] if operation == 4 else file

    def _text(self, file: int, line: int) -> str:
        return f"{self._files[file - 1] if 0 < file <= len(self._files) else '?'}:{line}"


def refuse(path: str, data: Data) -> BadCore:
    """The error for a GPU's core in place of a process's: it says what the core holds, and how to read it."""
    return BadCore(
        f"{path} is {read_gpu_core(data, path).text}",
        why="it records what ran on the GPU, not the threads of the process",
        help=f"examine it with: cuda-gdb -ex 'target cudacore {path}'; for the process's threads take a core of it: "
        "gcore PID",
    )
