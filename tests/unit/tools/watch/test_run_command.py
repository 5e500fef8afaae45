"""Which diagnoses a watch takes for a hang, and that its command gets lines of text, whatever the process says."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.diagnosis.kinds import kind_of
from gdbext.diagnosis.report import Report, json_report
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.engine.formats.workplace import Workplace
from gdbext.tools.watch import Watch, evidence, progress_watch
from gdbext.tools.watch.evidence import Evidence
from gdbext.tools.watch.progress_watch import with_torch
from support.programs.harness import wait_until

HOSTILE = {"nul": "a\0b", "header": "x\nBcc: all@example.org", "return and escape": "x\rSubject: y\x1b]0;x\x07"}
HOSTILE |= {"direction": "\u202egpj", "surrogate": "\ud800", "long": "x" * 10_000_000, "letters": "é→𝔘"}


def told(folder: Path, verdict: dict[str, str], command: str) -> bytes:
    watch = object.__new__(Watch)
    watch._args, watch._commands = Namespace(run=f"({command}) > '{folder}/told'"), []
    evidence = Evidence(str(folder), "hang-1-2", verdict, "", frozenset())
    watch._run_command(evidence, 7)
    (child,) = watch._commands
    assert child.wait() == 0
    return (folder / "told").read_bytes()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("member", ["kind", "summary"])
def test_a_variable_is_one_line_of_text(tmp_path: Path, member: str, name: str) -> None:
    verdict = {"kind": "deadlock", "summary": "x", member: HOSTILE[name]}
    text = told(tmp_path, verdict, 'printf %s "$GDBEXT_VERDICT$GDBEXT_SUMMARY"').decode()
    assert text.isprintable()
    assert 2 < len(text) < 10_000
    assert name != "letters" or HOSTILE[name] in text


def test_the_paths_can_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / "of a\nuser"
    folder.mkdir()
    (folder / "hang-1-2.txt").write_text("text\n")
    told(folder, {"kind": "", "summary": ""}, 'read x < "$GDBEXT_FILE.txt"; echo $x > "$GDBEXT_FOLDER/$GDBEXT_PID"')
    assert (folder / "7").read_text() == "text\n"


def waiting(tid: int, kind: str | None) -> ThreadReport:
    return ThreadReport(tid, wait=Wait(Resource(WaitKind(kind), 0)) if kind else None)


def report_on(kind: str, *waits: str | None) -> Report:
    """A report on threads 1, 2, …, which the verdict is about, and on another one."""
    about = tuple(waiting(tid, wait) for tid, wait in enumerate(waits, 1))
    verdict = Verdict.of(Finding(kind_of(kind), "so it is", tuple(thread.tid for thread in about)))
    return Report("dispatch-diagnose", None, threads=(*about, waiting(99, "sleep")), verdict=verdict)


def made_watch() -> Any:
    watch: Any = Watch.__new__(Watch)
    watch.pid, watch._trace, watch._history, watch._subjects = 1, None, None, ()
    watch._args = SimpleNamespace(run=None, job=False, core=False)
    return watch


@pytest.mark.parametrize(
    ("report", "computes", "hangs"),
    [
        *((report_on("waiting-external", "child-process"), computes, not computes) for computes in (True, False)),
        *((report_on("waiting-external", *waits, "io"), True, True) for waits in ((), ("child-process",))),
        (report_on("busy", None), True, False),
        *((report_on("idle"), computes, not computes) for computes in (True, False)),
        (Report("dispatch-diagnose", None), True, True),
    ],
)
def test_a_process_that_waits_for_children_that_compute_does_not_hang(
    report: Report, computes: bool, hangs: bool, tmp_path: Path
) -> None:
    with Workplace(str(tmp_path)) as place:
        os.write(place.create("hang.json"), json_report.render(report).encode())
        verdict, waits, wrong = evidence._verdict(place, "hang.json")
        place.publish("hang.json")
    assert wrong == ""
    watch = made_watch()
    told: list[str] = []
    watch._folder = SimpleNamespace(take=lambda _: Evidence(str(tmp_path), "hang", verdict, "", waits))
    watch._print_event = lambda event, *_: told.append(event)
    assert watch._report_hang(5.0, computes=computes) is hangs
    assert told == (["hung"] if hangs else [])
    assert (tmp_path / "hang.json").exists() is hangs


def test_what_a_wrapper_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topmost descendants with PyTorch, here the shells that are called trainer; not what they start in turn."""

    def is_trainer(pid: int) -> bool:
        return b"trainer" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")

    monkeypatch.setattr(progress_watch, "uses_torch", is_trainer)
    inner = "/bin/sh -c '/bin/sleep 1000; :' trainer & /bin/sleep 1000; :"
    wrapper = f'/bin/sh -c "{inner}" trainer & /bin/sh -c "/bin/sleep 1000; :" trainer & wait'
    with subprocess.Popen(["/usr/bin/timeout", "900", "/bin/sh", "-c", wrapper]) as process:

        def family() -> list[int]:
            return [*progress_watch.descendants(process.pid)]

        try:
            wait_until(lambda: len(family()) == 7 and len(with_torch(process.pid)) == 2, "all are there")
            found = with_torch(process.pid)
            assert [progress_watch.parent(progress_watch.parent(each)) for each in found] == [process.pid] * 2
            assert with_torch(found[0]) == (found[0],)
        finally:
            for pid in (process.pid, *family()):
                os.kill(pid, 9)


def test_each_rank_that_a_wrapper_has_started_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdbext.tools.watch.with_torch", lambda _: (7, 8))
    told: list[tuple[Any, ...]] = []
    watch = made_watch()
    verdicts = {pid: {"kind": "blocked", "summary": f"{pid} is stuck"} for pid in (7, 8)}
    watch._folder = SimpleNamespace(take=lambda pid: Evidence(str(tmp_path), f"hang-{pid}", verdicts[pid], ""))
    watch._print_event = lambda event, text, _=None, pid=None: told.append((event, text, pid))
    assert watch._report_hang(5.0)
    assert told == [("hung", f"no progress for 5 s: {pid} is stuck", pid) for pid in (7, 8)]
