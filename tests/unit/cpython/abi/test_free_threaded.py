"""Recorded free-threaded builds: locks, critical sections, stops of the world, copies of the bytecode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.cpython.abi.python_structures import PyInterpreterFrame, PyThreadState
from gdbext.cpython.sync.parking import ParkingLot
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import MemoryFault
from support.recorded.recording_damage import patched


def test_a_recorded_deadlock(replay: Callable[[str], Any]) -> None:
    hung = replay("python-lock-abba-3.14t")
    report = hung.document("dispatch-diagnose")
    assert report["target"]["python"] == {"version": "3.14.4t"}
    assert report["verdict"]["kind"] == "deadlock"
    assert len(report["verdict"]["threads"]) == 2
    for thread in report["threads"]:
        assert thread["python_frames"], thread["tid"]
        assert all(held["kind"] != "gil" for held in thread["holds"])


def test_each_thread_has_a_copy_of_the_bytecode(replay: Callable[[str], Any]) -> None:
    session = replay("python-lock-abba-3.14t").session
    runtime = session.python
    copied = 0
    for state in runtime.thread_states():
        for frame in runtime.frames.stack(state).frames:
            at = PyInterpreterFrame(runtime.space, frame.address).instr_ptr
            code = runtime.codes.get(frame.code)
            copied += code.offset_of(at) != at - code.bytecode
            assert 0 <= code.offset_of(at) < 1000
            assert frame.line is not None
    assert copied >= 4
    assert code.offset_of(8) == 8 - code.bytecode, "nowhere in any of them"


def test_who_stops_the_world_waits_for_who_does_not_stop(replay: Callable[[str], Any]) -> None:
    hung = replay("free-threaded-pause-3.13t")
    report = hung.document("dispatch-diagnose")
    stopper, attached, sleeper = (hung.tid(role) for role in ("stopper", "attached", "sleeper"))
    assert (report["verdict"]["kind"], set(report["verdict"]["threads"])) == ("deadlock", {stopper, attached})
    waits = {thread["tid"]: thread["wait"] for thread in report["threads"]}
    for waiter, owner, name in (
        (stopper, attached, "all other threads, to stop the world"),
        (sleeper, stopper, "the thread that stops the world"),
    ):
        wait = waits[waiter]
        assert (wait["kind"], wait["owner"]["tid"], wait["name"]) == ("stop-the-world", owner, name)
        assert wait["certainty"] == "recorded"
    assert waits[stopper]["address"] == waits[sleeper]["address"]


def test_who_is_in_a_critical_section_holds_the_object(replay: Callable[[str], Any]) -> None:
    hung = replay("free-threaded-section-3.14t")
    report = hung.document("dispatch-diagnose")
    inside, outside = hung.tid("inside"), hung.tid("outside")
    assert (report["verdict"]["kind"], set(report["verdict"]["threads"])) == ("deadlock", {inside, outside})
    threads = {thread["tid"]: thread for thread in report["threads"]}
    wait = threads[outside]["wait"]
    assert (wait["kind"], wait["owner"]["tid"], wait["name"]) == ("object-lock", inside, "dict")
    assert wait["address"] == hung.truth["shared"]
    assert [(held["kind"], held["address"]) for held in threads[inside]["holds"]] == [("object-lock", wait["address"])]


@pytest.mark.parametrize("damage", ["fault", "circle"])
def test_pointers_of_critical_sections_that_lead_nowhere(replay: Callable[[str], Any], damage: str) -> None:
    """What cannot be read costs the object lock's owner; a circle ends."""
    session = replay("free-threaded-section-3.14t").session
    runtime = session.python
    at = PyThreadState.critical_section.offset(runtime.space)
    fields = [state.address + at for state in runtime.thread_states()]
    section = next(value for value in map(runtime.memory.u64, fields) if value and not value & 1)
    words = dict.fromkeys(fields, 8) if damage == "fault" else {**dict.fromkeys(fields, section), section: section}
    damaged = Session(ReplayTarget(patched(session.target.recording, words))).python
    assert damaged is not None
    if damage == "fault":
        with pytest.raises(MemoryFault):
            ParkingLot(damaged)
    else:
        assert len(ParkingLot(damaged)._sections) == 1
