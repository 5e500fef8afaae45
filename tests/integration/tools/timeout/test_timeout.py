"""scripts/dispatch timeout: exit statuses are those of timeout(1), and what exceeds its time is explained first."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import procfs
from support.programs.harness import DISPATCH, run, wait_until

FAMILY = """
import os, subprocess, sys, threading
print("there", flush=True)
if os.fork() == 0:
    os.setsid()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
subprocess.run(["sleep", "1000"])
"""


ALIKE = """
0.2 sleep 9
inf true
9 sh -c|exit 7
9 /etc/passwd
9 no-such-command
9 sh -c|kill -9 $$
-s KILL 0.2 sleep 9
1x true
9
-k 0.2 0.2s sh -c|trap '' TERM; sleep 1; sleep 9
-s NONE 1 true
--preserve-status --foreground -v 0.3 sh -c|trap 'exit 3' TERM; sleep 30 >&- 2>&- & wait
"""


@pytest.mark.parametrize("words", ALIKE.strip().splitlines())
def test_the_exit_status_is_that_of_coreutils(words: str) -> None:
    command, *script = words.split("|")
    arguments = [*command.split(), *script]
    theirs = subprocess.run(["timeout", *arguments], capture_output=True, check=False).returncode
    ours = run([DISPATCH, "timeout", *arguments])
    assert ours.status == (theirs if theirs >= 0 else 128 - theirs), ours
    assert ours.stdout == ""


def test_a_family_is_explained_and_ended(tmp_path: Path) -> None:
    outcome = run([DISPATCH, "timeout", "--json", "--save", tmp_path, "1.5", "--", sys.executable, "-c", FAMILY])
    assert (outcome.status, outcome.stdout) == (124, "there\n")
    told = json.loads(outcome.stderr)
    kinds = [each["verdict"]["kind"] for each in told["processes"]]
    assert (told["event"], kinds[0], len(kinds)) == ("exceeded", "waiting-external", 3)
    assert "self-deadlock" in kinds  # the forked child, in a session of its own
    for each in told["processes"]:
        assert Path(f"{each['file']}.rec").stat().st_size > 0
        wait_until(lambda pid=each["pid"]: not procfs.alive(pid), "it has gone")


def test_a_schedulers_signal_is_explained_before_it_is_handed_on(tmp_path: Path) -> None:
    words = [DISPATCH, "timeout", "0", "--save", tmp_path, "--", sys.executable, "-c", FAMILY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        ours.send_signal(signal.SIGTERM)
        _, stderr = ours.communicate(timeout=60)
    assert ours.returncode == 128 + signal.SIGTERM
    assert "is to be ended by SIGTERM" in stderr
    assert "seems to hold itself" in stderr
