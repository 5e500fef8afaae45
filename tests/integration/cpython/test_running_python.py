"""Python that runs is read while it stands: no list is torn, and whoever holds the GIL has its frames."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gdbext.diagnosis.inspection import inspect_threads
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import brief_look
from support.installed import pythons
from support.programs.harness import INFERIORS

LOOKS = 8
VERSIONS = ("3.9", "3.11", "3.13")


@contextmanager
def program(version: str, what: str) -> Iterator[int]:
    words = [pythons.need(version), str(INFERIORS / "running_python.py"), what]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def look(pid: int) -> tuple[list[str], tuple[ThreadReport, ...]]:
    target = brief_look(pid)
    session, found = Session(target).settled(inspect_threads)
    target.close()
    return [error.what for error in session.errors.reports()], found.threads


@pytest.mark.parametrize("version", VERSIONS)
def test_whoever_holds_the_gil_has_frames_to_its_beginning(version: str) -> None:
    holders = []
    with program(version, "spin") as pid:
        for _ in range(LOOKS):
            errors, threads = look(pid)
            assert errors == []
            assert all(thread.python for thread in threads)
            holders += [thread for thread in threads if any(held.kind is WaitKind.GIL for held in thread.holds)]
    assert holders
    ends = {thread.python[-1].function.rpartition(".")[2] for thread in holders}
    assert ends <= {"<module>", "_bootstrap"}


@pytest.mark.parametrize("version", VERSIONS)
def test_threads_that_come_and_go_do_not_tear_the_list(version: str) -> None:
    with program(version, "churn") as pid:
        for _ in range(LOOKS):
            errors, threads = look(pid)
            assert errors == []
            main = next(thread for thread in threads if thread.tid == pid)
            assert main.python[-1].function == "<module>"
