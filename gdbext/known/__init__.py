"""Known bugs of other projects, as data: how each shows up in a hung process, the affected versions, and the fix.

An entry states only what its link states: the affected versions, the first fixed one, the workaround. An entry is a
JSON object with the members of KnownBug; a file has one or a list of them. If several entries have one id, the first
counts, in this order: those of ``$GDBEXT_KNOWN`` (folders, with colons in between), of ``~/.config/gdbext/known``, of
other packages (entry point ``gdbext.known``), ours (the files in bugs/).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext import cache
from gdbext.engine.entry_points import entry_points
from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.numbers import number
from gdbext.errors import AddOnError, BadData
from gdbext.render.plain_json import annotation_texts

if TYPE_CHECKING:
    from typing import Any, TypeVar

    Note = Callable[[AddOnError], None]
    Made = TypeVar("Made")


class Affected(NamedTuple):
    """The affected versions of a package: ``since`` is the first with the bug, ``before`` the first fixed one,
    ``until`` the last one known to have it, if no fixed one is known; "" for none."""

    package: str  # its name on PyPI (``threadpoolctl``), or ``python``, ``glibc``, ``nccl``, ``libgomp``
    since: str = ""
    before: str = ""
    until: str = ""

    @property
    def text(self) -> str:
        """The range in words: ``threadpoolctl < 3.7.0``, ``python >= 3.12, < 3.13.15``."""
        since = f">= {self.since}" if self.since else ""
        until = f"up to {self.until} at least" if self.until else ""
        before = f"< {self.before}" if self.before else until
        versions = ", ".join(filter(None, (since, before)))
        return f"{self.package} {versions}" if versions else f"every known {self.package}"

    @property
    def condition(self) -> str:
        """The range as a condition on an unknown version: "your threadpoolctl is older than 3.7.0"; "" for all."""
        since = f"is {self.since} or newer" if self.since else ""
        until = f"is {self.until} or older" if self.until else ""
        before = f"is older than {self.before}" if self.before else until
        both = " and ".join(filter(None, (since, before)))
        return f"your {self.package} {both}" if both else ""

    def includes(self, version: str) -> bool:
        """True if that version of the package has the bug."""
        key = version_key(version)
        if self.since and key < version_key(self.since):
            return False
        if self.before and key >= version_key(self.before):
            return False
        return not self.until or key <= version_key(self.until)


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """A key to sort versions by: ``2.9`` < ``2.10.0rc1`` < ``2.10`` = ``2.10.0+cpu``. (numbers without trailing zeros,
    True for a final release)."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    parts = release.group().split(".") if release else []
    numbers = [1 << 70 if (value := number(part)) is None else value for part in parts]  # None: beyond 64 bits
    while numbers and not numbers[-1]:
        numbers.pop()
    rest = version[release.end() :] if release else version
    return tuple(numbers), re.match(r"[._-]?(a|b|c|rc|alpha|beta|dev|pre)\d*", rest) is None


ROLES = ("main", "other", "crashed")  # roles of a thread: the main thread, another thread, the thread that crashed
RELATIONS = ("forked", "one-thread", "children", "no-children", "no-workers")
"""Facts about the process: it is a fork of its parent (without exec), has one thread, has child processes, has none,
has none but multiprocessing's resource tracker and fork server."""
NO_CHILD = "no-child:"
"""The beginning of a further relation: no child process has the following text in its command line."""


class ThreadPattern(NamedTuple):
    """Conditions on one of the threads that hang. An empty field matches anything."""

    python: tuple[tuple[str, str], ...] = ()
    """(file name, function) of some of its Python frames, the innermost first: ``("threadpoolctl.py", "_find")``. The
    file may have folders in front: ``concurrent/futures/thread.py``; an empty function matches any of that file."""
    native: tuple[str, ...] = ()
    """Some of its native functions, the innermost first, as in reports, without arguments; with the beginning of the
    library's file name before an exclamation mark: ``libnccl!ncclLocalOpAppend``. ``libcuda!`` matches any function of
    that library, ``c10::Future::`` any of that class."""
    library: str = ""  # the beginning of the file name of the innermost library that is not the C library: ``libgomp``
    waits_for: tuple[str, ...] = ()  # kinds of waits (words of the JSON report); it is in one of them
    missing_workers: str = ""  # the pool that it waits for and whose workers do not exist, since the process was forked
    role: str = ""  # a word of ROLES
    name: str = ""  # the beginning of its name, Python's or the kernel's
    state: str = ""  # a word of the JSON report: ``running``, ``waiting``, ``idle``
    holds: tuple[str, ...] = ()  # kinds of objects that it holds, all of them: ``gil``
    held_by: int = -1
    """The index of the pattern of the thread that holds what this one waits for; -1: any thread, or none."""
    same_group: int = -1
    """The index of the pattern of the thread that waits in the same process group; -1: any, or none."""
    owner_gone: bool = False  # the thread that held what this one waits for does not exist
    lost_signal: bool = False  # a signal of the condition variable that it waits for was lost
    task: tuple[tuple[str, str], ...] = ()  # as ``python``, of one of the tasks of the event loop that it runs
    without_python: bool = False  # it has no Python frame


class KnownBug(NamedTuple):
    """One entry of the catalog. The process hangs because of it if each pattern matches a thread of its own."""

    id: str  # the project and the number of its issue: ``cpython#115634``
    title: str  # the fault, in one clause
    url: str  # the page that describes it; affected versions and cure come from there
    affected: tuple[Affected, ...]
    cure: str  # the workaround or update, as a clause that begins with a verb
    threads: tuple[ThreadPattern, ...]
    environment: tuple[str, ...] = ()
    """Conditions on environment variables, all of which hold: ``NAME``, ``NAME=VALUE``, ``!NAME``, ``!NAME=VALUE``."""
    architecture: str = ""  # the only affected architecture (uname -m)
    process: tuple[str, ...] = ()  # words of RELATIONS, all of which hold
    absent: tuple[ThreadPattern, ...] = ()  # no thread matches any of these


GROUP = "gdbext.known"  # the group of entry points: NAME = "module:attribute", a KnownBug or a tuple of them
FOLDER = f"{os.path.dirname(os.path.realpath(__file__))}/bugs"  # noqa: PTH120 - pathlib takes 10 ms to import
VARIABLE = "GDBEXT_KNOWN"
_LARGEST = 1 << 22  # bytes of a file: some thousand entries


def all_entries(note: Note) -> tuple[KnownBug, ...]:
    """All entries. ``note`` is called with the errors of entries from other sources than bugs/."""
    entries: dict[str, KnownBug] = {}
    for path in [f"{folder}/{name}" for folder in site_folders() for name in _names(folder)]:
        if not cache.is_ours(path):
            what = f"{path} is not used: users other than you and root can change it"
            note(AddOnError(what, help="make it and the folders above it yours, writable only by you"))
            continue
        try:
            value = parse_json(read_file(path, _LARGEST), _LARGEST)
            for entry in value if isinstance(value, list) else [value]:
                bug = parse_entry(entry, path)
                entries.setdefault(bug.id, bug)
        except (BadData, OSError) as error:
            note(AddOnError(f"{path} has no entry of a known bug: {error}"))
    for point in entry_points(GROUP):
        try:
            loaded = point.load()
        except AddOnError as error:
            note(error)
            continue
        several = isinstance(loaded, (tuple, list)) and not isinstance(loaded, KnownBug)
        for entry in loaded if several else (loaded,):
            if isinstance(entry, KnownBug):
                entries.setdefault(entry.id, entry)
            else:
                origin = f"{point.group} {point.name!r} of {point.package}"
                note(AddOnError(f"{origin} is no gdbext.KnownBug: {entry!r:.80}"))
    for bug in own_entries():
        entries.setdefault(bug.id, bug)
    return tuple(entries.values())


def own_entries() -> tuple[KnownBug, ...]:
    """Our entries, in the order of their files."""
    names, texts = _names(FOLDER), []
    for name in names:
        with open(f"{FOLDER}/{name}", "rb", 0) as file:
            texts.append(file.read())
    values = json.loads(b"[%b]" % b",".join(texts))  # one text takes a third of the time of many
    return tuple(map(parse_entry, values, names))


def _names(folder: str) -> list[str]:
    """The sorted names of the JSON files in a folder; [] if there is none."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - as above
    except OSError:
        return []


def site_folders() -> tuple[str, ...]:
    """The folders of $GDBEXT_KNOWN and of the user's configuration, in order of precedence; they need not exist."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    config = os.environ.get("XDG_CONFIG_HOME", "") or f"{os.environ.get('HOME', '')}/.config"
    return tuple(folder for folder in (*named, f"{config}/gdbext/known") if folder.startswith("/"))


def parse_entry(value: object, where: str) -> KnownBug:
    """Make an entry of a JSON object; ``where`` is its origin, for errors. Raises BadData."""
    bug = _record(value, KnownBug, where, required=("id", "title", "url", "affected", "cure", "threads"))
    _check_words([word for word in bug.process if not word.startswith(NO_CHILD)], RELATIONS, f"{bug.id}, process")
    numbers = {number for pattern in bug.threads for number in (pattern.held_by, pattern.same_group)}
    if not numbers <= {*range(-1, len(bug.threads))}:
        raise BadData(f"{bug.id}: held_by and same_group count threads from 0 on")
    return bug


def _check_words(words: Sequence[str], allowed: Sequence[str], where: str) -> None:
    """Raises BadData for words that are not ``allowed``."""
    strange = [word for word in words if word not in allowed]
    if strange:
        raise BadData(f"{where}: {', '.join(strange)} is none of {', '.join(allowed)}")


def _record(value: object, record: Callable[..., Made], where: str, required: Sequence[str] = ()) -> Made:
    """Make a record of a JSON object: each member must be a field of the record and of its type, and the ``required``
    ones must not be missing or empty. Raises BadData."""
    if not isinstance(value, Mapping):
        raise BadData(f"{where} is no object: {json.dumps(value)[:40]}")
    kinds = annotation_texts(record)  # type: ignore[arg-type]
    if not value.keys() <= kinds.keys():
        strange = sorted(set(map(str, value)) - kinds.keys())
        raise BadData(f"{where} has {', '.join(strange)}; there are {', '.join(kinds)}")
    inside = _text(value.get("id", ""), where, "id") or where
    lacks = [key for key in required if not value.get(key)]
    if lacks:
        raise BadData(f"{inside} lacks {', '.join(lacks)}")
    return record(**{key: _READERS[kinds[key]](member, inside, key) for key, member in value.items()})


_KINDS = {"no text": str, "no number": int, "neither true nor false": bool, "no list": list}


def _of_type(refusal: str) -> Callable[[object, str, str], Any]:
    """A function (value, where, key) that returns a value of the type in _KINDS, and raises BadData for any other:
    ``where: key is refusal``."""

    def read(value: object, where: str, key: str) -> Any:
        if type(value) is not _KINDS[refusal]:
            raise BadData(f"{where}: {key} is {refusal}")
        return value

    return read


_text, _number, _flag, _list = map(_of_type, _KINDS)


def _texts(value: object, where: str, key: str) -> tuple[str, ...]:
    """A list of texts as a tuple. Raises BadData."""
    texts = _list(value, where, key)
    if not {*map(type, texts)} <= {str}:
        raise BadData(f"{where}: {key} is no list of texts")
    return tuple(map(str, texts))


def _frames(value: object, where: str, key: str) -> tuple[tuple[str, str], ...]:
    """A list of lists of two texts, as tuples. Raises BadData."""
    frames = []
    for frame in _list(value, where, key):
        if not isinstance(frame, list) or [*map(type, frame)] != [str, str]:
            raise BadData(f"{where}, {key}: each frame is a list of two texts, file and function")
        frames.append((frame[0], frame[1]))
    return tuple(frames)


def _affected(value: object, where: str, key: str) -> tuple[Affected, ...]:
    return tuple(_record(item, Affected, f"{where}, {key}", ["package"]) for item in _list(value, where, key))


def _threads(value: object, where: str, key: str) -> tuple[ThreadPattern, ...]:
    """A list of objects as thread patterns, each with at least one condition. Raises BadData."""
    patterns = tuple(_record(item, ThreadPattern, f"{where}, {key}") for item in _list(value, where, key))
    for pattern in patterns:
        _check_words([pattern.role] if pattern.role else [], ROLES, f"{where}, {key}, role")
        if pattern == ThreadPattern():
            raise BadData(f"{where}, {key}: a thread pattern without conditions matches any thread")
    return patterns


_READERS: Mapping[str, Callable[[object, str, str], object]] = {
    "str": _text,
    "int": _number,
    "bool": _flag,
    "tuple[str, ...]": _texts,
    "tuple[tuple[str, str], ...]": _frames,
    "tuple[Affected, ...]": _affected,
    "tuple[ThreadPattern, ...]": _threads,
}
"""Annotation of a field → the function (value, where, key) that checks and converts a member."""
