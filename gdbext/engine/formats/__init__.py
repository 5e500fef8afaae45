"""File and data formats that need no process: ELF, symbols, cores, call frames, names. Files that gdbext did not
write are read without blocking and only up to a size limit."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from gdbext.errors import BadData

if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 64 << 20  # most bytes of one document: the report on a job of 10,000 ranks has 30 MB
MAX_VALUES = 4 << 20
"""Most values of one document. A value takes up to 100 bytes of memory; those 30 MB have 1.2 million."""


def open_nonblocking(path: str, flags: int) -> int:
    """An ``opener`` for open() that does not block, so that a pipe cannot hang us. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def read_file(path: str, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises OSError, BadData. Never blocks on a pipe or a
    device, nor reads for ever from a file that grows."""
    with open(path, "rb", opener=open_nonblocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadData(f"{path} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise BadData(f"{path} has more than {limit} bytes")
    return data


def parse_json(data: bytes, limit: int = MAX_BYTES, values: int = MAX_VALUES) -> Any:
    """The JSON value in ``data``. Raises BadData if it is not JSON, has too many bytes or values, or is too deep."""
    if len(data) > limit:
        raise BadData(f"the JSON document has {len(data)} bytes, and {limit} are read at most")
    if sum(map(data.count, (b",", b"[", b"{", b":"))) > values:  # each value but the first follows one of these
        raise BadData(f"the JSON document has more than {values} values")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BadData("the JSON document is nested too deeply") from error
    except ValueError as error:
        raise BadData(f"it is not JSON: {error}") from error


def argument(text: str) -> str:
    """``text``, if a program can take it for an argument but not for an option. Raises BadData if it begins with a
    dash, is empty, or is not printable."""
    if not text or text.startswith("-") or not text.isprintable():
        raise BadData(f"{text[:100]!a} is not a valid command-line argument")
    return text
