"""A trace that runs beside a watch: taken when the process hangs, started again, and gone when nobody wants it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gdbext.errors import TargetError
from gdbext.tools.watch.evidence import TraceBuffer
from support.programs.harness import wait_until

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


def is_refused(words: Sequence[str]) -> int:
    """As where the kernel permits no probes."""
    os.write(1, json.dumps({"errors": [{"what": "no probes for you"}], "words": words}).encode())
    return 1


def once_it_runs(folder: Path) -> None:
    """The trace has begun; asked again, the next one."""
    (begun,) = wait_until(lambda: list(folder.glob(RUNS)), "the trace runs")
    begun.unlink()


def what_is_said(trace: TraceBuffer) -> str:
    """Why keep() can keep no trace, "" where it can."""
    try:
        trace.keep()
    except TargetError as error:
        return error.what
    return ""


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
    trace = TraceBuffer(77, 5, str(tmp_path), is_refused)
    try:
        said = wait_until(lambda: what_is_said(trace), "it is told that no trace is kept")
        assert said == "no trace is kept: no probes for you"
        with pytest.raises(TargetError, match="no trace was kept: no probes for you"):
            trace.take("one")
    finally:
        trace.end()
