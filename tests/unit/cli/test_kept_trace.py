"""A trace that runs beside a watch: taken when the process hangs, started again, and gone when nobody wants it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness import wait_until

from gdbext.cli.kept_trace import KeptTrace
from gdbext.errors import TargetError


def traces(words: Sequence[str]) -> int:
    """As dispatch-trace does: writes when it is interrupted."""
    page = Path(words[words.index("--output") + 1])
    try:
        page.with_suffix(".runs").touch()
        while True:  # a signal just before a long sleep would be heeded after it
            time.sleep(0.01)
    except KeyboardInterrupt:
        page.write_text(" ".join(words[:2]))
    return 0


def is_refused(words: Sequence[str]) -> int:
    """As where the kernel permits no probes."""
    os.write(1, json.dumps({"errors": [{"what": "no probes for you"}], "words": words}).encode())
    return 1


def once_it_runs(folder: Path) -> None:
    """The trace has begun; asked again, the next one."""
    runs = folder / ".trace-77.runs"
    wait_until(runs.exists, "the trace runs", 20)
    runs.unlink()


def what_is_said(trace: KeptTrace) -> str:
    """Why keep() can keep no trace, "" where it can."""
    try:
        trace.keep()
    except TargetError as error:
        return error.what
    return ""


def test_what_it_has_is_kept_each_time(tmp_path: Path) -> None:
    trace = KeptTrace(77, 5, str(tmp_path), traces)
    try:
        for stem in ("one", "two"):
            trace.keep()
            once_it_runs(tmp_path)
            trace.keep()  # it runs already
            assert not (tmp_path / ".trace-77.runs").exists()
            assert trace.take(str(tmp_path / stem)) == "trace.html"
        trace.keep()
        once_it_runs(tmp_path)
    finally:
        trace.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.trace.html", "two.trace.html"]
    assert (tmp_path / "two.trace.html").read_text() == "-p 77"


def test_one_that_cannot_run_is_told_after_some_attempts(tmp_path: Path) -> None:
    trace = KeptTrace(77, 5, str(tmp_path), is_refused)
    try:
        said = wait_until(lambda: what_is_said(trace), "it is told that no trace is kept", 20)
        assert said == "no trace is kept: no probes for you"
        with pytest.raises(TargetError, match="no trace was kept: no probes for you"):
            trace.take(str(tmp_path / "one"))
    finally:
        trace.end()
