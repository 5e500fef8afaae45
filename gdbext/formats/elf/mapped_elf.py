"""An ELF file as its mapping shows it: headers and notes are in what is loaded, whatever became of the file."""

from __future__ import annotations

from gdbext.errors import SymbolFileError
from gdbext.formats.elf.elf_header import (
    EHDR,
    PF_R,
    PF_W,
    PF_X,
    PHDR,
    PT_LOAD,
    PT_NOTE,
    Read,
    Segment,
    build_id_in,
    parse_header,
    parse_segments,
)

_MAX_HEADERS = 1 << 16
_MAX_NOTES = 1 << 16
"""Bytes of program headers, and of a note segment, that are looked at."""


class MappedElf:
    """``read`` takes addresses relative to the file's first byte in memory. Empty where that is no ELF file.

    ``machine`` is the only e_machine that counts, None for any.
    """

    def __init__(self, read: Read, machine: int | None = None) -> None:
        self._read = read
        self.header = b""
        """The ELF header as it is in memory."""
        self.segments: tuple[Segment, ...] = ()
        head = read(0, EHDR.size)
        if head is None:
            return
        try:
            header = parse_header(head, machine)
            size = header.phoff + header.phnum * max(header.phentsize, PHDR.size)
            headers = read(0, size) if size <= _MAX_HEADERS else None
            if headers is not None:
                self.segments = parse_segments(headers, header)
                self.header = head
        except SymbolFileError:
            return

    @property
    def build_id(self) -> str | None:
        """The GNU build-id (hex), None where there is none or it is not in reach."""
        base = min((segment.vaddr for segment in self.segments if segment.type == PT_LOAD), default=0)
        for segment in self.segments:
            if segment.type == PT_NOTE and segment.vaddr >= base:
                found = build_id_in(self._read(segment.vaddr - base, min(segment.filesz, _MAX_NOTES)) or b"")
                if found is not None:
                    return found
        return None

    def permissions_at(self, offset: int, page_size: int) -> str:
        """What a mapping of that file offset allows ("r-xp"), "" where no PT_LOAD covers it."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.offset & -page_size <= offset < segment.offset + segment.filesz:
                return permission_text(segment.flags)
        return ""


def permission_text(flags: int) -> str:
    """p_flags as /proc/PID/maps writes them; the mapping is taken to be private, as every PT_LOAD is."""
    return "".join((
        "r" if flags & PF_R else "-", "w" if flags & PF_W else "-", "x" if flags & PF_X else "-", "p",
    ))  # fmt: skip
