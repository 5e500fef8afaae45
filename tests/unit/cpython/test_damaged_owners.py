"""Owners of Python's locks where thread states are damaged: never a wrong thread, and none that is said to be gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.abi.python_structures import (
    PyInterpreterState,
    PyRuntimeState,
    PyThreadState,
    RLockObject,
    StopTheWorld,
)
from gdbext.cpython.sync.locks import words_of_native_lock
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.engine.targets.recording.recording import Recording
from support.recorded.recording_damage import patched, without_registers
from support.recorded.recordings import Replay, recording

NAME = "python-lock-abba-rlock-3.12"
"""Two threads, each of which waits for the RLock that the other one has."""


class Subject:
    def __init__(self) -> None:
        self.whole = Replay(NAME)
        self.runtime = runtime_of(self.whole)
        self.states = {self.runtime.tid_of(state): state for state in self.runtime.thread_states()}
        waits = {thread["tid"]: thread["wait"] for thread in self.whole.document("all-threads")["threads"]}
        self.waiter, self.owner = sorted(tid for tid, wait in waits.items() if wait and wait["kind"] == "python-lock")

    def wait_where_the_lock_records(self, ident: int) -> dict[str, Any]:
        """The waiter's wait where its lock's word is overwritten."""
        lock = int(wait_of(self.whole, self.waiter)["address"], 16)
        place = lock + RLockObject.rlock_owner.offset(self.runtime.space)
        return wait_of(Replay(NAME, patched(recording(NAME), {place: ident})), self.waiter)

    def patched(self, tid: int, name: str, word: int) -> Recording:
        field = self.states[tid].address + getattr(PyThreadState, name).offset(self.runtime.space)
        return patched(recording(NAME), {field: word})


def runtime_of(replay: Replay) -> PythonRuntime:
    assert replay.session.python is not None
    return replay.session.python


def wait_of(replay: Replay, tid: int) -> dict[str, Any]:
    (wait,) = [each["wait"] for each in replay.document("all-threads")["threads"] if each["tid"] == tid]
    return cast("dict[str, Any]", wait)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


def test_the_owner_s_id_is_another_thread_s(subject: Subject) -> None:
    """Its ident is still its own: the two contradict each other."""
    damaged = subject.patched(subject.owner, "native_thread_id", subject.whole.recording.pid)
    assert wait_of(Replay(NAME, damaged), subject.waiter)["owner"] is None


def test_an_ident_that_nobody_has_means_nothing_while_a_thread_is_unread(subject: Subject) -> None:
    lost = subject.patched(subject.owner, "thread_id", 0x7F0000001240)
    assert wait_of(Replay(NAME, without_registers(lost, [subject.owner])), subject.waiter)["owner"] is None


def test_a_thread_that_is_gone_is_named_by_its_ident(subject: Subject) -> None:
    """Its stack was the last thing that lay there: nothing translates a pthread_t into a thread's id."""
    before = recording(NAME)
    gone = before._replace(threads=tuple(thread for thread in before.threads if thread.tid != subject.owner))
    replay = Replay(NAME, gone)
    ident = f"{subject.states[subject.owner].ident:#x}"
    assert wait_of(replay, subject.waiter)["owner"] == {"tid": 0, "ident": ident, "state": "gone"}
    assert f"the thread with the ident {ident}" in replay.text("all-threads")


@pytest.mark.parametrize(
    ("ident", "state"),
    [
        *((ident, None) for ident in (0x8C007F4B21AB16C0, 0x40, 0x7F0000001241)),  # it can be no ident
        *((ident, "gone") for ident in (0x2FBE9556C0, 0x7F1122334440)),  # no thread has had it: it proves nothing
    ],
)
def test_a_word_that_no_thread_has_proves_no_end(subject: Subject, ident: int, state: str | None) -> None:
    wait = subject.wait_where_the_lock_records(ident)
    assert (wait["owner"] or {}).get("state") == state
    assert state is None or wait["certainty"] == "inferred"


def test_who_stops_the_world_is_not_told_by_a_word_that_is_no_thread_s() -> None:
    """A thread that waits for the world to stop does not wait for itself, whoever is said to have asked for it."""
    name = "free-threaded-pause-3.13t"
    whole = Replay(name)
    runtime = runtime_of(whole)
    pauses = [PyRuntimeState(runtime.space, runtime.address).stoptheworld]
    pauses += [PyInterpreterState(runtime.space, each.address).stoptheworld for each in runtime.interpreters()]
    places = [pause.place(StopTheWorld.requester) for pause in pauses]
    document = Replay(name, patched(recording(name), dict.fromkeys(places, 0x1D1B5A7EC41DD0FA))).diagnosis
    assert not [each for each in document["findings"] if each["kind"] == "self-deadlock"]


@pytest.mark.parametrize("damage", [("next", 0), ("thread_id", 0x4007FF160B796C0)])
@pytest.mark.parametrize("name", ["nested-pool-2-3.9", "nested-pool-2-3.13"])
def test_a_pool_with_an_unread_worker_is_not_exhausted(name: str, damage: tuple[str, int]) -> None:
    """The worker may be about to take the job: only where all of them are read, is it known that none will."""
    whole = Replay(name)
    (deadlock,) = [each for each in whole.diagnosis["findings"] if each["kind"] == "deadlock"]
    runtime = runtime_of(whole)
    at = getattr(PyThreadState, damage[0]).offset(runtime.space)
    newest = next(iter(runtime.thread_states()))
    assert runtime.tid_of(newest) in deadlock["threads"]
    cut = Replay(name, patched(recording(name), {newest.address + at: damage[1]}))
    found = [each for each in cut.diagnosis["findings"] if each["kind"] in ("deadlock", "self-deadlock")]
    assert all(each["threads"] == deadlock["threads"] for each in found), "the same one, or none"


@pytest.mark.parametrize("ids", [(0x1234, 0x1235), (0x83472, 0x103471)])
def test_a_thread_that_is_there_is_not_gone(ids: tuple[int, int]) -> None:
    """Of no thread is the id in its own record the kernel's, as in another namespace; the owner's id is a thread's."""
    replay = Replay("families-loader")
    found = {thread["tid"]: thread["wait"] for thread in replay.document("all-threads")["threads"]}
    waiter = next(tid for tid, wait in found.items() if wait is not None and wait["kind"] == "loader-lock")
    assert found[waiter]["owner"]["state"] == "alive"
    whole = replay.recording
    words = {}
    for own, thread in zip(ids, sorted(whole.threads, key=lambda each: each.tid)):
        word = thread.registers["fs_base"] + 0x2D0
        after = int.from_bytes(whole.memory.read(word + 4, 4) or bytes(4), "little")
        words[word] = own | after << 32
    assert wait_of(Replay("families-loader", patched(whole, words)), waiter)["owner"] is None


def test_a_counter_of_a_native_loop_is_no_thread() -> None:
    """uvloop's loop is a C structure, whose thread is looked for among its words; an overwritten ident, 1, is there."""
    name = "loop-blocked-3.11"
    whole = Replay(name)
    runtime = runtime_of(whole)
    client = next(state for state in runtime.thread_states() if runtime.tid_of(state) == whole.tid("worker"))
    word = client.address + PyThreadState.thread_id.offset(runtime.space)
    damaged = Replay(name, patched(recording(name), {word: 1})).diagnosis
    assert not [each for each in damaged["findings"] if each["kind"] == "self-deadlock"]


@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("h5py._objects.FastRLock", 56, 7),
        ("fastrlock.rlock.FastRLock", 56, 7),
        ("FastRLock", 56, 0),  # a class in Python: its own memory has no lock
        ("h5py._hl.files.File", 56, 0),  # what has a lock inside need not be locked by who is inside of it
        ("app.HugeLock", 4096, 0),
    ],
)
def test_the_words_of_locks_around_a_lock(monkeypatch: pytest.MonkeyPatch, name: str, size: int, count: int) -> None:
    monkeypatch.setattr("gdbext.cpython.sync.locks.read_lock", lambda *_: None)
    words = tuple(range(7))
    runtime = SimpleNamespace(
        objects=SimpleNamespace(type_of=lambda _: SimpleNamespace(name=name, size=size)),
        memory=SimpleNamespace(words=lambda _, number: words[:number]),
    )
    assert words_of_native_lock(cast(PythonRuntime, runtime), 4096) == words[:count]
