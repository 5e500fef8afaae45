"""Known bugs of other projects, as data: how each shows in a stuck process, which versions have it, and its cure.

The catalogue of known bugs: our entries (the files in bugs/), those of the site and user, and of other packages.

An entry says only what its link says: which versions have the bug, since when it is cured, what to do until then. Where
that is not known it is left out. An entry is a JSON object with the members of KnownBug; a file has one or a list of
them. They are data: nothing of them is executed. Of several with one id the first counts, in this order: those of
``$GDBEXT_KNOWN`` (folders, with colons in between), of ``~/.config/gdbext/known``, of other packages (entry point
``gdbext.known``), ours.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext import cache
from gdbext.engine.entry_points import EntryPoint, entry_points
from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.numbers import number
from gdbext.errors import AddOnError, BadData
from gdbext.render.plain_json import annotation_texts

if TYPE_CHECKING:
    from typing import TypeVar

    Note = Callable[[AddOnError], None]
    Made = TypeVar("Made")


class Affected(NamedTuple):
    """Versions of a package: ``since`` is the first that has the bug, ``before`` the first without it, ``until`` the
    last that is known to have it, where nobody says when it was cured; "" for none."""

    package: str
    """Its name on PyPI (``threadpoolctl``), or ``python``, ``glibc``, ``nccl``, ``libgomp``."""
    since: str = ""
    before: str = ""
    until: str = ""

    @property
    def text(self) -> str:
        """The range in words: ``threadpoolctl before 3.7.0``."""
        since = f" from {self.since} on" if self.since else ""
        before = f" before {self.before}" if self.before else f" up to {self.until} at least" if self.until else ""
        return f"{self.package}{since}{before}" if since or before else f"every known {self.package}"

    @property
    def condition(self) -> str:
        """The same as a condition, for where nobody knows the version: "your threadpoolctl is older than 3.7.0"; ""
        where all versions have the bug."""
        since = f"is {self.since} or newer" if self.since else ""
        before = f"is older than {self.before}" if self.before else f"is {self.until} or older" if self.until else ""
        both = " and ".join(filter(None, (since, before)))
        return f"your {self.package} {both}" if both else ""

    def includes(self, version: str) -> bool:
        """True if that version of the package has the bug."""
        key = version_key(version)
        begun = not self.since or version_key(self.since) <= key
        over = (self.before and key >= version_key(self.before)) or (self.until and key > version_key(self.until))
        return begun and not over


_BEYOND = 1 << 70
"""A part of a version that is longer than any number: it is greater than all of them."""


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Versions in their order: ``2.9`` < ``2.10.0rc1`` < ``2.10`` = ``2.10.0+cpu``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    parts = found.group().split(".") if found else []
    numbers = [_BEYOND if (value := number(part)) is None else value for part in parts]
    while numbers and not numbers[-1]:
        numbers.pop()
    rest = version[found.end() :] if found else version
    return tuple(numbers), re.match(r"[._-]?(a|b|c|rc|alpha|beta|dev|pre)\d*", rest) is None


ROLES = ("main", "other", "crashed")
"""Roles of a thread: the one whose id is the process's, any but that, one that ended the program."""
RELATIONS = ("forked", "one-thread", "children", "no-children", "no-workers")
"""Facts about the process: it is a fork of its parent (without exec), it has one thread, it has child processes, none,
or none but multiprocessing's resource tracker and fork server."""
NO_CHILD = "no-child:"
"""The beginning of a further relation: no child process has the text behind it in its command line."""


class ThreadPattern(NamedTuple):
    """The part of one of the threads that hang. What is empty may be anything."""

    python: tuple[tuple[str, str], ...] = ()
    """(file name, function) of some of its Python frames, the innermost first: ``("threadpoolctl.py", "_find")``. The
    file may have folders in front: ``concurrent/futures/thread.py``; an empty function is any of that file."""
    native: tuple[str, ...] = ()
    """Some of its native functions, the innermost first, as reports name them, without arguments; with the beginning of
    the library's file name before an exclamation mark: ``libnccl!ncclLocalOpAppend``. ``libcuda!`` is any function of
    that library, ``c10::Future::`` any of that class."""
    library: str = ""
    """The beginning of the file name of the innermost library that is not the C library: ``libgomp``."""
    waits_for: tuple[str, ...] = ()
    """Kinds of waits, any of which it is in: words of the JSON report."""
    missing_workers: str = ""
    """The pool whose workers it waits for and that the process lacks since it was forked."""
    role: str = ""
    """Word of ROLES: which thread of the process it is."""
    name: str = ""
    """The beginning of its name, Python's or the kernel's."""
    state: str = ""
    """A word of the JSON report: ``running``, ``waiting``, ``idle``."""
    holds: tuple[str, ...] = ()
    """Kinds of what it holds, all of them: ``gil``."""
    held_by: int = -1
    """The pattern (counted from 0) of the thread that has what this one waits for; -1: whoever has it."""
    same_group: int = -1
    """The pattern (counted from 0) of the thread that waits in the same process group; -1: in any, or none."""
    owner_gone: bool = False
    """A thread that does not exist any more has what this one waits for."""
    lost_signal: bool = False
    """The condition variable that it waits for says that a signal went to nobody."""
    task: tuple[tuple[str, str], ...] = ()
    """The same as ``python``, of one of the tasks of the event loop that it runs."""
    without_python: bool = False
    """It has no Python frame."""


class KnownBug(NamedTuple):
    """One entry of the catalogue. The process hangs because of it where each pattern fits a thread of its own."""

    id: str
    """The project and the number of its issue: ``cpython#115634``."""
    title: str
    """The fault, in one clause."""
    url: str
    """The page that describes it: versions and cure come from there."""
    affected: tuple[Affected, ...]
    cure: str
    """The workaround or update, as a clause that begins with a verb."""
    threads: tuple[ThreadPattern, ...]
    environment: tuple[str, ...] = ()
    """Conditions on environment variables, all of which hold: ``NAME``, ``NAME=VALUE``, ``!NAME``, ``!NAME=VALUE``."""
    architecture: str = ""
    """The only architecture that has it, as the kernel names it (uname -m)."""
    process: tuple[str, ...] = ()
    """Words of RELATIONS, all of which hold."""
    absent: tuple[ThreadPattern, ...] = ()
    """No thread fits any of these."""


GROUP = "gdbext.known"
"""The group of entry points: NAME = "module:attribute", a KnownBug or a tuple of them."""
FOLDER = f"{os.path.dirname(os.path.realpath(__file__))}/bugs"  # noqa: PTH120 - pathlib takes 10 ms to import
VARIABLE = "GDBEXT_KNOWN"
_LARGEST = 1 << 22
"""Bytes of a file: some thousand entries."""
_ENDING = ".json"


def catalogue(note: Note) -> tuple[KnownBug, ...]:
    """All entries. ``note`` is told what of others cannot be used."""
    found: dict[str, KnownBug] = {}
    for folder in site_folders():
        for bug in _of_folder(folder, note):
            found.setdefault(bug.id, bug)
    for point in entry_points(GROUP):
        for bug in _of_package(point, note):
            found.setdefault(bug.id, bug)
    for bug in own_entries():
        found.setdefault(bug.id, bug)
    return tuple(found.values())


def own_entries() -> tuple[KnownBug, ...]:
    """Our entries, in the order of their files."""
    names, texts = _names(FOLDER), []
    for name in names:
        with open(f"{FOLDER}/{name}", "rb", 0) as file:
            texts.append(file.read())
    values = json.loads(b"[%b]" % b",".join(texts))  # of one text in a third of the time of many
    return tuple(map(parse_entry, values, names))


def _names(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(_ENDING))


def site_folders() -> tuple[str, ...]:
    """The folders of the site and the user, the strongest first; they need not exist."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    config = os.environ.get("XDG_CONFIG_HOME", "") or f"{os.environ.get('HOME', '')}/.config"
    return tuple(folder for folder in (*named, f"{config}/gdbext/known") if folder.startswith("/"))


def _of_folder(folder: str, note: Note) -> Iterator[KnownBug]:
    for name in _names(folder):
        try:
            yield from _trusted(f"{folder}/{name}")
        except AddOnError as error:
            note(error)


def _trusted(path: str) -> tuple[KnownBug, ...]:
    """The entries of a file that nobody but us and root can have written. Raises AddOnError."""
    if not cache.is_ours(path):
        raise AddOnError(
            f"{path} is not used: others than you and root can change it",
            help="make it and the folders above it yours, writable by nobody else",
        )
    return read_entries(path)


def _of_package(point: EntryPoint, note: Note) -> Iterator[KnownBug]:
    try:
        found = point.load()
    except AddOnError as error:
        note(error)
        return
    several = isinstance(found, (tuple, list)) and not isinstance(found, KnownBug)
    for entry in found if several else (found,):
        if isinstance(entry, KnownBug):
            yield entry
        else:
            note(AddOnError(f"{point.group} {point.name!r} of {point.package} is no gdbext.KnownBug: {entry!r:.80}"))


def read_entries(path: str) -> tuple[KnownBug, ...]:
    """The entries of a file. Raises AddOnError that says what is wrong and where."""
    try:
        value = parse_json(read_file(path, _LARGEST), _LARGEST)
        return tuple(parse_entry(each, path) for each in (value if isinstance(value, list) else [value]))
    except (BadData, OSError) as error:
        raise AddOnError(f"{path} has no entry of a known bug: {error}") from error


def parse_entry(value: object, where: str) -> KnownBug:
    """The entry that a JSON object is. Raises BadData."""
    fields = _Fields(value, KnownBug, where)
    where = fields.text("id") or where
    bug = KnownBug(
        where,
        fields.text("title"),
        fields.text("url"),
        tuple(_affected(each, f"{where}, affected") for each in fields.list("affected")),
        fields.text("cure"),
        tuple(_thread(each, f"{where}, threads") for each in fields.list("threads")),
        fields.texts("environment"),
        fields.text("architecture"),
        fields.texts("process"),
        tuple(_thread(each, f"{where}, absent") for each in fields.list("absent")),
    )
    _check_words([word for word in bug.process if not word.startswith(NO_CHILD)], RELATIONS, f"{where}, process")
    lacks = [key for key in ("id", "title", "url", "affected", "cure", "threads") if not fields.has(key)]
    if lacks:
        raise BadData(f"{where} lacks {', '.join(lacks)}")
    if any(not -1 <= each < len(bug.threads) for one in bug.threads for each in (one.held_by, one.same_group)):
        raise BadData(f"{where}: held_by and same_group count threads from 0 on")
    return bug


def _affected(value: object, where: str) -> Affected:
    fields = _Fields(value, Affected, where)
    if not fields.has("package"):
        raise BadData(f"{where} lacks package")
    return fields.made(Affected)


def _thread(value: object, where: str) -> ThreadPattern:
    fields = _Fields(value, ThreadPattern, where)
    found = fields.made(ThreadPattern)
    _check_words([found.role] if found.role else [], ROLES, f"{where}, role")
    if found == ThreadPattern():
        raise BadData(f"{where}: a thread of which nothing is said is any thread")
    return found


def _check_words(words: Sequence[str], known: Sequence[str], where: str) -> None:
    strange = [word for word in words if word not in known]
    if strange:
        raise BadData(f"{where}: {', '.join(strange)} is none of {', '.join(known)}")


class _Fields:
    """The members of a JSON object, all of which are fields of the record; BadData for whatever is not as it should
    be."""

    def __init__(self, value: object, record: type[NamedTuple], where: str) -> None:
        if not isinstance(value, Mapping):
            raise BadData(f"{where} is no object: {json.dumps(value)[:40]}")
        if not value.keys() <= set(record._fields):
            strange = sorted(set(map(str, value)) - set(record._fields))
            raise BadData(f"{where} has {', '.join(strange)}; there are {', '.join(record._fields)}")
        self._value = value
        self._where = where
        self._kinds = annotation_texts(record)

    def made(self, record: Callable[..., Made]) -> Made:
        """The record of the members that there are, each read as its field is declared; all must be of simple kinds."""
        return record(**{key: _READERS[self._kinds[key]](self, key) for key in self._value})

    def has(self, key: str) -> bool:
        """There is such a member, and it is not empty."""
        return bool(self._value.get(key))

    def text(self, key: str) -> str:
        """The text of a member, "" where there is none."""
        found = self._value.get(key, "")
        if not isinstance(found, str):
            raise BadData(f"{self._where}: {key} is no text")
        return found

    def list(self, key: str) -> list[object]:
        """The items of a member."""
        found = self._value.get(key, [])
        if not isinstance(found, list):
            raise BadData(f"{self._where}: {key} is no list")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """The texts of a member."""
        found = self.list(key)
        if not {*map(type, found)} <= {str}:
            raise BadData(f"{self._where}: {key} is no list of texts")
        return tuple(map(str, found))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """The pairs of texts of a member."""
        found = []
        for each in self.list(key):
            if not isinstance(each, list) or [*map(type, each)] != [str, str]:
                raise BadData(f"{self._where}, {key}: each frame is a list of two texts, file and function")
            found.append((each[0], each[1]))
        return tuple(found)

    def number(self, key: str) -> int:
        """The number of a member, -1 where there is none."""
        found = self._value.get(key, -1)
        if not isinstance(found, int) or isinstance(found, bool):
            raise BadData(f"{self._where}: {key} is no number")
        return found

    def flag(self, key: str) -> bool:
        """True where the member is."""
        found = self._value.get(key, False)
        if not isinstance(found, bool):
            raise BadData(f"{self._where}: {key} is neither true nor false")
        return found


_READERS: Mapping[str, Callable[[_Fields, str], object]] = {
    "str": _Fields.text,
    "int": _Fields.number,
    "bool": _Fields.flag,
    "tuple[str, ...]": _Fields.texts,
    "tuple[tuple[str, str], ...]": _Fields.pairs,
}
"""The reader of a member, by the annotation of its field."""
