"""A thread whose stack pointer lies in another thread's stack: nothing of that stack is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.diagnosis.threads.thread_snapshots import StackOwners
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.targets.recording.recording import SparseBytes
from support.recorded.recordings import Replay, recording

NAME = "python-lock-abba-rlock-3.12"
"""Two threads and the first one, each with a stack of its own."""
REGISTERS = {thread.tid: thread.registers for thread in recording(NAME).threads}
FIRST, ONE, OTHER = sorted(REGISTERS)
HEAP = next(each for each in recording(NAME).maps if each.path == "[heap]")


def with_registers(damage: Mapping[int, Mapping[str, int]], ids: Mapping[int, int] | None = None) -> Replay:
    """Other values in registers of threads, by tid. Memory with control blocks in it has their ids, by address."""
    whole = recording(NAME)
    threads = [each._replace(registers={**each.registers, **damage.get(each.tid, {})}) for each in whole.threads]
    memory = with_blocks(ids) if ids else whole.memory
    return Replay(NAME, whole._replace(threads=tuple(threads), memory=memory))


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


SP, BLOCK, ITS_BLOCK = REGISTERS[OTHER]["rsp"], REGISTERS[OTHER]["fs_base"], REGISTERS[ONE]["fs_base"]
THERE = {"rsp": SP, "rip": REGISTERS[OTHER]["rip"], "fs_base": BLOCK}
OUTSIDE = {"rsp": 0x1000}
"""A stack pointer that leads nowhere."""
WRONG_BLOCKS = (1, REGISTERS[FIRST]["fs_base"])


@pytest.mark.parametrize(
    ("damage", "ids", "lost"),
    [
        *(({FIRST: {"rsp": sp}}, {}, [FIRST]) for sp in (SP, SP - 4096)),
        *(({ONE: {"rsp": sp}}, {}, [ONE]) for sp in (SP, SP - 4096, SP + 64, REGISTERS[FIRST]["rsp"])),
        # The control block at the upper end of that stack has the other's id; what lies below it is no control block.
        *(({ONE: {"rsp": SP - 0x2000, "fs_base": BLOCK - below}}, {BLOCK: OTHER}, [ONE]) for below in (0, 0x40)),
        ({FIRST: {"rsp": SP - 0x2000, "fs_base": BLOCK - 0x400}}, {BLOCK: OTHER}, [FIRST]),
        # Nobody knows whose the block is, or where the other's is.
        ({ONE: {"rsp": SP, "fs_base": BLOCK}}, {}, [ONE, OTHER]),
        ({ONE: {"rsp": SP}, OTHER: {"fs_base": 0}}, {}, [ONE, OTHER]),
        # A program gave its threads stacks out of one piece of memory; the ids are those of their namespace.
        ({OTHER: {"fs_base": ITS_BLOCK + 0x100}}, {ITS_BLOCK: 7, ITS_BLOCK + 0x100: 8}, []),
        # The other's thread pointer leads nowhere, or to the first thread's block.
        *(({ONE: {"rsp": SP - 8}, OTHER: {"fs_base": wrong}}, {}, [ONE, OTHER]) for wrong in WRONG_BLOCKS),
        *(({ONE: {"rsp": SP - 8}, OTHER: {"fs_base": wrong, **OUTSIDE}}, {}, [ONE]) for wrong in WRONG_BLOCKS),
        # Both of the first one's registers lie in a stack whose owner's thread pointer leads into the heap.
        (
            {FIRST: {"rsp": REGISTERS[ONE]["rsp"], "fs_base": ITS_BLOCK}, ONE: {"fs_base": HEAP.start + 4096}},
            {},
            [FIRST, ONE],
        ),
        # A block names the owner of a stack that the owner seems to have left.
        ({ONE: THERE, OTHER: {"fs_base": 0x1000, **OUTSIDE}}, {BLOCK: OTHER}, [ONE]),
        ({ONE: THERE, OTHER: {"fs_base": 0x1000}}, {BLOCK: OTHER}, [ONE]),
    ],
)
def test_another_thread_s_stack_is_not_walked(
    damage: dict[int, dict[str, int]], ids: dict[int, int], lost: list[int]
) -> None:
    replay = with_registers(damage, ids)
    found = frames(replay)
    for tid, functions in whole_frames().items():
        if damage.get(tid, {}).get("rsp") != OUTSIDE["rsp"]:
            assert found[tid] == ([] if tid in lost else functions)
    if len(lost) == 1 and OTHER not in damage and damage[lost[0]]["rsp"] != REGISTERS[FIRST]["rsp"]:
        assert f"in the stack of thread {OTHER}" in replay.text("dispatch-bt", "--all")


def test_the_first_thread_s_stack_is_known_by_what_the_kernel_put_there() -> None:
    """The bytes of AT_RANDOM, in a core, whose mappings have no names."""
    moved = with_registers({ONE: {"rsp": REGISTERS[FIRST]["rsp"]}}).recording
    nameless = [each._replace(path="") if each.path == "[stack]" else each for each in moved.maps]
    assert frames(Replay(NAME, moved._replace(maps=tuple(nameless))))[ONE] == []


def test_the_first_thread_of_a_child_stands_on_the_stack_of_the_thread_that_forked() -> None:
    whole = recording(NAME)
    child = whole._replace(pid=ONE, threads=tuple(each for each in whole.threads if each.tid != FIRST))
    for memory in (whole.memory, with_blocks({REGISTERS[ONE]["fs_base"]: ONE})):
        found = frames(Replay(NAME, child._replace(memory=memory)))
        assert found == {tid: whole_frames()[tid] for tid in (ONE, OTHER)}


def test_a_file_without_thread_pointers() -> None:
    whole = recording(NAME)
    registers = [{name: each.registers[name] for name in each.registers if name != "fs_base"} for each in whole.threads]
    threads = tuple(each._replace(registers=kept) for each, kept in zip(whole.threads, registers))
    assert frames(Replay(NAME, whole._replace(threads=threads))) == whole_frames()


def test_a_stack_that_is_nobody_s_may_be_a_signal_s_or_a_coroutine_s() -> None:
    """The first thread's control block is in no stack; nor is the heap."""
    assert "in the stack of" not in with_registers({ONE: {"rsp": HEAP.start + 4096}}).text("dispatch-bt", "--all")


def test_a_core_that_lacks_the_stack_of_a_thread() -> None:
    """gcore of gdb 13 writes zeros where glibc 2.43 has guard pages; that is no stack of another thread."""
    thread: Any = SimpleNamespace(tid=2, runs_on=False, registers=lambda: {"rsp": 0x7000, "fs_base": 0x9000})
    zeros, other = bytes(64), b"\1" + bytes(63)
    for stack, block, is_core in product((zeros, other, None), (zeros, other), (True, False)):
        parts: Any = SimpleNamespace(is_core=is_core, threads=lambda: [thread])
        target: Any = SimpleNamespace(origin=parts, memory=parts, architecture=ARCHITECTURE)
        memory: Any = SimpleNamespace(try_read=lambda at, _, read=(stack, block): read[at != 0x7000])
        absent = StackOwners(target, cast(Any, None), memory).is_absent(thread)
        assert absent is ((stack, block, is_core) == (zeros, zeros, True))
