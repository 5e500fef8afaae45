"""The trace without a debugger: nesting, limits, steps, hooks, and the forms it is written in."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
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
from gdbext.errors import TargetError, TargetGone, UsageError
from gdbext.live import dispatch_description as description
from gdbext.live.dispatch_description import KeptWord, LookupResult, TracedDispatch
from gdbext.live.host import HookSpec
from gdbext.tools.probes.dispatch_tracer import (
    BELOW,
    HEADER,
    OPEN,
    RECORD,
    SNAPSHOT,
    STACK_BYTES,
    THREAD_STATE,
    CallProof,
    DispatchTracer,
    SeenDispatch,
)
from gdbext.tools.probes.flame_files import FlameStacks, is_flame_file
from gdbext.tools.trace import hook_installer, nesting
from gdbext.tools.trace.hook_installer import HookInstaller, TracedOperators
from gdbext.tools.trace.nesting import Nesting
from gdbext.tools.trace.trace_output import ChromeTrace, FlameTrace, JsonTrace, TextTrace, TraceOutput, bars, json_lines
from gdbext.tools.trace.tracer import Tracer, TraceRequest
from gdbext.torch.stack import DispatchEvent, DispatchKeySet, Kernel
from gdbext.torch.stack.lookup_sites import SiteFinder
from support.fakes.fake_target import FakeTarget
from support.fakes.made_pages import DISPATCHES, MM, MM_CPU
from support.fakes.made_pages import dispatch as made
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


def find(operator: Any, event: str, bits: int) -> LookupResult:
    key = {1: "CPU", 2: "AutogradCPU"}[bits]
    kernel = Kernel("kernel", True, True, True, False), "c++", frozenset((0x5000, 0x5008)), 0x5008
    return LookupResult(DispatchEvent(event), operator.name, "", DispatchKeySet(bits, (key,)), key, bits, *kernel)


class Case:
    def __init__(self, verbose: bool = False, **limits: Any) -> None:
        self.lines: list[str] = []
        self.stack = Stack()
        sink, describer = TextTrace(lambda data: self.lines.append(data.decode()), verbose), SimpleNamespace(find=find)
        since = limits.pop("since", ())
        request = TraceRequest((), **limits)
        arguments: Any = (lambda *_: b"", request, since, lambda operator: operator.traced, lambda: 0.0)
        self.tracer = Tracer(describer, sink, self.stack.walk(), *arguments)  # type: ignore[arg-type]

    def lookup(self, name: str, cfa: int, event: str = "call", bits: int = 1, tid: int = 1, number: int = 1) -> bool:
        operator: Any = SimpleNamespace(name=name, qualified=name, address=hash(name), traced=name != "untraced")
        place = StopPlace(CODE * number + 0x10, CODE * number, CODE * number + 0x100, 64)
        return self.tracer.lookup(operator, event, tid, cfa, place, bits)

    @property
    def text(self) -> str:
        return re.sub(r", at=\[\d+\.\d{6} s\]$", "", "".join(self.lines), flags=re.MULTILINE)


def nested(case: Case, outer: int, inner: int, caller: int) -> None:
    """The frame that ends at ``inner`` returns into function number ``caller``, whose frame ends at ``outer``."""
    returns_to = CODE * caller + 0x50
    case.stack.words[inner - 8] = returns_to
    case.stack.sizes[returns_to - 1] = outer - inner


def test_a_call_from_inside_is_nested_and_others_are_not() -> None:
    case = Case()
    case.lookup("aten::mm", STACK, bits=2)
    nested(case, STACK, STACK - 0x100, 1)
    case.lookup("aten::mm", STACK - 0x100, "redispatch", 1, number=2)
    assert case.text == " [call] op=[aten::mm], key=[AutogradCPU]\n  [redispatch] op=[aten::mm], key=[CPU]\n"
    case = Case()
    for name, cfa, tid in (("a", STACK, 1), ("b", STACK, 1), ("c", STACK - 0x100, 2)):
        case.lookup(name, cfa, tid=tid)
    assert case.text == " [call] op=[a], key=[CPU]\n [call] op=[b], key=[CPU]\nthread 2\n [call] op=[c], key=[CPU]\n"
    # The walk up from a frame leads past the one that has returned, or to where other code runs by now.
    for caller, below in ((9, 0x80), (7, 0)):
        case = Case()
        case.lookup("a", STACK)
        nested(case, STACK + below, STACK - 0x100, caller)
        case.lookup("b", STACK - 0x100)
        assert case.text.splitlines()[1] == " [call] op=[b], key=[CPU]"


def test_limit_depth_thread_beginning_and_what_is_traced() -> None:
    case = Case(limit=2, depth=1, tid=1, since=(hash("a"),))
    assert [case.lookup(name, STACK) for name in ("before", "untraced", "a")] == [False] * 3
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
    for target in (0x4444, 0x5000):  # some other indirect call, and the kernel
        case.tracer.invoke(1, STACK, "kernel", target)
    case.tracer.invoked(1, STACK)
    case.tracer.returned(1, STACK)
    steps = [line.split("]")[0].strip(" [") for line in case.lines]
    assert steps == ["call", "lookup", "index", "found", "enter", "return", "return"]
    assert "unboxed" in case.lines[4]
    assert not any(case.tracer.open.values())
    case.lookup("a", STACK)
    case.tracer.invoke(1, STACK, "kernel", 0x5008)
    assert case.lines[-1].endswith("boxed\n")
    assert "unboxed" not in case.lines[-1]


def test_a_walk_without_unwind_information_or_on_a_damaged_stack_proves_nothing() -> None:
    stack = Stack()
    stack.words[STACK - 0x108] = 0x8888  # no rule there
    stack.words[STACK - 8] = 0x4242
    callers = stack.walk()
    assert callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 0x4242)) is None
    assert callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 0x4243)) is False
    stack.sizes[0x8887] = 0  # a frame that is its own caller
    assert callers.inside(CODE, STACK - 0x100, CallerCheck(STACK, CODE, CODE + 1, 0x4242)) is None


def snapshot_of(around: Sequence[tuple[int, int]], slot: int, words: dict[int, int]) -> bytes:
    """What the kernel's program sends for a dispatch whose return address is at ``slot``. ``around``: (stack address of
    the return address, return address) of each open dispatch; ``words``: the stack."""
    state = struct.pack("<QQ", len(around), 77)
    state += b"".join(OPEN.pack(at, returns, 0, 0) for at, returns in around)
    state = state.ljust(THREAD_STATE - SNAPSHOT.size - STACK_BYTES - 1, b"\0") + SNAPSHOT.pack(0, slot, 0)
    return state + b"".join(struct.pack("<Q", words.get(at, 0)) for at in range(slot - BELOW, around[0][0] + 8, 8))


def test_only_a_dispatch_whose_frame_is_on_the_unwound_stack_is_around() -> None:
    """Return addresses of finished dispatches are left in the holes of a newer frame: two of them, one inside the
    other, were taken to be around the new dispatch when only the innermost was disproved."""
    stack, slot, outer = Stack(), STACK - 0x408, (STACK - 8, 0x9000)
    stale = [(STACK - 0x108, 0x5000), (STACK - 0x208, 0x6000)]
    memory = Memory(FakeTarget({}))
    session: Any = SimpleNamespace(memory=memory, unwinder=Unwinder(memory, ModuleTable(memory.target, memory), stack))
    proof = CallProof(session, {0: CODE})
    proof.__dict__["_all_calls"] = SimpleNamespace(open_at=lambda _: None)
    stack.words = {slot: 0x7000, **dict((outer, *stale))}
    stack.sizes[0x6FFF] = 0x400  # the frame that the new one returns into ends where the outer one does
    assert proof.check(snapshot_of([outer, *stale], slot, stack.words)) == (77, 1)
    stack.sizes[0x6FFF] = 0x200  # it ends at the first stale one, and returns into the outer one
    stack.sizes[0x5FFF], stack.sizes[0x4FFF] = 0x100, 0x100
    assert proof.check(snapshot_of([outer, *stale], slot, stack.words)) == (77, 3)
    del stack.sizes[0x6FFF]  # code without call frame information
    assert proof.check(snapshot_of([outer, *stale], slot, stack.words)) == (77, None)


def dispatch(number: int, started: float, ended: float | None, depth: int = 1) -> TracedDispatch:
    found = find(SimpleNamespace(name=f"op{number}"), "call", 1)
    return TracedDispatch(number, 1, depth, found, 0, 0, (0, 0), 0, started, ended)


def test_chrome_trace_is_in_order_of_entry_and_complete() -> None:
    parts: list[bytes] = []
    trace = ChromeTrace(parts.append, 42, lambda: 99.0)
    outer, inner, last = dispatch(1, 1, None), dispatch(2, 2, None, 2), dispatch(3, 50, None)
    trace.dispatch(outer)
    trace.dispatch(inner)
    inner.ended, inner.returned, outer.ended = 5, True, 10
    trace.ended(inner)
    trace.ended(outer)
    trace.dispatch(last)
    trace.close()
    document = json.loads(b"".join(parts))
    contract_schema.check(document, "chrome_trace")
    titles = [("M", "process_name", {"name": "process 42"}), ("M", "thread_name", {"name": "1"})]
    assert [(one["ph"], one["name"], one["args"]) for one in document["traceEvents"][:2]] == titles
    events = document["traceEvents"][2:]
    assert [(one["name"], one["ts"], one["dur"]) for one in events] == [("op1", 1, 9), ("op2", 2, 3), ("op3", 50, 49)]
    assert [one["args"].get("end") for one in events] == [None, None, "not seen"]
    assert [one["args"]["returned"] for one in events] == [False, True, False]
    assert {one["pid"] for one in events} == {42}


def test_json_lines() -> None:
    documents: list[dict[str, Any]] = []
    trace, one = JsonTrace(json_lines(lambda part: documents.append(json.loads(part)))), dispatch(1, 1, 2)
    trace.entry(1, 1, "call", "op1")
    trace.dispatch(one)
    trace.step(one, "enter", "x")
    trace.ended(one)
    for document in documents:
        contract_schema.check(document, "trace_event")
    steps = [(document["step"], document.get("number")) for document in documents[1:]]
    assert (documents[0]["step"], steps) == ("entry", [("dispatch", 1), ("enter", 1), ("end", 1)])


@pytest.mark.parametrize(
    ("schema", "types", "hidden"),
    [
        ("add_.Tensor(Tensor(a!) self, *, Scalar alpha=1) -> Tensor(a!)", "Tensor self, Scalar alpha", False),
        ("sum.dim(Tensor self, int[1]? dim, bool k=False) -> Tensor", "Tensor self, int[1]? dim, bool k", True),
        ("transpose.int(Tensor(a) self, int dim0) -> Tensor(a)", "Tensor self, int dim0", True),
        ("max.dim(Tensor self, int dim) -> (Tensor values, Tensor indices)", "Tensor self, int dim", True),
        ("item(Tensor self) -> Scalar", "Tensor self", True),
        ("q_scale(Tensor self) -> float", "Tensor self", False),
        ("is_set_to(Tensor self, Tensor tensor) -> Stream", "Tensor self, Tensor tensor", None),
    ],
)
def test_what_a_schema_says_of_registers(schema: str, types: str, hidden: bool | None) -> None:
    assert ", ".join(map(" ".join, description.schema_types(f"aten::{schema}"))) == types
    assert description.hidden_result(f"aten::{schema}") is hidden


def saved(code: bytes, size: int | None = None) -> dict[str, SavedArgument]:
    """Where the arguments are at the last of these instructions, of which so many could be decoded."""
    listing = list(instructions(code, 0x1000))
    return dict(saved_arguments(ARCHITECTURE, listing[:size], listing[-1].address))


def test_arguments_are_followed_to_where_they_are_kept() -> None:
    # push rbp; mov rsp,rbp; mov rdi,-0x20(rbp); mov rsi,r12; mov rdx,rbx; mov rcx,r13; xor ebx,ebx; call; nop
    code = bytes.fromhex("55 4889e5 48897de0 4989f4 4889d3 4989cd 31db e800000000 90")
    kept = {"rdi": SavedArgument("rbp", -0x20), "rsi": SavedArgument("r12"), "rcx": SavedArgument("r13")}
    assert saved(code) == kept  # rbx is reused
    registers = {"rbp": 0x7000, "r12": 5, "r13": 6}
    values = description.register_values(ARCHITECTURE, kept, registers.__getitem__, {0x7000 - 0x20: 4}.get)
    assert values == [KeptWord(4), KeptWord(5), None, KeptWord(6), None, None]
    assert saved(code, 3) == {}


def test_a_number_of_which_only_a_part_was_kept_is_not_shown() -> None:
    schema = SimpleNamespace(text="aten::sum.dim(Tensor(a!) self, int dim, bool keepdim=False) -> Tensor(a!)")
    session: Any = SimpleNamespace(
        memory=SimpleNamespace(u64=lambda address: address, architecture=ARCHITECTURE),
        tensors=SimpleNamespace(read=lambda _: SimpleNamespace(short="f32[2] cpu")),
    )
    operator: Any = SimpleNamespace(schema=schema)
    for number, shown in ((KeptWord((1 << 64) - 1), ["dim=-1"]), (KeptWord((1 << 32) - 1, 4), [])):
        words = [KeptWord(8), number, KeptWord(0xDEAD01, 1)]
        texts = description.argument_texts(session, operator, words, 0)
        assert texts == ["self=f32[2] cpu", *shown, "keepdim=1"]


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
    top = -8 - 8 - 8 - 0x48  # the return address, two registers, the variables
    kept = {"xmm0": SavedArgument("cfa", top), "xmm1": SavedArgument("cfa", top + 8)}
    kept |= {"rsi": SavedArgument("rbp"), "rdx": SavedArgument("r14", None, 4)}
    assert saved(bytes.fromhex(SPILLS + behind)) == {name: kept[name] for name in kept.keys() - lost}


def test_calls_through_slots_and_direct_ones_are_all_found() -> None:
    """The former as -fno-plt makes them; bytes that look like one lead elsewhere, or are cut off."""
    code = bytes.fromhex("90ff15fa0f0000 ff15ffffffff ff1515000000 ff15")
    assert list(slot_calls(code, {0x1001, 0x28, 0x19})) == [(1, 0x1001), (13, 0x28)]
    generator = random.Random(5)
    for target in (1000, 299_000, -70_000, 400_000):
        text = bytearray(generator.randbytes(300_000))
        for at in generator.sample(range(0, len(text) - 5, 8), 40):
            text[at : at + 5] = b"\xe8" + struct.pack("<i", target - at - 5)
        calls = [at for at in range(len(text) - 4) if text[at] == 0xE8]
        brute = [(at, target) for at in calls if struct.unpack_from("<i", text, at + 1)[0] == target - at - 5]
        assert len(brute) >= 40
        assert sorted(found for found in direct_calls(bytes(text), [target, 777_777]) if found[1] == target) == brute


def test_a_page_appears_at_the_end_and_one_that_is_not_whole_never_and_text_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.html"
    for fails in (True, False):
        output = TraceOutput(str(path), False, False, print)
        output.sink(lambda: 200.0, 4).dispatch(DISPATCHES[0])
        with output:
            output.finish(Ending(EndingKind.FAILED, "")) if fails else None
        assert not list(tmp_path.iterdir())
    with TraceOutput(str(path), False, False, print) as output:
        sink = output.batches(lambda: 200.0, 4)
        sink.dispatch(DISPATCHES[0])
        output.flush()
        assert not path.exists()
        sink.close()
        output.flush()
        output.finish(Ending(EndingKind.INTERRUPTED, ""))
    assert path.read_text().endswith("</html>\n")
    assert [each.name for each in tmp_path.iterdir()] == ["t.html"]
    path = tmp_path / "t.txt"
    with TraceOutput(str(path), False, False, print) as output:
        output.sink(lambda: 200.0, 4).dispatch(DISPATCHES[0])
        assert path.read_text() == " [call] op=[aten::mm], key=[AutogradCPU], at=[0.000000 s]\n"
    with pytest.raises(TargetError, match="No such file"):
        TraceOutput(str(tmp_path / "none" / "t.html"), False, False, print)


NOW = 9e6


def test_time_after_the_last_inner_dispatch_is_that_of_the_one_around_it() -> None:
    """By probes: mm is followed by a second of sleep in the operator that has called it, which nobody saw return."""
    outer, first, last = (made(MM, 0.0, 1e6, 1), made(MM_CPU, 10.0, 40.0, 2), made(MM_CPU, 40.0, 1e6, 2))
    found = bars([outer, first, last], NOW)
    seen = [(bar.end / 1e3, bar.is_end_seen, bar.own / 1e3) for bar in found]
    assert seen == [(1e6, True, 999_970.0), (40.0, True, 30.0), (40.0, False, 0.0)]
    assert found[2].until == found[0].end
    last.returned, last.ended = True, 70.0
    assert [(bar.is_end_seen, bar.own / 1e3) for bar in bars([outer, first, last], NOW)][2] == (True, 30.0)
    outer.ended = 69.5  # by another reading of the clock
    assert [bar.end / 1e3 for bar in bars([outer, first, last], NOW)] == [69.5, 40.0, 69.5]


def test_a_kernel_is_inside_of_its_dispatch_and_around_what_is_inside() -> None:
    outer, inner = made(MM, 0.0, 50.0, 1), made(MM_CPU, 10.0, 40.0, 2)
    inner.returned = True
    shown = {(5.0, 45.0): (5_000, 45_000), (20.0, 30.0): (10_000, 40_000), (None, None): None}
    for times, kernel in {**shown, (5.0, None): (5_000, 50_000), (5.0, 99.0): (5_000, 50_000)}.items():
        outer.kernel_started, outer.kernel_ended = times
        assert bars([outer, inner], NOW)[0].kernel == kernel


def flame(path: str, dispatches: Sequence[TracedDispatch]) -> str:
    written: list[bytes] = []
    trace = FlameTrace(written.append, 4, lambda: NOW, lambda tid: f"worker {tid}", path.endswith(".speedscope.json"))
    for each in dispatches:
        trace.dispatch(each)
    trace.close()
    return b"".join(written).decode()


def test_stacks_for_flame_graphs() -> None:
    dispatches = [made(MM, 0.0, 10.0, 1), made(MM_CPU, 2.0, 9.0, 2), made(MM, 10.0, 12.0, 1)]
    dispatches[1].returned = True
    outer, inner = made(MM, 5.0, None, 1), made(MM_CPU, 6.0, None, 2)
    found = [(bar.start, bar.end, bar.is_end_seen) for bar in bars([outer, inner], 20.0)]
    assert found == [(5_000, 20_000, False), (6_000, 20_000, False)], "what is open at the end lasts until then"
    assert flame("x.collapsed", [outer, inner]) == ""
    assert flame("x.collapsed", dispatches) == (
        "worker 7;aten::mm [call AutogradCPU] 5000\n"
        "worker 7;aten::mm [call AutogradCPU];aten::mm [redispatch CPU] 7000\n"
    )
    document = json.loads(flame("x.speedscope.json", dispatches))
    frames = [each["name"] for each in document["shared"]["frames"]]
    assert frames == ["aten::mm [call AutogradCPU]", "aten::mm [redispatch CPU]"]
    (profile,) = document["profiles"]
    assert [profile[name] for name in ("type", "unit", "name")] == ["evented", "nanoseconds", "worker 7"]
    events = [f"{each['type']}{each['frame']} {each['at']}" for each in profile["events"]]
    assert events == ["O0 0", "O1 2000", "C1 9000", "C0 10000", "O0 10000", "C0 12000"]


def test_stacks_of_counts() -> None:
    stacks = FlameStacks()
    stacks.add(("train.py:8 (step)", "aten::mm;\n"), 3)
    stacks.add(("train.py:8 (step)", "aten::mm;\n"), 4)
    stacks.add(("idle",), 0)
    assert stacks.text() == "train.py:8 (step);aten::mm:\\x0a 7\n"
    profile = json.loads(stacks.speedscope("dispatches"))["profiles"][0]
    assert (profile["type"], profile["samples"], profile["weights"]) == ("sampled", [[0, 1], [2]], [7, 0])
    names = (None, "a.json", "a.speedscope.json", "a.folded")
    assert [is_flame_file(name) for name in names] == [False, False, True, True]


OWN = {"aten::mm": ["mm.call", "mm.redispatch"], "aten::add": ["add.call"]}
"""Operators with functions of their own; all others are reached through the dispatcher's."""


def operator(name: str) -> Any:
    return SimpleNamespace(qualified=name, name=name, address=hash(name))


class Installer(HookInstaller):
    def __init__(self, all_calls: Any, request: TraceRequest, note: Callable[[str], None]) -> None:
        self._all_calls, self._functions, self._request, self._note = all_calls, all_calls.functions, request, note
        self._session: Any = None
        self._tracer: Any = SimpleNamespace(describer=SimpleNamespace(operator=None))
        self._hooked_all_boxed = False
        self.placed: list[str] = []
        self.defined: Callable[[Any], None] = lambda _: None
        names = {
            "_hook_everything": "everything",
            "_hook_lookups": "extensions",
            "_hook_shared_lookup": "shared_lookup",
        }
        for method, name in names.items():
            setattr(self, method, lambda *_, name=name, **__: self.placed.append(name))

    def place(self, operators: TracedOperators) -> None:
        def definition_hooks(_session: Any, _functions: Any, defined: Callable[[Any], None]) -> list[HookSpec]:
            self.defined = defined
            return []

        with mock.patch.object(hook_installer, "definition_hooks", definition_hooks):
            super().place(operators)

    def _hook_function(self, function: Any) -> None:
        self.placed.append(f"{function.name}{' with entry' if self._request.verbose else ''}")

    def _hook_boxed_function(self, entry: Any, _operator_of: Any, calls: bool) -> None:
        self.placed.append(f"{entry}{' with calls' if calls else ''}")

    def _hook_structured(self, operators: list[Any]) -> None:
        self.placed += [f"structured {each.name}" for each in operators]


class Trace:
    def __init__(self, *patterns: str, known: tuple[str, ...] = (), **options: Any) -> None:
        self.notes: list[str] = []
        self.request = TraceRequest(patterns, **options)
        operators = {name: operator(name) for name in known or patterns}
        dispatcher: Any = SimpleNamespace(
            find=lambda pattern: [operators[pattern]] if pattern in operators else [],
            unknown=lambda pattern: UsageError(f"no operator {pattern!r}"),
        )
        self.operators = TracedOperators(dispatcher, self.request)
        functions: Any = SimpleNamespace(
            functions=lambda one: [SimpleNamespace(operator=one, name=name) for name in OWN.get(one.name, ())],
            boxed_entries=lambda one: [f"boxed {one.name}"],
            python_entries=lambda: ["python_kernels"],
        )
        all_calls: Any = SimpleNamespace(
            shared_lookups=lambda: ["callBoxed"],
            lookups_of_extensions=list,
            inlined_in_extensions=list,
            functions=functions,
        )
        self.installer = Installer(all_calls, self.request, self.notes.append)
        self.placed = self.installer.placed
        self.installer.place(self.operators)


def test_operators_with_and_without_functions_of_their_own() -> None:
    trace = Trace("aten::mm")
    assert trace.placed == ["mm.call", "mm.redispatch", "boxed aten::mm with calls", "extensions"]
    assert trace.notes == []
    trace = Trace("aten::add", verbose=True)
    assert trace.placed == ["add.call with entry", "boxed aten::add with calls", "structured aten::add", "extensions"]
    assert Trace(everything=True).placed == ["everything"]
    trace = Trace("aten::mm", known=("aten::mm", "aten::add"), since="aten::add")
    assert "add.call" in trace.placed
    assert not trace.operators.includes(trace.operators.since[0])
    trace = Trace("my::op")
    assert trace.placed == ["boxed my::op", "extensions", "shared_lookup", "python_kernels"]
    none = "no functions of their own in libtorch: my::op: "
    assert trace.notes == [f"{none}every boxed call of any operator stops"]
    for boxed, notes in ((False, [f"{none}they are traced only with --boxed"]), (True, [])):
        beside_others = Trace("aten::add", "my::op", boxed=boxed)
        assert (beside_others.placed.count("shared_lookup"), beside_others.notes) == (boxed, notes)


def test_operators_that_are_defined_later_and_too_many_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace("my::later", "aten::add", known=("aten::mm",))
    assert [error.what for error in trace.operators.unknown] == ["no operator 'my::later'", "no operator 'aten::add'"]
    before = list(trace.placed)
    late, wanted, other = operator("my::later"), operator("aten::add"), operator("aten::mm")
    for each in (wanted, other, late, late, wanted):
        trace.installer.defined(each)
    # those that all share are stopped at once
    assert trace.placed[len(before) :] == ["add.call", "shared_lookup", "python_kernels"]
    assert [trace.operators.includes(each) for each in (late, other)] == [True, False]
    monkeypatch.setattr(hook_installer, "FUNCTION_LIMIT", 2)
    Trace("aten::mm")
    with pytest.raises(TargetError, match="3 functions would be stopped at"):
        Trace("aten::mm", "aten::add")


BY_ITSELF, SHARED = 0, 1
PLACES: list[Any] = [
    SimpleNamespace(operator=0x1000, event=DispatchEvent.CALL, path="torch.so"),
    SimpleNamespace(operator=0, event=DispatchEvent.REDISPATCH, path="torch.so"),
]


class FakeTracer(DispatchTracer):
    def __init__(self) -> None:
        self.places = PLACES

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        for time, entry, *rest, place, depth in struct.iter_unpack("<8xQQQQQQIHH", data):
            yield SeenDispatch(time, entry or self.places[place].operator, *rest, place, depth)


def record(place: int, entry: int, keyset: int, number: int) -> bytes:
    return bytes(HEADER) + RECORD.pack(number, entry, keyset, 0x7000, 0x4000, 0, 9, place, 1)


class Process:
    """Its operators can be read as long as it is there."""

    def __init__(self) -> None:
        self.gone = False
        self.read_operators: list[int] = []
        self.target = SimpleNamespace(read=self.read)
        self.modules = SimpleNamespace(modules=())

    def read(self, _address: int, size: int) -> bytes:
        if self.gone:
            raise TargetGone("gone")
        return bytes(size)

    def operator(self, address: int) -> int:
        self.read(address, 8)
        self.read_operators.append(address)
        return address

    def find(self, operator: int, event: str, keyset: int) -> Any:
        return SimpleNamespace(qualified=f"{event} {operator:x} {keyset}", table_entry=8, table_bytes=bytes(8))


def test_what_was_looked_up_is_shown_when_the_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    monkeypatch.setattr(nesting, "Describer", lambda *_, **__: process)
    shown: list[str] = []
    sink: Any = SimpleNamespace(dispatch=lambda one: shown.append(one.lookup.qualified), ended=lambda _: None)
    operators: Any = SimpleNamespace(since=(), has=lambda _: True)
    follows = Nesting(process, operators, TraceRequest((), True), sink, 0, PLACES)  # type: ignore[arg-type]
    tracer = FakeTracer()
    data = [record(BY_ITSELF, 0, 3, 1), record(SHARED, 0x2000, 4, 2), record(BY_ITSELF, 0, 3, 3)]
    follows.look_up_kinds(tracer, b"".join(data))
    follows.look_up_kinds(tracer, data[0])
    assert sorted(process.read_operators) == [0x1000, 0x2000]
    process.gone = True
    late = record(BY_ITSELF, 0, 5, 5_000_000_000)
    follows.look_up_kinds(tracer, late)
    follows.show(tracer, b"".join([*data, record(BY_ITSELF, 0, 3, 4_000_000_000), late]))
    assert shown == ["call 1000 3", "redispatch 2000 4", "call 1000 3", "call 1000 3"]
    assert follows.unread == 1


@pytest.mark.parametrize(
    ("code", "found"),
    [
        # functionalizeFallback of torch 2.9: mov %r15,%rax; shr $16,%rax; mov -8(%rbp),%rsi; lea 0xf8(%rsi,%rax),%rbx
        ("4c89f8 48c1e810 488b75f8 488d9c06f8000000", [(3, "r15", "rsi")]),
        # the keyset's register is overwritten before: xor %r15d,%r15d
        ("4c89f8 48c1e810 4531ff 488d9c06f8000000", []),
    ],
)
def test_a_lookup_whose_operator_comes_from_memory_is_seen_at_the_table(code: str, found: object) -> None:
    assert finder()._at_access(decoded(code), 1, "rax") == found


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        # functionalize_op_helper: nop; lea 0xf8(%rbx,%rax),%rdx; mov 8(%rdx),%r8; mov (%rdx),%rdi; mov $0x18000,%edx
        ("90 488d9403f8000000 4c8b4208 488b3a ba00800100 41ffd0", ("", 0x18000)),
        # lift_fresh_functionalize_copy: the functor is the second argument: mov (%r14),%rsi; mov $0x40000000,%edx
        ("90 4d8db405f8000000 498b4610 498b36 ba00000040 ffd0", ("", 0x40000000)),
        # ts_eager_fallback: mov %r12,%rdx
        ("90 488d9405f8000000 4c8b4208 488b3a 4c89e2 41ffd0", ("r12", 0)),
        ("90 488d9403f8000000 4c8b4208 488b3a 488b55f0 41ffd0", ("", 0)),
    ],
)
def test_a_keyset_that_is_not_shifted_is_the_one_that_is_passed(code: str, passed: object) -> None:
    assert finder()._passed_keyset(decoded(code)) == passed


def finder() -> SiteFinder:
    found = SiteFinder.__new__(SiteFinder)
    found._architecture, found._table, found.shift = ARCHITECTURE, range(0xF8, 0xF8 + 40), 16
    return found


def decoded(code: str) -> Any:
    return list(ARCHITECTURE.decode(bytes.fromhex(code), CODE))
