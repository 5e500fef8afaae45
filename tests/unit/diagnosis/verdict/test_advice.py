"""What to try next, and what a core lacks: for each kind of verdict and wait, and from fields alone."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.kinds import KINDS
from gdbext.diagnosis.kinds.deadlock import DEADLOCK
from gdbext.diagnosis.kinds.outside import WAITING_EXTERNAL
from gdbext.diagnosis.kinds.state import IDLE, STARVED
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.finding import NOTE, Finding, ProcessStop
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait_detail import AbsentWorkers, OtherEnd, OtherRanks, PolledFile, Sleep
from gdbext.diagnosis.reporting import unknown_in_core
from gdbext.diagnosis.verdict.advice import advice, advice_on_children
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.engine.targets.live import local_process
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind, PipeWait, ProcessState
from gdbext.engine.terminal import CommandLine
from support.fakes.analysis_facts import step, thread, wait


def told(*threads, is_core=False, **more):
    found = judge(Observations(threads, 1, **more)).verdict.finding
    return "\n".join(advice(found, threads, 1, is_core))


def children(*found, kind="child-process"):
    return told(thread(1, wait(kind, name="child process", detail=OtherEnd(children=found))))


@pytest.mark.parametrize("kind", [*KINDS, NOTE], ids=lambda kind: kind.value)
def test_every_kind_has_advice_that_can_be_asked_for(kind):
    live = advice(Finding(kind, "It is so."), (), 4711, is_core=False)
    assert bool(live) == (kind is not NOTE), "a note is no verdict"
    core = advice(Finding(kind, "It is so."), (), 4711, is_core=True)
    assert not [text for text in core if "4711" in text or "--samples" in text], "what a core cannot do"


LOCKS = (thread(1, wait("mutex", 2)), thread(2, wait("rwlock", 3)), thread(3, wait("barrier", 1)))
GIL = (thread(1, wait("mutex", 2)), thread(2, wait("gil", 1)))
OF_PYTHON = (thread(1, wait("python-lock", 2)), thread(2, wait("python-lock", 1)))


@pytest.mark.parametrize(
    ("threads", "parts", "lacks"),
    [
        (GIL, ["holding the GIL", "gcore 1"], "in one order"),
        (LOCKS, ["in one order", "std::scoped_lock", "release it before the wait"], "--children"),
        ((thread(1, wait("python-lock", 2)), thread(2, wait("join", 1))), [], "in one order"),
        (OF_PYTHON, ["in one order everywhere."], "std::scoped_lock"),
        ((thread(1, wait("static-init", 2)), thread(2, wait("mutex", 1))), ["at import time", "in one order"], "GIL"),
    ],
)
def test_deadlocks(threads, parts, lacks):
    text = told(*threads)
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert lacks not in text
    assert "gcore" not in told(*threads, is_core=True), "a core is kept already"


LISTENS = Peer(PeerKind.SOCKET, address="0.0.0.0:0", state="LISTEN")
WRITER = ChildProcess(51, "b", waits_for_us=PipeWait("pipe:[7]", writes=True))


@pytest.mark.parametrize(
    ("waits", "part", "lacks"),
    [
        (wait("semaphore", external=True), "killed", "peer"),
        (wait("io", detail=OtherEnd(LISTENS)), "--tasks", "0.0.0.0"),
        (wait("io", detail=OtherEnd(Peer(PeerKind.PIPE, processes=(WRITER,)))), "communicate()", "--tasks"),
    ],
)
def test_who_is_at_the_other_end(waits, part, lacks):
    text = "\n".join(advice(Finding(WAITING_EXTERNAL, "", wait=waits), (), 1, is_core=False))
    assert part in text
    assert lacks not in text


@pytest.mark.parametrize(
    ("source", "more", "last"),
    [
        ("", {"debugger": "none"}, ": gcore 1"),
        ("", {"debugger": "gdb"}, ": generate-core-file core.1"),
        ("", {"debugger": "lldb"}, ": scripts/dispatch -p 1 --record hang.1.rec"),
        ("-p 1", {"debugger": "gdb"}, ": gcore 1"),
        ("-p 1", {"debugger": "lldb"}, ": gcore 1"),
        ("-p 1", {"stop": ProcessStop(tracer="7 (gdb)")}, ", in process 7 (gdb): generate-core-file core.1"),
        ("-p 1", {"stop": ProcessStop(tracer="7 (strace)")}, ", in process 7 (strace): gcore 1, once it has detached"),
        ("-p 1", {"stop": ProcessStop(group="/a")}, None),
        ("-p 1", {"stop": ProcessStop("SIGSTOP")}, ": gcore 1"),
    ],
)
def test_the_debugger_that_has_the_process_keeps_the_core(source, more, last):
    found = advice(Finding(DEADLOCK, "It is so."), (), 1, False, CommandLine(source=source), **more)
    kept = [] if last is None else [f"Keep the evidence before you kill it{last}"]
    assert [line for line in found if line.startswith("Keep")] == kept


def test_the_children_of_an_idle_parent_may_be_what_hangs():
    idle, outside = Finding(IDLE, "It is so."), CommandLine("gdbext", "-p 1")
    (told,) = advice_on_children(idle, outside)
    assert told.endswith(": gdbext -p 1 dispatch-diagnose --children")
    assert advice_on_children(Finding(DEADLOCK, "It is so."), outside) == ()
    assert (
        advice_on_children(idle, CommandLine("gdbext", "-r x", may_run=False))
        == advice_on_children(idle, outside, ["--children"])
        == ()
    )


def test_options_in_use_are_not_recommended():
    """The suggestion says which option it recommends; other lines may name the same one."""
    others = "Stop the other process: train.py --samples 7"
    starved = Finding(STARVED, "It is so.", cures=(others,))
    again = "Stuck or only slow? Take several samples: dispatch-diagnose --samples 5 --interval 1"
    assert advice(starved, (), 1, is_core=False) == (others, again)
    assert advice(starved, (), 1, is_core=False, used=["--samples"]) == (others,)
    parent = Finding(WAITING_EXTERNAL, "It is so.", wait=wait("child-process"))
    each = "What each of its child processes does: dispatch-diagnose --children"
    assert each in advice(parent, (), 1, is_core=False)
    assert each not in advice(parent, (), 1, is_core=False, used=["--children"])


@pytest.mark.parametrize("kind", ["child-process", "io"])
def test_the_child_that_is_stopped_is_named(kind):
    text = children(ChildProcess(50, "a"), ChildProcess(51, "b", ProcessState.STOPPED), kind=kind)
    assert "scripts/dispatch -p 51" in text
    assert "kill -CONT 51" in text
    assert "kill -CONT" not in children(ChildProcess(50, "stopped"), kind=kind), "a name is no state"


def test_the_child_that_writes_to_its_parent_is_named_and_a_stopped_process_let_go_on():
    text = children(ChildProcess(50, "a"), WRITER)
    assert "scripts/dispatch -p 51" in text
    assert "communicate()" in text
    assert "communicate()" not in children(WRITER._replace(waits_for_us=PipeWait("pipe:[7]", writes=False)))
    text = told(thread(1, wait("sleep", timed=True)), stop=ProcessStop("SIGTSTP"))
    assert "after it resumes" in text
    assert "CHILD" not in text


@pytest.mark.parametrize(("pool", "has_number"), [(pools.OPENMP, True), (pools.AUTOGRAD, False)])
def test_missing_workers_name_the_way_out_of_their_pool(pool, has_number):
    waits = wait("worker-pool", detail=AbsentWorkers(MissingWorkers(pool, forked=True)))
    assert ("set_num_threads(1)" in told(thread(1, waits, [step("aten::mm")]))) is has_number


@pytest.mark.parametrize(
    ("kind", "ops", "part"),
    [
        ("condvar", ["aten::mm"], "notify"),
        ("python-lock", ["aten::mm"], "RLock"),
        ("io", ["aten::mm"], "other end"),
        ("io", [], "the process at the other end"),
        *((kind, ["aten::mm"], "same library") for kind in ("libc-lock", "futex")),
        ("collective", [], "TORCH_DISTRIBUTED_DEBUG"),
        ("device", [], "nvidia-smi"),
        ("child-process", [], "dispatch-diagnose --children"),
    ],
)
def test_what_a_thread_waits_for(kind, ops, part):
    assert part in told(thread(1, wait(kind, name="read on fd 5, with process 5 at the other end"), map(step, ops)))


def test_children_of_a_recording_are_not_looked_for_on_this_machine(replay, monkeypatch):
    """Some process of today's may have the number of one of then, and be a rank."""
    monkeypatch.setattr(local_process, "read_file", lambda *_: b"RANK=0\0WORLD_SIZE=2\0")
    hung = replay("asyncio-waits-3.10")
    assert "Examine the child process" in hung.diagnosis["verdict"]["advice"][0]


def unknown(*waits):
    return "; ".join(unknown_in_core([thread(number, each) for number, each in enumerate(waits, 1)]))


STORE = CollectiveWait("c10d::TCPStore::wait", is_store=True)


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (wait("io", name="read on fd 5"), "other end, for thread 1"),
        (
            wait("sleep", timed=True, detail=Sleep(PolledFile(looks_for="the file /lock"), seconds=1.0)),
            "which process has locked them",
        ),
        (wait("collective", detail=OtherRanks(STORE)), "where the store is"),
        (wait("semaphore", external=True), "share the memory"),
        (wait("sleep", timed=True), "how long a sleep still lasts"),
        (
            wait("child-process", detail=OtherEnd(children=(ChildProcess(7), ChildProcess(8)))),
            "the state of processes 7 and 8",
        ),
        (wait("child-process", detail=OtherEnd(children=(ChildProcess(7),))), "the state of process 7"),
        (wait("child-process"), "which child processes there are"),
        (wait("worker-pool", detail=AbsentWorkers(MissingWorkers(pools.OPENMP))), "forked from another one"),
        (wait("python-lock"), "forked from another one"),
    ],
)
def test_what_only_the_system_knows(found, what):
    assert what in unknown(found)


@pytest.mark.parametrize(
    "waits",
    [
        [wait("mutex", 2)],
        [wait("python-lock", 2)],
        [wait("sleep", timed=True, detail=Sleep(seconds=2.0))],
        [wait("gil", being_released=True)],
        [wait("collective", detail=OtherRanks(STORE._replace(server="node1:29500")))],
        [wait("queue")],
        [wait("worker-pool", detail=AbsentWorkers(MissingWorkers(pools.OPENMP, forked=True)))],
        [wait("python-lock"), wait("python-lock")],  # a thread beside it is no sign of a fork
    ],
)
def test_what_is_in_memory_is_not_missed(waits):
    assert unknown(*waits) == ""
    idle = [thread(number, each, state=RunState.IDLE) for number, each in enumerate((wait("io"), *waits), 1)]
    assert unknown_in_core([*idle, thread(9)]) == []
