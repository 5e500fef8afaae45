"""A test that this machine cannot run is skipped, and fails in CI, where everything must be there."""

from __future__ import annotations

import pytest

from support.programs.harness import ROOT

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def debugger():
    raise AssertionError("started although it is missing")

@pytest.mark.gdb
@pytest.mark.compiler
def test_marked(debugger):
    pass

@pytest.mark.pythons("3.8", "2.4")
def test_versions():
    pass

def test_unmarked():
    pass
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """What pytest says of those tests where there is no gdb, no compiler and no Python 2.4."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}:{ROOT}")
    if request.param == "ci":
        monkeypatch.setenv("CI", "true")
    else:
        monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pytester.makepyprojecttoml((ROOT / "pyproject.toml").read_text())
    folder = pytester.mkdir("tests")
    (folder / "conftest.py").write_text("pytest_plugins = ['support.plugins.markers']\n")
    (folder / "test_it.py").write_text(TESTS)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout.str()


@pytest.mark.parametrize("outcome", ["user"], indirect=True)
def test_a_user_sees_why_a_test_was_skipped(outcome: str) -> None:
    assert "1 passed, 2 skipped" in outcome
    assert "not installed: gdb" in outcome
    assert "not installed: gcc, g++, as, strip" in outcome
    assert "no Python 2.4" in outcome.replace("3.8, ", "")


@pytest.mark.parametrize("outcome", ["ci"], indirect=True)
def test_in_ci_it_fails(outcome: str) -> None:
    assert "1 passed" in outcome
    assert "skipped" not in outcome
    assert "2 failed" in outcome or "2 errors" in outcome
    assert "not installed: gdb (in CI this is a failure)" in outcome
