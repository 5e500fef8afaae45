"""Entry points: what other packages add to gdbext.

A package declares what it adds in its metadata (``[project.entry-points."gdbext.waits"]`` of a pyproject.toml); pip
writes that into the file ``entry_points.txt`` of the folder PACKAGE-VERSION.dist-info (specification "Entry points" of
packaging.python.org). importlib.metadata reads it where a package names one of our groups; it takes a tenth of an
inspection to import.

Packages are looked for in the site folders of the Python that runs gdbext, never in those of the process that is
looked at; and only in folders that nobody but us and root can change, for what they have is executed.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from gdbext import cache
from gdbext.errors import AddOnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    Result = TypeVar("Result")

_PREFIX = "gdbext."
"""The beginning of the names of our groups: gdbext.tools, gdbext.waits, gdbext.pools, gdbext.known."""
_ENDINGS = (".dist-info", ".egg-info")
_FILE = "entry_points.txt"
_LARGEST = 1 << 16
"""Bytes of that file that are read; those of real packages have some hundred."""
_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class EntryPoint(NamedTuple):
    """One line of an ``entry_points.txt``: ``name = module:attribute``."""

    group: str
    name: str
    place: str
    """The object to load, as "module:attribute"."""
    package: str
    """The package that declares it: "gdbext-example 1.2"."""
    folder: str
    """The site folder that it is installed in."""

    def load(self) -> Any:
        """Import the object that stands there. Raises AddOnError."""
        return guarded(self, self._imported)

    def _imported(self) -> Any:
        if self.folder not in sys.path:  # scripts/dispatch starts Python without its site folders
            sys.path.append(self.folder)
        module, _, names = self.place.partition(":")
        found: Any = import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
        return found


def guarded(point: EntryPoint, call: Callable[[], Result]) -> Result:
    """The result of a call into another package's code. Raises AddOnError for whatever it raises: a fault of its
    costs what it would have added, and no more."""
    try:
        return call()
    except Exception as error:
        raise AddOnError(
            f"{point.group} {point.name!r} of {point.package} failed: {type(error).__name__}: {error}",
            why=f"it stands at {point.place}, and is no part of gdbext",
            help=f"correct or uninstall that package ({point.folder})",
        ) from error


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """All of one group, in the order of packages and names. A package that cannot be read has none."""
    return tuple(point for point in _declared(site_folders()) if point.group == group)


def site_folders() -> tuple[str, ...]:
    """The folders of installed packages of the Python that runs gdbext, of those that nobody else can change.

    scripts/dispatch runs with -I and -S, so that they are not on sys.path (site.py; /usr/lib/python3/dist-packages is
    Debian's). Those that are there, as in a virtual environment, count, too.
    """
    prefixes = (sys.prefix, os.path.dirname(os.path.dirname(sys.executable or "")), "/usr/local")  # noqa: PTH120
    homes = (os.environ.get("HOME", "") + "/.local",)
    named = [f"{prefix}/lib/{_VERSION}/site-packages" for prefix in (*prefixes, *homes) if prefix.startswith("/")]
    debian = [f"{prefix}/lib/{python}/dist-packages" for prefix in prefixes for python in ("python3", _VERSION)]
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    every = [path for path in sys.path if path.startswith("/") and not path.endswith((".zip", ".pyz", "lib-dynload"))]
    return tuple(path for path in dict.fromkeys([*every, *named, *debian]) if path != library)


@lru_cache(maxsize=4)
def _declared(folders: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points that the packages in these folders declare for gdbext; of two installations of a package the
    first."""
    found: dict[tuple[str, str], EntryPoint] = {}
    for folder in folders:
        for point in _of_folder(folder):
            found.setdefault((point.group, point.name), point)
    return tuple(found[key] for key in sorted(found))


def _of_folder(folder: str) -> Iterator[EntryPoint]:
    if not cache.is_ours(folder):  # nothing of it is opened, either: a pipe would be waited for
        return
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return
    for name in sorted(names):
        if name.endswith(_ENDINGS):
            path = f"{folder}/{name}/{_FILE}"
            text = _read(path)
            if f"[{_PREFIX}" in text and cache.is_ours(path):
                yield from _parsed(f"{folder}/{name}", _package(name), folder)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _package(folder: str) -> str:
    """The package of a folder: ``gdbext_example-1.2.dist-info`` → ``gdbext-example 1.2``."""
    name, _, version = folder.rpartition(".")[0].partition("-")
    return f"{name.replace('_', '-')} {version}".strip()


def _parsed(information: str, package: str, folder: str) -> Iterator[EntryPoint]:
    """The entry points of our groups in the folder of a package's metadata."""
    from importlib import metadata  # 20 ms, where a package adds something

    try:
        points = list(metadata.Distribution.at(information).entry_points)
    except (ValueError, TypeError, AttributeError):  # the file is no list of entry points
        return
    for point in points:
        if point.group.startswith(_PREFIX):
            yield EntryPoint(point.group, point.name, point.value.partition("[")[0].strip(), package, folder)
