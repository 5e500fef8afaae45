"""ProcTarget leaves no trace: whatever happens to it or to the process, the process goes on as it was."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.targets.live import ptrace
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import ForeignArchitecture, NoSuchProcess, TargetError, TargetGone
from support.programs import procfs
from support.programs.harness import PATIENCE, ROOT, some, wait_until
from support.programs.plain_program import Plain, running

pytestmark = pytest.mark.compiler


def goes_on(plain: Plain) -> bool:
    plain.wait_until_it_writes()
    return plain.is_untouched()


ATTACH = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from gdbext.engine.targets.live.proc_target import ProcTarget
"""


def look_in_another_process(pid: int, then: str) -> subprocess.Popen[str]:
    code = f"{ATTACH}with ProcTarget({pid}) as target:\n    print('attached', flush=True)\n    {then}\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert some(process.stdout).readline() == "attached\n"
    return process


def test_stopped_while_looked_at_and_not_afterwards(counting: Plain) -> None:
    target = ProcTarget(counting.pid)
    assert counting.states() == ["t"]
    thread = target.memory.threads()[0]
    assert thread.kernel_state in ("S", "R")
    address = thread.registers()["rsp"]
    assert len(target.memory.read(address, 8)) == 8
    target.close()
    with pytest.raises(TargetError, match="already detached"):
        target.memory.read(address, 8)
    assert goes_on(counting)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, 0])
def test_when_we_are_killed_or_fail(counting: Plain, number: int) -> None:
    process = look_in_another_process(counting.pid, "time.sleep(60)" if number else "1 / 0")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    wait_until(counting.is_untouched, "the process was let go")
    assert goes_on(counting)


def test_when_nobody_closes_it(counting: Plain) -> None:
    subprocess.run([sys.executable, "-c", f"{ATTACH}kept = ProcTarget({counting.pid})"], check=True)
    assert goes_on(counting)


def test_a_stop_in_force_stays_in_force_and_one_that_comes_meanwhile_comes_afterwards(counting: Plain) -> None:
    os.kill(counting.pid, signal.SIGSTOP)
    wait_until(lambda: counting.states() == ["T"], "it is stopped")
    with ProcTarget(counting.pid) as target:
        assert target.memory.threads()[0].kernel_state == "T"
        assert target.memory.threads()[0].registers()["rip"]
        assert target.memory.threads()[0].signal is None
    wait_until(lambda: counting.states() == ["T"], "it is stopped again")
    assert procfs.status(counting.pid)["TracerPid"] == "0"
    os.kill(counting.pid, signal.SIGCONT)
    assert goes_on(counting)
    with ProcTarget(counting.pid):
        os.kill(counting.pid, signal.SIGSTOP)
    wait_until(lambda: counting.states() == ["T"], "it is stopped")
    os.kill(counting.pid, signal.SIGCONT)
    assert goes_on(counting)


def test_signals_are_not_lost(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One signal is on its way when the thread is stopped, others come while it stands."""
    interrupt = ptrace.interrupt

    def signal_first(tid: int) -> None:
        os.kill(tid, signal.SIGRTMIN)
        wait_until(lambda: procfs.state(tid, tid) == "t", "it stands at the delivery of the signal")
        interrupt(tid)

    monkeypatch.setattr(ptrace, "interrupt", signal_first)
    with running(program, "0", "signals") as plain:
        for _ in range(20):
            with ProcTarget(plain.pid) as target:
                assert target.memory.threads()[0].held == signal.SIGRTMIN  # type: ignore[attr-defined]
                for _ in range(50):
                    os.kill(plain.pid, signal.SIGRTMIN)
        wait_until(lambda: int(plain.line()) >= 1020, "all have come")
        assert int(plain.line()) == 1020
        assert plain.is_untouched()


def test_what_is_no_process_or_a_zombie(counting: Plain, pausing: Plain) -> None:
    counting.end()
    for pid in (0, -1, 1 << 30, counting.pid):
        with pytest.raises(NoSuchProcess):
            ProcTarget(pid)
    with pytest.raises(TargetError, match="this very process"):
        ProcTarget(os.getpid())
    with pytest.raises(NoSuchProcess, match="thread of process") as raised:
        ProcTarget(pausing.truth["threads"][1]["tid"])
    assert raised.value.help == f"use: -p {pausing.pid}"
    if "kthread" in procfs.status(2).get("Name", ""):  # containers show none
        with pytest.raises(TargetError, match="kernel thread"):
            ProcTarget(2)
    process = subprocess.Popen(["true"])
    wait_until(lambda: procfs.state(process.pid, process.pid) == "Z", "it has ended")
    with pytest.raises(TargetError, match="zombie") as raised:
        ProcTarget(process.pid)
    assert f"-p {os.getpid()}" in raised.value.help
    process.wait()


def test_an_uninterruptible_thread_costs_itself(program: Path) -> None:
    """The parent of vfork waits in state D; its memory can be read all the same."""
    with running(program, "0", "vfork") as plain:
        wait_until(lambda: plain.states() == ["D"], "it waits in vfork")
        target = ProcTarget(plain.pid)
        thread = target.memory.threads()[0]
        assert thread.kernel_state == "D"
        with pytest.raises(TargetError, match="could not be stopped"):
            thread.registers()
        assert target.memory.read(target.memory.maps()[0].start, 4) == b"\x7fELF"
        target.close()


def test_a_32_bit_program(tmp_path: Path) -> None:
    code, base, at = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7", 0x8048000, 52 + 32
    words = (b"\x7fELF\x01\x01\x01", 2, 3, 1, base + at, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    header = struct.pack("<16sHHIIIIIHHHHHH", *words)
    path = tmp_path / "program32"
    path.write_bytes(header + struct.pack("<8I", 1, 0, base, base, at + len(code), at + len(code), 5, 0x1000) + code)
    path.chmod(0o755)
    try:
        process = subprocess.Popen([path])
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")
    with pytest.raises(ForeignArchitecture, match="32-bit"):
        ProcTarget(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("own", [signal.SIG_DFL, lambda *_: None])
def test_handlers_are_put_back(counting: Plain, own: Any) -> None:
    signal.signal(signal.SIGTERM, own)
    try:
        with ProcTarget(counting.pid):
            assert (signal.getsignal(signal.SIGTERM) is own) == (own is not signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


STARTS_A_PROCESS = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
print(child.wait(), flush=True)
"""


def test_a_process_that_is_killed_meanwhile_is_collected_by_its_parent_though_we_live_on(program: Path) -> None:
    """A thread that ends while it is traced is the tracer's to collect; the process was a zombie until we ended."""
    command = [sys.executable, "-c", STARTS_A_PROCESS, str(program), "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(some(parent.stdout).readline())
        try:
            with ProcTarget(pid) as target:
                thread, *others = target.memory.threads()
                assert len(others) == 3
                address = target.memory.maps()[0].start
                os.kill(pid, signal.SIGKILL)

                def is_gone() -> bool:  # the last thread to die takes the memory with it
                    try:
                        target.memory.read(address, 8)
                    except TargetGone:
                        return True
                    return False

                wait_until(is_gone, "its memory is gone")
                with pytest.raises(TargetGone):
                    thread.registers()
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its parent has collected it")
            assert some(parent.stdout).readline() == f"{-signal.SIGKILL}\n"
        finally:
            parent.kill()
