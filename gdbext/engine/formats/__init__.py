"""Formats, from bytes to meaning without a process: ELF, symbols, cores, call frames, names; foreign files are read up
to a limit, and never waited for."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from gdbext.errors import BadData

if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 64 << 20
"""Most bytes of one document: the report on a job of 10,000 ranks has 30 MB."""
MAX_VALUES = 4 << 20
"""Most values of one document. A value takes up to 100 bytes of memory; those 30 MB have 1.2 million."""
_MARKS = (b",", b"[", b"{", b":")
"""Each value of a document but the first stands behind one of them."""


def at_once(path: str, flags: int) -> int:
    """The ``opener`` of open() that opens without blocking, so that a pipe cannot hang us. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def read_file(path: str, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises OSError, BadData. A pipe or a device must not hold
    us up, nor may a file that grows while it is read."""
    fd = at_once(path, os.O_RDONLY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadData(f"{path} is not a regular file")
        parts, left = [], limit + 1
        while left and (part := os.read(fd, min(left, 1 << 24))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(fd)
    if not left:
        raise BadData(f"{path} has more than {limit} bytes")
    return b"".join(parts)


def parse_json(data: bytes, limit: int = MAX_BYTES, values: int = MAX_VALUES) -> Any:
    """The JSON value. Raises BadData where it is none, is too large, or is nested too deeply."""
    if len(data) > limit:
        raise BadData(f"the JSON document has {len(data)} bytes, and {limit} are read at most")
    if sum(map(data.count, _MARKS)) > values:
        raise BadData(f"the JSON document has more than {values} values")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BadData("the JSON document is nested too deeply") from error
    except ValueError as error:
        raise BadData(f"it is not JSON: {error}") from error


def argument(text: str) -> str:
    """A foreign word of a command line, which the program cannot take for an option. Raises BadData for one that begins
    with a dash, is empty, or is no printable text."""
    if not text or text.startswith("-") or not text.isprintable():
        raise BadData(f"{text[:100]!a} is no word for a command line")
    return text
