"""The end of scripts/dispatch: at once, but not before what has to be done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
START = f"""
import sys
sys.path.append({str(ROOT)!r})
from gdbext.hosts.cli.launcher import leave
"""


def ended(code: str) -> tuple[int, str]:
    """Exit status and output of a Python that runs the code."""
    done = subprocess.run([sys.executable, "-I", "-c", START + code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_what_is_registered_is_called_and_what_was_printed_is_there() -> None:
    assert ended("import atexit\natexit.register(print, 'last')\nprint('first')\nleave(3)") == (3, "first\nlast\n")


def test_nothing_is_taken_apart() -> None:
    kept = "class Kept:\n    def __del__(self): print('taken apart')\nkept = Kept()\n"
    assert ended(f"{kept}leave(0)") == (0, "")
    assert ended(f"{kept}sys.exit(0)") == (0, "taken apart\n")


def test_a_thread_is_waited_for() -> None:
    work = "lambda: (threading.main_thread().join(), print('done'))"
    thread = f"import threading\nthreading.Thread(target={work}).start()\n"
    assert ended(f"{thread}leave(2)") == (2, "done\n")


def test_standard_output_may_be_missing() -> None:
    assert ended("sys.stdout = None\nleave(1)") == (1, "")
