"""Programs that hang because of a known bug, in a version that has it. Those that need packages are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from gdbext.diagnosis.inspection import inspect_threads, with_known_bugs
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.known.catalogue import own_entries
from support.programs import harness
from support.programs.harness import Inferior

PROGRAMS = {
    "cpython#105829": (("known-bug", "executor-wakeup"), "3.10"),
    "cpython#115634": (("known-bug", "executor-tasks"), "3.13"),
    "cpython#119710": (("known-bug", "subprocess-wait"), "3.12"),
    "cpython#125451": (("known-bug", "executor-pickle"), "3.13"),
    "pytorch#182948": (("known-bug", "lazy-call"), "venv"),
    "pytorch#193859": (("openmp-limit",), "3.9"),
}


@pytest.fixture(scope="module")
def inferiors() -> Iterator[dict[str, Inferior]]:
    """All of them, which wait for one another's start only."""
    with ExitStack() as stack, ThreadPoolExecutor(len(PROGRAMS)) as starts:
        programs = [harness.started(*words, python=python) for words, python in PROGRAMS.values()]
        yield dict(zip(PROGRAMS, starts.map(stack.enter_context, programs)))


def test_each_is_told_and_nothing_else(inferiors: dict[str, Inferior]) -> None:
    """By our entries, with the version that the program has: pytorch#193859 without torch says "if"."""
    assert set(PROGRAMS) <= {bug.id for bug in own_entries()}
    for bug, inferior in inferiors.items():
        with ProcTarget(inferior.pid) as target:
            session = Session(target)
            inspected = inspect_threads(session)
            found = {match.bug.id: match.condition for match in with_known_bugs(session, inspected).known}
        expected = "if your torch is 2.13.0 or older" if bug == "pytorch#193859" else ""
        assert found == {bug: expected}, (bug, inspected.judgement.verdict.summary)
        inferior.assert_undisturbed()
