"""--record and -r: every way to look gives a recording whose replay is the same report."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from support.programs.harness import DISPATCH, Outcome, Start, run
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.program("gil-mutex"), pytest.mark.compiler]

READERS = (("dispatch-bt", "--all", "--why"), ("all-threads", "--stacks"), ("dispatch-tls",), ("dispatch-info",))


def replay(file: Path, *words: str) -> Outcome:
    outcome = run([DISPATCH, "-r", file, *words, "--json"])
    assert outcome.status == 0, outcome
    return outcome


def test_a_replay_is_the_recorded_report(look: Look, inferior: Start, tmp_path: Path) -> None:
    hung, file = inferior("gil-mutex"), tmp_path / "hang.rec"
    recorded = look.outcome(hung, "dispatch-diagnose", "--record", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size < 3_000_000
    assert re.search(f"recorded in {file}.*iB of memory", recorded.stderr, re.DOTALL)
    assert ("was stopped" in recorded.stderr) == (look.kind == "live")
    again, before = replay(file).document, recorded.document
    assert again["target"].pop("recording")["command"] == "dispatch-diagnose --json"
    before["target"].pop("withheld_sources", None)  # advice that helps with the core, not with a recording
    advised, advised_before = again["verdict"].pop("advice"), before["verdict"].pop("advice")
    assert again == before
    assert any(f"dispatch -r {file} dispatch-bt" in line for line in advised), advised
    source = f"-p {hung.pid}" if look.kind == "live" else "-c "
    assert any(f"dispatch {source}" in line for line in advised_before), advised_before


@pytest.mark.parametrize("look", [Look("live", "gdb"), Look("core", "none")], ids=str)
def test_a_recording_is_enough_for_all_readers(look: Look, inferior: Start, tmp_path: Path) -> None:
    """What is said without a debugger has to be said by whatever way the recording came; also of a failed command."""
    hung, file = inferior("gil-mutex"), tmp_path / "hang.rec"
    outcome = look.outcome(hung, "dispatch-op", "no_such_operator", "--record", str(file), check=False)
    assert outcome.status != 0
    for words in READERS:
        again, now = replay(file, *words).document, Look(look.kind, "none")(hung, *words)
        assert again["errors"] == now["errors"]
        assert [thread["dispatch"] for thread in again["threads"]] == [thread["dispatch"] for thread in now["threads"]]
