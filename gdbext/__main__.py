"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch.

A short look imports 170 modules of ours, and Python's own way to each costs more than most of them: it lists every
folder, asks for several files, and takes a lock. Where a module of ours is, is known, and only one thread runs: it is
read from there, and nothing else is done. Whatever is not as it is there usually, Python imports as ever.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
from _frozen_importlib import ModuleSpec as _Spec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader
from _thread import _count as _other_threads
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

    FindAndLoad = Callable[[str, Callable[..., Any]], ModuleType]
    """Imports a module that is not there yet, by its name; the second argument is ``__import__``."""

_ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
"""The folder of the package's folder."""
_HEAD = 16
"""Bytes in front of the code in a .pyc: magic number, flags, and time and size of the source, 4 each (PEP 552)."""
_WORD = 0xFFFFFFFF
_READ = os.O_RDONLY | os.O_CLOEXEC


class QuickImport:
    """Imports modules of ours whose compiled code is there, and not older than its source. All others are left to
    ``python``, its own function."""

    def __init__(self, python: FindAndLoad) -> None:
        self._python = python
        self._cached = f".{sys.implementation.cache_tag}.pyc"

    def __call__(self, name: str, importing: Callable[..., Any]) -> ModuleType:
        """The module, as Python asks for one that is not in sys.modules, or that another thread imports just now."""
        if name[:7] == "gdbext." and name not in sys.modules and not _other_threads():
            parent, _, own = name.rpartition(".")
            if parent not in sys.modules:
                importing(parent)
            if name not in sys.modules:
                made = self._load(name, f"{_ROOM}/{parent.replace('.', '/')}", own)
                if made:
                    setattr(sys.modules[parent], own, made)
                    return made
        return self._python(name, importing)

    def _load(self, name: str, folder: str, own: str) -> ModuleType | None:
        for where, file, package in ((folder, own, ""), (f"{folder}/{own}", "__init__", f"{folder}/{own}")):
            try:
                source = f"{where}/{file}.py"
                there = os.stat(source)  # noqa: PTH116
                cached = f"{where}/__pycache__/{file}{self._cached}"
                code = _code(cached, int(there.st_mtime) & _WORD, there.st_size & _WORD)
            except OSError:
                continue
            except (ValueError, EOFError, TypeError):
                return None
            return _run(name, code, source, cached, package) if code else None
        return None


def _code(cached: str, time: int, size: int) -> CodeType | None:
    """The code in a .pyc; None where it was made of another source, or by another Python. Raises OSError, and for
    damage ValueError, EOFError or TypeError."""
    descriptor = os.open(cached, _READ)
    try:
        data = os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    if data[:_HEAD] != MAGIC_NUMBER + (time << 32 | size << 64).to_bytes(12, "little"):
        return None
    code: CodeType = loads(memoryview(data)[_HEAD:])
    return code


def _run(name: str, code: CodeType, source: str, cached: str, package: str) -> ModuleType:
    """Make the module, with what Python gives each, and run its code."""
    made = type(sys)(name)
    spec = _Spec(name, SourceFileLoader(name, source), origin=source)
    spec.cached = cached
    spec.has_location = True
    names = made.__dict__
    names.update(__spec__=spec, __loader__=spec.loader, __file__=source, __cached__=cached)
    names["__package__"] = name if package else name.rpartition(".")[0]
    if package:
        names["__path__"] = spec.submodule_search_locations = [package]
    sys.modules[name] = made
    try:
        exec(code, names)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return sys.modules[name]


def _import_quickly() -> None:
    """Import our modules in the quick way, where Python's own is what is known of it, and its caches are beside the
    sources."""
    python = getattr(_frozen_importlib, "_find_and_load", None)
    if python is not None and not (sys.pycache_prefix or sys.flags.optimize):
        setattr(_frozen_importlib, "_find_and_load", QuickImport(python))  # noqa: B010


def main() -> int:
    """Run the launcher with this process's arguments; its exit status."""
    from gdbext.engine.terminal import typed_name
    from gdbext.hosts.cli import launcher

    return launcher.main(sys.argv[1:], typed_name(sys.argv[0]))


def run() -> NoReturn:
    """Run the launcher, and end this process with its exit status."""
    _import_quickly()
    from gdbext.engine.targets.budget import raise_gc_threshold

    raise_gc_threshold()
    from gdbext.hosts.cli import launcher

    launcher.leave(main())


if __name__ == "__main__":
    # `python -m` looks first in the folder that we happen to be in, whoever's it is: no more is imported from there
    sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]  # noqa: PTH109
    run()
