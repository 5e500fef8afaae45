"""Which prompt opens: IPython where it is installed, else Python's own; a script from a pipe."""

from __future__ import annotations

import builtins
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gdbext.tools import shell

RECORDING = str(Path(__file__).resolve().parents[3] / "recordings" / "python-lock-abba.rec")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is a terminal."""
    monkeypatch.setattr(sys, "stdin", Terminal())


def install_ipython(monkeypatch: pytest.MonkeyPatch, called: list[dict[str, Any]]) -> None:
    """One that notes how it is started."""
    fake, config = ModuleType("IPython"), ModuleType("traitlets.config")
    fake.start_ipython = lambda **words: called.append(words)  # type: ignore[attr-defined]
    config.Config = lambda: SimpleNamespace(InteractiveShellApp=SimpleNamespace())  # type: ignore[attr-defined]
    for name, module in (("IPython", fake), ("traitlets", ModuleType("traitlets")), ("traitlets.config", config)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("variable", ["HOME", "IPYTHONDIR"])
def test_ipython_does_not_open_where_others_can_write_what_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    """Root with the caller's HOME (sudo -E) would run the files of his profile."""
    called: list[dict[str, Any]] = []
    install_ipython(monkeypatch, called)
    monkeypatch.setattr(builtins, "input", lambda *_: (_ for _ in ()).throw(EOFError))
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.delenv("IPYTHONDIR", raising=False)
    monkeypatch.setenv(variable, str(folder if variable == "HOME" else folder / "made" / "later"))
    assert run() == 0
    assert called == []


def run() -> int:
    return shell.ShellProgram().main(["-r", RECORDING], lambda *_: 0, False).status


@pytest.mark.usefixtures("terminal")
def test_ipython_opens_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    called: list[dict[str, Any]] = []
    install_ipython(monkeypatch, called)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run() == 0
    (call,) = called
    assert call["config"].InteractiveShellApp.ignore_cwd
    assert call["argv"] == ["--no-banner"]
    assert call["user_ns"]["p"].diagnose().verdict.kind.value == "deadlock"
    assert "p is <Process" in capfd.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_the_standard_prompt_opens_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)  # importing it raises ImportError
    entered = iter(["print(len(p.threads))"])

    def ask(_: str = "") -> str:
        try:
            return next(entered)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", ask)
    assert run() == 0
    shown = capfd.readouterr()
    assert shown.out == "3\n"
    assert "nothing runs there: it is a recording" in shown.err
