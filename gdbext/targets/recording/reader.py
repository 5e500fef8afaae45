"""The bytes of a file as a recording. Nothing in it is trusted: whatever is not as it must be is a BadRecording."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from gdbext.errors import BadRecording
from gdbext.model.recorded_run import RecordedRun
from gdbext.targets.base import MemoryMapping, Signal
from gdbext.targets.host_files import Fact
from gdbext.targets.recording import container
from gdbext.targets.recording.fields import Fields, is_flag, is_number, is_text
from gdbext.targets.recording.recording import (
    RecordedFile,
    RecordedModule,
    RecordedNumbers,
    RecordedThread,
    Recording,
    Search,
)
from gdbext.targets.recording.sparse_bytes import SparseBytes

KINDS = ("live", "core")
STATUSES = ("ok", "deleted", "replaced", "missing", "memory")
MAX_FILE = 1 << 40
"""Bytes of an ELF file; it bounds what sizes and offsets in one can be."""
MAX_TID = (1 << 31) - 1
_MAPPING = (is_number, is_number, is_number, is_text, is_text, is_flag, is_text, is_number)
"""What each item of a line of the memory map must be."""


def load(path: str) -> Recording:
    """The recording in a file. Raises BadRecording."""
    return decode(container.read(path))


def decode(data: bytes) -> Recording:
    """The recording in a file's bytes. Raises BadRecording."""
    return from_parts(*container.unpack(data))


def from_parts(document: Any, blocks: list[SparseBytes]) -> Recording:
    """The recording of a document and its blocks. Raises BadRecording."""
    fields = Fields(document)
    target, made = fields.object("target"), fields.object("made")
    if target.text("kind") not in KINDS:
        raise BadRecording(f"the recording is of a target of unknown kind ({target.text('kind')[:80]!r})")
    files = tuple(_file(file, blocks) for file in fields.objects("files"))
    return Recording(
        kind=target.text("kind"),
        debugger=target.text("debugger"),
        pid=target.number("pid", 0, MAX_TID),
        architecture=target.text("architecture"),
        run=RecordedRun(made.text("taken"), made.text("gdbext"), made.text("command")),
        selected=target.optional_number("selected", 0, MAX_TID),
        threads=tuple(_thread(thread) for thread in fields.objects("threads")),
        maps=tuple(sorted(_maps(fields), key=lambda mapping: mapping.start)),
        auxv=_auxv(fields.object("auxv")),
        environ=fields.object("environ").texts(),
        facts={name: _fact(name, value) for name, value in fields.object("facts").members()},
        kept=fields.object("kept").texts(),
        modules=dict(_modules(fields, len(files))),
        files=files,
        memory=_block(fields.number("memory"), blocks),
        unreadable=frozenset(_numbers_in(fields, "unreadable")),
    )


def _thread(thread: Fields) -> RecordedThread:
    return RecordedThread(
        tid=thread.number("tid", 0, MAX_TID),
        number=thread.optional_number("number", 0, MAX_TID),
        name=thread.optional_text("name"),
        signal=None if thread.is_null("signal") else _signal(thread.object("signal")),
        kernel_state=thread.optional_text("state"),
        registers=thread.object("registers").numbers(),
        problem=thread.text("problem"),
        help=thread.text("help"),
        float_registers={} if thread.is_null("float_registers") else thread.object("float_registers").numbers(),
    )


def _signal(signal: Fields) -> Signal:
    return Signal(
        signal.number("number", 0, 128),
        signal.text("name"),
        signal.optional_number("code", -1 << 31, (1 << 31) - 1),
        signal.optional_number("address"),
    )


def _maps(fields: Fields) -> Iterator[MemoryMapping]:
    for row in fields.items("maps"):
        right = isinstance(row, list) and len(row) == len(_MAPPING)
        if not right or not all(check(value) for check, value in zip(_MAPPING, row)) or row[0] >= row[1]:
            raise BadRecording("a line of the recording's memory map is not what it must be")
        yield MemoryMapping(*row)


def _auxv(fields: Fields) -> dict[int, int]:
    numbers = fields.numbers()
    if not all(key.isdecimal() and len(key) < 20 for key in numbers):
        raise BadRecording("the recording's auxiliary vector has keys that are not numbers")
    return {int(key): value for key, value in numbers.items()}


def _fact(name: str, value: Any) -> Fact:
    simple = value is None or is_text(value) or (isinstance(value, float) and isfinite(value))
    if not simple and not (isinstance(value, list) and all(map(is_text, value))):
        raise BadRecording(f"what the recording has of {name[:80]!r} is not what it must be")
    return value  # type: ignore[no-any-return]


def _modules(fields: Fields, files: int) -> Iterator[tuple[int, RecordedModule]]:
    for module in fields.objects("modules"):
        status = module.text("status")
        if status not in STATUSES:
            raise BadRecording(f"a module of the recording has the status {status[:80]!r}")
        file = module.optional_number("file", 0, files - 1)
        yield module.number("start"), RecordedModule(status, module.text("problem"), file)


def _file(file: Fields, blocks: list[SparseBytes]) -> RecordedFile:
    return RecordedFile(
        path=file.text("path"),
        size=file.number("size", 0, MAX_FILE),
        contents=_block(file.number("contents"), blocks),
        offsets=dict(_offsets(file)),
        found=dict(_searches(file)),
        arrays=dict(_arrays(file.object("arrays"), blocks)),
    )


def _offsets(file: Fields) -> Iterator[tuple[tuple[bytes, int, int], int]]:
    for needle, start, end, at in _rows(file, "offsets", 4):
        if not (is_number(start) and is_number(end) and is_number(at, -1)):
            raise BadRecording("a search in a file of the recording has numbers out of range")
        yield (needle, start, end), at


def _searches(file: Fields) -> Iterator[tuple[Search, int | None]]:
    for needle, start, end, step, at in _rows(file, "found", 5):
        if not all(map(is_number, (start, end, step))) or not (at is None or is_number(at)):
            raise BadRecording("a search in a file of the recording has numbers out of range")
        yield (needle, start, end, step), at


def _rows(file: Fields, name: str, size: int) -> Iterator[tuple[Any, ...]]:
    """Arrays of that many items, the first of them bytes in hexadecimal."""
    for row in file.items(name):
        if not isinstance(row, list) or len(row) != size or not is_text(row[0]):
            raise BadRecording("a search in a file of the recording is not what it must be")
        try:
            yield (bytes.fromhex(row[0]), *row[1:])
        except ValueError as error:
            raise BadRecording("a search in a file of the recording is not hexadecimal") from error


def _arrays(
    arrays: Fields, blocks: list[SparseBytes]
) -> Iterator[tuple[str, tuple[RecordedNumbers, RecordedNumbers]]]:
    for kind, _ in arrays.members():
        pair = [_numbers(numbers, blocks) for numbers in arrays.objects(kind)]
        if len(pair) != 2:
            raise BadRecording("the index of symbols in the recording has not two arrays")
        yield kind, (pair[0], pair[1])


def _numbers(numbers: Fields, blocks: list[SparseBytes]) -> RecordedNumbers:
    width = numbers.number("width", 4, 8)
    if width not in (4, 8):
        raise BadRecording(f"the recording has numbers of {width} bytes")
    return RecordedNumbers(numbers.number("count", 0, 1 << 32), width, _block(numbers.number("contents"), blocks))


def _numbers_in(fields: Fields, name: str) -> Iterator[int]:
    for value in fields.items(name):
        if not is_number(value):
            raise BadRecording(f"{name!r} of the recording has something else than numbers in it")
        yield value


def _block(number: int, blocks: list[SparseBytes]) -> SparseBytes:
    if number >= len(blocks):
        raise BadRecording(f"the recording has no block {number}")
    return blocks[number]
