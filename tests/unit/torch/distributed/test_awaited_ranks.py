"""The tables of gloo's pairs in a fake memory: the process at the other end of a transfer."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.torch.distributed.awaited_ranks import Transfer, own_worker, waiting_transfer, worker_that_owes
from gdbext.torch.values.containers import StringReader
from support.fakes.fake_target import FakeTarget

BUFFER, CONTEXT, VECTOR, PAIRS, NODES, BLOCKS, BUCKETS = (0x100000 * number for number in range(1, 8))
CONDITION = 0x70
"""Offset of the condition variable in a buffer."""
TABLE = 0x1A8
"""Offset of a table in a pair."""
ELEMENT, BLOCK = 32, 512
CLASSES = {BUFFER: "UnboundBuffer", CONTEXT: "Context", **dict.fromkeys(range(PAIRS, PAIRS + 0x3000, 0x1000), "Pair")}


def class_of(address: int) -> str:
    name = CLASSES.get(address)
    return f"gloo::transport::tcp::{name}" if name else ""


def words(size: int, **at: int) -> bytearray:
    raw = bytearray(size)
    for offset, value in at.items():
        struct.pack_into("<Q", raw, int(offset[1:]), value)
    return raw


def memory(before: int, tag: int, elements: int = 1, in_pair: int = 2) -> Memory:
    """Rank 0 of 3, whose buffer waits in the table of a pair behind ``before`` other transfers of that tag."""
    buffer = words(0x1000, _24=CONTEXT)
    context = words(0x1000, _64=VECTOR, _72=VECTOR + 24, _80=VECTOR + 24)
    struct.pack_into("<2i", context, 8, 0, 3)
    pairs = bytearray(0x4000)
    table = struct.pack("<4QI4xQQ", BUCKETS, 13, NODES, elements, 0x3F800000, 13, 0)
    pairs[0x1000 * in_pair + TABLE : 0x1000 * in_pair + TABLE + len(table)] = table
    blocks = bytearray(0x2000)
    for number in range(before + 1):
        block, place = divmod(number, BLOCK // ELEMENT)
        pointer = BUFFER if number == before else 0x900000
        struct.pack_into("<4Q", blocks, block * BLOCK + place * ELEMENT, 16, 0, pointer, 0x900100)
    last = BLOCKS + (before + 1) // (BLOCK // ELEMENT) * BLOCK
    end = BLOCKS + (before + 1) * ELEMENT
    index = BLOCKS + 0x1000
    for number in range(8):
        struct.pack_into("<Q", blocks, 0x1000 + 8 * number, BLOCKS + number * BLOCK)
    deque = (index, 8, BLOCKS, BLOCKS, BLOCKS + BLOCK, index, end, last, last + BLOCK)
    node = struct.pack("<12Q", 0, tag, *deque, index + 8 * ((last - BLOCKS) // BLOCK))
    regions = {
        BUFFER: bytes(buffer),
        CONTEXT: bytes(context),
        VECTOR: struct.pack("<3Q", 0, PAIRS + 0x1000, PAIRS + 0x2000).ljust(0x1000, b"\0"),
        PAIRS: bytes(pairs),
        NODES: node.ljust(0x1000, b"\0"),
        BLOCKS: bytes(blocks),
    }
    return Memory(FakeTarget(regions))


@pytest.mark.parametrize("before", [0, 15, 16, 40])
def test_the_other_end_is_the_rank_whose_pair_has_the_buffer(before: int) -> None:
    found = waiting_transfer(memory(before, 7), class_of, BUFFER + CONDITION + 8)
    assert found == Transfer(rank=0, size=3, peer=2, tag=7)


def test_what_is_no_transfer() -> None:
    """A number of gloo's own is no tag; a table that does not end where its header says; a futex in no buffer."""
    assert waiting_transfer(memory(0, 5 << 56), class_of, BUFFER + CONDITION) is None
    assert waiting_transfer(memory(0, 7, elements=2), class_of, BUFFER + CONDITION) is None
    assert waiting_transfer(memory(0, 7), class_of, CONTEXT + 0x10) is None


POINTER, AGENT, PIPES, HOLDER, PENDING, CALLBACKS, CLOSURE, FUTURE = (0x100000 * number for number in range(16, 24))
FUTURE_CLASS = "c10::ivalue::Future"


def future_class_of(address: int) -> str:
    return FUTURE_CLASS if address in (PENDING, FUTURE) else ""


def agent(block: int = 0x40, elements: int = 1, messages: int = 1) -> Memory:
    """An agent that waits for worker 3's answer, whose future completes another one by a callback with a closure."""
    pipes = words(0x1000, _0=0, _8=0xABCD0003)
    pipes[88:144] = struct.pack("<4QI4xQQ", BUCKETS, 13, PIPES + 0x800, messages, 0x3F800000, 13, 0)
    struct.pack_into("<4Q", pipes, 0x800, 0, 77, HOLDER, HOLDER)
    table = struct.pack("<4QI4xQQ", BUCKETS, 13, PIPES, elements, 0x3F800000, 13, 0)
    regions = {
        POINTER: bytes(words(0x1000, _0=AGENT)),
        AGENT: (bytes(0x200) + table).ljust(0x1000, b"\0"),
        PIPES: bytes(pipes),
        HOLDER: bytes(words(0x1000, _8=PENDING)),
        PENDING: bytes(words(0x1000, _160=CALLBACKS, _168=CALLBACKS + 40, _176=CALLBACKS + 80)),
        CALLBACKS: bytes(words(0x1000, _0=CLOSURE + 16)),
        CLOSURE: bytes(words(0x1000, _8=block | 1, _64=FUTURE)),
        FUTURE: bytes(0x1000),
    }
    return Memory(FakeTarget(regions))


def test_a_future_is_completed_by_the_worker_whose_answer_is_waited_for() -> None:
    """Not by what is behind the closure, nor by a torn table of workers or of messages; and only a future is."""
    for future in (PENDING, FUTURE):
        assert worker_that_owes(agent(), future_class_of, POINTER, future + CONDITION) == 3
    for torn in (agent(block=0x20), agent(elements=2), agent(messages=2)):
        assert worker_that_owes(torn, future_class_of, POINTER, FUTURE + CONDITION) is None
    assert worker_that_owes(agent(), future_class_of, POINTER, AGENT + CONDITION) is None


def string(address: int, text: str) -> bytes:
    return struct.pack("<QQ16s", address + 16, len(text), text.encode())


def info(address: int, text: str, number: int) -> bytes:
    return bytes(24) + string(address + 24, text) + struct.pack("<h", number)


def rpc_agent(own: tuple[str, int], workers: tuple[tuple[str, int], ...], elements: int) -> Memory:
    table = struct.pack("<4QI4xQQ", BUCKETS, 13, PIPES, elements, 0x3F800000, 13, 0)
    nodes = bytearray(0x1000)
    for index, (name, number) in enumerate(workers):
        at = 0x100 * index
        following = PIPES + at + 0x100 if index + 1 < len(workers) else 0
        node = struct.pack("<Q", following) + string(PIPES + at + 8, name) + info(PIPES + at + 40, name, number)
        nodes[at : at + len(node)] = node
    head = bytes(8) + info(AGENT + 8, *own)
    regions = {
        POINTER: bytes(words(0x1000, _0=AGENT)),
        AGENT: (head.ljust(0x200, b"\0") + table).ljust(0x1000, b"\0"),
        PIPES: bytes(nodes),
    }
    return Memory(FakeTarget(regions))


WORKERS = (("worker0", 0), ("worker1", 1), ("ps", 2))


def test_which_worker_this_process_is_say_agent_and_table() -> None:
    def own(name: str, number: int, elements: int = 3) -> tuple[int, int] | None:
        memory = rpc_agent((name, number), WORKERS, elements)
        return own_worker(memory, StringReader(memory), POINTER)

    assert (own("worker0", 0), own("ps", 2)) == ((0, 3), (2, 3))
    for name, number in (("worker0", 1), ("worker9", 0), ("", 0)):  # not in the table so, or without name
        assert own(name, number) is None
    assert own("worker0", 0, elements=2) is own("worker0", 0, elements=4) is None
