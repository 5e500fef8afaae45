"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch.

A short look imports 180 modules of ours, and Python's own search for each costs more than most of them: it lists every
folder, and asks for several files. Where a module of ours is, is known: a finder that looks there alone comes first.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import ModuleSpec as _Spec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType
    from typing import Any, NoReturn

_ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
"""The folder of the package's folder."""
_HEAD = 16
"""Bytes in front of the code in a .pyc: magic number, flags, and time and size of the source, 4 each (PEP 552)."""


class _Loader(SourceFileLoader):
    """Loads a module whose code has been read already."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> Any:
        code, self._code = self._code, None
        return code or super().get_code(fullname)


class QuickFinder:
    """Finds modules of ours whose compiled code is there, and not older than its source; Python finds the others."""

    def __init__(self) -> None:
        self._cached = f".{sys.implementation.cache_tag}.pyc"

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The module, or None, as Python asks each finder in sys.meta_path."""
        if not fullname.startswith("gdbext.") or sys.pycache_prefix or sys.flags.optimize:
            return None
        place = f"{_ROOM}/{fullname.replace('.', '/')}"
        folder, name = place.rsplit("/", 1)
        for where, file, package in ((f"{place}/", "__init__", place), (f"{folder}/", name, "")):
            try:
                return self._spec(fullname, where, file, package)
            except OSError:
                continue
            except (ValueError, EOFError, TypeError):
                return None
        return None

    def _spec(self, fullname: str, folder: str, name: str, package: str) -> ModuleSpec | None:
        source = f"{folder}{name}.py"
        there = os.stat(source)  # noqa: PTH116
        cached = f"{folder}__pycache__/{name}{self._cached}"
        with open(cached, "rb", 0) as file:
            data = file.read()
        head = b"".join((int(word) & 0xFFFFFFFF).to_bytes(4, "little") for word in (0, there.st_mtime, there.st_size))
        if data[:_HEAD] != MAGIC_NUMBER + head:
            return None
        made = _Spec(fullname, _Loader(fullname, source, loads(memoryview(data)[_HEAD:])), origin=source)
        made.cached = cached
        made.has_location = True
        if package:
            made.submodule_search_locations = [package]
        return made


def main() -> int:
    """Run the launcher with this process's arguments; its exit status."""
    from gdbext.engine.terminal import typed_name
    from gdbext.hosts.cli import launcher

    return launcher.main(sys.argv[1:], typed_name(sys.argv[0]))


def run() -> NoReturn:
    """Run the launcher, and end this process with its exit status."""
    sys.meta_path.insert(0, QuickFinder())
    from gdbext.engine.targets.budget import raise_gc_threshold

    raise_gc_threshold()
    from gdbext.hosts.cli import launcher

    launcher.leave(main())


if __name__ == "__main__":
    # `python -m` looks first in the folder that we happen to be in, whoever's it is: no more is imported from there
    sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]  # noqa: PTH109
    run()
