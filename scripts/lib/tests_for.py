"""The test files that cover a file or folder of gdbext; as a program it prints those of its arguments.

python3 scripts/lib/tests_for.py gdbext/torch/stack
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("unit", "integration", "contract")
"""Folders of tests/, the cheapest first; the folders in each mirror those of gdbext."""
NOT_MIRRORED = ("support", "packaging")
"""Folders of a suite that test no package of gdbext."""
RECORDED = "tests/unit/diagnosis/test_recorded_scenarios.py"
"""Replays the recorded scenarios through everything that a diagnosis needs."""
DIAGNOSING = ("gdbext/engine", "gdbext/cpython", "gdbext/torch", "gdbext/diagnosis")
_FROM = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
_DOTTED = re.compile(r"\bgdbext(?:\.\w+)+")


def tests_for(path: Path, root: Path = ROOT) -> list[str]:  # noqa: PT028 - no test, for all its name
    """Paths relative to ``root`` of the tests of a .py file or a folder of gdbext, in the order in which to run them.

    These are the tests in the mirrored folders, the files that are named after it, those that import it by name, and
    the recorded scenarios for what a diagnosis reads. A folder covers its subfolders; a file's mirrored folder is that
    of its package, without the subpackages. Raises ValueError for a path that is not in gdbext.
    """
    relative = (root / path).resolve().relative_to(root.resolve())
    if relative.parts[:1] != ("gdbext",) or not (root / relative).exists():
        raise ValueError(f"{path} is no file or folder of gdbext")
    is_folder = (root / relative).is_dir()
    package = relative if is_folder else relative.parent
    stem = relative.parent.name if relative.name == "__init__.py" else relative.stem
    ranks: dict[str, tuple[int, int]] = {}
    for number, suite in enumerate(SUITES):
        top = root / "tests" / suite
        for test in top.rglob("test_*.py"):
            mirrored = _mirrored_package(test.parent.relative_to(top), root)
            name = test.relative_to(root).as_posix()
            if test.stem == f"test_{stem}":
                ranks[name] = (number, 0)
            elif mirrored is not None and (mirrored == package or (is_folder and package in mirrored.parents)):
                ranks[name] = (number, 1)
            elif _imports(test, relative):
                ranks[name] = (number, 2)
    if relative.as_posix().startswith(DIAGNOSING):
        ranks[RECORDED] = (0, 3)
    return sorted(ranks, key=lambda name: (ranks[name], name))


def _mirrored_package(folder: Path, root: Path) -> Path | None:
    """The innermost package of gdbext that a folder of a suite mirrors or is in; None if it mirrors none."""
    if folder.parts[:1] and folder.parts[0] in NOT_MIRRORED:
        return None
    package = Path("gdbext")
    for part in folder.parts:
        if not (root / package / part).is_dir():
            break
        package /= part
    return package


def _imports(test: Path, relative: Path) -> bool:
    """True if the test names the module (for a folder: any module in it), in an import or in a string."""
    module = relative.with_suffix("").as_posix().replace("/", ".")
    if module.endswith(".__init__"):
        return module.rpartition(".")[0] in _named_modules(test)
    is_folder = relative.suffix != ".py"
    return any(name == module or (is_folder and name.startswith(f"{module}.")) for name in _named_modules(test))


@cache
def _named_modules(test: Path) -> frozenset[str]:
    """Dotted names that the source contains, those put together from ``from PACKAGE import MODULE`` among them."""
    source = test.read_text()
    names = set(_DOTTED.findall(source))
    for package, imported in _FROM.findall(source):
        if package.partition(".")[0] == "gdbext":
            names.update(f"{package}.{name}" for name in re.findall(r"\w+", imported))
    return frozenset(names)


if __name__ == "__main__":
    try:
        covering = [test for path in sys.argv[1:] for test in tests_for(Path(os.path.abspath(path)))]  # noqa: PTH100
    except ValueError as problem:
        sys.exit(f"gdbext: error: {problem}")
    print("\n".join(dict.fromkeys(covering)))
