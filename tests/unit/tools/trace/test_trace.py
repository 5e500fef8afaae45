"""The trace without a debugger: nesting, limits, steps, and the forms it is written in."""

from __future__ import annotations

import json
import random
import re
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.arch.x86_64.patterns import direct_calls, slot_calls
from gdbext.engine.formats.cfi_program import OFFSET, CfiRow, Rule
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.unwind import Unwinder
from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk, StopPlace
from gdbext.engine.unwind.frame_steps import FrameStep, FrameSteps
from gdbext.engine.unwind.unwind_row import compile_row
from gdbext.live.dispatch_description import (
    KeptWord,
    LookupResult,
    TracedDispatch,
    argument_texts,
    hidden_result,
    register_values,
    schema_types,
)
from gdbext.tools.trace.chrome_trace import ChromeTrace, JsonTrace, json_lines
from gdbext.tools.trace.trace_output import TextTrace
from gdbext.tools.trace.tracer import Limits, Tracer
from support.fakes.fake_target import FakeTarget
from support.source import contract_schema

CODE = 0x1000
"""Where the traced functions' code is; each is 0x100 bytes long."""
STACK = 0x7000


class Stack(FrameSteps):
    """A stack in which frames can be put: its words, and the size of the frame at each code address."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.code = None  # type: ignore[assignment]

    def walk(self) -> CallerWalk:
        memory = Memory(FakeTarget({}))
        unwinder = Unwinder(memory, ModuleTable(memory.target, memory), self)
        return CallerWalk(ARCHITECTURE, unwinder, self.read, lambda: 0)

    def read(self, address: int, size: int) -> bytes:
        return b"".join(struct.pack("<Q", self.words.get(at, 0)) for at in range(address, address + size, 8))

    def at(self, pc: int, exact: bool) -> FrameStep:
        lookup = pc if exact else pc - 1
        if lookup not in self.sizes:
            return FrameStep(lookup, None, None, "no CFI", True)
        stack_pointer = ARCHITECTURE.dwarf_registers.index(ARCHITECTURE.stack_pointer)
        column = ARCHITECTURE.return_column
        row = CfiRow(stack_pointer, self.sizes[lookup], None, {column: Rule(OFFSET, -8)}, column, False)
        return FrameStep(lookup, None, compile_row(ARCHITECTURE, row), "", True)


class Describer:
    """Finds the same kernel for everything."""

    def find(self, operator: Any, event: str, bits: int) -> LookupResult:
        key = {1: "CPU", 2: "AutogradCPU"}[bits]
        functions = frozenset((0x5000, 0x5008))
        kernel = ("kernel", "c++", True, True, True, False, functions, 0x5008)
        return LookupResult(event, operator.name, "", bits, (key,), key, bits, *kernel)


class Case:
    """A tracer that writes text into ``lines``."""

    def __init__(self, **limits: Any) -> None:
        self.lines: list[str] = []
        self.stack = Stack()
        self.sink = TextTrace(lambda data: self.lines.append(data.decode()), verbose=limits.pop("verbose", False))
        describer: Any = Describer()
        arguments = (lambda *_: b"", Limits(**limits), lambda operator: operator.traced)
        self.tracer = Tracer(describer, self.sink, self.stack.walk(), *arguments)

    def lookup(self, name: str, cfa: int, event: str = "call", bits: int = 1, tid: int = 1, number: int = 1) -> bool:
        operator: Any = SimpleNamespace(name=name, qualified=name, address=hash(name), traced=name != "untraced")
        place = StopPlace(CODE * number + 0x10, CODE * number, CODE * number + 0x100, 64)
        return self.tracer.lookup(operator, event, tid, cfa, place, bits)

    @property
    def text(self) -> str:
        """The lines, without their times."""
        return re.sub(r", at=\[\d+\.\d{6} s\]$", "", "".join(self.lines), flags=re.MULTILINE)


def nested(case: Case, outer: int, inner: int, caller: int) -> None:
    """The frame that ends at ``inner`` returns into function number ``caller``, whose frame ends at ``outer``."""
    returns_to = CODE * caller + 0x50
    case.stack.words[inner - 8] = returns_to
    case.stack.sizes[returns_to - 1] = outer - inner


def test_a_call_from_inside_is_nested() -> None:
    case = Case()
    case.lookup("aten::mm", STACK, bits=2)
    nested(case, STACK, STACK - 0x100, 1)
    case.lookup("aten::mm", STACK - 0x100, "redispatch", 1, number=2)
    assert case.text == " [call] op=[aten::mm], key=[AutogradCPU]\n  [redispatch] op=[aten::mm], key=[CPU]\n"


def test_a_deeper_call_by_another_route_is_not() -> None:
    """The walk up from its frame leads past the one that has returned, or to where other code runs by now."""
    case = Case()
    case.lookup("a", STACK)
    returns_to = 0x9050
    case.stack.words[STACK - 0x108] = returns_to
    case.stack.sizes[returns_to - 1] = 0x180
    case.lookup("b", STACK - 0x100)
    assert case.text.splitlines()[1] == " [call] op=[b], key=[CPU]"
    case = Case()
    case.lookup("a", STACK)
    nested(case, STACK, STACK - 0x100, 7)
    case.lookup("b", STACK - 0x100)
    assert case.text.splitlines()[1] == " [call] op=[b], key=[CPU]"


def test_calls_on_one_level_and_of_other_threads_are_not_nested() -> None:
    case = Case()
    case.lookup("a", STACK, tid=1)
    case.lookup("b", STACK, tid=1)
    case.lookup("c", STACK - 0x100, tid=2)
    assert case.text == " [call] op=[a], key=[CPU]\n [call] op=[b], key=[CPU]\nthread 2\n [call] op=[c], key=[CPU]\n"


def test_limit_depth_thread_beginning_and_what_is_traced() -> None:
    case = Case(events=2, depth=1, tid=1, since=(hash("a"),))
    assert not case.lookup("before", STACK)
    assert not case.lookup("untraced", STACK)
    assert not case.lookup("a", STACK)
    nested(case, STACK, STACK - 0x100, 1)
    assert not case.lookup("b", STACK - 0x100)
    assert not case.lookup("c", STACK, tid=2)
    assert case.lookup("d", STACK + 0x100)
    assert case.lookup("e", STACK + 0x100), "after the limit nothing is counted"
    assert case.tracer.count == 2
    assert case.text == " [call] op=[a], key=[CPU]\n [call] op=[d], key=[CPU]\n"


def test_steps_of_a_dispatch() -> None:
    case = Case(verbose=True)
    case.lookup("a", STACK)
    case.tracer.invoke(1, STACK, "kernel", 0x4444)  # some other indirect call
    case.tracer.invoke(1, STACK, "kernel", 0x5000)
    case.tracer.invoked(1, STACK)
    case.tracer.returned(1, STACK)
    steps = [line.split("]")[0].strip(" [") for line in case.lines]
    assert steps == ["call", "lookup", "index", "found", "enter", "return", "return"]
    assert "unboxed" in case.lines[4]
    assert not case.tracer.depth.threads()
    case.lookup("a", STACK)
    case.tracer.invoke(1, STACK, "kernel", 0x5008)
    assert case.lines[-1].endswith("boxed\n")
    assert "unboxed" not in case.lines[-1]


def test_a_walk_without_unwind_information_trusts_the_return_address_and_ends_on_a_damaged_stack() -> None:
    stack = Stack()
    stack.words[STACK - 0x108] = 0x8888  # no rule there
    stack.words[STACK - 8] = 0x4242
    callers = stack.walk()
    assert callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 0x4242))
    assert not callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 0x4243))
    stack.sizes[0x8887] = 0  # a frame that is its own caller
    assert not callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 1))


def dispatch(number: int, started: float, ended: float | None, depth: int = 1) -> TracedDispatch:
    found = Describer().find(SimpleNamespace(name=f"op{number}"), "call", 1)
    return TracedDispatch(found, 1, depth, 0, 0, (0, 0), 0, started, ended, number=number)


def test_chrome_trace_is_in_order_of_entry_and_complete() -> None:
    parts: list[bytes] = []
    trace = ChromeTrace(parts.append, 42, lambda: 99.0)
    outer, inner, last = dispatch(1, 1, None), dispatch(2, 2, None, 2), dispatch(3, 50, None)
    trace.dispatch(outer)
    trace.dispatch(inner)
    inner.ended, inner.returned = 5, True
    trace.ended(inner)
    outer.ended = 10
    trace.ended(outer)
    trace.dispatch(last)
    trace.close()
    document = json.loads(b"".join(parts))
    contract_schema.check(document, "chrome_trace")
    events = document["traceEvents"]
    names, events = events[:2], events[2:]
    titles = [("M", "process_name", {"name": "process 42"}), ("M", "thread_name", {"name": "1"})]
    assert [(one["ph"], one["name"], one["args"]) for one in names] == titles
    assert [(one["name"], one["ts"], one["dur"]) for one in events] == [("op1", 1, 9), ("op2", 2, 3), ("op3", 50, 49)]
    assert [one["args"].get("end") for one in events] == [None, None, "not seen"]
    assert [one["args"]["returned"] for one in events] == [False, True, False]
    assert {one["pid"] for one in events} == {42}


def test_json_lines() -> None:
    parts: list[bytes] = []
    trace = JsonTrace(json_lines(parts.append))
    one = dispatch(1, 1, 2)
    trace.entry(1, 1, "call", "op1")
    trace.dispatch(one)
    trace.step(one, "enter", "x")
    trace.ended(one)
    documents = [json.loads(part) for part in parts]
    for document in documents:
        contract_schema.check(document, "trace_event")
    assert [document["step"] for document in documents] == ["entry", "dispatch", "enter", "end"]
    assert {document["number"] for document in documents[1:]} == {1}


@pytest.mark.parametrize(
    ("schema", "types", "hidden"),
    [
        ("add_.Tensor(Tensor(a!) self, *, Scalar alpha=1) -> Tensor(a!)", "Tensor self, Scalar alpha", False),
        (
            "sum.dim(Tensor self, int[1]? dim, bool keepdim=False) -> Tensor",
            "Tensor self, int[1]? dim, bool keepdim",
            True,
        ),
        ("transpose.int(Tensor(a) self, int dim0) -> Tensor(a)", "Tensor self, int dim0", True),
        ("max.dim(Tensor self, int dim) -> (Tensor values, Tensor indices)", "Tensor self, int dim", True),
        ("item(Tensor self) -> Scalar", "Tensor self", True),
        ("q_scale(Tensor self) -> float", "Tensor self", False),
        ("is_set_to(Tensor self, Tensor tensor) -> Stream", "Tensor self, Tensor tensor", None),
    ],
)
def test_what_a_schema_says_of_registers(schema: str, types: str, hidden: bool | None) -> None:
    assert ", ".join(map(" ".join, schema_types(f"aten::{schema}"))) == types
    assert hidden_result(f"aten::{schema}") is hidden


def test_arguments_are_followed_to_where_they_are_kept() -> None:
    # push rbp; mov rsp,rbp; mov rdi,-0x20(rbp); mov rsi,r12; mov rdx,rbx; mov rcx,r13; xor ebx,ebx; call; nop
    code = bytes.fromhex("55 4889e5 48897de0 4989f4 4889d3 4989cd 31db e800000000 90")
    listing = list(instructions(code, 0x1000))
    found = saved_arguments(ARCHITECTURE, listing, listing[-1].address)
    kept = {"rdi": SavedArgument("rbp", -0x20), "rsi": SavedArgument("r12"), "rcx": SavedArgument("r13")}
    assert found == kept  # rbx is reused
    registers = {"rbp": 0x7000, "r12": 5, "r13": 6}
    values = register_values(ARCHITECTURE, found, registers.__getitem__, {0x7000 - 0x20: 4}.get)
    assert values == [KeptWord(4), KeptWord(5), None, KeptWord(6), None, None]
    assert saved_arguments(ARCHITECTURE, listing[:3], listing[-1].address) == {}  # what follows could not be decoded


def test_a_number_of_which_only_a_part_was_kept_is_not_shown() -> None:
    schema = SimpleNamespace(text="aten::sum.dim(Tensor(a!) self, int dim, bool keepdim=False) -> Tensor(a!)")
    session: Any = SimpleNamespace(
        memory=SimpleNamespace(u64=lambda address: address, architecture=ARCHITECTURE),
        tensors=SimpleNamespace(read=lambda _: SimpleNamespace(short="f32[2] cpu")),
    )
    texts = [
        argument_texts(session, SimpleNamespace(schema=schema), [KeptWord(8), number, KeptWord(0xDEAD01, 1)], 0)  # type: ignore[arg-type]
        for number in (KeptWord((1 << 64) - 1), KeptWord((1 << 32) - 1, 4))
    ]
    assert texts == [["self=f32[2] cpu", "dim=-1", "keepdim=1"], ["self=f32[2] cpu", "keepdim=1"]]


SPILLS = "4156 4189d6 55 4889f5 4883ec48 f20f110424 f20f114c2408 e800000000"
"""push r14; mov edx,r14d; push rbp; mov rsi,rbp; sub $0x48,rsp; movsd xmm0,(rsp); movsd xmm1,8(rsp); call"""


@pytest.mark.parametrize(
    ("behind", "lost"),
    [
        ("90", set()),
        ("f20f114424 04 90", {"xmm0", "xmm1"}),  # movsd xmm0,4(rsp) is over both of them
        ("6a00 f20f11442410 4883c408 90", {"xmm1"}),  # push $0; movsd xmm0,16(rsp); add $8,rsp
        ("4883e4f0 48890424 90", {"xmm0", "xmm1"}),  # and $-16,rsp; mov rax,(rsp): nobody knows where
    ],
)
def test_arguments_are_followed_to_places_below_the_stack_pointer(behind: str, lost: set[str]) -> None:
    listing = list(instructions(bytes.fromhex(SPILLS + behind), 0x1000))
    found = saved_arguments(ARCHITECTURE, listing, listing[-1].address)
    top = -8 - 8 - 8 - 0x48  # the return address, two registers, the variables
    kept = {"xmm0": SavedArgument("cfa", top), "xmm1": SavedArgument("cfa", top + 8)}
    others = {"rsi": SavedArgument("rbp"), "rdx": SavedArgument("r14", None, 4)}
    assert found == {**others, **{name: holder for name, holder in kept.items() if name not in lost}}


@pytest.mark.parametrize(
    ("between", "kept"),
    [
        ("", {"xmm1": SavedArgument("rbp", -0x30), "r9": SavedArgument("rbp", -0x49, 1)}),
        ("c3", {}),  # ret: what follows is jumped to, by whom is not known
        ("e800000000", {}),
        ("88c8", {"xmm1": SavedArgument("rbp", -0x30), "rcx": SavedArgument("rbp", -0x49, 1)}),  # mov cl,al
        ("88e0", {"xmm1": SavedArgument("rbp", -0x30)}),  # mov ah,al
    ],
)
def test_arguments_are_followed_through_copies(between: str, kept: dict[str, SavedArgument]) -> None:
    """As g++ keeps optionals that have a floating-point number, and bools, without optimisation. clang copies bytes."""
    # push rbp; mov rsp,rbp; movapd xmm1,xmm0; mov r9d,eax; …; movsd xmm0,-0x30(rbp); mov al,-0x49(rbp); xor r9d,r9d;
    # xorps xmm1,xmm1; nop
    code = f"55 4889e5 660f28c1 4489c8 {between} f20f1145d0 8845b7 4531c9 0f57c9 90"
    listing = list(instructions(bytes.fromhex(code), 0x1000))
    found = saved_arguments(ARCHITECTURE, listing, listing[-1].address)
    names = ("xmm0", "xmm1", "r9", "rcx") if "c8" in between else ("xmm0", "xmm1", "r9")
    assert {name: holder for name, holder in found.items() if name in names} == kept


def test_calls_through_slots() -> None:
    """As -fno-plt makes them; bytes that look like one lead elsewhere, or are cut off."""
    code = bytes.fromhex("90ff15fa0f0000 ff15ffffffff ff1515000000 ff15")
    assert list(slot_calls(code, {0x1001, 0x28, 0x19})) == [(1, 0x1001), (13, 0x28)]


def test_direct_calls_are_all_found() -> None:
    generator = random.Random(5)
    code = bytearray(generator.randbytes(300_000))
    for target in (1000, 299_000, -70_000, 400_000):
        places = sorted(generator.sample(range(0, len(code) - 5, 8), 40))
        text = bytearray(code)
        for at in places:
            text[at : at + 5] = b"\xe8" + struct.pack("<i", target - at - 5)
        found = [at for at, called in direct_calls(bytes(text), [target, 777_777]) if called == target]
        calls = [at for at in range(len(text) - 4) if text[at] == 0xE8]
        brute = [at for at in calls if struct.unpack_from("<i", text, at + 1)[0] == target - at - 5]
        assert sorted(found) == brute
        assert len(found) == len(set(found))
        assert set(places) <= set(found)
