"""The vocabulary: words of the contract, their order, amounts, and phrases made from the rows of each kind."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import Unowned
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.engine.targets.system.peer import ChildProcess, PipeWait, ProcessState
from gdbext.engine.vocabulary import Certainty, byte_size, counted, duration, singular_or_plural


def test_the_words_of_the_contract():
    assert WaitKind("python-lock") is WaitKind.PYTHON_LOCK


def test_certainties_are_ordered():
    assert sorted(Certainty) == [Certainty.UNKNOWN, Certainty.INFERRED, Certainty.VERIFIED, Certainty.EXACT]
    assert Certainty.VERIFIED.is_proven
    assert not Certainty.INFERRED.is_proven
    assert max(Certainty.INFERRED, Certainty.UNKNOWN) is Certainty.INFERRED


@pytest.mark.parametrize(
    ("kind", "name", "phrase"),
    [
        (WaitKind.MUTEX, "config_lock", "waits for the mutex 0x7f00 (config_lock)"),
        (WaitKind.MUTEX, "", "waits for the mutex 0x7f00"),
        (WaitKind.GIL, "", "waits for the GIL"),
        (WaitKind.GIL, "interpreter 2", "waits for the GIL of interpreter 2"),
        (WaitKind.STATIC_INIT, "", "waits for the initialization of a static variable (guard 0x7f00)"),
        (WaitKind.JOIN, "thread 12", "waits to join thread 12"),
        (WaitKind.JOIN, "", "waits to join a thread"),
        (WaitKind.SLEEP, "", "sleeps"),
        (WaitKind.SLEEP, "sleeps (2 s)", "sleeps (2 s)"),
        (WaitKind.IO, "read on fd 5", "waits in read on fd 5"),
        (WaitKind.CHILD_PROCESS, "child process 7", "waits for child process 7"),
        (WaitKind.COLLECTIVE, "gloo::barrier", "waits for the other ranks (gloo::barrier)"),
    ],
)
def test_phrases(kind, name, phrase):
    assert Wait(Resource(kind, 0x7F00, name)).phrase == phrase


def test_a_wait_with_another_resource_or_a_timeout():
    wait = Wait(Resource(WaitKind.CONDVAR, 0x10), detail=Unowned(mutex=Resource(WaitKind.MUTEX, 0x20)))
    assert wait.phrase == "waits for the condition variable 0x10 (with mutex 0x20)"
    assert not Wait(Resource(WaitKind.GIL, 1), timed=True).ends_by_itself
    assert Wait(Resource(WaitKind.MUTEX, 1), timed=True).ends_by_itself


def test_missing_workers():
    assert MissingWorkers(pools.OPENMP).sentence == "this process has no OpenMP worker threads, for an unknown reason"
    none = MissingWorkers(pools.OPENMP, forked=True)
    assert none.sentence == "this process has no OpenMP worker threads: they do not survive fork"
    assert "only 3 OpenMP" in MissingWorkers(pools.OPENMP, 3).sentence


def test_child_processes():
    assert ChildProcess(7).label == "7"
    child = ChildProcess(7, "python", ProcessState.STOPPED, PipeWait("pipe:[5]", writes=True))
    text = "7 (python, stopped, blocked writing to pipe:[5], which this process also has open)"
    assert (child.label, child.is_stopped, child.writes_to_us) == (text, True, True)
    assert not ChildProcess(7, "stopped").is_stopped


def test_amounts_in_words() -> None:
    nouns = {0: "thread", 1: "process", 2: "child", 3: "entry", 1234: "dispatch", 5: "key"}
    found = [counted(number, noun) for number, noun in nouns.items()]
    assert found == ["0 threads", "1 process", "2 children", "3 entries", "1,234 dispatches", "5 keys"]
    assert (singular_or_plural(1, "is", "are"), singular_or_plural(0, "is", "are")) == ("is", "are")
    found = [byte_size(number) for number in (1, 40, 1536, 3 << 30, 5000 << 50)]
    assert found == ["1 byte", "40 bytes", "1.5 KiB", "3.0 GiB", "5,000.0 PiB"]
    found = [duration(each) for each in (0, 3.5e-6, 0.0125, 0.25, 34, 720, 12600, 7200, 400000)]
    assert found == ["0 s", "3.5 µs", "12.5 ms", "0.25 s", "34 s", "12 min", "3.5 h", "2 h", "5 d"]
