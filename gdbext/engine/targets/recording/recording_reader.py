"""Reads a recording from the bytes of a file. Nothing in it is trusted: everything malformed is a BadRecording.

A *reader* is a function from a JSON value to what the recording has of it; it raises ValueError for a malformed value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.numbers import integer
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
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from gdbext.engine.targets.host_files import Fact

    Reader = Callable[[Any], Any]

MAX_ITEMS = 1 << 20
"""Limit of the members or items of one kind: more are damage, or were made to exhaust us."""
WORD = (1 << 64) - 1


def members(value: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Name → what its reader returns, for these members of a JSON object; a reader gets None for a missing one. Raises
    BadRecording, which names the innermost member that is malformed."""
    if not isinstance(value, dict):
        raise BadRecording("a part of the recording that must be a JSON object is none")
    result = {}
    for name, reader in readers.items():
        try:
            result[name] = reader(value.get(name))
        except ValueError as error:
            raise BadRecording(f"{name!r} of the recording is missing or malformed") from error
    return result


def text(value: Any, *allowed: str) -> str:
    """Read a string, one of ``allowed`` if there are any."""
    if not isinstance(value, str) or (allowed and value not in allowed):
        raise ValueError
    return value


def whole(low: int = 0, high: int = WORD) -> Callable[[Any], int]:
    """A reader of whole numbers from ``low`` to ``high``."""

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return value

    return read


def optional(reader: Reader) -> Reader:
    """``reader``, with None for null and for a missing member."""
    return lambda value: None if value is None else reader(value)


def array(reader: Reader) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of arrays whose items ``reader`` reads."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise ValueError
        return tuple(map(reader, value))

    return read


def row(*readers: Reader) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of arrays with one item for each of the readers."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise ValueError
        return tuple(reader(item) for reader, item in zip(readers, value))

    return read


def table(reader: Reader) -> Callable[[Any], dict[str, Any]]:
    """A reader of objects with any names, whose values ``reader`` reads."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            raise ValueError
        return {name: reader(item) for name, item in value.items()}

    return read


MAX_TID = (1 << 31) - 1
_WORD, _TID = whole(), whole(0, MAX_TID)


def load(path: str) -> Recording:
    """The recording in a file. Raises BadRecording."""
    return decode(container.read(path))


def decode(data: bytes) -> Recording:
    """The recording in a file's bytes. Raises BadRecording."""
    return recording_from(*container.unpack(data))


def recording_from(document: Any, blocks: Sequence[SparseBytes]) -> Recording:
    """The recording that a JSON document with numbered blocks of bytes describes. Raises BadRecording."""

    def block(value: Any) -> SparseBytes:
        return blocks[whole(0, len(blocks) - 1)(value)]

    def numbers(value: Any) -> RecordedNumbers:
        """Read an array of a symbol index."""
        read = members(value, {"count": whole(0, 1 << 32), "width": whole(4, 8), "contents": block})
        if read["width"] not in (4, 8):
            raise ValueError
        return RecordedNumbers(read["count"], read["width"], read["contents"])

    def arrays(value: Any) -> dict[str, tuple[RecordedNumbers, RecordedNumbers]]:
        """The two arrays of each kind, which must fit each other (see formats/symbol_cache.py)."""
        pairs: dict[str, tuple[RecordedNumbers, RecordedNumbers]] = table(row(numbers, numbers))(value)
        for kind, (first, second) in pairs.items():
            if (kind == "addresses" and first.length != second.length) or (kind == "names" and not first.length):
                raise ValueError
        return pairs

    def file(value: Any) -> RecordedFile:
        """Read an ELF file with the searches in it."""
        readers: dict[str, Reader] = {"path": text, "size": whole(0, 1 << 40), "contents": block, "arrays": arrays}
        search = (lambda needle: bytes.fromhex(text(needle)), _WORD, _WORD)  # needle, start, end
        readers["offsets"] = array(row(*search, whole(-1)))
        readers["found"] = array(row(*search, _WORD, optional(_WORD)))
        read = members(value, readers)
        for name in ("offsets", "found"):
            read[name] = {tuple(search): result for *search, result in read[name]}
        return RecordedFile(**read)

    target_readers: dict[str, Reader] = {
        "kind": lambda value: text(value, "live", "core"),
        "debugger": lambda value: text(value, *DEBUGGERS, NO_DEBUGGER),
        "pid": _TID,
        "architecture": text,
        "selected": optional(_TID),
    }
    readers = {
        "target": lambda value: members(value, target_readers),
        "made": lambda value: RecordedRun(**members(value, dict.fromkeys(RecordedRun._fields, text))),
        "threads": array(_thread),
        "maps": array(_mapping),
        "auxv": table(_WORD),
        "environ": table(text),
        "facts": table(_fact),
        "kept": table(text),
        "files": array(file),
        "memory": block,
        "unreadable": array(_WORD),
    }
    read = members(document, readers)
    module_readers = {
        "start": _WORD,
        "status": lambda value: text(value, "ok", "deleted", "replaced", "missing", "memory"),
        "problem": text,
        "file": optional(whole(0, len(read["files"]) - 1)),
    }
    modules = members(document, {"modules": array(lambda value: members(value, module_readers))})["modules"]
    try:
        read["auxv"] = {integer(key): value for key, value in read["auxv"].items()}
    except ValueError as error:
        raise BadRecording("the recording's auxiliary vector has keys that are not numbers") from error
    read["maps"] = tuple(sorted(read["maps"], key=lambda mapping: mapping.start))
    read["unreadable"] = frozenset(read["unreadable"])
    read["modules"] = {module.pop("start"): RecordedModule(**module) for module in modules}
    return Recording(run=read.pop("made"), **read.pop("target"), **read)


def _signal(value: Any) -> Signal:
    code = optional(whole(-1 << 31, (1 << 31) - 1))
    return Signal(**members(value, {"number": whole(0, 128), "name": text, "code": code, "address": optional(_WORD)}))


def _kernel_side(value: Any) -> KernelSide:
    """Read how a thread slept in the kernel."""
    readers: dict[str, Reader] = {"state": text, "channel": text, "stack": array(text), "arguments": array(_WORD)}
    readers |= {"call": whole(-1, 1 << 16), "slept_ms": optional(whole(0, 1 << 53))}
    read = members(value, readers)
    slept_ms = read.pop("slept_ms")
    return KernelSide(**read, seconds=None if slept_ms is None else slept_ms / 1e3)


_THREAD_READERS = {
    "tid": _TID,
    "number": optional(_TID),
    "name": optional(text),
    "signal": optional(_signal),
    "state": optional(text),
    "registers": table(_WORD),
    "problem": text,
    "help": text,
    "float_registers": lambda value: table(_WORD)(value or {}),
    "kernel_side": optional(_kernel_side),
    "stop_signal": lambda value: whole(0, 128)(value or 0),
}
"""Members of a thread. Older recordings lack the last three."""


def _thread(value: Any) -> RecordedThread:
    read = members(value, _THREAD_READERS)
    return RecordedThread(kernel_state=read.pop("state"), **read)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _mapping(value: Any) -> MemoryMapping:
    """Read a line of the memory map."""
    mapping = MemoryMapping(*row(_WORD, _WORD, _WORD, text, text, _flag, text, _WORD)(value))
    if mapping.start >= mapping.end:
        raise ValueError
    return mapping


def _fact(value: Any) -> Fact:
    """Read a fact of the system (see HostFiles.fact)."""
    if isinstance(value, list):
        return [text(item) for item in value]
    # 1e12: a clock of more than 30,000 years is damaged; this also refuses infinity and NaN
    if value is None or isinstance(value, str) or (isinstance(value, float) and abs(value) <= 1e12):
        return value
    raise ValueError
