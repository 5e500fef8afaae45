"""Which descriptors the processes that we start have: those that they need, and none of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdbext.diagnosis.commands import dot_graph
from gdbext.tools.watch.evidence import Evidence, take_core
from support.programs.harness import DISPATCH, executable

LISTS = """\
#!{python}
import os
names = [(number, "/proc/self/fd/%d" % number) for number in range(3, 1024)]
found = [(number, os.readlink(name)) for number, name in names if os.path.islink(name)]
open({told!r}, "w").write(repr(dict(found)))
os.kill(os.getpid(), 6)
"""


def made_lister(path: Path, told: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return executable(path, LISTS.format(python=sys.executable, told=str(told)))


def descriptors(told: Path) -> dict[int, str]:
    found: dict[int, str] = ast.literal_eval(told.read_text())
    return found


@pytest.fixture
def left_open(tmp_path: Path) -> int:
    descriptor = os.open(tmp_path / "left open", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(descriptor, True)
    return descriptor


@pytest.mark.gdb
@pytest.mark.parametrize("command", [["dispatch-bt"], ["dispatch-trace", "aten::mm"]])
def test_a_program_that_gdb_starts(tmp_path: Path, command: list[str], left_open: int) -> None:
    """It could write the report itself through the pipe; it has what its caller left open, as in a shell."""
    program = made_lister(tmp_path / "program", tmp_path / "told")
    words = [DISPATCH, "--timeout", "60", *command, "--", sys.executable, program]
    subprocess.run(words, capture_output=True, pass_fds=[left_open], check=False)
    assert descriptors(tmp_path / "told") == {left_open: str(tmp_path / "left open")}


def test_a_debugger_that_is_attached(tmp_path: Path, left_open: int) -> None:
    """What the caller left open is not for it; our pipes are: for its result, and the one that ends with us."""
    debugger = made_lister(tmp_path / "gdb", tmp_path / "told")
    words = [DISPATCH, "-p", str(os.getpid()), "--debugger", "gdb", "dispatch-bt"]
    environment = {**os.environ, "GDB": str(debugger)}
    done = subprocess.run(words, capture_output=True, pass_fds=[left_open], env=environment, check=False)
    assert b"gdb gave no result" in done.stderr
    assert [what.split(":")[0] for what in descriptors(tmp_path / "told").values()] == ["pipe", "pipe"]


@pytest.mark.usefixtures("left_open")
def test_gcore_and_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made_lister(tmp_path / "bin/gcore", tmp_path / "told core")
    made_lister(tmp_path / "bin/dot", tmp_path / "told picture")
    with pytest.raises(Exception, match="no core was written"):
        take_core(Evidence(str(tmp_path), "hang", {}, ""), os.getppid())
    assert dot_graph.draw(str(tmp_path / "x.dot"), "digraph {}") is None
    assert descriptors(tmp_path / "told core") == descriptors(tmp_path / "told picture") == {}
