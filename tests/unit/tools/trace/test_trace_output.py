"""What a trace writes and places: bars, pages, hooks, and what was read before its process is gone."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.errors import TargetError, TargetGone, UsageError
from gdbext.live.dispatch_description import TracedDispatch
from gdbext.tools.probes.bpf.trace_program import HEADER, RECORD
from gdbext.tools.probes.dispatch_tracer import DispatchTracer, SeenDispatch
from gdbext.tools.probes.flame_files import FlameStacks, is_flame_file
from gdbext.tools.trace import hook_installer, nesting
from gdbext.tools.trace.chrome_trace import ChromeTrace
from gdbext.tools.trace.hook_installer import TracedOperators, TraceHooks, TraceRequest
from gdbext.tools.trace.nesting import Nesting
from gdbext.tools.trace.trace_bars import FlameTrace, bars
from gdbext.tools.trace.trace_output import TraceOutput
from gdbext.torch.stack import DispatchEvent
from support.fakes.made_pages import DISPATCHES, MM, MM_CPU, dispatch


def test_a_page_appears_at_the_end_and_one_that_is_not_whole_never(tmp_path: Path) -> None:
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


def test_text_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    with TraceOutput(str(path), False, False, print) as output:
        output.sink(lambda: 200.0, 4).dispatch(DISPATCHES[0])
        assert path.read_text() == " [call] op=[aten::mm], key=[AutogradCPU], at=[0.000000 s]\n"
    with pytest.raises(TargetError, match="No such file"):
        TraceOutput(str(tmp_path / "none" / "t.html"), False, False, print)


NOW = 9e6


def random_trace(count: int) -> Iterator[tuple[TracedDispatch, list[TracedDispatch]]]:
    """Dispatches of three threads with those that end before each, by clocks that are read twice: what is inside ends a
    little after what is around it, or at once, and much begins in the same nanosecond."""
    numbers = random.Random(1)
    clocks, open_now = dict.fromkeys((7, 8, 9), 0.0), {tid: [] for tid in (7, 8, 9)}  # type: ignore[var-annotated]
    for _ in range(count):
        tid = numbers.choice((7, 8, 9))
        clocks[tid] += numbers.choice((0.0, 0.0004, 0.001, 0.0496, 0.3, 20.0)) + numbers.random() / 7
        level = numbers.randint(1, len(open_now[tid]) + 1)
        ended = [open_now[tid].pop() for _ in range(len(open_now[tid]) - level + 1)]
        for each in ended:
            each.ended = clocks[tid] + numbers.choice((-0.05, -0.001, 0.0, 0.0006, 0.05))
            each.returned = numbers.random() < 0.5
        new = dispatch(MM if level % 2 else MM_CPU, clocks[tid], None, level, tid)
        if numbers.random() < 0.5:
            new.kernel_started = clocks[tid] + numbers.choice((0.0, 0.05))
            new.kernel_ended = numbers.choice((None, clocks[tid] + 30.0))
        open_now[tid].append(new)
        yield new, ended


def dropped(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The complete events that Perfetto drops: those that begin inside of one of their track and end after it
    (SliceTracker::Scoped and StartSlice, slice_drop_overlapping_complete_event), its times cut to nanoseconds."""
    found = []
    tracks: dict[tuple[int, int], list[int]] = {}
    for event in sorted(events, key=lambda each: int(each["ts"] * 1000)):
        start = int(event["ts"] * 1000)
        end = start + int(event["dur"] * 1000)
        open_now = tracks.setdefault((event["pid"], event["tid"]), [])
        while open_now and open_now[-1] <= start and not (open_now[-1] == start == end):
            open_now.pop()
        if open_now and end > open_now[-1]:
            found.append(event)
        else:
            open_now.append(end)
    return found


def test_perfetto_drops_none_of_three_thousand() -> None:
    written: list[bytes] = []
    trace = ChromeTrace(written.append, 4, lambda: NOW, lambda tid: f"worker {tid}")
    for new, ended in random_trace(3_000):
        for each in ended:
            trace.ended(each)
        trace.dispatch(new)
    trace.close()
    events = json.loads(b"".join(written))["traceEvents"]
    complete = [each for each in events if each["ph"] == "X"]
    assert sum(each["cat"] != "kernel" for each in complete) == 3_000
    assert len(complete) > 4_000
    assert dropped(complete) == []
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names == {"process 4", "worker 7", "worker 8", "worker 9"}


def test_time_after_the_last_inner_dispatch_is_that_of_the_one_around_it() -> None:
    """By probes: mm is followed by a second of sleep in the operator that has called it, which nobody saw return."""
    outer, first, last = dispatch(MM, 0.0, 1e6, 1), dispatch(MM_CPU, 10.0, 40.0, 2), dispatch(MM_CPU, 40.0, 1e6, 2)
    found = bars([outer, first, last], NOW)
    assert [(bar.end / 1e3, bar.is_end_seen, bar.own / 1e3) for bar in found] == [
        (1e6, True, 999_970.0),
        (40.0, True, 30.0),
        (40.0, False, 0.0),
    ]
    assert found[2].until == found[0].end
    last.returned, last.ended = True, 70.0
    assert [(bar.is_end_seen, bar.own / 1e3) for bar in bars([outer, first, last], NOW)][2] == (True, 30.0)


def test_what_is_open_at_the_end_lasts_until_then_and_counts_nowhere() -> None:
    outer, inner = dispatch(MM, 5.0, None, 1), dispatch(MM_CPU, 6.0, None, 2)
    found = [(bar.start, bar.end, bar.is_end_seen) for bar in bars([outer, inner], 20.0)]
    assert found == [(5_000, 20_000, False), (6_000, 20_000, False)]
    assert flame("x.collapsed", [outer, inner]) == ""


def flame(path: str, dispatches: Sequence[TracedDispatch]) -> str:
    written: list[bytes] = []
    trace = FlameTrace(written.append, 4, lambda: NOW, lambda tid: f"worker {tid}", path.endswith(".speedscope.json"))
    for each in dispatches:
        trace.dispatch(each)
    trace.close()
    return b"".join(written).decode()


def test_stacks_for_flame_graphs() -> None:
    dispatches = [dispatch(MM, 0.0, 10.0, 1), dispatch(MM_CPU, 2.0, 9.0, 2), dispatch(MM, 10.0, 12.0, 1)]
    dispatches[1].returned = True
    assert flame("x.collapsed", dispatches) == (
        "worker 7;aten::mm [call AutogradCPU] 5000\n"
        "worker 7;aten::mm [call AutogradCPU];aten::mm [redispatch CPU] 7000\n"
    )
    document = json.loads(flame("x.speedscope.json", dispatches))
    frames = [each["name"] for each in document["shared"]["frames"]]
    assert frames == ["aten::mm [call AutogradCPU]", "aten::mm [redispatch CPU]"]
    profile = document["profiles"][0]
    assert (profile["type"], profile["unit"], profile["name"]) == ("evented", "nanoseconds", "worker 7")
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


class Installer:
    """Writes down what is placed."""

    def __init__(self) -> None:
        self.placed: list[str] = []
        self.defined: Callable[[Any], None] = lambda _: None

    def function(self, function: Any, entry: bool) -> None:
        self.placed.append(f"{function.name}{' with entry' if entry else ''}")

    def boxed_entry(self, entry: str, calls: bool) -> None:
        self.placed.append(f"{entry}{' with calls' if calls else ''}")

    def structured(self, operators: list[Any]) -> None:
        self.placed += [f"structured {each.name}" for each in operators]

    def definitions(self, defined: Callable[[Any], None]) -> None:
        self.defined = defined

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.placed.append(name)


class Trace:
    """A request, and what comes of it."""

    def __init__(self, *patterns: str, known: tuple[str, ...] = (), **options: Any) -> None:
        self.notes: list[str] = []
        self.installer = Installer()
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
        )
        all_calls: Any = SimpleNamespace(shared_lookups=lambda: ["callBoxed"])
        installer: Any = self.installer
        self.placed = self.installer.placed
        TraceHooks(installer, functions, all_calls, self.request, self.notes.append).place(self.operators)


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
    (note,) = trace.notes
    assert note == "no functions of their own in libtorch: my::op: every boxed call of any operator is stopped at"


def test_beside_others_it_is_left_out_until_boxed_calls_are_asked_for() -> None:
    trace = Trace("aten::add", "my::op")
    assert "shared_lookup" not in trace.placed
    assert trace.notes == ["no functions of their own in libtorch: my::op: they are not traced; --boxed does it"]
    asked = Trace("aten::add", "my::op", boxed=True)
    assert asked.placed.count("shared_lookup") == 1
    assert asked.notes == []


def test_operators_that_are_defined_later() -> None:
    trace = Trace("my::later", "aten::add", known=("aten::mm",))
    assert [error.what for error in trace.operators.unknown] == ["no operator 'my::later'", "no operator 'aten::add'"]
    before = list(trace.placed)
    late, wanted, other = operator("my::later"), operator("aten::add"), operator("aten::mm")
    for each in (wanted, other, late, late, wanted):
        trace.installer.defined(each)
    # those that all share are stopped at once
    assert trace.placed[len(before) :] == ["add.call", "shared_lookup", "python_kernels"]
    assert trace.operators.includes(late)
    assert not trace.operators.includes(other)


def test_too_many_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_installer, "FUNCTION_LIMIT", 2)
    Trace("aten::mm")
    with pytest.raises(TargetError, match="3 functions would be stopped at"):
        Trace("aten::mm", "aten::add")


BY_ITSELF, SHARED = 0, 1
PLACES: list[Any] = [
    SimpleNamespace(operator=0x1000, event=DispatchEvent.CALL, path="torch.so"),
    SimpleNamespace(operator=0, event=DispatchEvent.REDISPATCH, path="torch.so"),
]


class Tracer(DispatchTracer):
    """Without a kernel."""

    def __init__(self) -> None:
        self.places = PLACES

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        for time, entry, *rest, place, depth in struct.iter_unpack("<8xQQQQQIHH", data):
            yield SeenDispatch(time, entry or self.places[place].operator, *rest, place, depth)


def record(place: int, entry: int, keyset: int, number: int) -> bytes:
    return bytes(HEADER) + RECORD.pack(number, entry, keyset, 0x7000, 0x4000, 9, place, 1)


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


def test_what_was_foreseen_is_shown_when_the_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    monkeypatch.setattr(nesting, "Describer", lambda *_, **__: process)
    shown: list[str] = []
    sink: Any = SimpleNamespace(dispatch=lambda one: shown.append(one.found.qualified), ended=lambda _: None)
    operators: Any = SimpleNamespace(since=(), has=lambda _: True)
    follows = Nesting(process, operators, TraceRequest((), True), sink, 0, PLACES)  # type: ignore[arg-type]
    tracer = Tracer()
    data = [record(BY_ITSELF, 0, 3, 1), record(SHARED, 0x2000, 4, 2), record(BY_ITSELF, 0, 3, 3)]
    follows.foresee(tracer, b"".join(data))
    follows.foresee(tracer, data[0])
    assert sorted(process.read_operators) == [0x1000, 0x2000]
    process.gone = True
    late = record(BY_ITSELF, 0, 5, 5_000_000_000)
    follows.foresee(tracer, late)
    follows.take(tracer, b"".join([*data, record(BY_ITSELF, 0, 3, 4_000_000_000), late]))
    assert shown == ["call 1000 3", "redispatch 2000 4", "call 1000 3", "call 1000 3"]
    assert follows.unread == 1
