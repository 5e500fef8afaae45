"""Answers of many machines in one stream: each is known by srun's label alone, and costs nobody else anything."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from gdbext.tools import table
from gdbext.tools.ranks import other_machines, slurm
from gdbext.tools.ranks.slurm import LabelledAnswers, answer, framed
from support.recorded import jobs

ANSWERS = {task: random.Random(task).randbytes(5000 * task) for task in range(3)}
NO_RANK_ERROR = b'{"what": "there is no rank on this machine", "help": ""}'
NOBODY = b'{"schema": "gdbext/1", "command": "", "target": null, "errors": [%s]}' % NO_RANK_ERROR


def labelled(task: int, output: bytes) -> bytes:
    """The output of a task as ``srun --label`` passes it on: a label before each line, at most 1024 bytes in one."""
    pieces = [line[at : at + 1024] for line in output.splitlines() for at in range(0, len(line) or 1, 1024)]
    return b"".join(b"%d: %s\n" % (task, piece) for piece in pieces)


def read(stream: bytes, size: int = 1 << 16) -> LabelledAnswers:
    said = LabelledAnswers()
    for at in range(0, len(stream), size):
        said.feed(stream[at : at + size])
    return said


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_answers_come_back_whole_in_whatever_order(size: int) -> None:
    assert max(len(line) for answer in ANSWERS.values() for line in framed(answer)) < 1024, "Slurm would cut them"
    lines = [labelled(task, line) for task, answer in ANSWERS.items() for line in framed(answer)]
    random.Random(1).shuffle(lines)
    stream = b"0: a login message\n" + b"".join(lines) + b"slurmstepd: error: something\n"
    assert read(stream, size).by_task() == ANSWERS
    assert read(stream.replace(labelled(1, [*framed(ANSWERS[1])][-1]), b"")).by_task() == {**ANSWERS, 1: None}


@pytest.mark.parametrize(
    "stream", [b"", b"gdbext 0/1 ====", b"gdbext 1/1 eA==", b"gdbext 0/9999999 eA==", b"gdbext 0/1 eJwDAAAAAAE"]
)
def test_what_is_no_answer(stream: bytes) -> None:
    assert set(read(labelled(0, stream)).by_task().values()) <= {None}
    assert read(stream + b"\n").by_task() == {}, "it has no label"


EMPTY, NO_RANK = (b"".join(framed(each)) for each in (b"[]", NOBODY))
HOSTILE = {
    "as another": labelled(1, EMPTY),
    "with spaces": b"  1: " + EMPTY,
    "after its own": NO_RANK + b"\r1: " + EMPTY,
    "an endless line": b"x" * (3 << 20),
    "too many lines": b"".join(framed(random.Random(1).randbytes(2 << 20))),
    "one that unpacks to much": b"".join(framed(b" " * (8 << 20))),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_machine_neither_answers_for_another_nor_suppresses_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "MOST_OF_ALL", 1 << 20)
    monkeypatch.setattr(slurm, "_LARGEST", 1 << 20)
    honest = [labelled(1, line) for line in framed(ANSWERS[1])]
    hostile = [labelled(0, line) for line in HOSTILE[name].splitlines()] or [b""]
    for order in (hostile + honest, honest + hostile, [*hostile, *honest, *hostile]):
        found = read(b"".join(order)).by_task()
        assert found[1] == ANSWERS[1]
        assert set(found) <= {0, 1}


def test_a_report_is_of_the_machine_that_sends_it(tmp_path: Path) -> None:
    """It cannot replace another's by its name, nor make that one's old by a later restart."""
    for number, document in enumerate(jobs.documents("late-lock")):
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    program = table.tool_of(table.program("ranks"))
    report = program.main(["--reports", str(tmp_path), "--json"], lambda _: 0, color=False).output.encode()
    hosts = [{each.host for each in answer(where, report, 0).reports.values()} for where in ("n1", "pod/n2")]
    assert hosts == [{"n1"}, {"n2"}]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with stand-ins for Slurm's programs, which write what lies beside them, and note their words."""
    for name in ("srun", "squeue", "scontrol"):
        program = tmp_path / name
        program.write_text(
            f"#!{sys.executable} -IS\n"
            "import sys\n"
            "open(sys.argv[0] + '.words', 'a').write(repr(sys.argv[1:]) + '\\n')\n"
            "sys.stdout.buffer.write(open(sys.argv[0] + '.output', 'rb').read())\n"
        )
        program.chmod(0o755)
        (tmp_path / f"{name}.output").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def asked(programs: Path, output: bytes, nodes: str, names: str) -> dict[str, str]:
    """Machine → why there is no report of it."""
    for name, text in {"srun": output, "squeue": nodes.encode(), "scontrol": names.encode()}.items():
        (programs / f"{name}.output").write_bytes(text)
    options = table.tool_of(table.program("ranks")).parse(["--slurm", "77.0"])
    return {each.where: each.reason for each in other_machines.remote_rows(options).unreached}


def test_machines_are_named_by_the_controller(programs: Path) -> None:
    cut = next(framed(random.Random(1).randbytes(2000)))
    output = labelled(0, b"gdbext-of --config=/evil\n" + NO_RANK) + labelled(1, cut)
    assert asked(programs, output, "n[1-3]\n", "n1\nn2\nn3\n") == {
        "n1": "there is no rank on this machine",
        "n2": "its answer was cut short; no report (status 0)",
        "n3": "no report (status 0)",
    }
    assert {*(programs / "scontrol.words").read_text().splitlines()} == {"['--', 'show', 'hostnames', 'n[1-3]']"}
    words = (programs / "srun.words").read_text()
    for each in ("'--label'", "'--kill-on-bad-exit=0'", "'--wait=0'", "'--ntasks=3'", "'--jobid=77'"):
        assert each in words


@pytest.mark.parametrize("nodes", ["--config=/evil\n", ""])
def test_what_is_no_list_of_machines_is_not_handed_on(programs: Path, nodes: str) -> None:
    found = asked(programs, labelled(0, NO_RANK), nodes, "n1\n")
    assert found["task 0"] == "there is no rank on this machine"
    assert "does not name the machines of job 77" in found["squeue"]
    assert not (programs / "scontrol.words").exists()
