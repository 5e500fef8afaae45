"""What a report imports: half of the time of a look is Python starting up."""

from __future__ import annotations

import json
import py_compile
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gdbext
from gdbext import __main__

ROOT = Path(__file__).resolve().parents[2]
COSTLY = (
    *("dataclasses", "inspect", "logging", "subprocess", "tempfile", "importlib.metadata", "random", "pathlib"),
    *("urllib", "ipaddress", "argparse", "gettext", "copy", "typing"),
)
"""Modules of the standard library that take 2 to 15 ms to import. Of typing engine/record.py has what a class needs."""
OTHERS = ("gdb", "lldb", "pygments", "elftools", "numpy", "capstone")
LOOK = """
import os, sys
before = set(sys.modules)
from gdbext.hosts.cli import launcher
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
status = launcher.main(sys.argv[1:])
sys.stdout.flush()
imported = sorted(set(sys.modules) - before)
import json
os.write(out, json.dumps([status, imported]).encode())
"""


def imported_by(*arguments: str) -> set[str]:
    code = f"import sys; sys.path.append({str(ROOT)!r})\n{LOOK}"
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, imported = json.loads(done.stdout)
    assert status == 0
    return set(imported)


@pytest.mark.parametrize("command", ["dispatch-bt", "dispatch-diagnose"])
def test_a_look_imports_nothing_costly(command: str) -> None:
    imported = imported_by("-r", str(ROOT / "tests/recordings/meta-mm.rec"), command)
    assert "gdbext.diagnosis.session" in imported
    assert imported & {*COSTLY, *OTHERS} == set()


@pytest.mark.parametrize(("name", "waits"), [("meta-mm-spin", False), ("known-bug-serve-3.13", True)])
def test_known_bugs_cost_nothing_where_no_thread_waits(name: str, waits: bool) -> None:
    imported = imported_by("-r", str(ROOT / f"tests/recordings/{name}.rec"), "dispatch-diagnose")
    assert any(each.startswith("gdbext.known") for each in imported) is waits


def no_import(name: str, importing: Callable[..., Any]) -> ModuleType:
    """Python's own way to a module, which is not to be taken."""
    raise AssertionError(f"{importing} imports {name}")


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of the package's, with one module, which is compiled, and a package."""
    folder = tmp_path / "gdbext"
    (folder / "made_up_folder").mkdir(parents=True)
    for file in (folder / "made_up.py", folder / "made_up_folder" / "__init__.py"):
        file.write_text('"""One made up."""\nname = __name__\n')
        py_compile.compile(str(file))
    monkeypatch.setattr(__main__, "_ROOM", str(tmp_path))
    monkeypatch.setattr(__main__, "_other_threads", int)
    yield folder
    for name in ("made_up", "made_up_folder"):
        sys.modules.pop(f"gdbext.{name}", None)
        vars(gdbext).pop(name, None)


@pytest.mark.parametrize("name", ["made_up", "made_up_folder"])
def test_a_module_of_ours_is_as_python_makes_it(name: str, made_up: Path) -> None:
    place = made_up / f"{name}.py" if name == "made_up" else made_up / name / "__init__.py"
    folders = None if name == "made_up" else [str(made_up / name)]
    spec = spec_from_file_location(f"gdbext.{name}", place, submodule_search_locations=folders)
    theirs = module_from_spec(spec)
    spec.loader.exec_module(theirs)
    ours = __main__.QuickImport(no_import)(f"gdbext.{name}", __import__)
    assert ours is sys.modules[f"gdbext.{name}"] is getattr(gdbext, name)
    assert [vars(each).pop("__loader__").path for each in (ours, theirs)] == [str(place), str(place)]
    apart = ("__spec__", "__builtins__")
    shown = [{key: str(value) for key, value in vars(each).items() if key not in apart} for each in (ours, theirs)]
    assert shown[0] == shown[1]
    for attribute in ("name", "origin", "cached", "parent", "has_location", "submodule_search_locations"):
        assert getattr(ours.__spec__, attribute) == getattr(theirs.__spec__, attribute)


def test_python_imports_what_is_not_as_ever(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    quick = __main__.QuickImport(lambda name, _: (asked.append(name), ModuleType(name))[1])
    source, compiled = made_up / "made_up.py", next((made_up / "__pycache__").iterdir())
    code = compiled.read_bytes()
    for change in (
        lambda: compiled.write_bytes(code[:40]),
        lambda: compiled.write_bytes(b"x" + code[1:]),
        compiled.unlink,
        lambda: (compiled.write_bytes(code), source.write_text("changed")),
    ):
        change()
        quick("gdbext.made_up", __import__)
    assert asked == 4 * ["gdbext.made_up"]
    monkeypatch.setattr(__main__, "_other_threads", lambda: 1)
    quick("gdbext.made_up_folder", __import__)
    quick("json.no_such_module", __import__)
    assert asked[4:] == ["gdbext.made_up_folder", "json.no_such_module"]


def test_a_module_that_cannot_be_imported_is_not_there(made_up: Path) -> None:
    (made_up / "made_up.py").write_text("raise KeyError(1)")
    py_compile.compile(str(made_up / "made_up.py"))
    with pytest.raises(KeyError):
        __main__.QuickImport(no_import)("gdbext.made_up", __import__)
    assert "gdbext.made_up" not in sys.modules


def test_the_quick_way_is_taken() -> None:
    script = ROOT / "scripts" / "lib" / "start.py"
    command = [sys.executable, "-I", "-S", "-v", script, "--version"]
    seen = [subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(2)][-1]
    assert "import 'gdbext.__main__'" in seen
    assert "import 'gdbext.hosts.cli.launcher'" not in seen, "Python says what it imports itself"


def test_help_imports_no_reader() -> None:
    imported = {name for name in imported_by("--version") if name.startswith("gdbext.")}
    assert not {name for name in imported if name.startswith(("gdbext.torch", "gdbext.cpython", "gdbext.diagnosis"))}
