"""Small x86-64 shared objects made of bytes, so that tests can say exactly what is in a symbol table.

Layout: a page of headers and notes, a page of code (.text, and .init in its last 16 bytes), .dynsym and its strings
(loaded), .symtab and its strings (not loaded), section headers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

TEXT, INIT, DATA, TLS = 1, 2, 3, 4
"""Section numbers; 0 is undefined, 0xFFF1 absolute."""
TEXT_START, INIT_START, DATA_START = 0x1000, 0x1FF0, 0x3000
_NAMES = ["", ".text", ".init", ".data", ".tdata", ".symtab", ".strtab", ".dynsym", ".dynstr", ".shstrtab"]


class Entry(NamedTuple):
    """One symbol to be: type and binding as STT_* and STB_*."""

    name: str
    value: int
    size: int = 16
    type: int = 2
    binding: int = 1
    section: int = TEXT


def _table(entries: list[Entry]) -> tuple[bytes, bytes, int]:
    """Elf64_Sym, strings, sh_info; local symbols first as the gABI demands."""
    strings = bytearray(1)
    ordered = sorted(entries, key=lambda entry: entry.binding != 0)
    table = bytearray(24)
    for entry in ordered:
        info = entry.binding << 4 | entry.type
        table += struct.pack("<IBBHQQ", len(strings), info, 0, entry.section, entry.value, entry.size)
        strings += entry.name.encode() + b"\0"
    return bytes(table), bytes(strings), 1 + sum(entry.binding == 0 for entry in ordered)


def make_elf(
    symbols: list[Entry] | None = None,
    exported: list[Entry] | None = None,
    build_id: bytes = b"",
    text: bytes = b"",
    with_sections: bool = True,
    machine: int = 62,
) -> bytes:
    """The file. ``text`` is the code page's contents."""
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id if build_id else b""
    dynsym, dynstr, dynamic_info = _table(exported or [])
    symtab, strtab, info = _table(symbols or [])
    dynamic_at = 0x2000
    dynstr_at = dynamic_at + len(dynsym)
    loaded_end = dynstr_at + len(dynstr)
    symtab_at = (loaded_end + 15) & ~7
    strtab_at = symtab_at + len(symtab)
    shstrtab_at = strtab_at + len(strtab)
    shstrtab = b"\0".join(name.encode() for name in _NAMES) + b"\0"
    sections_at = (shstrtab_at + len(shstrtab) + 7) & ~7
    segments = [
        (1, 5, 0, 0, 0, loaded_end, 0x2800, 0x1000),
        (1, 6, 0, DATA_START, DATA_START, 64, 0x1000, 0x1000),
        (4, 4, 0x200, 0x200, 0x200, len(note), len(note), 4),
    ]
    at, count, last = (sections_at, len(_NAMES), len(_NAMES) - 1) if with_sections else (0, 0, 0)
    kind = (3, machine, 1, TEXT_START, 64, at, 0, 64, 56, len(segments), 64, count, last)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", *kind)
    programs = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0),
        (1, 6, TEXT_START, TEXT_START, INIT_START - TEXT_START, 0, 0, 0),
        (1, 6, INIT_START, INIT_START, 16, 0, 0, 0),
        (1, 3, DATA_START, 0, 64, 0, 0, 0),
        (1, 0x403, DATA_START, 0, 64, 0, 0, 0),
        (2, 0, 0, symtab_at, len(symtab) if symbols is not None else 0, 6, info, 24),
        (3, 0, 0, strtab_at, len(strtab), 0, 0, 0),
        (11, 2, dynamic_at, dynamic_at, len(dynsym) if exported is not None else 0, 8, dynamic_info, 24),
        (3, 2, dynstr_at, dynstr_at, len(dynstr), 0, 0, 0),
        (3, 0, 0, shstrtab_at, len(shstrtab), 0, 0, 0),
    ]
    offsets = [shstrtab.index(name.encode() + b"\0") if name else 0 for name in _NAMES]
    raw = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, flags, address, offset, size, link, extra, 1, entsize)
        for name, (kind, flags, address, offset, size, link, extra, entsize) in zip(offsets, sections)
    )
    image = bytearray(sections_at + (len(raw) if with_sections else 0))
    pieces = [(0, header), (64, programs), (0x200, note), (TEXT_START, text[:0x1000]), (dynamic_at, dynsym + dynstr)]
    for at, piece in (*pieces, (symtab_at, symtab + strtab), (shstrtab_at, shstrtab)):
        image[at : at + len(piece)] = piece
    if with_sections:
        image[sections_at:] = raw
    return bytes(image)
