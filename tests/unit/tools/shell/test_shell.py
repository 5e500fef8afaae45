"""Which prompt opens: IPython where it is installed, else Python's own; a script from a pipe."""

from __future__ import annotations

import builtins
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdbext.tools.shell import shell

RECORDING = str(Path(__file__).resolve().parents[3] / "recordings" / "python-lock-abba.rec")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is a terminal."""
    monkeypatch.setattr(sys, "stdin", Terminal())


def run() -> int:
    return shell.ShellProgram().main(["-r", RECORDING], lambda *_: 0, False).status


@pytest.mark.usefixtures("terminal")
def test_ipython_opens_where_it_is_there(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    called: list[dict[str, Any]] = []
    fake = ModuleType("IPython")
    fake.start_ipython = lambda **words: called.append(words)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert run() == 0
    (call,) = called
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
