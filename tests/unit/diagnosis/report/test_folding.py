"""What repeats is shown once: a recursion in a JSON document as one block with how often it stands there, equal
threads of a verdict as one with their number."""

from __future__ import annotations

from typing import Any

from gdbext.diagnosis.commands import diagnose_view
from gdbext.diagnosis.report import Report, TargetReport
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, ThreadReport
from gdbext.diagnosis.threads.thread_reporting import visible_positions
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge as judge_process
from gdbext.engine.repetitions import MOST_WHOLE
from gdbext.render import Style
from gdbext.render.plain_json import plain
from support.fakes.analysis_facts import step, thread, wait


def stack(names: list[str]) -> list[dict[str, Any]]:
    frames = tuple(Frame(level, FrameKind.NATIVE, None, name) for level, name in enumerate(names))
    found: list[dict[str, Any]] = plain(frames)
    return found


def test_a_block_of_several() -> None:
    found = stack(["top", *["a", "b", "c"] * 5000, "main"])
    assert [each["function"] for each in found] == ["top", "a", "b", "c", "main"]
    assert (found[1]["level"], found[1]["repeats"]) == (1, {"period": 3, "times": 5000})
    assert found[-1]["level"] == 15001
    assert sum("repeats" in each for each in found) == 1
    assert len(stack(["a"] * MOST_WHOLE)) == MOST_WHOLE
    assert len(stack([f"f{number}" for number in range(5000)])) == 5000


def test_what_is_read_is_what_is_shown() -> None:
    ops = ["top", *["a", "b", "c"] * 5000, *(f"f{number}" for number in range(50)), "main"]
    steps = [step(op, level) for level, op in enumerate(ops)]
    shown = visible_positions(steps)
    assert {0, 1, 2, 3, 15001, 15051} <= shown
    assert len(shown) < 200
    assert visible_positions(steps[:MOST_WHOLE]) == frozenset(range(MOST_WHOLE))
    assert visible_positions([step(f"f{level}", level) for level in range(5000)]) == frozenset(range(5000))


def shown(threads: list[ThreadReport]) -> list[str]:
    """The headings of the stacks that the text of a verdict about all of these shows."""
    judged = judge_process(Observations(tuple(threads), 1))
    finding = judged.verdict.finding._replace(threads=tuple(each.tid for each in threads))
    verdict = judged.verdict._replace(finding=finding)
    report = Report("dispatch-diagnose", TargetReport("live", 1, "none"), threads=tuple(threads), verdict=verdict)
    lines = diagnose_view.render(report, Style())
    return [line.partition("Thread ")[2] for line in lines if line.startswith("Thread ")]


def test_equal_threads_of_a_verdict_are_shown_once() -> None:
    def worker(tid: int, line: int, **more: Any) -> ThreadReport:
        frame = Frame(0, FrameKind.PYTHON, None, "handler", file="/a/app.py", line=line)
        return thread(tid, wait("condvar", name="an Event"), python_frames=(frame,), stack_key=line, **more)

    threads = [worker(1, 4), worker(2, 4), worker(3, 4), worker(4, 9), worker(5, 4, notes=("odd",))]
    headings = shown(threads)
    assert [each.endswith("like it") for each in headings] == [False, True, False, False]
    assert [tid in each for tid, each in zip(("tid 1", "tid 2", "tid 4", "tid 5"), headings)] == [True] * 4
    assert ", and 1 thread like it" in headings[1]
