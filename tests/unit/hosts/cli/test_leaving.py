"""The end of scripts/dispatch: at once, but not before what has to be done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
START = f"""
import sys
sys.path.append({str(ROOT)!r})
from gdbext.hosts.cli.launcher import leave
"""


KEPT = "class Kept:\n    def __del__(self): print('taken apart')\nkept = Kept()\n"
WORK = "lambda: (threading.main_thread().join(), print('done'))"


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [
        ("import atexit\natexit.register(print, 'last')\nprint('first')\nleave(3)", 3, "first\nlast\n"),
        (f"{KEPT}leave(0)", 0, ""),
        (f"{KEPT}sys.exit(0)", 0, "taken apart\n"),
        (f"import threading\nthreading.Thread(target={WORK}).start()\nleave(2)", 2, "done\n"),
        ("sys.stdout = None\nleave(1)", 1, ""),
    ],
    ids=["registered", "not-taken-apart", "by-python", "thread", "no-output"],
)
def test_what_is_done_first(code: str, status: int, output: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-c", START + code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")
