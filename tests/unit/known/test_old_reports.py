"""Reports and recordings that were made before, judged again: ``scripts/dispatch known``, and no false line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.report import json_report
from gdbext.errors import BadData
from gdbext.hosts.cli import launcher
from gdbext.known import own_entries
from gdbext.known.signatures import matches
from gdbext.tools.known import report_facts
from support.recorded import recordings
from support.recorded.recordings import Replay

Dispatch = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dispatch(capfdbinary: pytest.CaptureFixture[bytes]) -> Dispatch:
    """scripts/dispatch in this process."""

    def run(*words: str) -> tuple[int, str, str]:
        status = launcher.main(list(words))
        seen = capfdbinary.readouterr()
        return status, seen.out.decode(), seen.err.decode()

    return run


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report with native frames of a process that has a known bug."""
    file = tmp_path / "report.json"
    file.write_text(json.dumps(Replay("fork-openmp").document("all-threads", "--stacks")))
    return file


def test_a_report_is_judged_again_as_far_as_it_has_native_frames(report: Path, dispatch: Dispatch) -> None:
    status, text, _ = dispatch("known", str(report), "--why")
    assert status == 0
    line, evidence = text.splitlines()
    assert line.startswith("Known bug gcc#52303: libgomp keeps its worker threads")
    assert evidence.endswith("inside libgomp, OpenMP has no workers here")
    report.write_text(json.dumps(Replay("fork-openmp").diagnosis))
    assert "no known bug matches; the report has no native frames" in dispatch("known", str(report))[1]


def test_a_recording_is_judged_again(dispatch: Dispatch) -> None:
    files = [str(recordings.FOLDER / f"{name}.rec") for name in ("fork-openmp", "mutex-abba")]
    status, text, _ = dispatch("known", *files)
    assert status == 0
    first, second = text.splitlines()
    assert first.startswith(f"{files[0]}: Known bug gcc#52303")
    assert second == f"{files[1]}: no known bug matches"
    document = json.loads(dispatch("known", *files, "--json")[1])
    assert [[match["id"] for match in document[file]] for file in files] == [["gcc#52303"], []]


def test_the_report_has_the_facts(report: Path) -> None:
    facts = report_facts(json_report.parse(report.read_bytes(), "report"))
    (thread,) = facts.threads
    assert (thread.waits_for, thread.missing_workers, thread.roles) == ("worker-pool", "OpenMP", ["main"])
    assert (facts.architecture, facts.version("python"), facts.version("torch")) == ("x86_64", "3.11.7", "2.13.0+cpu")
    assert [facts.relation(word) for word in ("forked", "one-thread", "children")] == [True, True, None]
    assert thread.native[0][1] == "libgomp.so.1"


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.update(schema="other/1"),
        lambda document: document.update(target=None),
        lambda document: document.update(threads=3),
        lambda document: document["threads"][0].update(tid="x"),
        lambda document: document["threads"][0].update(wait="mutex"),
        lambda document: document["threads"][0]["python_frames"][0].update(file=3),
        lambda document: document["threads"][0]["frames"][0].pop("function"),
    ],
)
def test_a_damaged_report_is_refused(report: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(report.read_text())
    damage(document)
    with pytest.raises(BadData):
        list(matches(own_entries(), report_facts(json_report.read(document, "report"))))


def test_the_catalogue_is_listed_and_searched_and_else_a_file_is_needed(dispatch: Dispatch, tmp_path: Path) -> None:
    status, text, _ = dispatch("known", "--list")
    assert status == 0
    assert [line.split(": ")[0] for line in text.splitlines()[::2]] == [bug.id for bug in own_entries()]
    found = dispatch("known", "--list", "LIBGOMP", "spawn")[1].splitlines()
    assert found[0].startswith("gcc#52303: ")
    assert found[1].strip() == "https://gcc.gnu.org/bugzilla/show_bug.cgi?id=52303"
    listed = json.loads(dispatch("known", "--list", "libgomp", "spawn", "--json")[1])
    assert [each["id"] for each in listed] == ["gcc#52303"]
    assert dispatch("known")[0] == 2, "it needs a file"
    status, _, error = dispatch("known", str(tmp_path / "none.json"))
    assert status != 0
    assert "none.json cannot be read: No such file" in error


def test_a_sites_own_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dispatch: Dispatch, report: Path) -> None:
    """Those of $GDBEXT_KNOWN before those of ~/.config before ours; what others can change is not read."""
    named, home = tmp_path / "site", tmp_path / "home"
    config = home / ".config" / "gdbext" / "known"
    named.mkdir(mode=0o700)
    config.mkdir(parents=True, mode=0o700)
    entry: dict[str, Any] = {"id": "gcc#52303", "title": "our title", "url": "https://site", "cure": "ask us"}
    entry.update(affected=[{"package": "libgomp"}], threads=[{"library": "libgomp"}])
    (named / "a.json").write_text(json.dumps([entry, {**entry, "id": "site#1"}]))
    (config / "b.json").write_text(json.dumps({**entry, "id": "site#1", "title": "not this one"}))
    (config / "c.json").write_text("{")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GDBEXT_KNOWN", f"/nowhere:{named}")
    safe = lambda path: Path(path).exists() and not Path(path).stat().st_mode & 0o22  # noqa: E731
    monkeypatch.setattr("gdbext.cache.is_ours", safe)
    status, text, error = dispatch("known", str(report))
    assert status == 0, error
    titles = [line.split(" (")[0] for line in text.splitlines()]
    assert titles == ["Known bug gcc#52303: our title", "Known bug site#1: our title"]
    assert "c.json has no entry of a known bug: it is not JSON" in error
    (named / "a.json").chmod(0o666)
    status, text, error = dispatch("known", str(report))
    assert text.startswith("Known bug site#1: not this one")
    assert "a.json is not used: users other than you and root can change it" in error
