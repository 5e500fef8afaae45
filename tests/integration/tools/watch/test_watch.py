"""scripts/dispatch watch: a program that hangs, goes on and ends, once with its evidence and once from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.programs import procfs
from support.programs.harness import DISPATCH, PATIENCE, ready, run, some, wait_until

HANGS = """
import os, signal, sys, threading

def go_on(*_):
    raise InterruptedError

signal.signal(signal.SIGUSR1, go_on)
lock = threading.Lock()
lock.acquire()
try:
    lock.acquire(timeout=1000)
except InterruptedError:
    while not os.path.exists(sys.argv[1]): pass
sys.exit(3)
"""
"""Goes on at a signal, and ends when that file is there: the watch may take as long as it likes."""


def test_a_program_that_hangs_once(tmp_path: Path) -> None:
    script, told, end = tmp_path / "hangs.py", tmp_path / "told", tmp_path / "end"
    script.write_text(HANGS)
    command = f'echo "$GDBEXT_VERDICT $GDBEXT_PID $GDBEXT_FILE" >> {told}'
    words = [DISPATCH, "watch", "--json", "--hung-after", "1.5", "--save", tmp_path / "kept", "--run", command]
    words += ["--metrics", tmp_path / "gdbext.prom", "--", sys.executable, script, end]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    events = []
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as watch:
        try:
            for line in some(watch.stderr):
                events.append(json.loads(line))
                if events[-1]["event"] == "hung":
                    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the command has run")
                    os.kill(events[-1]["pid"], signal.SIGUSR1)
                elif events[-1]["event"] == "moves":
                    end.touch()
            stdout, _ = watch.communicate(timeout=PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watch.pid, signal.SIGKILL)
    assert (watch.returncode, stdout) == (3, "")  # the output is the program's
    assert [event["event"] for event in events] == ["watching", "hung", "moves", "ended"]
    assert events[0]["text"].endswith(f"; the folder {tmp_path / 'kept'} was created")
    hung, ended = events[1], events[3]
    assert "threading.Lock" in hung["verdict"]["summary"]
    assert ended["text"] == "the program exited with status 3"
    metrics = list(text_string_to_metric_families((tmp_path / "gdbext.prom").read_text()))
    values = {sample.name: sample.value for family in metrics for sample in family.samples}
    assert (values["gdbext_hangs_total"], values["gdbext_hung"]) == (1, 0)
    assert values["gdbext_seconds_since_progress"] < 60
    assert all(sample.labels == {"pid": str(hung["pid"])} for family in metrics for sample in family.samples)
    kind, pid, file = told.read_text().split()
    assert (kind, int(pid), file) == (hung["verdict"]["kind"], hung["pid"], hung["file"])
    assert "threading.Lock" in Path(f"{file}.txt").read_text()
    assert json.loads(Path(f"{file}.json").read_text())["verdict"]["kind"] == kind
    page = Path(f"{file}.html")
    told_of_page = f"\nThe whole report is in the page {page.name}.\n"
    replayed = run([DISPATCH, "-r", f"{file}.rec", "dispatch-diagnose"]).stdout
    assert replayed == Path(f"{file}.txt").read_text().replace(told_of_page, "")
    for words in ("<dt>program</dt>", f"<dd>{os.uname().nodename}</dd>"):
        assert words in page.read_text()


@pytest.mark.gdb
def test_a_process_that_hangs_all_the_time_is_told_once(tmp_path: Path) -> None:
    def sleeps() -> int:
        return int(procfs.status(watch.pid)["voluntary_ctxt_switches"])

    options = ["--hung-after", "1", "--save", tmp_path, "--core", "--job"]
    with ready([sys.executable, "-c", "import threading; print(1, flush=True); threading.Event().wait()"]) as process:
        words = [DISPATCH, "watch", "-p", str(process.pid), *options]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
            output = ""
            while not output.endswith(".core\n"):
                output += some(watch.stdout).readline()
            before = sleeps()
            wait_until(lambda: sleeps() > before + 10, "it has looked again")  # and not told again
            assert procfs.status(process.pid)["TracerPid"] == "0"
            process.kill()
            process.wait()
            output += watch.communicate(timeout=PATIENCE)[0]
    assert watch.returncode == 0
    assert output.count("kept: ") == 3, output
    (core,) = tmp_path.glob("hang-*.core")
    (page,) = tmp_path.glob("hang-*.job.html")
    assert page.read_text().startswith("<!DOCTYPE html>")
    kinds = {path.name[len(core.stem) + 1 :] for path in tmp_path.iterdir()}
    assert kinds == {"txt", "json", "rec", "html", "core", "job.txt", "job.json", "job.html"}
    looked = run([DISPATCH, "--debugger", "none", "-c", core, "dispatch-diagnose"])
    assert "waits for" in looked.stdout, looked
    assert output.rstrip().endswith("the process has exited")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-p", "1", "--", "true"], 2, "say what to watch"),
        (["--hung-after", "0", "--", "true"], 2, "--hung-after takes up to"),
        (["--core", "--", "true"], 2, "--core, --job, --trace and --history need --save"),
        (["--", "/nonexistent/program"], 1, "cannot be started"),
    ],
)
def test_what_cannot_be_watched(words: list[str], status: int, said: str) -> None:
    outcome = run([DISPATCH, "watch", *words])
    assert (outcome.status, said in outcome.stderr) == (status, True), outcome
