"""What the verdict on a process says of the child that it waits for."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.diagnose import with_cause
from gdbext.diagnosis.samples import ChildrenSection, ChildReport
from gdbext.diagnosis.verdict import judge
from gdbext.diagnosis.verdict.rules import Observations
from gdbext.engine.targets.system.peer import ChildProcess
from support.fakes.analysis_facts import thread, wait

OWN, LIBRARY = "/a/train.py:7 (work)", "/usr/lib/python3.11/threading.py:331 (Condition.wait)"


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        (OWN, "idle", f" Process 5 is at {OWN}."),
        (LIBRARY, "idle", " In process 5: it serves a queue."),
        (LIBRARY, "blocked", " In process 5: it serves a queue."),
        ("", "idle", ""),
    ],
)
def test_a_line_of_the_library_says_less_than_what_the_child_does(line: str, verdict: str, said: str) -> None:
    waits = thread(1, wait("child-process", children=(ChildProcess(5, "python"),)))
    before = judge(Observations((waits,), 1)).verdict
    child = ChildReport(5, "python", "in futex", verdict, "it serves a queue.", line)
    after = with_cause(before, ChildrenSection((child,)))
    assert after.finding.summary == before.finding.summary + said
