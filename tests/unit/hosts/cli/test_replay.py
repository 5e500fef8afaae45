"""scripts/dispatch -r: a report from a file alone, and clear refusals; what --record says of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gdbext.engine.targets.recording import recorder
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.hosts.cli import launcher
from gdbext.hosts.debugger.recorded_command import RecordedCommand
from gdbext.tools import table
from support.recorded import recordings

MUTEX = str(recordings.FOLDER / "python-lock-abba.rec")


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = launcher.main(words)
    output, error = capfd.readouterr()
    return status, output, error


def test_a_report_from_a_recording(capfd: pytest.CaptureFixture[str]) -> None:
    status, output, error = run(capfd, "-r", MUTEX, "--json")
    assert (status, error) == (0, "")
    report = json.loads(output)
    assert report["verdict"]["kind"] == "deadlock"
    assert (report["target"]["kind"], report["target"]["debugger"]) == ("live", "none")
    assert set(report["target"]["recording"]) == {"taken", "gdbext", "command"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-r", "/nonexistent/hang.rec"), "there is no file /nonexistent/hang.rec"),
        (("-r", __file__), "not a recording of gdbext"),
        (("-r", MUTEX, "-p", "1"), "only one of -p, -c, -r"),
        (("-r", MUTEX, "dispatch-trace", "mm"), "a recording cannot run"),
        (("-r", MUTEX, "dispatch-diagnose", "--samples", "3"), "needs a live process"),
        (("-r", MUTEX, "--record", "x.rec"), "cannot be recorded again"),
        (("-p", "1", "--record", "/proc/nonexistent/x.rec"), "is not a writable folder"),
        (("-p", "1", "--record", "/dev/null"), "is not a regular file"),
    ],
)
def test_refusals(capfd: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    status, output, error = run(capfd, *words)
    assert (status in (1, 2), output) == (True, "")
    assert message in error
    assert "internal" not in error


def test_what_a_live_command_says_of_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    status, output, error = run(capfd, "-r", str(recordings.FOLDER / "meta-mm.rec"), "dispatch-values", "nan", "mm")
    assert (status, error) == (0, "")
    assert "no NaN among the arguments of aten::mm" in output
    assert "aten::linear" not in output


def test_a_recording_cut_short_says_so_as_json(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    short = tmp_path / "short.rec"
    short.write_bytes(Path(MUTEX).read_bytes()[:5000])
    status, output, error = run(capfd, "-r", str(short), "--json")
    (found,) = json.loads(output)["errors"]
    assert (status, bool(found["why"]), bool(found["help"])) == (1, True, True)
    assert "cut short" in found["what"]
    assert "cut short" in error


def test_what_the_recording_lacks_is_in_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capfd, "-r", f"{recordings.FOLDER}/gil-mutex.rec", "dispatch-op", "--all", "--json")
    assert status == 0
    (lacking,) = [error for error in json.loads(output)["errors"] if error["where"] == "recording"]
    assert re.search("it lacks .*pages of memory", lacking["what"])


def test_what_is_said_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tuple(row._replace(recorded=()) for row in table.TABLE)  # nothing besides the command
    monkeypatch.setattr(table, "TABLE", plain)
    for limit, completeness in ((recorder.MAX_MEMORY, ""), (1 << 16, "It is incomplete: more than 192 MB")):
        monkeypatch.setattr(recorder, "MAX_MEMORY", limit)
        command = RecordedCommand("all-threads", [], str(tmp_path / "hang.rec"))
        outcome = command.run(lambda: ReplayTarget(recordings.recording("boxed-recursion-fallback-0")), color=False)
        command.save(outcome)
        assert outcome.status == 0, outcome.error
        assert "recorded in" in outcome.error
        assert completeness in outcome.error
        assert ("is incomplete" in outcome.error) == bool(completeness)
