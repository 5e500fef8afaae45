"""Which prompt opens: IPython where it is installed, else Python's own; a script from a pipe."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gdbext.tools import table

RECORDING = str(Path(__file__).resolve().parents[3] / "recordings" / "python-lock-abba.rec")


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Standard input is a terminal, and there is an IPython that notes how it is started."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    calls: list[dict[str, Any]] = []
    fake, config = ModuleType("IPython"), ModuleType("traitlets.config")
    fake.start_ipython = lambda **words: calls.append(words)  # type: ignore[attr-defined]
    config.Config = lambda: SimpleNamespace(InteractiveShellApp=SimpleNamespace())  # type: ignore[attr-defined]
    for name, module in (("IPython", fake), ("traitlets", ModuleType("traitlets")), ("traitlets.config", config)):
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def run(monkeypatch: pytest.MonkeyPatch, *entered: str) -> int:
    """Its status when those lines are entered at Python's own prompt."""
    lines = iter(entered)

    def ask(_: str = "") -> str:
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", ask)
    return table.tool_of(table.program("shell")).main(["-r", RECORDING], lambda *_: 0, False).status


@pytest.mark.parametrize("variable", ["HOME", "IPYTHONDIR"])
def test_ipython_does_not_open_where_others_can_write_what_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, started: list[dict[str, Any]]
) -> None:
    """Root with the caller's HOME (sudo -E) would run the files of his profile."""
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.delenv("IPYTHONDIR", raising=False)
    monkeypatch.setenv(variable, str(folder if variable == "HOME" else folder / "made" / "later"))
    assert (run(monkeypatch), started) == (0, [])


def test_ipython_opens_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(monkeypatch) == 0
    (call,) = started
    assert call["config"].InteractiveShellApp.ignore_cwd
    assert call["argv"] == ["--no-banner"]
    assert call["user_ns"]["p"].diagnose().verdict.kind.value == "deadlock"
    assert "p is <Process" in capfd.readouterr().err


def test_the_standard_prompt_opens_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)  # importing it raises ImportError
    assert run(monkeypatch, "print(len(p.threads))") == 0
    shown = capfd.readouterr()
    assert shown.out == "3\n"
    assert "nothing is running: it is a recording" in shown.err
