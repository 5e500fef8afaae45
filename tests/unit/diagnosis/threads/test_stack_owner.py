"""A thread whose stack pointer lies in another thread's stack: nothing of that stack is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.diagnosis.threads.thread_snapshots import StackOwners
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.targets.recording.recording import SparseBytes
from support.recorded.recordings import Replay, recording

NAME = "python-lock-abba-rlock-3.12"
"""Two threads and the first one, each with a stack of its own."""
FIRST, ONE, OTHER = sorted(recording(NAME).threads, key=lambda thread: thread.tid)
HEAP = next(each for each in recording(NAME).maps if each.path == "[heap]")


def with_registers(damage: Mapping[int, Mapping[str, int]], memory: SparseBytes | None = None) -> Replay:
    """Other values in registers of threads, by tid."""
    whole = recording(NAME)
    threads = [each._replace(registers={**each.registers, **damage.get(each.tid, {})}) for each in whole.threads]
    return Replay(NAME, whole._replace(threads=tuple(threads), memory=memory or whole.memory))


def with_blocks(ids: Mapping[int, int]) -> SparseBytes:
    """Memory in which the control blocks are, too: their addresses, and the thread's id in each. A core has them."""
    words = [(block + at, block.to_bytes(8, "little")) for block in ids for at in (0, 16)]
    words += [(block + 0x2D0, tid.to_bytes(4, "little")) for block, tid in ids.items()]
    memory = recording(NAME).memory
    return SparseBytes.merged([*zip(memory.starts, memory.pieces), *words])


def frames(replay: Replay) -> dict[int, list[str]]:
    found = replay.document("dispatch-bt", "--all", "--native")["threads"]
    return {each["tid"]: [frame["function"] for frame in each.get("frames", [])] for each in found}


@cache
def whole_frames() -> dict[int, list[str]]:
    return frames(Replay(NAME))


def test_another_thread_s_stack_is_not_walked() -> None:
    for damaged in (FIRST, ONE):
        for distance in (0, -4096, 64):
            replay = with_registers({damaged.tid: {"rsp": OTHER.registers["rsp"] + distance}})
            found = frames(replay)
            assert [name for name in found[damaged.tid] if name in ("clone3", "start_thread", "thread_run")] == []
            assert {**found, damaged.tid: []} == {**whole_frames(), damaged.tid: []}
            assert f"in the stack of thread {OTHER.tid}" in replay.text("dispatch-bt", "--all")


@pytest.mark.parametrize("below", [0, 0x40, 0x400])
def test_the_thread_pointer_is_damaged_like_the_stack_pointer(below: int) -> None:
    """The control block at the upper end of that stack has the other's id; what lies below it is no control block."""
    block, whole = OTHER.registers["fs_base"], whole_frames()
    for damaged in (ONE, FIRST) if below else (ONE,):
        damage = {damaged.tid: {"rsp": OTHER.registers["rsp"] - 0x2000, "fs_base": block - below}}
        replay = with_registers(damage, with_blocks({block: OTHER.tid}))
        assert frames(replay) == {**whole, damaged.tid: []}
        assert f"in the stack of thread {OTHER.tid}" in replay.text("dispatch-bt", "--all")
    unknown = frames(with_registers({ONE.tid: {"rsp": OTHER.registers["rsp"], "fs_base": block}}))
    assert unknown == {**whole, ONE.tid: [], OTHER.tid: []}, "nobody knows whose the block is"


def test_the_first_thread_s_stack_is_not_another_s() -> None:
    moved = with_registers({ONE.tid: {"rsp": FIRST.registers["rsp"]}})
    assert frames(moved) == {**whole_frames(), ONE.tid: []}
    nameless = [each._replace(path="") if each.path == "[stack]" else each for each in recording(NAME).maps]
    core = Replay(NAME, moved.recording._replace(maps=tuple(nameless)))
    assert frames(core)[ONE.tid] == [], "the kernel put the bytes of AT_RANDOM there"


def test_two_control_blocks_in_one_mapping() -> None:
    """A program gave its threads stacks out of one piece of memory; the ids are those of the threads' namespace."""
    block = ONE.registers["fs_base"]
    replay = with_registers({OTHER.tid: {"fs_base": block + 0x100}}, with_blocks({block: 7, block + 0x100: 8}))
    assert frames(replay) == whole_frames()


def test_two_threads_at_one_place() -> None:
    """Where the other's control block is, is not known either: one of them is not there, and nobody knows which."""
    found = frames(with_registers({ONE.tid: {"rsp": OTHER.registers["rsp"]}, OTHER.tid: {"fs_base": 0}}))
    assert (found[ONE.tid], found[OTHER.tid]) == ([], [])


@pytest.mark.parametrize("pointer", [1, None])
def test_a_thread_whose_own_stack_nobody_knows(pointer: int | None) -> None:
    """Its thread pointer leads nowhere, or to the first thread's block: the stack that both stand in may be its own."""
    fs_base = FIRST.registers["fs_base"] if pointer is None else pointer
    damage = {ONE.tid: {"rsp": OTHER.registers["rsp"] - 8}, OTHER.tid: {"fs_base": fs_base}}
    found = frames(with_registers(damage))
    assert found[ONE.tid] == []
    elsewhere = {**damage, OTHER.tid: {"fs_base": fs_base, "rsp": 0x1000}}
    assert frames(with_registers(elsewhere))[ONE.tid] == [], "nor where it has left its stack"


def test_the_first_thread_claims_no_stack_of_another() -> None:
    """Both of its registers lie in one whose owner's thread pointer leads into the heap: nobody is there for sure."""
    there = {"rsp": ONE.registers["rsp"], "fs_base": ONE.registers["fs_base"]}
    found = frames(with_registers({FIRST.tid: there, ONE.tid: {"fs_base": HEAP.start + 4096}}))
    assert found == {**whole_frames(), FIRST.tid: [], ONE.tid: []}


def test_a_block_names_the_owner_of_a_stack_that_the_owner_seems_to_have_left() -> None:
    block, whole = OTHER.registers["fs_base"], whole_frames()
    there = {"rsp": OTHER.registers["rsp"], "rip": OTHER.registers["rip"], "fs_base": block}
    damage = {ONE.tid: there, OTHER.tid: {"rsp": 0x1000, "fs_base": 0x1000}}
    assert frames(with_registers(damage, with_blocks({block: OTHER.tid})))[ONE.tid] == []
    damage[OTHER.tid] = {"fs_base": 0x1000}
    found = frames(with_registers(damage, with_blocks({block: OTHER.tid})))
    assert found == {**whole, ONE.tid: []}, "its own thread pointer is not needed for that"


def test_the_first_thread_of_a_child_stands_on_the_stack_of_the_thread_that_forked() -> None:
    whole = recording(NAME)
    child = whole._replace(pid=ONE.tid, threads=tuple(each for each in whole.threads if each.tid != FIRST.tid))
    for memory in (whole.memory, with_blocks({ONE.registers["fs_base"]: ONE.tid})):
        found = frames(Replay(NAME, child._replace(memory=memory)))
        assert found == {tid: whole_frames()[tid] for tid in (ONE.tid, OTHER.tid)}


def test_a_file_without_thread_pointers() -> None:
    """Some debuggers do not give them: that contradicts nobody."""
    whole = recording(NAME)
    threads = [
        each._replace(registers={name: value for name, value in each.registers.items() if name != "fs_base"})
        for each in whole.threads
    ]
    assert frames(Replay(NAME, whole._replace(threads=tuple(threads)))) == whole_frames()


def test_a_stack_that_is_nobody_s_may_be_a_signal_s_or_a_coroutine_s() -> None:
    """The first thread's control block is in no stack; nor is the heap."""
    assert "in the stack of" not in with_registers({ONE.tid: {"rsp": HEAP.start + 4096}}).text("dispatch-bt", "--all")


@pytest.mark.parametrize(
    ("stack", "block", "is_core", "expected"),
    [
        (bytes(64), bytes(64), True, True),
        (bytes(64), bytes(64), False, False),
        (b"\1" + bytes(63), bytes(64), True, False),
        (bytes(64), b"\1" + bytes(63), True, False),
        (None, bytes(64), True, False),
    ],
)
def test_a_core_that_lacks_the_stack_of_a_thread(
    stack: bytes | None, block: bytes, is_core: bool, expected: bool
) -> None:
    """gcore of gdb 13 writes zeros where glibc 2.43 has guard pages; that is no stack of another thread."""
    registers = {"rsp": 0x7000, "fs_base": 0x9000}
    thread = SimpleNamespace(tid=2, runs_on=False, registers=lambda: registers)
    target = SimpleNamespace(is_core=is_core, threads=lambda: [thread], architecture=ARCHITECTURE)
    memory = SimpleNamespace(try_read=lambda at, _: stack if at == 0x7000 else block)
    owners = StackOwners(cast(Any, target), cast(Any, None), cast(Any, memory))
    assert owners.is_absent(cast(Any, thread)) is expected
