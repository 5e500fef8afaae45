"""Processes that cannot be read, or not wholly: every error says what, why and what to try; no claim goes too far."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fakes.core_maker import Core, Load
from support.programs import procfs
from support.programs.harness import DISPATCH, PATIENCE, ROOT, Inferior, Outcome, run, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

DEBUGGERS = ["gdb", "none"]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NEEDS_TORCH = (["dispatch-op", "mm"], ["dispatch-lookup", "mm", "CPU"], ["dispatch-tls"], ["dispatch-keyset", "CPU"])

Start = Callable[..., Inferior]


def assert_told(outcome: Outcome, what: str, *reasons: str) -> dict[str, Any]:
    """Status 1, a document with the one error, and the same in words on standard error."""
    assert outcome.status == 1, outcome
    document = outcome.document
    assert (document["threads"], document["findings"], document["verdict"]) == ([], [], None)
    (error,) = document["errors"]
    assert what in error["what"], outcome
    assert error["why"], outcome
    assert error["help"], outcome
    said = re.sub(
        r"\S*/scripts/dispatch", "scripts/dispatch", outcome.stderr
    )  # there the program is named as it was called
    for words in (what, error["why"], error["help"]):
        assert words in said
    for reason in reasons:
        assert reason in error["why"] + error["help"], outcome
    return document


def report_errors(document: dict[str, Any]) -> str:
    return "\n".join(" ".join(error.values()) for error in document["errors"])


# --- not permitted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_a_process_of_another_user(inferior: Start, debugger: str) -> None:
    if os.geteuid() or not shutil.which("setpriv") or run([*NOBODY, "test", "-x", DISPATCH]).status:
        pytest.skip("needs root and a checkout that everybody may read")
    words = ["-p", str(inferior("strange-names").pid), "--debugger", debugger]
    outcome = run([*NOBODY, DISPATCH, *words, "--json", "dispatch-bt"])
    assert_told(outcome, "not permitted", "uid 0 and you are uid 65534", "CAP_SYS_PTRACE", "as root: sudo ")
    in_words = run([*NOBODY, DISPATCH, *words, "dispatch-bt"])
    assert (in_words.status, in_words.stdout) == (1, "")


def test_a_core_of_another_user() -> None:
    if os.geteuid() or not shutil.which("setpriv") or run([*NOBODY, "test", "-x", DISPATCH]).status:
        pytest.skip("needs root and a checkout that everybody may read")
    path = Path("/tmp") / f"gdbext-core-{os.getpid()}"  # not in tmp_path, which is closed to others
    path.write_bytes(Core([Load(0x1000, bytes(4096))]).build())
    path.chmod(0o600)
    try:
        for debugger in DEBUGGERS:
            words = ["-c", path, "--debugger", debugger, "--json", "dispatch-bt"]
            assert_told(run([*NOBODY, DISPATCH, *words]), "Permission denied")
    finally:
        path.unlink()


# --- the process ends --------------------------------------------------------------------------------------


def test_killed_at_any_moment(inferior: Start) -> None:
    """Twenty processes, each killed at another moment: always a document, never a hang or a traceback."""
    parent = inferior("flock")
    whole = {debugger: cost_of_a_look(parent.truth["children"][0], debugger) for debugger in DEBUGGERS}
    seen = set()
    for number, pid in enumerate(parent.truth["children"]):
        debugger = DEBUGGERS[number % 2]
        killed_after = whole[debugger] * (number // 2) / 6 if number < 18 else None  # the last ones: after the report
        outcome = look_at(pid, debugger, ["dispatch-bt", "dispatch-diagnose"][number // 2 % 2], killed_after)
        if killed_after is None:
            os.kill(pid, signal.SIGKILL)
        seen.add(outcome.status)
        document = outcome.document
        assert "internal error" not in report_errors(document) + outcome.stderr, outcome
        assert all(error["what"] for error in document["errors"])
        if outcome.status:
            error = document["errors"][0]
            assert error["help"] or "take a core of the next one" in error["what"], outcome
        assert outcome.status in (0, 1), outcome
        wait_until(lambda pid=pid: not procfs.alive(pid), f"{pid} is dead")  # type: ignore[misc]
    assert seen == {0, 1}, "the moments should lie on both sides of the report"


def look_at(pid: int, debugger: str, command: str, killed_after: float | None = None) -> Outcome:
    """``killed_after``: seconds of processor time of the look, after which the process is killed."""
    words = [str(DISPATCH), "-p", str(pid), "--debugger", debugger, "--json", command]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        look = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True)
        if killed_after is not None:
            spent = lambda: look.poll() is not None or procfs.processor_time(look.pid) >= killed_after  # noqa: E731
            wait_until(spent, "the look has got as far as that")
            os.kill(pid, signal.SIGKILL)
        look.wait(PATIENCE)
        for file in (output, errors):
            file.seek(0)
        return Outcome(words, look.returncode, output.read(), errors.read(), 0.0)


def cost_of_a_look(pid: int, debugger: str) -> float:
    """Processor time, with what is in the caches."""
    look_at(pid, debugger, "dispatch-diagnose")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    look_at(pid, debugger, "dispatch-diagnose")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- no torch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_python_without_torch(inferior: Start, debugger: str) -> None:
    plain = inferior("strange-names")
    document = plain.dispatch("dispatch-bt", "--all", "--native", debugger=debugger).document
    assert document["target"]["torch"] is None
    assert document["target"]["python"]["version"] == plain.truth["python"]
    main = next(thread for thread in document["threads"] if thread["tid"] == plain.tid("main"))
    assert [frame["function"] for frame in main["python_frames"]] == ["stand_still", "<module>"]
    assert {"native", "python"} == {frame["kind"] for frame in main["frames"]}
    assert (main["dispatch"], main["state"]) == ([], "waiting")
    assert "no PyTorch is loaded" in report_errors(document)
    verdict = plain.dispatch("dispatch-diagnose", debugger=debugger).document["verdict"]
    assert verdict["kind"] == "idle"
    assert "not in the dispatcher" in plain.dispatch("dispatch-bt", json=False, debugger=debugger).stdout


@pytest.mark.parametrize("words", NEEDS_TORCH, ids=lambda words: words[0])
def test_commands_that_need_torch(inferior: Start, words: list[str]) -> None:
    outcome = inferior("strange-names").dispatch(*words, check=False)
    assert_told(outcome, "no PyTorch is loaded", "libtorch_cpu.so is not mapped", "dispatch ps")


# --- names that drive a terminal ---------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_names_that_drive_a_terminal(inferior: Start, debugger: str) -> None:
    strange = inferior("strange-names")
    for words in (["dispatch-bt", "--all", "--native"], ["all-threads", "--stacks"], ["dispatch-diagnose"]):
        outcome = strange.dispatch(*words, debugger=debugger, json=False)
        text = outcome.stdout + outcome.stderr
        assert [char for char in text if not char.isprintable() and char != "\n"] == [], outcome
        assert "\\x1b[31mred\\x07\\x9b2J" in outcome.stdout, outcome
    names = [thread["python_name"] for thread in strange.dispatch("dispatch-bt", "--all").document["threads"]]
    assert strange.truth["escape"] + "thread" in names  # a document says what is, and JSON escapes it


# --- no layout ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree that knows no PyTorch, and a folder "bin" without any compiler."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("gdbext", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("torch-*.json"))
    (index,) = (folder / "gdbext/engine/layouts/data").glob("*/index.json")
    index.write_text('{"build_ids": {}, "torch": {}}')
    (folder / "bin").mkdir()
    for name in ("sh", "readlink", "gdb"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    return folder


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_what_names_alone_tell(inferior: Start, without_layouts: Path, debugger: str) -> None:
    """Without a layout the operators are those of the symbols, and nothing is said about keysets."""
    hang = inferior("meta-mm")
    known = hang.dispatch("dispatch-bt", debugger=debugger).document["threads"][0]["dispatch"]
    words = [without_layouts / "scripts/dispatch", "-p", str(hang.pid), "--debugger", debugger, "--json"]
    without = {"PATH": str(without_layouts / "bin")}
    document = run([*words, "dispatch-bt"], env=without).document
    steps = document["threads"][0]["dispatch"]
    for name in ("level", "event", "op", "stage"):
        assert [step[name] for step in steps] == [step[name] for step in known]
    assert {(step["confidence"], step["keyset"], step["key"]) for step in steps} == {("unknown", None, None)}
    assert document["target"]["torch"]["layout"] == {"id": None, "match": "none"}
    told = report_errors(document)
    for needed in ("no layout for PyTorch", "measure /path/to"):
        assert needed in told
    assert "no compiler found" in told or "pyelftools" in told  # measuring needs both; what is missed first is named
    verdict = run([*words, "dispatch-diagnose"], env=without).document["verdict"]
    assert (verdict["kind"], verdict["op"], verdict["key"]) == ("blocked", "aten::mm", None)
    for command in NEEDS_TORCH:
        assert_told(run([*words, *command], env=without), "no layout for PyTorch", "measure /path/to")


def test_a_compiler_that_must_not_run(inferior: Start, without_layouts: Path) -> None:
    words = [without_layouts / "scripts/dispatch", "-p", str(inferior("meta-mm").pid), "--json", "dispatch-bt"]
    outcome = run(words, env={"GDBEXT_GENERATE": "0"})
    assert outcome.status == 0, outcome
    assert "forbidden (GDBEXT_GENERATE=0)" in report_errors(outcome.document)


# --- cores of other machines -------------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
@pytest.mark.parametrize(
    ("core", "said"),
    [
        (Core([Load(0x1000, bytes(4096))], machine=183), "AArch64"),
        (Core([Load(0x1000, bytes(4096))], machine=21), "machine 21"),
        (Core([Load(0x1000, bytes(4096))], elf_class=1, machine=3), "32"),
        (Core([Load(0x1000, bytes(4096))], kind=2), "not a core dump"),
    ],
    ids=["aarch64", "ppc64", "32-bit", "program"],
)
def test_foreign_cores(tmp_path: Path, debugger: str, core: Core, said: str) -> None:
    path = tmp_path / "core"
    path.write_bytes(core.build())
    outcome = run([DISPATCH, "-c", path, "--debugger", debugger, "--json", "dispatch-bt"])
    assert_told(outcome, "")
    assert said.lower() in outcome.stderr.lower(), outcome


# --- interruptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_control_c_in_the_middle_of_reading(inferior: Start, debugger: str) -> None:
    """While thousands of operators are being read; the fixture proves that the process goes on."""
    hang = inferior("meta-mm")
    for seconds in (0.5, 0.3, 0.2, 0.15, 0.1):
        process = subprocess.Popen(
            [DISPATCH, "-p", str(hang.pid), "--debugger", debugger, "--json", "dispatch-op", "--all"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        wait_until(lambda: procfs.processor_time(process.pid) > seconds, "the operators are being read")  # noqa: B023
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
        if process.returncode:
            break  # else it was done before we had the processor again
    assert process.returncode == 1, stderr
    (error,) = json.loads(stdout)["errors"]
    assert error["what"] == "interrupted"
    assert "Traceback" not in stderr


@pytest.mark.parametrize("debugger", DEBUGGERS)
def test_the_time_is_up_in_the_middle_of_reading(inferior: Start, debugger: str) -> None:
    words = ["--timeout", "0.7", "dispatch-op", "--all"]
    outcome = inferior("meta-mm").dispatch(*words, debugger=debugger, check=False)
    assert_told(outcome, "no report within 0.7 s", "--timeout")


def test_an_lldb_that_is_not_there(inferior: Start) -> None:
    words = ["-p", str(inferior("strange-names").pid), "--json", "--debugger", "lldb", "dispatch-bt"]
    assert_told(run([DISPATCH, *words], env={"LLDB": "/nonexistent/lldb"}), "lldb", "--debugger none")
