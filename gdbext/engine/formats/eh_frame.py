"""`.eh_frame` and its search table `.eh_frame_hdr`: from an address to its frame description entry.

Formats: Linux Standard Base Core 5.0, chapters 10.6 (exception frames) and 10.5 (DW_EH_PE encodings). Addresses are
virtual addresses of the file (``vaddr``), whether the bytes come from the file or from the target's memory.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[int, int], bytes]  # (vaddr, size) → exactly ``size`` bytes; b"" if unmapped

MAX_BYTES = 10  # bytes of a LEB128 number (DWARF 5, 7.6) of 64 bits


def uleb128(data: bytes, position: int) -> tuple[int, int]:
    """The unsigned number at ``position`` and the position after it. Raises BadData if it is too long."""
    if position < len(data) and data[position] < 0x80:  # nearly all are this short
        return data[position], position + 1
    result = 0
    for index, byte in enumerate(data[position : position + MAX_BYTES]):
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result, position + index + 1
    raise BadData("LEB128 number does not end")


def sleb128(data: bytes, position: int) -> tuple[int, int]:
    """The signed number at ``position`` and the position after it. Raises BadData if it is too long."""
    result, after = uleb128(data, position)
    bits = 7 * (after - position)
    if result >> (bits - 1):
        result -= 1 << bits
    return result, after


MAX_SCAN = 1 << 26  # bytes of an .eh_frame without search table that are read

_PE_OMIT = 0xFF
_PE_PCREL, _PE_DATAREL, _PE_ALIGNED = 0x10, 0x30, 0x50
_SIZES = {0: 8, 2: 2, 3: 4, 4: 8}  # DW_EH_PE_absptr, _udata2, _udata4, _udata8 → bytes
_FORMATS = {form + 8 * signed: (size, signed) for form, size in _SIZES.items() for signed in (False, True)}
"""These, and DW_EH_PE_signed, _sdata2, _sdata4, _sdata8 → (size in bytes, is signed)."""
_U64 = (1 << 64) - 1


class Cie(NamedTuple):
    """Common information entry: what the FDEs of one compilation share."""

    code_align: int
    data_align: int
    return_register: int
    fde_encoding: int
    augmented: bool
    is_signal: bool
    instructions: bytes


class Fde(NamedTuple):
    """Frame description entry of the code [start, end)."""

    start: int
    end: int
    cie: Cie
    instructions: bytes


def _decode(data: bytes, position: int, encoding: int, vaddr: int, data_base: int) -> tuple[int, int]:
    """The pointer at ``position`` of ``data`` (at ``vaddr``) in a DW_EH_PE encoding, and the position after it.
    ``data_base`` is the address of the `.eh_frame_hdr`, to which DW_EH_PE_datarel is relative. Raises BadData."""
    kind, relation = encoding & 0x0F, encoding & 0x70
    if relation == _PE_ALIGNED:
        position += -(vaddr + position) % 8
    start = position
    if kind == 0x01:
        value, position = uleb128(data, position)
    elif kind == 0x09:
        value, position = sleb128(data, position)
    elif kind in _FORMATS:
        size, signed = _FORMATS[kind]
        piece = data[position : position + size]
        if len(piece) < size:
            raise BadData("exception frame entry is cut short")
        value, position = int.from_bytes(piece, "little", signed=signed), position + size
    else:
        raise BadData(f"unknown pointer encoding {encoding:#x}")
    if relation == _PE_PCREL:
        value += vaddr + start
    elif relation == _PE_DATAREL:
        value += data_base
    elif relation not in (0, _PE_ALIGNED):
        raise BadData(f"pointer encoding {encoding:#x} has no meaning here")
    return value & _U64, position


class _Entry(NamedTuple):
    """A CIE or FDE: its bytes behind the length, their address, and the address of the next entry."""

    data: bytes
    vaddr: int
    end: int


class EntryReader:
    """Parses CIEs and FDEs of one module."""

    def __init__(self, read: Reader, relocation: int = 0) -> None:
        """``relocation`` is subtracted from absolute pointers, which the loader has changed in memory."""
        self.read = read
        self.relocation = relocation
        self._cies: dict[int, Cie] = {}

    def entry(self, vaddr: int) -> _Entry | None:
        """The entry whose length is at ``vaddr``; None for the terminator of the section. Raises BadData."""
        length, start = int.from_bytes(self._bytes(vaddr, 4), "little"), vaddr + 4
        if length == 0xFFFFFFFF:
            length, start = int.from_bytes(self._bytes(start, 8), "little"), start + 8
        if length == 0:
            return None
        if not 4 < length <= 1 << 20:  # libtorch's longest has some thousands
            raise BadData(f"exception frame entry of {length} bytes at {vaddr:#x}")
        return _Entry(self._bytes(start, length), start, start + length)

    def fde(self, vaddr: int) -> Fde:
        """The FDE at ``vaddr``. Raises BadData for anything else."""
        entry = self.entry(vaddr)
        fde = self.parse(entry) if entry else None
        if not fde:
            raise BadData(f"no frame description entry at {vaddr:#x}")
        return fde

    def parse(self, entry: _Entry) -> Fde | None:
        """The FDE in ``entry``; None for a CIE. Raises BadData."""
        data, start = entry.data, entry.vaddr
        back = int.from_bytes(data[:4], "little")
        if back == 0:
            return None
        cie = self._cie(start - back)
        code_start, position = _decode(data, 4, cie.fde_encoding, start, 0)
        if cie.fde_encoding & 0x70 == 0:
            code_start = (code_start - self.relocation) & _U64
        size, position = _decode(data, position, cie.fde_encoding & 0x0F, start, 0)
        if cie.augmented:
            skip, position = uleb128(data, position)
            position += skip
        return Fde(code_start, code_start + size, cie, data[position:])

    def _cie(self, vaddr: int) -> Cie:
        """The CIE at ``vaddr``, which many FDEs share: it is parsed once. Raises BadData."""
        if vaddr not in self._cies:
            entry = self.entry(vaddr)
            if not entry:
                raise BadData(f"no common information entry at {vaddr:#x}")
            try:
                self._cies[vaddr] = _parse_cie(entry.data, entry.vaddr)
            except IndexError:
                raise BadData(f"common information entry at {vaddr:#x} is cut short") from None
        return self._cies[vaddr]

    def _bytes(self, vaddr: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises BadData if they are not mapped."""
        data = self.read(vaddr, size)
        if not data:
            raise BadData(f"exception frames at {vaddr:#x} cannot be read")
        return data


def _parse_cie(data: bytes, vaddr: int) -> Cie:
    """The CIE whose bytes after the length are ``data`` at ``vaddr``. Raises BadData, IndexError."""
    if len(data) < 9 or data[:4] != b"\0\0\0\0":
        raise BadData(f"no common information entry at {vaddr:#x}")
    version = data[4]
    if version not in (1, 3):
        raise BadData(f"common information entry of version {version}")
    end = data.find(b"\0", 5)
    if end < 0:
        raise BadData("augmentation string without end")
    augmentation = data[5:end]
    code_align, position = uleb128(data, end + 1)
    data_align, position = sleb128(data, position)
    if version == 1:
        return_register, position = data[position], position + 1
    else:
        return_register, position = uleb128(data, position)
    encoding = 0
    if augmentation[:1] == b"z":
        size, position = uleb128(data, position)
        end = position + size
        for letter in augmentation[1:]:
            if letter == ord("R"):  # the encoding of the FDEs' addresses
                encoding = data[position]
                break
            if letter == ord("P"):  # personality
                _, position = _decode(data, position + 1, data[position] & 0x7F, vaddr, 0)
            elif letter == ord("L"):  # encoding of the LSDA
                position += 1
            elif letter not in b"SB":
                break
        position = end
    elif augmentation:
        raise BadData(f"unknown augmentation {augmentation!r}")
    is_signal = b"S" in augmentation
    return Cie(code_align, data_align, return_register, encoding, bool(augmentation), is_signal, data[position:])


class SearchTable:
    """The binary search table of a `.eh_frame_hdr`."""

    def __init__(self, read: Reader, vaddr: int, relocation: int = 0) -> None:
        """``vaddr`` is that of the `.eh_frame_hdr`, ``relocation`` as for EntryReader. Raises BadData if there is
        none."""
        self._read = read
        self._vaddr = vaddr
        self.entries = EntryReader(read, relocation)
        head = read(vaddr, 4)
        if not head or head[0] != 1:
            raise BadData(f"no .eh_frame_hdr at {vaddr:#x}")
        self._encoding = head[3]
        # The two encoded numbers before the table take at most 8 bytes each; what follows belongs to the table.
        body = read(vaddr + 4, 16) or read(vaddr + 4, 8)
        self.eh_frame, position = _decode(body, 0, head[1], vaddr + 4, vaddr)
        if head[2] == _PE_OMIT or head[3] == _PE_OMIT:
            self.count = 0
        else:
            self.count, position = _decode(body, position, head[2], vaddr + 4, vaddr)
        self._table = vaddr + 4 + position
        self._width = _FORMATS.get(self._encoding & 0x0F, (0, False))[0]

    @property
    def searchable(self) -> bool:
        """True if there is a table; otherwise the whole `.eh_frame` has to be scanned."""
        return self.count > 0 and self._width > 0

    def find(self, vaddr: int) -> Fde | None:
        """The FDE that covers ``vaddr``, None if there is none. Raises BadData."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) >> 1
            if self.address(middle, 0) <= vaddr:
                low = middle + 1
            else:
                high = middle
        fde = self.entries.fde(self.address(low - 1, 1)) if low else None
        return fde if fde and fde.start <= vaddr < fde.end else None

    def address(self, row: int, column: int) -> int:
        """A vaddr in row number ``row`` of the table: in column 0 the start of code, in column 1 the FDE for it."""
        at = self._table + (2 * row + column) * self._width
        data = self._read(at, self._width)
        if not data:
            raise BadData(f"search table at {self._table:#x} cannot be read")
        if self._encoding == _PE_DATAREL | 0x0B:  # what every linker writes: without _decode this is twice as fast
            return self._vaddr + int.from_bytes(data, "little", signed=True)
        value, _ = _decode(data, 0, self._encoding, at, self._vaddr)
        return (value - self.entries.relocation) & _U64 if self._encoding & 0x70 == 0 else value


class ScannedTable:
    """All FDEs of an `.eh_frame` without a search table, which is read once."""

    def __init__(self, entries: EntryReader, vaddr: int, size: int = MAX_SCAN) -> None:
        """Read the section of ``size`` bytes at ``vaddr``, up to its terminator or the first damaged entry."""
        fdes: list[Fde | None] = []
        end = vaddr + min(size, MAX_SCAN)
        with suppress(BadData):
            while vaddr < end and (entry := entries.entry(vaddr)):
                fdes.append(entries.parse(entry))
                vaddr = entry.end
        self._fdes = sorted(filter(None, fdes), key=lambda fde: fde.start)
        self._starts = [fde.start for fde in self._fdes]

    def find(self, vaddr: int) -> Fde | None:
        """The FDE that covers ``vaddr``, None if there is none."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0 or vaddr >= self._fdes[index].end:
            return None
        return self._fdes[index]
