"""What the verdict on a process says of the child that it waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.diagnosis.commands import diagnose
from gdbext.diagnosis.commands.diagnose import children_of, with_cause
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, ChildReport
from gdbext.diagnosis.report.wait_detail import OtherEnd
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.errors import TargetError
from support.fakes.analysis_facts import thread, wait

OWN, LIBRARY = "/a/train.py:7 (work)", "/usr/lib/python3.11/threading.py:331 (Condition.wait)"


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        (OWN, "idle", f" Process 5 is at {OWN}."),
        *((LIBRARY, kind, " In process 5: it serves a queue.") for kind in ("idle", "blocked")),
        ("", "idle", ""),
    ],
)
def test_a_line_of_the_library_says_less_than_what_the_child_does(line: str, verdict: str, said: str) -> None:
    waits = thread(1, wait("child-process", detail=OtherEnd(children=(ChildProcess(5, "python"),))))
    before = judge(Observations((waits,), 1)).verdict
    child = ChildReport(5, "python", "in futex", verdict, "it serves a queue.", line)
    after = with_cause(before, ChildrenSection((child,)))
    assert after.finding.summary == before.finding.summary + said


def test_a_report_comes_whole_from_the_process_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel may keep a look a process of ours does it; names in what it says may have any character."""

    def look(pid: int) -> Any:
        raise TargetError(f"{pid} is a\0b \udc80")

    monkeypatch.setattr(supervision, "may_block_readers", lambda _: True)
    monkeypatch.setattr(diagnose, "briefly_stopped", look)
    procfs: Any = SimpleNamespace(children=lambda: {5: ChildProcess(5, "python")}, grandchildren=dict)
    found = children_of(SimpleNamespace(procfs=procfs), True)  # type: ignore[arg-type]
    assert found is not None
    (child,) = found.children
    assert (child.pid, child.command, child.summary) == (5, "python", "5 is a\0b \udc80")
