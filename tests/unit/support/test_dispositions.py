"""What the tests start heeds the signals that whoever started the tests ignores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.programs.harness import ROOT

CHILD = """
import signal, subprocess, sys
from support.plugins import dispositions
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
dispositions.pytest_configure()
for number in (signal.SIGINT, signal.SIGHUP):
    signal.raise_signal(number)  # ignored still
show = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (1, 2)])"
subprocess.run([sys.executable, "-c", show], check=True)
"""


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_children_heed_what_we_ignore() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        preexec_fn=_ignore,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == ["True True", "[False, False]"]
