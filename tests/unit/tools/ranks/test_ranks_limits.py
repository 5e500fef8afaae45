"""What processes, reports and machines claim costs what they are, not what they claim."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.engine.rank_sets import fold
from gdbext.errors import BadData, TargetError
from gdbext.hosts.cli import launcher as dispatch
from gdbext.tools import table
from gdbext.tools.outcome import Outcome
from gdbext.tools.ranks import other_machines, slurm
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import GroupState, Issued, RankReport, rows
from gdbext.tools.ranks.rank_report_reader import ReportParser
from gdbext.tools.ranks.slurm import answer
from support.programs.harness import PATIENCE
from support.recorded import jobs, recordings
from support.source import contract_schema

HUGE = 1 << 40


def ranks(*words: str) -> Outcome:
    return table.tool_of(table.program("ranks")).main(words, lambda _: 0, color=False)


def reported(folder: Path, document: Any) -> dict[str, Any]:
    folder.mkdir()
    (folder / "0.json").write_text(document if isinstance(document, str) else json.dumps(document))
    found: dict[str, Any] = json.loads(ranks("--reports", str(folder), "--json").output)
    contract_schema.check(found)
    return found


def test_a_claimed_size_is_not_believed_and_what_is_missing_of_a_large_job_is_a_range(tmp_path: Path) -> None:
    document = jobs.documents("late-lock")[0]
    document["collectives"]["identity"]["size"] = HUGE
    found = reported(tmp_path / "huge", document)
    assert found["size"] is None
    assert f"rank 0 claims a job of {HUGE} ranks, which is ignored as implausible" in found["notes"]
    document["collectives"]["identity"]["size"] = 1_000_000
    found = reported(tmp_path / "large", document)
    assert (found["size"], found["missing"]) == (1_000_000, "1-999999")


def test_garbage_is_collected_again_afterwards(tmp_path: Path) -> None:
    reported(tmp_path / "job", jobs.documents("late-lock")[0])
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    ranks("--recordings", str(recordings.FOLDER / "families-join.rec"), "--json")
    assert gc.get_freeze_count() <= frozen, "what a library's user has made is still looked through"


@pytest.mark.parametrize("step", ["judge", "rank_sources.report_rows"])
def test_reading_and_judging_reports_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def go_on_for_ever(*_: object) -> None:
        while True:
            pass

    (tmp_path / "0.json").write_text(json.dumps(jobs.documents("late-lock")[0]))
    monkeypatch.setattr(f"gdbext.tools.ranks.{step}", go_on_for_ever)
    with pytest.raises(TargetError, match=r"no report within 0\.2 s"):
        ranks("--reports", str(tmp_path / "0.json"), "--timeout", "0.2")


@pytest.mark.parametrize("ranks", ["0-" + "9" * 5000, "0-1000000," * 100 + "0-1000000", f"0-{HUGE}"])
def test_a_set_of_ranks_that_is_none(tmp_path: Path, ranks: str) -> None:
    document = reported(tmp_path / "made", jobs.documents("late-lock")[0])
    document["reports"][0]["groups"][0]["ranks"] = ranks
    assert reported(tmp_path / "job", document)["ranks"] == "0"


WRONG = {
    "rank": ("0", -1, 1.5, True, 1 << 70, []),
    "pid": (None, "1", -3, {}),
    "host": (1, [], {}),
    "job": (7, ["x"]),
    "path": ("main", [1], ["a"] * 1000, {}),
    "running": (1, None, "yes"),
    "wait": ("all_reduce", [], {"op": 1}),
    "groups": ({}, [1], [{"name": 1}]),
    "summary": (None, 3),
    "paused_ms": ("long", -1.0),
    "user": ("root", -1),
    "known": ("a bug", [1], ["a"] * 100),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_member_of_the_wrong_type_costs_the_machine(tmp_path: Path, name: str, value: Any) -> None:
    document = reported(tmp_path / "made", jobs.documents("late-lock")[0])
    document["reports"][0][name] = value
    found = answer("node7", json.dumps(document).encode(), 0)
    assert not found.reports
    (problem,) = found.unreached
    assert (problem.where, problem.reason.partition(": ")[0]) == ("node7", "its answer cannot be read")


@pytest.mark.parametrize(
    "output",
    [
        b'{"a":' * 100_000,
        b'{"errors": [1]}',
        b'{"schema": "gdbext-ranks/1", "reports": 1, "unreached": []}',
        b'{"schema": "gdbext-ranks/1", "reports": [], "unreached": [{"where": 1}]}',
        lambda: b'{"schema": "gdbext-ranks/1", "reports": [' + b"[]," * 5_000_000 + b'[]], "unreached": []}',
        lambda: b"{" + b" " * (65 << 20),
    ],
    ids=["deep", "number", "reports", "unreached", "many", "large"],
)
def test_an_answer_that_is_no_report_costs_the_machine(output: bytes | Callable[[], bytes]) -> None:
    found = answer("node7", output() if callable(output) else output, 0)
    assert not found.reports
    assert [each.where for each in found.unreached] == ["node7"]


def test_answers_that_grow_when_they_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "MOST_OF_ALL", 3 << 20)
    labelled = slurm.LabelledAnswers()
    for task in range(6):
        size = (1 << 19) if task else (2 << 20)  # the first wants the share of all
        labelled.feed(b"".join(b"%d: %s" % (task, line) for line in slurm.framed(b" " * size)))
    assert [each is not None for each in labelled.by_task().values()] == [False] + [True] * 5


def test_a_program_that_never_ends_its_answer_does_not_answer_or_does(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.exit(3)"]
    given = os.urandom(1 << 20)  # more than a pipe holds, in both directions at once
    assert other_machines.run(words, given, PATIENCE) == (given, b"", 3, "")
    words[2] = "import signal; signal.pause()"
    assert other_machines.run(words, given, 0.2).problem == "no answer within 0.2 s"
    words[2] = "while True: print('y' * 999)"
    monkeypatch.setattr(other_machines, "MAX_BYTES", 1 << 20)
    found = other_machines.run(words, b"", PATIENCE)
    assert found.problem == f"its answer has more than {1 << 20} bytes"
    assert len(found.output) < 2 << 20


def test_what_clustershell_hears_is_bounded() -> None:
    heard = other_machines._LineHandler(300, 300)
    for node, letter in (*[("node1", b"x")] * 3, ("node2", b"y"), *[("node3", b"z")] * 2):
        heard.ev_read(None, node, "stdout", letter * 40)
    assert heard.too_large == {"node1", "node3"}
    assert b"\n".join(heard.lines("node2", "stdout")) == b"y" * 40


def test_a_report_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.json")
    for path in ("/dev/zero", tmp_path / "0.json"):
        (problem,) = json.loads(ranks("--reports", str(path), "--json").output)["unreached"]
        assert "is not a regular file" in problem["reason"]


def made(number: int, user: int | None, **more: Any) -> RankReport:
    state = GroupState("0", "default_pg", 2, "0-1", 1, None, (Issued(1, "all_reduce", is_pending=True),))
    wait = CollectiveWait("all_reduce", 1, "0")
    words = ("node1", 1000 + number, "job", 2, None, "idle", "It sleeps.", ("main",), wait, False, (state,))
    return RankReport(number, *words, user=user)._replace(**more)


def test_processes_of_another_user_are_left_out_and_said() -> None:
    stranger = made(1, 65534, pid=77, size=7, kind="deadlock")
    found = judge(rows([made(0, 1000), made(1, 1000), stranger]))
    assert ([each.pid for each in found.reports], found.size) == ([1000, 1001], 2)
    assert found.notes == ("left out processes of other users that claim this job: pid 77 of user 65534 on node1",)
    unknown = judge(rows([made(0, None), made(1, 1000)]))
    assert (len(unknown.reports), unknown.notes) == (2, ())
    strangers = [made(number, 65534, pid=70 + number) for number in range(3)]
    named = judge(rows([made(0, 1000), *strangers]), pid=1000)
    assert [each.pid for each in named.reports] == [1000], "the user is that of the process that was named"


@pytest.mark.parametrize("program", ["ranks", "watch"])
@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "exceeds its memory limit"), (RuntimeError("x"), "internal error: Run")]
)
def test_ranks_and_watch_stand_behind_the_boundary(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], program: str, error: Exception, said: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(table.load(table.program(program).place), "main", fail)
    assert dispatch.main([program, "--json"]) == 1
    output, errors = capfd.readouterr()
    assert said in errors
    assert said in json.loads(output)["errors"][0]["what"]


@pytest.mark.parametrize("indent", [None, 2])
def test_many_members_become_a_set(indent: int | None) -> None:
    parser = ReportParser()
    for document in jobs.varied("crossing", 300)[:3]:
        found = parser.parse(json.dumps(document, indent=indent).encode())
        for group in document["collectives"]["groups"]:
            group["ranks"] = tuple(group["ranks"])
        assert found == document
        assert all(each["ranks"].text == fold(each["ranks"]) for each in found["collectives"]["groups"])


@pytest.mark.parametrize(
    "text",
    [
        b'{"collectives": {"groups": [{"ranks": 7}, {"ranks": %s}]}}' % str([*range(200)]).encode(),
        b'{"collectives": {"groups": [{"ranks": %s' % str([*range(200)]).encode(),
        b'"ranks":[',
        b'{"ranks":' + b"[" * 100_000,
    ],
)
def test_damage_is_an_error(text: bytes) -> None:
    with pytest.raises((ValueError, BadData, RecursionError)):
        ReportParser().parse(text)
