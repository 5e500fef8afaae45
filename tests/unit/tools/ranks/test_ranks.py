"""scripts/dispatch ranks --reports: many reports, one screen; and what is wrong with reports is said, not fatal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.job import RankVariable
from gdbext.errors import TargetError, UsageError
from gdbext.tools import table
from gdbext.tools.outcome import Outcome
from gdbext.tools.ranks import other_machines, rank_processes
from gdbext.tools.ranks.rank_processes import RankProcess
from support.programs.harness import PATIENCE
from support.recorded import jobs, recordings
from support.recorded.recordings import Replay
from support.source import contract_schema


def run(*words: object) -> Outcome:
    return table.tool_of(table.program("ranks")).main([str(word) for word in words], lambda _: 0, color=False)


def written(folder: Path, documents: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for number, document in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return folder


def test_a_thousand_ranks_are_one_screen(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", jobs.varied("late-lock", 1000))
    assert "--reports" in run("--help").output
    lines = run("--reports", folder).output.splitlines()
    assert len(lines) <= 45
    assert all(words in lines[0] for words in ("rank 1 of 1000 never enqueued #4 all_reduce", "ranks 0,2-999 wait"))
    assert "1,000 processes, ranks 0-999 of 1000, on 125 hosts" in lines[2]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("cut", lambda text: text[: len(text) // 2]),
        ("list", lambda _: "[]"),
        ("deep", lambda _: "[" * 100_000),
        ("no-threads", lambda text: text.replace('"threads"', '"thread"')),
        ("text", lambda text: text.replace('"rank":', '"rank": "x", "was":')),
        ("no-verdict", lambda text: text.replace('"verdict":', '"verdict": null, "was":')),
    ],
)
def test_a_damaged_report_costs_itself(tmp_path: Path, name: str, contents: Any) -> None:
    documents = jobs.documents("late-sleep")
    folder = written(tmp_path / "job", documents[:3])
    (folder / f"{name}.json").write_text(contents(json.dumps(documents[3])))
    document = json.loads(run("--reports", folder, "--json").output)
    assert [each["where"] for each in document["unreached"]] == [f"{name}.json"]
    assert (document["ranks"], document["missing"]) == ("0-2", "3")
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == ("dead-rank", "3")


def test_recordings_are_looked_at(tmp_path: Path) -> None:
    recording = recordings.FOLDER / "gloo-mismatch.rec"
    document = json.loads(run("--recordings", recording, "--json").output)
    assert [each["rank"] for each in document["reports"]] == [0]
    assert (document["verdict"]["kind"], document["collectives"][0]["pending"]) == ("dead-rank", "0")
    (tmp_path / "cut.rec").write_bytes(recording.read_bytes()[:5000])
    outcome = run("--recordings", tmp_path, "--json")
    assert outcome.status == 1
    assert json.loads(outcome.output)["unreached"][0]["where"].endswith("cut.rec")


def test_known_bugs_are_told_with_their_ranks(replay: type[Replay], tmp_path: Path) -> None:
    written(tmp_path / "reports", [replay("fork-openmp").document("dispatch-diagnose")])
    line = "Known bug (1 of unknown rank) gcc#52303: libgomp keeps its worker threads for the next parallel region"
    assert line in run("--reports", tmp_path / "reports").output
    (tmp_path / "job.json").write_text(run("--reports", tmp_path / "reports", "--json").output)
    merged = json.loads((tmp_path / "job.json").read_text())
    contract_schema.check(merged)
    assert [each["known"][0].partition(":")[0] for each in merged["reports"]] == ["gcc#52303"]
    assert line in run("--reports", tmp_path / "job.json").output


def test_the_graph_and_the_page(tmp_path: Path) -> None:
    documents = jobs.documents("late-lock")
    documents[1]["verdict"]["summary"] = "<script>alert(1)</script> & \x1b[31m"
    graph, page = tmp_path / "job.dot", tmp_path / "job.html"
    run("--reports", written(tmp_path / "job", documents), "--dot", graph, "--html", page)
    text = graph.read_text()
    assert text.startswith("digraph ranks {")
    assert text.count("{") == text.count("}")
    assert "color=red" in text
    assert all(words in page.read_text() for words in ("&lt;script&gt;", "never enqueued"))
    assert "\x1b" not in page.read_text()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (("--slurm", "77.0"), ("srun --overlap --jobid=77", "--job '\"'\"'slurm 77.0'\"'\"' |")),
        (("--kubernetes", "app=train", "--namespace", "ml"), ("kubectl -n ml get pods -l app=train", "exec -i POD")),
        (("--hosts", "n[1-9]", "--python", "python3.11"), ("clush --worker ssh -w 'n[1-9]'", "python3.11 -I -S -B -c")),
    ],
)
def test_commands_for_other_machines_are_shown(
    where: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_machines, "archive", lambda: b"packed")
    shown = run(*where, "--show-commands").output
    assert all(word in shown for word in words), shown


def test_the_answer_of_a_machine(tmp_path: Path) -> None:
    document = run("--reports", written(tmp_path / "job", jobs.documents("late-lock")), "--json").output.encode()
    good, cut = (other_machines.answer("n1", each, 0) for each in (b"a login message\n" + document, document[:500]))
    assert [report.rank for report in good.sorted()] == [0, 1]
    assert [each.where for each in cut.unreached] == ["n1"]
    silent = other_machines.answer("n2", b"sh: python3: not found\n", 127)
    assert [each.reason for each in silent.unreached] == ["no report (status 127): sh: python3: not found"]


@pytest.mark.parametrize("is_closed", [True, False])
def test_processes_of_another_user(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    known = {77: RankProcess(77, 1, False, (), None, is_closed), 78: RankProcess(78, 1, False, ("j",), None)}
    monkeypatch.setattr(rank_processes, "local_processes", lambda: known)
    with pytest.raises(TargetError) as caught:
        run("--node")
    assert caught.value.what.endswith("no rank on this machine" + " that may be examined" * is_closed)
    assert ("1 Python process," in caught.value.why) is is_closed


def test_wrong_usage() -> None:
    for words, said in {
        "-p x": "'x' is not a process id",
        "-p 1 --node": "not allowed with",
        "--reports /nonexistent-folder/ --jobs 0": "'0' is not a number",
        "--node --timeout nan": "'nan' is not a number of seconds",
        "--nod": "one of the arguments",
    }.items():
        with pytest.raises(UsageError) as caught:
            run(*words.split())
        assert said in caught.value.what


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which processes a machine has, and which of them have PyTorch and are Pythons."""

    def has(processes: Sequence[RankProcess], torch: Container[int], pythons: Container[int] = range(100)) -> None:
        monkeypatch.setattr(rank_processes, "local_processes", lambda: {each.pid: each for each in processes})
        monkeypatch.setattr(rank_processes, "has_torch", torch.__contains__)
        monkeypatch.setattr(rank_processes, "_is_python", pythons.__contains__)
        monkeypatch.setattr(rank_processes, "check_exists", lambda _pid: None)

    return has


def test_a_rank_that_has_not_loaded_torch_yet(node: Callable[..., None]) -> None:
    """It is the outermost Python of its rank; the shell around it and what it has started itself are not."""
    ranks = [(11, 10, 1), (12, 10, 2), (13, 12, 2), (14, 13, 2), (15, 14, 2), (16, 11, 1)]
    known = [RankProcess(pid, parent, False, ("j",), RankVariable("RANK", rank)) for pid, parent, rank in ranks]
    node([RankProcess(10, 1, False, (), None), *known], {11}, {10, 11, 13, 15, 16})
    assert rank_processes.ranks_of_node("j", rank_processes.local_processes()) == [11, 13]


def test_a_task_of_slurm_s_that_has_not_loaded_torch_yet(node: Callable[..., None]) -> None:
    """Slurm numbers whatever it starts: a task of a step in which others are ranks is one, or of the only step."""

    def task(pid: int, rank: int, step: int, tasks: int = 2) -> RankProcess:
        jobs, variable = (f"slurm 1.{step}", "slurm 1"), RankVariable("SLURM_PROCID", rank)
        return RankProcess(pid, 9, is_zombie=False, jobs=jobs, rank=variable, tasks=tasks)

    training, other = [task(11, 0, 0), task(12, 1, 0)], [task(21, 0, 1), task(22, 1, 1)]
    looks_at_them = task(31, 0, 2, tasks=0)
    for torch, processes in (({11}, [*training, *other, looks_at_them]), ((), [*training, looks_at_them])):
        node(processes, torch)
        assert rank_processes.ranks_of_node("slurm 1", rank_processes.local_processes()) == [11, 12]
    node([*training, *other], ())
    with pytest.raises(TargetError):  # which of the two is the training, nobody knows
        rank_processes.ranks_of_node("slurm 1", rank_processes.local_processes())


def test_the_process_that_started_the_others_may_be_rank_0(node: Callable[..., None]) -> None:
    """A launcher that is no rank may have torch, too, but gives somebody else the number 0."""
    for first, ranks in (("1", [10, 11, 12]), ("0", [11, 12])):
        started = ((10, 1, ""), (11, 10, first), (12, 10, "2"))
        known = [RankProcess(pid, parent, False, ("j",), None, local_rank=rank) for pid, parent, rank in started]
        node(known, range(100))
        assert [rank_processes.job_of_process(each.pid, rank_processes.local_processes()) for each in known] == [
            ranks
        ] * 3


@pytest.mark.parametrize("framed", [False, True])
def test_on_another_machine_nothing_is_imported_from_the_folder_where_it_starts(tmp_path: Path, framed: bool) -> None:
    """srun starts it in the caller's folder, kubectl in the pod's: whose modules lie there, is not known."""
    start, temporary = tmp_path / "start", tmp_path / "tmp"
    for folder in (start, start / "gdbext", temporary):
        folder.mkdir()
    for name in ("json", "runpy", "zipfile", "zlib", "struct", "os", "sitecustomize", "gdbext/__init__"):
        (start / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)\n")
    done = subprocess.run(
        ["/bin/sh", "-c", other_machines.script(["--version"], sys.executable, framed)],
        input=other_machines.archive(),
        capture_output=True,
        check=False,
        cwd=start,
        timeout=PATIENCE,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(start), "HOME": str(start), "TMPDIR": str(temporary)},
    )
    assert not (tmp_path / "ran").exists()
    assert framed or b"gdbext" in done.stdout, done.stderr
    assert list(temporary.iterdir()) == [], "its own folder is gone again"
