"""The harness sees what it is there to see: disturbed inferiors, programs that do not get ready, incomplete cores."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import harness, native_build, procfs
from support.programs.harness import HarnessError, Inferior, Pool

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

STATELESS = "python-frames"


def test_an_untouched_inferior_is_undisturbed() -> None:
    with harness.started(STATELESS) as inferior:
        inferior.assert_undisturbed()
        assert procfs.alive(inferior.pid)
        assert inferior.tid("main") == inferior.pid


def test_a_stopped_thread_is_noticed() -> None:
    with harness.started(STATELESS) as inferior:
        os.kill(inferior.pid, signal.SIGSTOP)
        harness.wait_until(lambda: procfs.state(inferior.pid, inferior.pid) == "T", "it stops")
        assert "left in state T" in inferior.disturbance()


def test_a_tracer_is_noticed() -> None:
    with harness.started(STATELESS) as inferior:
        gdb = subprocess.Popen(
            ["gdb", "-nx", "-q", *harness.NO_SYMBOLS, "-p", str(inferior.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            harness.wait_until(lambda: procfs.status(inferior.pid)["TracerPid"] == str(gdb.pid), "gdb attaches")
            assert inferior.disturbance()
        finally:
            gdb.communicate(b"detach\nquit\n")
        inferior.assert_undisturbed()


def test_a_dead_one_is_noticed_and_its_files_go() -> None:
    with harness.started(STATELESS) as inferior:
        os.kill(inferior.pid, signal.SIGKILL)
        inferior.process.wait()
        assert "gone" in inferior.disturbance()
        folder = inferior.folder
    assert not folder.exists()


def test_closing_ends_the_children_too() -> None:
    with harness.started("waits", "child") as inferior:
        children = inferior.truth["children"]
        assert children
        assert all(procfs.alive(child) for child in children)
    harness.wait_until(lambda: not any(procfs.alive(child) for child in children), "the children are gone")


def test_a_killed_harness_leaves_nobody_behind() -> None:
    tests = str(harness.ROOT / "tests")
    code = f"import sys; sys.path.insert(0, {tests!r})\n"
    code += "from support.programs import harness\ni = harness.start('fork-mutex')\n"
    code += "print(i.process.pid, i.pid, i.folder, flush=True); sys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    program, child, folder = parent.stdout.readline().split()
    parent.kill()
    parent.communicate()
    shutil.rmtree(folder)
    harness.wait_until(lambda: not procfs.alive(int(program)) and not procfs.alive(int(child)), "both are gone")


def test_a_program_that_fails_is_reported_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('words of its own')\n")
    monkeypatch.setattr(harness, "INFERIORS", tmp_path)
    with pytest.raises(HarnessError, match=r"ended with 1(?s:.*)words of its own"):
        harness.start("broken")


def test_a_thread_that_does_not_wait_as_it_said_is_reported() -> None:
    with harness.started(STATELESS) as inferior:

        def impatient(condition: object, what: str) -> None:
            harness.wait_until(condition, what, 0.3)  # type: ignore[arg-type]

        with pytest.raises(HarnessError, match="waits in read"):
            procfs.wait_settled(inferior.pid, {"main": {"tid": inferior.pid, "waits": "read"}}, impatient)


def test_the_pool_shares_and_evicts() -> None:
    pool = Pool(limit=1)
    try:
        first = pool.get(STATELESS)
        assert pool.get(STATELESS) is first
        second = pool.get(STATELESS, env={"ANOTHER": "1"})
        assert second is not first
        assert not procfs.alive(first.pid)
    finally:
        pool.close()
    assert not procfs.alive(second.pid)


def test_a_core_is_taken_once_and_the_inferior_goes_on() -> None:
    with harness.started(STATELESS) as inferior:
        core = inferior.core()
        assert inferior.core() == core
        assert {"NT_PRSTATUS", "NT_AUXV", "NT_FILE"} <= harness.core_notes(core)
        inferior.drop_core()
        assert not core.exists()
        inferior.assert_undisturbed()


def test_a_crash_leaves_a_core_with_its_signal(inferior_pool: Pool) -> None:
    crashed = inferior_pool.get("crash")
    assert crashed.ended
    assert "NT_SIGINFO" in harness.core_notes(crashed.core())


def test_an_unchanged_helper_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDBEXT_TEST_CACHE", str(tmp_path))
    path = native_build.build("locks")
    built = path.stat().st_mtime_ns
    assert native_build.build("locks") == path
    assert path.stat().st_mtime_ns == built


def test_the_truth_of_a_sleeping_thread(inferior_pool: Pool) -> None:
    waits: Inferior = inferior_pool.get("waits")
    for role, thread in waits.truth["threads"].items():
        if thread["waits"] == "sleep":
            assert procfs.syscall(waits.pid, waits.tid(role))[0] in {"35", "230"}
            break
    else:
        pytest.fail("no thread sleeps")
