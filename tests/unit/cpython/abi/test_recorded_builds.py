"""Recorded processes of free-threaded builds, of builds with a JIT, and with damage to what CPython publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.python_structures import PyInterpreterFrame, PyThreadState
from gdbext.cpython.sync.parking import ParkingLot
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import MemoryFault
from support.recorded.recording_damage import patched


def test_each_thread_has_a_copy_of_the_bytecode(replay: Callable[[str], Any]) -> None:
    hung = replay("python-lock-abba-3.14t")
    report = hung.document("dispatch-diagnose")
    assert report["target"]["python"] == {"version": "3.14.4t"}
    assert all(thread["python_frames"] for thread in report["threads"])
    assert all(held["kind"] != "gil" for thread in report["threads"] for held in thread["holds"])
    runtime, copied = hung.session.python, 0
    for state in runtime.thread_states():
        for frame in runtime.frames.stack(state).frames:
            at = PyInterpreterFrame(runtime.space, frame.address).instr_ptr
            code = runtime.codes.get(frame.code)
            copied += code.offset_of(at) != at - code.bytecode
            assert 0 <= code.offset_of(at) < 1000
            assert frame.line is not None
    assert copied >= 4
    assert code.offset_of(8) == 8 - code.bytecode, "nowhere in any of them"


def test_who_is_in_a_critical_section_holds_the_object(replay: Callable[[str], Any]) -> None:
    hung = replay("free-threaded-section-3.14t")
    holds = {thread["tid"]: thread["holds"] for thread in hung.diagnosis["threads"]}
    (held,) = holds[hung.tid("inside")]
    assert (held["kind"], held["address"]) == ("object-lock", hung.truth["shared"])


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
    if damage == "fault":
        with pytest.raises(MemoryFault):
            ParkingLot(damaged)
    else:
        assert len(ParkingLot(damaged)._sections) == 1


PYTHON = ["take", "spin", "work", "Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"]


@pytest.mark.parametrize("version", ["3.14", "3.15"])
def test_the_stack_of_code_that_the_jit_has_compiled_is_whole(version: str, replay: Callable[[str], Any]) -> None:
    hung = replay(f"jit-abba-{version}")
    assert hung.truth["jit"]
    threads = {thread["tid"]: thread for thread in hung.document("dispatch-bt", "--all", "--native")["threads"]}
    for role in ("worker-0", "worker-1"):
        frames = threads[hung.tid(role)]["frames"]
        assert [frame["function"] for frame in frames if frame["kind"] == "python"] == PYTHON
        native = [frame for frame in frames if frame["kind"] == "native"]
        compiled = [level for level, frame in enumerate(native) if not frame["module"]]
        assert compiled, "the lock is taken by compiled code"
        assert native[compiled[0] - 1]["module"].endswith(f"python{version}")
        assert native[-1]["module"].endswith("libc.so.6"), "down to the start of the thread"


@pytest.mark.parametrize("beyond", ["", "code", "instruction"])
def test_damaged_offsets_and_a_field_beyond_the_frame(replay: Callable[[str], Any], beyond: str) -> None:
    session = replay("task-cycle-3.15").session
    abi, start = layout_for(session.python.layout.abi).abi, session.python.address + 24
    names = list(abi.debug_offsets)

    def stacks() -> list[Any]:
        found: Any = PythonRuntime.detect(session.memory, session.modules, session.symbolizer)
        return [(state, found.frames.stack(state).frames) for state in found.thread_states()]

    expected = stacks()
    assert sum(len(frames) for _, frames in expected) > 5
    damage = {index: 0xABCD * index & 0xFFFF8 for index in range(len(names))}
    if beyond:
        damage = {names.index(PyInterpreterFrame): 0x100, names.index(getattr(abi.frames, beyond)): 0x10000}
    words = {start + 8 * index: value for index, value in damage.items()}
    session.target.recording = patched(session.target.recording, words)
    assert stacks() == expected
