"""A small file that claims, or unpacks to, very much costs an error, not memory."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable

import pytest

from gdbext.engine.formats import symbol_table
from gdbext.engine.formats.symbol_table import SymbolTable
from gdbext.engine.targets.recording import container
from gdbext.errors import BadRecording, SymbolFileError

MANY = 5_000_000


def contents(document: bytes, *blocks: bytes) -> bytes:
    return struct.pack("<II", len(document), len(blocks)) + document + b"".join(blocks)


def packed(text: bytes, *blocks: bytes) -> bytes:
    return container.wrap(contents(text, *blocks))


def peak() -> int:
    """Bytes that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: b"[" + b"[]," * MANY + b"[]]", "values"),
        (lambda: b'"' + b" " * (17 << 20) + b'"', "bytes"),
        (lambda: b"[" * 200_000, "nested too deeply"),
        (lambda: b"{", "not JSON"),
    ],
    ids=["many", "large", "deep", "cut"],
)
def test_a_document_is_bounded(make: Callable[[], bytes], said: str) -> None:
    data = packed(make())
    assert len(data) < 40_000
    before = peak()
    with pytest.raises(BadRecording, match=said):
        container.unpack(data)
    assert peak() - before < 200 << 20


def test_the_pieces_of_all_blocks_are_bounded() -> None:
    count = 200_000
    numbers = struct.pack("<I", count) + struct.pack(f"<{count}Q", *range(count)) + bytes(4 * count)
    before = peak()
    with pytest.raises(BadRecording, match="claims 200000 pieces"):
        container.unpack(packed(b"{}", *[numbers] * 20))
    assert peak() - before < 500 << 20


def test_names_that_stand_everywhere_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert symbol_table._STARTS_LIMIT <= 1 << 22
    monkeypatch.setattr(symbol_table, "_STARTS_LIMIT", 1 << 12)
    text = b"\0" + b"ab" * (3 << 10)
    table = SymbolTable(bytes(24) + text, 0, 24, 24, len(text), 0)
    with pytest.raises(SymbolFileError, match="too many names"):
        list(table.numbers_with([b"ab"]))
