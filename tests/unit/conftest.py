"""Unit tests need nothing but Python and pytest: here is no torch, no debugger and no compiler."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import hypothesis
import pytest

from support.source import parsed

ABSENT = ("torch", "elftools", "gdb", "lldb")
"""What may be installed, and a unit test may not use."""


# Hypothesis fails an example that takes more than 200 ms, which on a busy machine any may take (never where CI=true).
hypothesis.settings.register_profile("busy", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("busy")


@pytest.fixture(autouse=True)
def _nothing_but_python(monkeypatch: pytest.MonkeyPatch, _no_programs: Path) -> None:
    """No program is found by name, and none of these modules, even where another test has loaded it."""
    monkeypatch.setenv("PATH", str(_no_programs))
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="session")
def _no_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("no-programs")


def pytest_sessionfinish() -> None:
    """pytest collects garbage five times at its end, for what is destroyed with an error: once does for most of it."""
    parsed.forget()
    gc.collect()
    gc.freeze()
