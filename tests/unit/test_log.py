"""$GDBEXT_DEBUG: messages on standard error where it is set, and no cost where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USE = """
from gdbext.log import is_wanted, logger
for name in ("gdbext.room.one", "gdbext.room.two"):
    log = logger(name)
    log.debug("a detail of %s", name)
    log.info("once in a run")
import sys
print(is_wanted(), "logging" in sys.modules)
"""


def run(code: str, level: str | None) -> subprocess.CompletedProcess[str]:
    environment = {} if level is None else {"GDBEXT_DEBUG": level}
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{code}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


LEVELS = [(None, 0), ("0", 0), ("1", 4), ("INFO", 2), ("warning", 0), ("nonsense", 4)]


@pytest.mark.parametrize(("level", "count"), LEVELS)
def test_a_level_chooses_the_messages(level: str | None, count: int) -> None:
    """Silence costs nothing."""
    done = run(USE, level)
    assert done.stdout == ("False False\n" if level in (None, "0") else "True True\n")
    lines = done.stderr.splitlines()
    assert len(lines) == count
    assert all(" ms gdbext.room." in line for line in lines)
    assert ("a detail of gdbext.room.one" in done.stderr) == (count == 4)


def test_the_users_own_logging_stays_as_it_is() -> None:
    code = "import logging\nlogging.basicConfig(format='USER %(message)s')\n" + USE + "logging.warning('mine')"
    done = run(code, "1")
    assert [line for line in done.stderr.splitlines() if "USER" in line] == ["USER mine"]
