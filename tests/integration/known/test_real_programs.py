"""Programs that hang because of a known bug, in a version that has it. Those that need packages are recorded."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.inspect import inspect_threads, with_known_bugs
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.proc_target import ProcTarget
from support.programs import harness

pytestmark = [pytest.mark.torch]

PROGRAMS = {
    ("executor-tasks",): ("3.13", {"cpython#115634": ""}),
    ("checkpoint",): ("venv", {"KempnerForge#104": "", "pytorch#182948": ""}),
    ("openmp-limit",): ("3.9", {"pytorch#193859": "if your torch is 2.13.0 or older"}),
}
"""Programs with their arguments: the Python, and the entries that fit, each with its condition. The last has libgomp
without torch."""


def known(pid: int) -> dict[str, str]:
    with ProcTarget(pid) as target:
        session = Session(target)
        return {match.id: match.condition for match in with_known_bugs(session, inspect_threads(session)).known}


@pytest.mark.parametrize("words", PROGRAMS, ids=" ".join)
def test_it_is_told_and_nothing_else(words: tuple[str, ...]) -> None:
    """By our entries, with the versions that the program has, once its other threads have come to their waits."""
    python, expected = PROGRAMS[words]
    with harness.started(*words, python=python) as inferior:
        harness.wait_until(lambda: known(inferior.pid) == expected, f"it is told: {expected}")
