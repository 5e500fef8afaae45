"""dispatch-bt --args where a thread has just been stopped at an operator's first instruction."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.engine.arch import Slot
from gdbext.engine.process.memory import Memory
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.stack.call_arguments import SavedArguments
from support.fakes.fake_target import FakeTarget
from support.recorded.recordings import Replay

MATMUL = "_ZN2at4_ops6matmul4callERKNS_6TensorES4_"
START, CFA = 0x401000, 0x7FFE00001000


def kept(pc: int, level: int = 0) -> SavedArguments:
    """Of a function at START, whose frame is at ``pc``; the first floating-point register holds 0.25."""
    memory = Memory(FakeTarget({CFA: struct.pack("<2Q", 11, 12).ljust(4096, b"\0")}))
    (quarter,) = struct.unpack("<Q", struct.pack("<d", 0.25))
    name, first = memory.architecture.float_argument_registers[0], memory.architecture.argument_registers[0]
    frame = SimpleNamespace(pc=pc, cfa=CFA, registers={first: 7})
    stack: Any = SimpleNamespace(frames=[frame] * (level + 1), floats=lambda: {name: quarter})
    code: Any = SimpleNamespace(of=lambda _: SimpleNamespace(instructions=()))
    return SavedArguments(memory, code, stack, level, SimpleNamespace(start=START))  # type: ignore[arg-type]


def test_registers_hold_what_was_passed() -> None:
    cfa_rule_at_entry, slots = kept(START), (Slot(register=0), Slot(float_register=0))
    assert [cfa_rule_at_entry.argument_word(slot, 8) for slot in slots] == [7, 0x3FD0000000000000]
    assert cfa_rule_at_entry.argument_word(Slot(register=1), 8) is None  # its value is not known
    assert cfa_rule_at_entry.argument_word(Slot(offset=8), 8) == 12
    assert kept(START, level=1).argument_word(slots[1], 8) is None  # of the innermost frame only
    assert [kept(START + 40).argument_word(slot, 8) for slot in slots] == [None, None]


def entered(hung: Replay, opener: str) -> Session:
    """The process when ``opener`` had just been called: it still keeps what its argument registers held."""
    session, architecture = hung.session, hung.session.target.architecture
    stack = session.stacks.of(session.target.memory.threads()[0])
    functions = ((level, stack.function(level)) for level in range(len(stack)))
    level, function = next((level, each) for level, each in functions if each is not None and opener in each.names)
    keeper = SavedArguments(session.memory, session.dispatch_stacks.code, stack, level, function)
    passed = [keeper.argument_word(Slot(register=number), 8) for number in range(3)]
    registers = dict.fromkeys(architecture.general_registers, 0) | dict(stack.frames[level + 1].registers)
    registers |= {name: word for name, word in zip(architecture.argument_registers, passed) if word is not None}
    registers |= {architecture.program_counter: function.start, architecture.stack_pointer: stack.frames[level].cfa - 8}
    recorded = hung.recording.threads[0]._replace(registers=registers)
    return Session(ReplayTarget(hung.recording._replace(threads=(recorded,))))


def test_arguments_in_registers(replay: Callable[[str], Replay]) -> None:
    session = entered(replay("meta-mm"), MATMUL)
    frame = ArgumentReporter(session).frames(session.stacks.of(session.target.memory.threads()[0]))[0]
    assert (frame.qualified, frame.level) == ("aten::matmul", 0)
    found = [(argument.name, argument.text, argument.confidence) for argument in frame.arguments]
    exact = Certainty.EXACT
    assert found == [("self", "f32[2, 4, 16] meta", exact), ("other", "f32[16, 8] meta", exact)]
