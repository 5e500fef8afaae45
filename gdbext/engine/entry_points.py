"""Entry points: the tools, waits, pools and known bugs that other packages add to gdbext.

A package declares them in its metadata (``[project.entry-points."gdbext.waits"]`` of a pyproject.toml); pip writes them
into the file ``entry_points.txt`` of the folder PACKAGE-VERSION.dist-info (specification "Entry points" of
packaging.python.org). importlib.metadata takes a tenth of an inspection to import: it is used only if a package names
one of our groups. Packages are searched for in the site folders of the Python that runs gdbext, never in those of the
target, and only in folders that only we and root can change, since their code is executed.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache, reduce
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from gdbext import cache
from gdbext.errors import AddOnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    Result = TypeVar("Result")

_PREFIX = "gdbext."  # the beginning of the names of our groups: gdbext.tools, gdbext.waits, gdbext.pools, gdbext.known
_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class EntryPoint(NamedTuple):
    """One line of an ``entry_points.txt``: ``name = module:attribute``."""

    group: str
    name: str
    object_ref: str  # the object to load, as "module:attribute"
    package: str  # the package that declares it: "gdbext-example 1.2"
    folder: str  # the site folder that it is installed in

    def load(self) -> Any:
        """Import the object. Raises AddOnError."""
        if self.folder not in sys.path:  # scripts/dispatch starts Python without its site folders
            sys.path.append(self.folder)
        module, _, names = self.object_ref.partition(":")
        return guarded(self, lambda: reduce(getattr, filter(None, names.split(".")), import_module(module)))


def guarded(point: EntryPoint, call: Callable[[], Result]) -> Result:
    """The result of a call into another package's code. Raises AddOnError for any exception in it, so that callers can
    go on without the package."""
    try:
        return call()
    except Exception as error:
        raise AddOnError(
            f"{point.group} {point.name!r} of {point.package} failed: {type(error).__name__}: {error}",
            why=f"its code is at {point.object_ref}, which is not part of gdbext",
            help=f"fix or uninstall that package ({point.folder})",
        ) from error


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """All entry points of one group, sorted by name; without those of unreadable packages."""
    return tuple(point for point in _declared(site_folders()) if point.group == group)


def site_folders() -> tuple[str, ...]:
    """The folders that may have packages of the Python that runs gdbext: those on sys.path, and, since scripts/dispatch
    runs with -I and -S, those that site.py would add (dist-packages is Debian's)."""
    prefixes = (sys.prefix, os.path.dirname(os.path.dirname(sys.executable or "")), "/usr/local")  # noqa: PTH120
    homes = (os.environ.get("HOME", "") + "/.local",)
    named = [f"{prefix}/lib/{_VERSION}/site-packages" for prefix in (*prefixes, *homes) if prefix.startswith("/")]
    debian = [f"{prefix}/lib/{python}/dist-packages" for prefix in prefixes for python in ("python3", _VERSION)]
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    added = [path for path in sys.path if path.startswith("/") and not path.endswith((".zip", ".pyz", "lib-dynload"))]
    return tuple(path for path in dict.fromkeys([*added, *named, *debian]) if path != library)


@lru_cache(maxsize=4)
def _declared(folders: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points for gdbext that the packages in these folders declare; the first of each group and name."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for folder in folders:
        for point in _declared_in(folder):
            points.setdefault((point.group, point.name), point)
    return tuple(points[key] for key in sorted(points))


def _declared_in(folder: str) -> Iterator[EntryPoint]:
    """The entry points for gdbext of all packages in a site folder; none if other users can change it."""
    if not cache.is_ours(folder):  # do not even open files in it: a pipe would block us
        return
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return
    for name in sorted(names):
        path = f"{folder}/{name}/entry_points.txt"
        is_package = name.endswith((".dist-info", ".egg-info"))
        if not is_package or f"[{_PREFIX}" not in _read(path) or not cache.is_ours(path):
            continue
        from importlib import metadata  # 20 ms, where a package adds something

        try:
            points = list(metadata.Distribution.at(f"{folder}/{name}").entry_points)
        except (ValueError, TypeError, AttributeError):  # the file is no list of entry points
            continue
        package, _, version = name.rpartition(".")[0].partition("-")  # gdbext_example-1.2.dist-info
        title = f"{package.replace('_', '-')} {version}".strip()
        for point in points:
            if point.group.startswith(_PREFIX):
                yield EntryPoint(point.group, point.name, point.value.partition("[")[0].strip(), title, folder)


def _read(path: str) -> str:
    """The first 64 KiB of a file, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
