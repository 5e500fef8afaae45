"""Processes that cannot be read, or not wholly: every error says what, why and what to try; no claim goes too far."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.fakes.core_maker import Core, Load
from support.programs import procfs
from support.programs.harness import DISPATCH, PATIENCE, Outcome, Start, run, tree_without_layouts, wait_until
from support.programs.user_debuggers import error_of

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

DEBUGGERS = ["gdb", "none"]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NEEDS_TORCH = (["dispatch-op", "mm"], ["dispatch-lookup", "mm", "CPU"], ["dispatch-tls"], ["dispatch-keyset", "CPU"])


def assert_told(outcome: Outcome, what: str, *reasons: str) -> None:
    error = error_of(outcome, what)
    said = re.sub(r"\S*/scripts/dispatch", "scripts/dispatch", outcome.stderr)  # the program is named as it was called
    assert all(words and words in said for words in (what, error["why"], error["help"])), outcome
    assert all(reason in error["why"] + error["help"] for reason in reasons), outcome


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_process_and_a_core_of_another_user(inferior: Start, debugger: str) -> None:
    if os.geteuid() or not shutil.which("setpriv") or run([*NOBODY, "test", "-x", DISPATCH]).status:
        pytest.skip("needs root and a checkout that everybody may read")
    words = ["-p", str(inferior("strange-names").pid), "--debugger", debugger]
    outcome = run([*NOBODY, DISPATCH, *words, "--json", "dispatch-bt"])
    assert_told(outcome, "not permitted", "uid 0 and you are uid 65534", "CAP_SYS_PTRACE", "as root: sudo ")
    with tempfile.NamedTemporaryFile(dir="/tmp") as core:  # not in tmp_path, which is closed to others
        core.write(Core([Load(0x1000, bytes(4096))]).build())
        core.flush()
        words = ["-c", core.name, "--debugger", debugger, "--json", "dispatch-bt"]
        assert_told(run([*NOBODY, DISPATCH, *words]), "Permission denied")


def test_python_without_torch(inferior: Start) -> None:
    plain = inferior("strange-names")
    document = plain.dispatch("dispatch-bt", "--all", "--native", debugger="none").document
    assert document["target"]["torch"] is None
    assert document["target"]["python"]["version"] == plain.truth["python"]
    main = next(thread for thread in document["threads"] if thread["tid"] == plain.tid("main"))
    assert [frame["function"] for frame in main["python_frames"]] == ["stand_still", "<module>"]
    assert {"native", "python"} == {frame["kind"] for frame in main["frames"]}
    assert (main["dispatch"], main["state"]) == ([], "waiting")
    assert "no PyTorch is loaded" in str(document["errors"])
    assert plain.dispatch("dispatch-diagnose", debugger="none").document["verdict"]["kind"] == "idle"
    assert "not in the dispatcher" in plain.dispatch("dispatch-bt", json=False, debugger="none").stdout
    for words in NEEDS_TORCH:
        outcome = plain.dispatch(*words, debugger="none", check=False)
        assert_told(outcome, "no PyTorch is loaded", "libtorch_cpu.so is not mapped", "dispatch ps")


def test_names_that_drive_a_terminal(inferior: Start) -> None:
    """Every view, of a recording: tests/unit/render/test_terminal.py."""
    strange = inferior("strange-names")
    outcome = strange.dispatch("dispatch-bt", "--all", "--native", json=False)
    text = outcome.stdout + outcome.stderr
    assert [char for char in text if not char.isprintable() and char != "\n"] == [], outcome
    assert "\\x1b[31mred\\x07\\x9b2J" in outcome.stdout, outcome
    names = [thread["python_name"] for thread in strange.dispatch("dispatch-bt", "--all").document["threads"]]
    assert strange.truth["escape"] + "thread" in names  # a document says what is, and JSON escapes it


@pytest.fixture(scope="module")
def without_layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree that knows no PyTorch, and a folder "bin" without any compiler."""
    folder = tree_without_layouts(tmp_path_factory.mktemp("tree"))
    for name in ("sh", "readlink", "gdb"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    return folder


def test_what_names_alone_tell(inferior: Start, without_layouts: Path) -> None:
    """Without a layout the operators are those of the symbols, and nothing is said about keysets."""
    hang = inferior("meta-mm")
    known = hang.dispatch("dispatch-bt", debugger="none").document["threads"][0]["dispatch"]
    words = [without_layouts / "scripts/dispatch", "-p", str(hang.pid), "--debugger", "none", "--json"]
    without = {"PATH": str(without_layouts / "bin")}
    document = run([*words, "dispatch-bt"], env=without).document
    steps = document["threads"][0]["dispatch"]
    for name in ("level", "event", "op", "stage"):
        assert [step[name] for step in steps] == [step[name] for step in known]
    assert {(step["confidence"], step["keyset"], step["key"]) for step in steps} == {("unknown", None, None)}
    assert document["target"]["torch"]["layout"] == {"id": None, "match": "none"}
    told = str(document["errors"])
    assert re.search("no layout for PyTorch.*measure /path/to", told)
    assert re.search("no compiler found|pyelftools", told), "measuring needs both; what is missed first is named"
    verdict = run([*words, "dispatch-diagnose"], env=without).document["verdict"]
    assert (verdict["kind"], verdict["op"], verdict["key"]) == ("blocked", "aten::mm", None)
    for command in NEEDS_TORCH:
        assert_told(run([*words, *command], env=without), "no layout for PyTorch", "measure /path/to")
    outcome = run([*words, "dispatch-bt"], env={"GDBEXT_GENERATE": "0"})
    assert outcome.status == 0, outcome
    assert "forbidden (GDBEXT_GENERATE=0)" in str(outcome.document["errors"])


def test_control_c_in_the_middle_of_reading(inferior: Start) -> None:
    """While thousands of operators are being read; the fixture proves that the process goes on."""
    hang = inferior("meta-mm")
    words = [DISPATCH, "-p", str(hang.pid), "--debugger", "none", "--json", "dispatch-op", "--all"]
    for seconds in (0.5, 0.3, 0.2, 0.15, 0.1):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(words, text=True, start_new_session=True, **pipes)
        wait_until(lambda: procfs.processor_time(process.pid) > seconds, "the operators are being read")  # noqa: B023
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
        if process.returncode:
            break  # else it was done before we had the processor again
    assert process.returncode == 1, stderr
    assert [error["what"] for error in json.loads(stdout)["errors"]] == ["interrupted"]
    assert "Traceback" not in stderr
