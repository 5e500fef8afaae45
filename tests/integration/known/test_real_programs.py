"""Programs that hang because of a known bug, in a version that has it. Those that need packages are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from gdbext.diagnosis.inspection import inspect_threads, with_known_bugs
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.proc_target import ProcTarget
from support.programs import harness
from support.programs.harness import Inferior

pytestmark = [pytest.mark.torch]

PROGRAMS = {
    ("known-bug", "executor-tasks"): ("3.13", {"cpython#115634": ""}),
    ("known-bug", "checkpoint"): ("venv", {"KempnerForge#104": "", "pytorch#182948": ""}),
    ("openmp-limit",): ("3.9", {"pytorch#193859": "if your torch is 2.13.0 or older"}),
}
"""Programs with their arguments: the Python, and the entries that fit, each with its condition. The last has libgomp
without torch."""


@pytest.fixture(scope="module")
def inferiors() -> Iterator[dict[tuple[str, ...], Inferior]]:
    """All of them, which wait for one another's start only."""
    with ExitStack() as stack, ThreadPoolExecutor(len(PROGRAMS)) as starts:
        programs = [harness.started(*words, python=python) for words, (python, _) in PROGRAMS.items()]
        yield dict(zip(PROGRAMS, starts.map(stack.enter_context, programs)))


def check(inferior: Inferior, expected: dict[str, str]) -> None:
    """Our entries that fit, each with its condition."""
    with ProcTarget(inferior.pid) as target:
        session = Session(target)
        inspected = inspect_threads(session)
        found = {match.bug.id: match.condition for match in with_known_bugs(session, inspected).known}
    assert found == expected, (inferior.name, inspected.judgement.verdict.summary)
    inferior.assert_undisturbed()


def test_each_is_told_and_nothing_else(inferiors: dict[tuple[str, ...], Inferior]) -> None:
    """By our entries, with the versions that the programs have."""
    for words, inferior in inferiors.items():
        check(inferior, PROGRAMS[words][1])
