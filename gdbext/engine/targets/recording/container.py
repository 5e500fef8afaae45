"""The file of a recording: a header, then, compressed, one JSON document and numbered blocks of sparse bytes.

docs/recording.md describes it byte by byte. Files come from other people: every size is checked before it is used.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING

from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.targets.recording.recording import LIMIT, SparseBytes
from gdbext.errors import BadData, BadRecording, GdbextError

try:
    import lzma
except ImportError:  # Python may be built without it
    lzma = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAGIC = b"\x89gdbrec\n"
"""Not ASCII, with a line feed: a transfer as text damages it visibly."""
FORMAT = 2
"""Format 1 has whole pages of memory, format 2 the bytes that were read; nothing else differs."""
HEADER = struct.Struct("<8sHHIQQ")
"""magic, format, compression, reserved (0), size of the contents, size of the compressed contents."""
ZLIB, LZMA = 1, 2
MAX_CONTENTS = 256 << 20
"""Limit of the bytes of the contents, for writing and reading."""
MAX_VALUES = 1 << 20
"""Limit of the values of the document: a process with a thousand threads has a megabyte, and 100,000 values."""
_START = struct.Struct("<II")
"""Size of the document, number of the blocks."""
_BLOCK = struct.Struct("<I")
"""Number of a block's pieces."""
FAST, SMALL = -1, 9
"""The first is zlib, for a user who waits: a fifth of the time of lzma's fastest preset that is any smaller, and a
third larger. The second is a preset of lzma."""


def pack(document: dict[str, Any], blocks: Sequence[SparseBytes], preset: int = FAST) -> bytes:
    """The bytes of the file. Raises GdbextError when it would be too large."""
    text = json.dumps(document, separators=(",", ":")).encode()
    parts = [_START.pack(len(text), len(blocks)), text]
    for block in blocks:
        count, sizes = len(block.pieces), map(len, block.pieces)
        parts += [_BLOCK.pack(count), struct.pack(f"<{count}Q", *block.starts), struct.pack(f"<{count}I", *sizes)]
        parts += block.pieces
    contents = b"".join(parts)
    if len(contents) > MAX_CONTENTS:
        raise GdbextError(f"the recording would hold {len(contents) >> 20} MB, and {MAX_CONTENTS >> 20} are allowed")
    return wrap(contents, preset)


def wrap(contents: bytes, preset: int = FAST) -> bytes:
    """The contents, compressed, behind a header."""
    if preset == FAST or not lzma:
        kind, packed = ZLIB, zlib.compress(contents, 4 if preset == FAST else 9)
    else:
        kind, packed = LZMA, lzma.compress(contents, lzma.FORMAT_XZ, lzma.CHECK_CRC32, preset)
    return HEADER.pack(MAGIC, FORMAT, kind, 0, len(contents), len(packed)) + packed


def read(path: str) -> bytes:
    """The bytes of the file at ``path``. Raises BadRecording."""
    try:
        return read_file(path, HEADER.size + MAX_CONTENTS)
    except BadData as error:
        raise BadRecording(error.what, why="") from error
    except FileNotFoundError as error:
        help = "list the files of its folder: ls"
        raise BadRecording(f"there is no file {path}", why="its name or its folder is wrong", help=help) from error
    except (OSError, ValueError) as error:
        raise BadRecording(f"cannot read {path}: {getattr(error, 'strerror', '') or error}", why="") from error


def unpack(data: bytes) -> tuple[Any, list[SparseBytes]]:
    """The document (any JSON value) and the blocks of a file's bytes. Raises BadRecording."""
    return parse(unwrap(data))


def parse(contents: bytes) -> tuple[Any, list[SparseBytes]]:
    """The document and the blocks of the contents (see ``unwrap``). Raises BadRecording."""
    if len(contents) < _START.size:
        raise BadRecording("the recording is empty")
    size, count = _START.unpack_from(contents)
    position = _START.size + size
    if position > len(contents) or count > 1 << 16:
        raise BadRecording("the recording's document reaches beyond its end")
    try:
        document = parse_json(contents[_START.size : position], 16 << 20, MAX_VALUES)
    except BadData as error:
        raise BadRecording(f"the recording's document cannot be read: {error.what}") from error
    blocks = []
    left = 1 << 20  # pieces of all blocks: each takes 150 bytes besides its contents
    for _ in range(count):
        block, position = _block(contents, position, left)
        left -= len(block.pieces)
        blocks.append(block)
    return document, blocks


def unwrap(data: bytes) -> bytes:
    """The contents behind a header. Raises BadRecording."""
    if len(data) > HEADER.size + MAX_CONTENTS:
        raise BadRecording(f"the recording has more than {MAX_CONTENTS} bytes")
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BadRecording("not a recording of gdbext", why="it does not begin as a recording does")
    _, format_number, kind, _, size, packed_size = HEADER.unpack_from(data)
    if format_number not in (1, 2):
        raise BadRecording(
            f"a recording of format {format_number}, and this version of gdbext reads formats 1 and {FORMAT}",
            why="it was made by another version of gdbext",
            help="replay it with the version that made it",
        )
    if len(data) - HEADER.size < packed_size:
        raise BadRecording(f"the recording is cut short: {len(data)} of {HEADER.size + packed_size} bytes are there")
    if size > MAX_CONTENTS:
        raise BadRecording(f"the recording claims to hold {size} bytes, and {MAX_CONTENTS} are allowed")
    contents = _decompressed(data[HEADER.size : HEADER.size + packed_size], kind, size)
    if len(contents) != size:
        raise BadRecording(f"the recording is damaged: it holds {len(contents)} bytes instead of {size}")
    return contents


def _decompressed(packed: bytes, kind: int, size: int) -> bytes:
    """Decompress at most ``size`` + 1 bytes, whatever the data claims; ``kind``: ZLIB or LZMA. Raises BadRecording."""
    if kind not in (ZLIB, LZMA):
        raise BadRecording(f"the recording is compressed in an unknown way ({kind})")
    if kind == LZMA and not lzma:
        raise BadRecording(
            "the recording is compressed by lzma, which this Python lacks",
            why="it was built without liblzma",
            help="name another Python in GDBEXT_PYTHON",
        )
    damage = (zlib.error, EOFError, MemoryError, *((lzma.LZMAError,) if lzma else ()))
    try:
        if kind == ZLIB:
            return zlib.decompressobj().decompress(packed, size + 1)
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, 128 << 20).decompress(packed, size + 1)
    except damage as error:
        raise BadRecording(f"the recording is damaged: {error}") from error


def _block(contents: bytes, position: int, most: int) -> tuple[SparseBytes, int]:
    """The block at ``position``, of at most ``most`` pieces, and the position after it. Raises BadRecording."""
    end = len(contents)
    if position + _BLOCK.size > end:
        raise BadRecording("a block of the recording is cut short")
    (count,) = _BLOCK.unpack_from(contents, position)
    position += _BLOCK.size
    if count > most or position + 12 * count > end:
        raise BadRecording(f"a block of the recording claims {count} pieces")
    starts = struct.unpack_from(f"<{count}Q", contents, position)
    sizes = struct.unpack_from(f"<{count}I", contents, position + 8 * count)
    position += 12 * count
    pieces, previous_end = [], 0
    for start, size in zip(starts, sizes):
        if start < previous_end or start + size > LIMIT or position + size > end:
            raise BadRecording(f"a block of the recording has a piece of {size} bytes at {start:#x} out of order")
        pieces.append(contents[position : position + size])
        position += size
        previous_end = start + size
    return SparseBytes(starts, pieces), position
