"""Reads a recording from the bytes of a file. Nothing in it is trusted: everything malformed is a BadRecording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.numbers import number
from gdbext.engine.targets.base_target import KernelSide, MemoryMapping, RecordedRun, Signal
from gdbext.engine.targets.recording import container
from gdbext.engine.targets.recording.recording import (
    RecordedFile,
    RecordedModule,
    RecordedNumbers,
    RecordedThread,
    Recording,
    SparseBytes,
)
from gdbext.engine.vocabulary import DEBUGGERS, NO_DEBUGGER
from gdbext.errors import BadRecording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from gdbext.engine.targets.host_files import Fact

    Value = TypeVar("Value")


MAX_ITEMS = 1 << 20
"""Limit of the members or items of one kind: more are damage, or were made to exhaust us."""
WORD = (1 << 64) - 1


class Fields:
    """A JSON object; every reader raises BadRecording, naming the member, if that is malformed."""

    def __init__(self, value: Any, name: str = "the document") -> None:
        if not isinstance(value, dict):
            raise BadRecording(f"{name} of the recording is not a JSON object")
        self._members: dict[str, Any] = value
        self._name = name

    def text(self, name: str) -> str:
        value: str = self._get(name, is_text)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.is_null(name) else self.text(name)

    def number(self, name: str, low: int = 0, high: int = WORD) -> int:
        """A whole number from ``low`` to ``high``."""
        value: int = self._get(name, lambda value: is_number(value, low, high))
        return value

    def optional_number(self, name: str, low: int = 0, high: int = WORD) -> int | None:
        return None if self.is_null(name) else self.number(name, low, high)

    def is_null(self, name: str) -> bool:
        return self._members.get(name) is None

    def items(self, name: str) -> Iterator[Any]:
        yield from self._get(name, lambda value: isinstance(value, list) and len(value) <= MAX_ITEMS)

    def objects(self, name: str) -> Iterator[Fields]:
        for item in self.items(name):
            yield Fields(item, f"an item of {name!r}")

    def object(self, name: str) -> Fields:
        return Fields(self._members.get(name), f"{name!r}")

    def members(self) -> Iterator[tuple[str, Any]]:
        if len(self._members) > MAX_ITEMS:
            raise BadRecording(f"{self._name} of the recording has {len(self._members)} members")
        yield from self._members.items()

    def texts(self) -> dict[str, str]:
        return self._all(is_text)

    def numbers(self) -> dict[str, int]:
        """All members, which must be unsigned 64-bit numbers."""
        return self._all(is_number)

    def _all(self, check: Callable[[Any], bool]) -> dict[str, Any]:
        for name, value in self.members():
            if not check(value):
                raise self._refusal(name)
        return self._members

    def _get(self, name: str, check: Callable[[Any], bool]) -> Any:
        value = self._members.get(name)
        if not check(value):
            raise self._refusal(name)
        return value

    def _refusal(self, name: str) -> BadRecording:
        return BadRecording(f"{name[:80]!r} in {self._name} of the recording is missing, or not what it must be")


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any, low: int = 0, high: int = WORD) -> bool:
    """A JSON number without a fraction, in these limits."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


MAX_TID = (1 << 31) - 1


def load(path: str) -> Recording:
    """The recording in a file. Raises BadRecording."""
    return decode(container.read(path))


def decode(data: bytes) -> Recording:
    """The recording in a file's bytes. Raises BadRecording."""
    return recording_from(*container.unpack(data))


def recording_from(document: Any, blocks: list[SparseBytes]) -> Recording:
    """The recording that a JSON document with numbered blocks of bytes describes. Raises BadRecording."""
    fields = Fields(document)
    target, made = fields.object("target"), fields.object("made")
    if target.text("kind") not in ("live", "core"):
        raise BadRecording(f"the recording is of a target of unknown kind ({target.text('kind')[:80]!r})")
    if target.text("debugger") not in (*DEBUGGERS, NO_DEBUGGER):
        raise BadRecording(f"the recording was made by an unknown debugger ({target.text('debugger')[:80]!r})")
    files = tuple(_file(file, blocks) for file in fields.objects("files"))
    auxv = {number(key): value for key, value in fields.object("auxv").numbers().items()}
    if None in auxv:
        raise BadRecording("the recording's auxiliary vector has keys that are not numbers")
    return Recording(
        kind=target.text("kind"),
        debugger=target.text("debugger"),
        pid=target.number("pid", 0, MAX_TID),
        architecture=target.text("architecture"),
        run=RecordedRun(made.text("taken"), made.text("gdbext"), made.text("command")),
        selected=target.optional_number("selected", 0, MAX_TID),
        threads=tuple(_thread(thread) for thread in fields.objects("threads")),
        maps=tuple(sorted(_maps(fields), key=lambda mapping: mapping.start)),
        auxv={key: value for key, value in auxv.items() if key is not None},
        environ=fields.object("environ").texts(),
        facts={name: _fact(name, value) for name, value in fields.object("facts").members()},
        kept=fields.object("kept").texts(),
        modules=dict(_modules(fields, len(files))),
        files=files,
        memory=_block(fields.number("memory"), blocks),
        unreadable=frozenset(_numbers_in(fields, "unreadable")),
    )


def _thread(thread: Fields) -> RecordedThread:
    signal = None
    if not thread.is_null("signal"):
        fields = thread.object("signal")
        code = fields.optional_number("code", -1 << 31, (1 << 31) - 1)
        signal = Signal(fields.number("number", 0, 128), fields.text("name"), code, fields.optional_number("address"))
    return RecordedThread(
        tid=thread.number("tid", 0, MAX_TID),
        number=thread.optional_number("number", 0, MAX_TID),
        name=thread.optional_text("name"),
        signal=signal,
        kernel_state=thread.optional_text("state"),
        registers=thread.object("registers").numbers(),
        problem=thread.text("problem"),
        help=thread.text("help"),
        float_registers={} if thread.is_null("float_registers") else thread.object("float_registers").numbers(),
        kernel_side=None if thread.is_null("kernel_side") else _kernel_side(thread.object("kernel_side")),
        stop_signal=thread.optional_number("stop_signal", 0, 128) or 0,
    )


def _kernel_side(side: Fields) -> KernelSide:
    slept = side.optional_number("slept_ms", 0, 1 << 53)
    return KernelSide(
        side.text("state"),
        side.number("call", -1, 1 << 16),
        side.text("channel"),
        tuple(_numbers_in(side, "arguments")),
        tuple(name for name in side.items("stack") if isinstance(name, str)),
        None if slept is None else slept / 1e3,
    )


def _maps(fields: Fields) -> Iterator[MemoryMapping]:
    for row in fields.items("maps"):
        is_valid = isinstance(row, list) and len(row) == len(MemoryMapping._fields)
        if is_valid:
            *numbers, path, permissions, deleted, device, inode = row
            is_valid = all(map(is_number, (*numbers, inode))) and all(map(is_text, (path, permissions, device)))
        if not is_valid or not isinstance(deleted, bool) or row[0] >= row[1]:
            raise BadRecording("a line of the recording's memory map is not what it must be")
        yield MemoryMapping(*row)


def _fact(name: str, value: Any) -> Fact:
    # 1e12: a clock of more than 30,000 years is damaged; this also refuses infinity and NaN
    simple = value is None or is_text(value) or (isinstance(value, float) and abs(value) <= 1e12)
    if not simple and not (isinstance(value, list) and all(map(is_text, value))):
        raise BadRecording(f"what the recording has of {name[:80]!r} is not what it must be")
    return value  # type: ignore[no-any-return]


def _modules(fields: Fields, files: int) -> Iterator[tuple[int, RecordedModule]]:
    for module in fields.objects("modules"):
        status = module.text("status")
        if status not in ("ok", "deleted", "replaced", "missing", "memory"):
            raise BadRecording(f"a module of the recording has the status {status[:80]!r}")
        file = module.optional_number("file", 0, files - 1)
        yield module.number("start"), RecordedModule(status, module.text("problem"), file)


def _file(file: Fields, blocks: list[SparseBytes]) -> RecordedFile:
    return RecordedFile(
        path=file.text("path"),
        size=file.number("size", 0, 1 << 40),
        contents=_block(file.number("contents"), blocks),
        offsets={
            (row[0], row[1], row[2]): row[3] for row in _search_rows(file, "offsets", 4, lambda at: is_number(at, -1))
        },
        found={
            (row[0], row[1], row[2], row[3]): row[4]
            for row in _search_rows(file, "found", 5, lambda at: at is None or is_number(at))
        },
        arrays=dict(_arrays(file.object("arrays"), blocks)),
    )


def _search_rows(file: Fields, name: str, size: int, is_result: Callable[[Any], bool]) -> Iterator[tuple[Any, ...]]:
    """The searches under ``name``: arrays of bytes in hexadecimal, ``size`` - 2 numbers and the result."""
    for row in file.items(name):
        if not isinstance(row, list) or len(row) != size or not is_text(row[0]):
            raise BadRecording("a search in a file of the recording is not what it must be")
        try:
            needle = bytes.fromhex(row[0])
        except ValueError as error:
            raise BadRecording("a search in a file of the recording is not hexadecimal") from error
        if not all(map(is_number, row[1:-1])) or not is_result(row[-1]):
            raise BadRecording("a search in a file of the recording has numbers out of range")
        yield (needle, *row[1:])


def _arrays(arrays: Fields, blocks: list[SparseBytes]) -> Iterator[tuple[str, tuple[RecordedNumbers, RecordedNumbers]]]:
    for kind, _ in arrays.members():
        pair = [_numbers(numbers, blocks) for numbers in arrays.objects(kind)]
        if len(pair) != 2:
            raise BadRecording("the index of symbols in the recording has not two arrays")
        first, second = pair  # they must fit each other (see formats.symbols.symbol_cache)
        if kind == "addresses" and first.length != second.length:
            counts = f"{first.length} addresses and {second.length} entries for them"
            raise BadRecording(f"the index of symbols in the recording has {counts}")
        if kind == "names" and not first.length:
            raise BadRecording("the index of symbols in the recording has no table of names")
        yield kind, (first, second)


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
