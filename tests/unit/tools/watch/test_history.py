"""What is kept beside a watch: the last minutes, and a trace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gdbext.diagnosis.report import Report, json_report
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.engine.vocabulary import ErrorReport
from gdbext.errors import TargetError
from gdbext.tools.watch import progress_watch
from gdbext.tools.watch.evidence import TraceBuffer
from gdbext.tools.watch.progress_watch import History, HistoryLook
from support.programs.harness import wait_until


def look(seconds: float, place: str = "train.py:3 (step)", **rates: float) -> HistoryLook:
    named = tuple((f"aten::{name}", rate) for name, rate in rates.items())
    return HistoryLook(seconds, sum(rates.values()), named, (("MainThread (tid 7)", "running", (place,)),))


def stretches(*looks: HistoryLook) -> list[str]:
    """The lines that say what changed, without times of day and places."""
    return [line[22:] for line in progress_watch._summary(looks) if line[:1].isdigit()]


def test_what_is_alike_is_one_line() -> None:
    first = (look(0, mm=100, relu=90), look(30, "data.py:9 (load)", mm=130, relu=110), look(60, mm=90, relu=100))
    found = stretches(*first, look(90, sort=200), look(120, sort=190, mm=1), look(150), look(180))
    assert found == [
        "240 operator calls a second: aten::mm 130, aten::relu 110",
        "191 operator calls a second: aten::sort 190, aten::mm 1",
        "nothing was dispatched",
    ]
    assert len(stretches(look(0, mm=100), look(30, mm=30))) == 2
    assert len(stretches(look(0), look(30, "train.py:9 (step)"), look(60, "data.py:9 (load)"))) == 2


REFUSED = json_report.render(Report("dispatch-top", None, errors=(ErrorReport("no probes for you"),)))


def looks(words: Sequence[str]) -> int:
    places = (("/usr/lib/python3.11/queue.py", 5, "get"), ("/home/me/train.py", 8, "step"))
    frames = tuple(Frame(0, FrameKind.PYTHON, None, name, file=file, line=line) for file, line, name in places)
    sleeps = Wait(Resource(WaitKind.SLEEP, 0))
    main = ThreadReport(7, None, "python", "MainThread", None, RunState.WAITING, sleeps, python_frames=frames)
    report = Report("all-threads", None, threads=(main, ThreadReport(8, state=RunState.IDLE)))
    os.write(1, (REFUSED if "dispatch-top" in words else json_report.render(report)).encode())
    return 0


def test_it_looks_the_rarer_the_longer_and_keeps_no_more_than_its_time(tmp_path: Path) -> None:
    for span, period in ((600, 30), (20, 1), (86400, 360)):
        history = History(7, span, str(tmp_path), lambda _words: 1)
        assert history.period == period
        history.end()
    history = History(7, 6, str(tmp_path), looks)
    assert history._looks.maxlen is not None
    history._looks.extend(look(0.0, mm=5) for _ in range(1000))
    assert len(history._looks) == history._looks.maxlen  # those of 1970 are too old to be told
    history._looks.clear()

    def has_looked() -> bool:
        history.keep()
        return len(history._looks) == 2

    try:
        wait_until(has_looked, "two looks")
        ending, lines = history.take("one")
    finally:
        history.end()
    assert [path.name for path in tmp_path.iterdir()] == [f"one.{ending}"]
    assert [line[22:] for line in lines] == [
        "dispatches are unknown: no probes for you",
        "MainThread (tid 7): /home/me/train.py:8 (step) (2 times)",
    ]
    text = (tmp_path / f"one.{ending}").read_text()
    assert text.startswith("The last 6 s of process 7, sampled every 0.3 s, without stopping it.\n")
    assert text.count("    MainThread (tid 7), waiting, sleep\n        /home/me/train.py:8 (step)\n") == 2


RUNS = ".gdbext-*/trace-77.runs"


def traces(words: Sequence[str]) -> int:
    """As dispatch-trace does: writes when it is interrupted."""
    page = Path(words[words.index("--output") + 1])
    try:
        page.with_suffix(".runs").touch()
        wait_until(lambda: False, "it is interrupted")
    except KeyboardInterrupt:
        page.write_text(" ".join(words[:2]))
    return 0


def once_it_runs(folder: Path) -> None:
    (begun,) = wait_until(lambda: list(folder.glob(RUNS)), "the trace runs")
    begun.unlink()


def test_what_it_has_is_kept_each_time(tmp_path: Path) -> None:
    trace = TraceBuffer(77, 5, str(tmp_path), traces)
    try:
        for stem in ("one", "two"):
            trace.keep()
            once_it_runs(tmp_path)
            trace.keep()  # it runs already
            assert not list(tmp_path.glob(RUNS))
            assert trace.take(stem) == "trace.html"
        trace.keep()
        once_it_runs(tmp_path)
    finally:
        trace.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.trace.html", "two.trace.html"]
    assert (tmp_path / "two.trace.html").read_text() == "-p 77"


def test_one_that_cannot_run_is_told_after_some_attempts(tmp_path: Path) -> None:
    def is_refused(_: Sequence[str]) -> int:
        os.write(1, REFUSED.encode())
        return 1

    def what_is_said(trace: TraceBuffer) -> str:
        try:
            trace.keep()
        except TargetError as error:
            return error.what
        return ""

    trace = TraceBuffer(77, 5, str(tmp_path), is_refused)
    try:
        said = wait_until(lambda: what_is_said(trace), "it is told that no trace is kept")
        assert said == "no trace is recorded: no probes for you"
        with pytest.raises(TargetError, match="no trace was saved: no probes for you"):
            trace.take("one")
    finally:
        trace.end()
