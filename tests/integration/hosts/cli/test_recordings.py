"""--record and -r: every way to look gives a recording whose replay is the same report."""

from __future__ import annotations

import copy
import stat

import pytest

from support.programs.harness import DISPATCH, run
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.program("gil-mutex"), pytest.mark.compiler]

READERS = (
    ("dispatch-diagnose", "--why"),
    ("dispatch-bt", "--all", "--why"),
    ("all-threads", "--stacks"),
    ("dispatch-tls",),
    ("dispatch-info",),
)


def replay(file, *words, env=None):
    outcome = run([DISPATCH, "-r", file, *words], env=env)
    assert outcome.status == 0, outcome
    return outcome


@pytest.fixture
def hung(inferior):
    return inferior("gil-mutex")


def test_a_replay_is_the_recorded_report(look, hung, tmp_path):
    file = tmp_path / "hang.rec"
    recorded = look.outcome(hung, "dispatch-diagnose", "--record", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size < 3_000_000
    assert f"recorded in {file}" in recorded.stderr
    assert "iB of memory" in recorded.stderr
    assert ("stood still" in recorded.stderr) == (look.kind == "live")
    again = replay(file, "--json").document
    assert again["target"].pop("recording")["command"] == "dispatch-diagnose --json"
    before = recorded.document
    before["target"].pop("withheld_sources", None)  # advice that helps with the core, not with a recording
    advised, advised_before = again["verdict"].pop("advice"), before["verdict"].pop("advice")
    assert again == before
    assert any(f"dispatch -r {file} dispatch-bt" in line for line in advised), advised
    source = f"-p {hung.pid}" if look.kind == "live" else "-c "
    assert any(f"dispatch {source}" in line for line in advised_before), advised_before


@pytest.fixture(scope="module")
def reports():
    """What was said without a debugger, which is what has to be said by whatever way the recording came, by process,
    kind and command."""
    return {}


def test_a_recording_is_enough_for_all_readers(look, hung, reports, tmp_path):
    file = tmp_path / "hang.rec"
    look.outcome(hung, "dispatch-info", "--record", str(file))
    for words in READERS:
        again = replay(file, *words, "--json").document
        key = (hung.pid, look.kind, words)
        if key not in reports:
            reports[key] = Look(look.kind, "none")(hung, *words)
        now = copy.deepcopy(reports[key])
        assert again["errors"] == now["errors"]
        assert [thread["dispatch"] for thread in again["threads"]] == [thread["dispatch"] for thread in now["threads"]]
        for document in (again, now):
            if document["verdict"] is not None:
                document["verdict"].pop("advice")  # it names what was looked at
        assert again["verdict"] == now["verdict"]


def test_a_failed_command_is_recorded_too(look, hung, tmp_path):
    file = tmp_path / "hang.rec"
    outcome = look.outcome(hung, "dispatch-op", "no_such_operator", "--record", str(file), check=False)
    assert outcome.status != 0
    assert replay(file, "--json").document["verdict"]["kind"] == "deadlock"


def test_a_place_that_cannot_be_written_is_refused_first(look, hung, tmp_path):
    outcome = look.outcome(hung, "--record", str(tmp_path / "no" / "hang.rec"), check=False)
    assert outcome.status == 2
    assert "is not a folder that can be written to" in outcome.stderr
    assert list(tmp_path.iterdir()) == []
