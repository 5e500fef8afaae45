"""scripts/dispatch timeout: exit statuses are those of timeout(1), and what exceeds its time is explained first."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import procfs
from support.programs.harness import DISPATCH, PATIENCE, ROOT, run, some, wait_until

FAMILY = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
if os.fork() == 0:
    os.setsid()
    lock = threading.Lock()
    lock.acquire()
    print("there", flush=True)
    lock.acquire()
subprocess.run(["sleep", "1000"])
"""
UNTIMED = f"""
import sys
sys.path.append({str(ROOT)!r})
from gdbext.hosts.cli import launcher
from gdbext.tools.timeout import _TimedCommand
_TimedCommand._wait = lambda *_: sys.stdin.read() or None
sys.exit(launcher.main(sys.argv[1:]))
"""
"""The time of its command is over when its standard input is closed."""
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
-s WINCH -k 0.2 0.2s sleep 9
-s NONE 1 true
--preserve-status --foreground -v 0.3 sleep 9
"""


@pytest.mark.parametrize("words", ALIKE.strip().splitlines())
def test_the_exit_status_is_that_of_coreutils(words: str) -> None:
    command, *script = words.split("|")
    arguments = [*command.split(), *script]
    theirs = subprocess.run(["timeout", *arguments], capture_output=True, check=False).returncode
    ours = run([DISPATCH, "timeout", *arguments])
    assert ours.status == (theirs if theirs >= 0 else 128 - theirs), ours
    assert ours.stdout == ""


@pytest.mark.parametrize("is_signal", [False, True])
def test_a_family_is_explained_and_ended(tmp_path: Path, is_signal: bool) -> None:
    """A scheduler's signal is explained before it is handed on, and the status is the command's."""
    start = [DISPATCH, "timeout", "0"] if is_signal else [sys.executable, "-c", UNTIMED, "timeout", "--json", "9"]
    words = [*start, "--save", tmp_path, "--", sys.executable, "-c", FAMILY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as ours:
        assert some(ours.stdout).readline() == "there\n"
        family = wait_until(lambda: (found := procfs.descendants(ours.pid))[2:] and found, "all have been started")
        wait_until(lambda: all(procfs.syscall(pid, pid)[0].isdigit() for pid in family), "they sleep")
        if is_signal:
            ours.send_signal(signal.SIGTERM)
        _, stderr = ours.communicate(timeout=PATIENCE)
    wait_until(lambda: not any(map(procfs.alive, family)), "all of them have gone")
    if is_signal:
        assert ours.returncode == 3
        assert "will be killed by SIGTERM" in stderr
        assert "seems to hold itself" in stderr
        return
    told = json.loads(stderr)
    kinds = [each["verdict"]["kind"] for each in told["processes"]]
    assert (ours.returncode, told["event"], len(kinds)) == (124, "exceeded", 3)
    assert kinds[0] in ("waiting-external", "self-deadlock")  # its own wait, or what is wrong in its child
    assert "self-deadlock" in kinds  # the forked child, in a session of its own
    assert all(Path(f"{each['file']}.rec").stat().st_size > 0 for each in told["processes"])
