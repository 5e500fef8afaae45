"""A thread whose stack pointer lies in another thread's stack: nothing of that stack is told of it."""

from __future__ import annotations

from support.recorded.recordings import Replay, recording

NAME = "python-lock-abba-rlock-3.12"
"""Two threads and the first one, each with a stack of its own."""


def with_stack_pointer(tid: int, value: int) -> Replay:
    whole = recording(NAME)
    threads = [
        each._replace(registers={**each.registers, "rsp": value}) if each.tid == tid else each for each in whole.threads
    ]
    return Replay(NAME, whole._replace(threads=tuple(threads)))


def frames(replay: Replay) -> dict[int, list[str]]:
    found = replay.document("dispatch-bt", "--all", "--native")["threads"]
    return {each["tid"]: [frame["function"] for frame in each.get("frames", [])] for each in found}


def test_another_thread_s_stack_is_not_walked() -> None:
    first, one, other = sorted(recording(NAME).threads, key=lambda thread: thread.tid)
    whole = frames(Replay(NAME))
    for damaged in (first, one):
        for distance in (0, -4096, 64):
            replay = with_stack_pointer(damaged.tid, other.registers["rsp"] + distance)
            found = frames(replay)
            assert [name for name in found[damaged.tid] if name in ("clone3", "start_thread", "thread_run")] == []
            assert {tid: found[tid] for tid in found if tid != damaged.tid} == {
                tid: whole[tid] for tid in whole if tid != damaged.tid
            }
            assert f"in the stack of thread {other.tid}" in replay.text("dispatch-bt", "--all")


def test_two_threads_at_one_place() -> None:
    """Where the other's control block is, is not known either: one of them is not there, and nobody knows which."""
    whole = recording(NAME)
    _, one, other = sorted(whole.threads, key=lambda thread: thread.tid)
    there = {"rsp": other.registers["rsp"]}
    damaged = {one.tid: {**one.registers, **there}, other.tid: {**other.registers, "fs_base": 0}}
    threads = [each._replace(registers=damaged.get(each.tid, each.registers)) for each in whole.threads]
    found = frames(Replay(NAME, whole._replace(threads=tuple(threads))))
    assert (found[one.tid], found[other.tid]) == ([], [])


def test_a_stack_that_is_nobody_s_may_be_a_signal_s_or_a_coroutine_s() -> None:
    """The first thread's control block is in no stack; nor is the heap."""
    one = max(recording(NAME).threads, key=lambda thread: thread.tid)
    heap = next(each for each in recording(NAME).maps if each.path == "[heap]")
    assert "in the stack of" not in with_stack_pointer(one.tid, heap.start + 4096).text("dispatch-bt", "--all")
