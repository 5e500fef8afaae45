"""The file of a recording: what goes in comes out; what is damaged, hostile or larger than it says costs an error."""

from __future__ import annotations

import json
import lzma
import os
import random
import resource
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gdbext.engine.formats import symbol_table
from gdbext.engine.formats.symbol_table import SymbolTable
from gdbext.engine.targets.recording import container
from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.errors import BadRecording, GdbextError, SymbolFileError

DOCUMENT = {"name": "a recording", "items": list(range(100))}


def blocks() -> list[SparseBytes]:
    return [SparseBytes.merged([(4096, b"a" * 100), (1 << 63, b"b" * 10)]), SparseBytes((), ())]


def contents(pieces: list[tuple[int, bytes]], claimed: int | None = None) -> bytes:
    """One block, with the number of pieces that it claims."""
    starts = struct.pack(f"<{len(pieces)}Q", *[start for start, _ in pieces])
    sizes = struct.pack(f"<{len(pieces)}I", *[len(piece) for _, piece in pieces])
    count = len(pieces) if claimed is None else claimed
    return struct.pack("<II", 2, 1) + b"{}" + struct.pack("<I", count) + starts + sizes + b"".join(p for _, p in pieces)


def test_pieces_that_touch_or_overlap_become_one() -> None:
    merged = SparseBytes.merged([(10, b"abc"), (13, b"def"), (4, b"xy"), (11, b"bcde"), (12, b"c")])
    assert list(merged) == [(4, b"xy"), (10, b"abcdef")]
    assert merged.read(11, 4) == b"bcde"
    assert merged.read(5, 1) == b"y"
    assert merged.read(5, 2) == b""
    assert merged.read(0, 1) == b""
    assert (merged.gap(5, 3), merged.gap(7, 2), merged.gap(12, 9)) == (6, 7, 16)


def unpacked(data: bytes) -> tuple[object, list[list[tuple[int, bytes]]]]:
    document, found = container.unpack(data)
    return document, [list(block) for block in found]


def test_every_flipped_bit_is_an_error_or_changes_nothing() -> None:
    data = container.pack(DOCUMENT, blocks())
    whole = (DOCUMENT, [list(block) for block in blocks()])
    assert unpacked(data) == whole
    source = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
        with suppress(BadRecording):
            assert unpacked(bytes(damaged)) == whole


@pytest.mark.parametrize(
    "made",
    [
        contents([(0, b"x")], claimed=1 << 31),
        contents([(0, b"x")], claimed=2),
        contents([(5, b"xy"), (6, b"z")]),
        contents([(9, b"x"), (5, b"y")]),
        contents([((1 << 64) - 1, b"xy")]),
        struct.pack("<II", 1 << 31, 0),
        struct.pack("<II", 2, 1 << 31) + b"{}",
        struct.pack("<II", 2, 1) + b"{}",
        struct.pack("<II", 4, 0) + b"\xff{}}",
        b"",
    ],
)
def test_hostile_contents(made: bytes) -> None:
    with pytest.raises(BadRecording):
        container.unpack(container.wrap(made))


def test_a_bomb_is_refused_before_it_fills_memory() -> None:
    zeros = zlib.compress(bytes(64 << 20), 9)
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20}]
    greedy = lzma.compress(b"{}", lzma.FORMAT_XZ, filters=filters)
    for data, kind, claimed, said in (
        (zeros, container.ZLIB, 100, "instead of 100"),
        (zeros, container.ZLIB, 1 << 40, "are allowed"),
        (greedy, container.LZMA, 2, None),
    ):
        header = container.HEADER.pack(container.MAGIC, container.FORMAT, kind, 0, claimed, len(data))
        with pytest.raises(BadRecording, match=said):
            container.unpack(header + data)


def test_another_version_says_so() -> None:
    data = bytearray(container.pack(DOCUMENT, []))
    data[8:10] = (container.FORMAT + 1).to_bytes(2, "little")
    with pytest.raises(BadRecording, match="formats 1 and 2") as caught:
        container.unpack(bytes(data))
    assert "version that made it" in caught.value.help


def test_too_much_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_CONTENTS", 1000)
    with pytest.raises(GdbextError, match="are allowed"):
        container.pack({}, [SparseBytes((0,), (bytes(2000),))])


def test_what_is_not_a_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text(json.dumps(DOCUMENT))
    (tmp_path / "empty").touch()
    for name in ("pipe", "missing", "", "text", "empty", "nul\0"):
        with pytest.raises(BadRecording):
            container.unpack(container.read(str(tmp_path / name)))


MANY, PIECES = 5_000_000, 200_000


def packed(document: bytes, *blocks: bytes) -> bytes:
    return container.wrap(struct.pack("<II", len(document), len(blocks)) + document + b"".join(blocks))


def many_pieces() -> bytes:
    return struct.pack("<I", PIECES) + struct.pack(f"<{PIECES}Q", *range(PIECES)) + bytes(4 * PIECES)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: packed(b"[" + b"[]," * MANY + b"[]]"), "values"),
        (lambda: packed(b'"' + b" " * (17 << 20) + b'"'), "bytes"),
        (lambda: packed(b"[" * 200_000), "nested too deeply"),
        (lambda: packed(b"{"), "not JSON"),
        (lambda: packed(b"{}", *[many_pieces()] * 20), "claims 200000 pieces"),
    ],
)
def test_a_document_is_bounded(make: Callable[[], bytes], said: str) -> None:
    data = make()
    assert len(data) < 40_000 or said.startswith("claims")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadRecording, match=said):
        container.unpack(data)
    limit = 500 if said.startswith("claims") else 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < limit << 10


def test_names_that_stand_everywhere_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert symbol_table._STARTS_LIMIT <= 1 << 22
    monkeypatch.setattr(symbol_table, "_STARTS_LIMIT", 1 << 12)
    text = b"\0" + b"ab" * (3 << 10)
    table = SymbolTable(bytes(24) + text, 0, 24, 24, len(text), 0)
    with pytest.raises(SymbolFileError, match="too many names"):
        list(table.numbers_with([b"ab"]))
