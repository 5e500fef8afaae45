"""What scripts/measure_probes.py measures: each scene gives rows of a table."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from probe_target import MeasuredProcess, Tool, processor_seconds, top, total, trace

from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.probe_keeper import ProbeSet
from gdbext.tools.probes.dispatch_tracer import DispatchTracer
from gdbext.tools.probes.trace_places import TracePlaces
from support.installed import probing
from support.programs import harness


@dataclass
class Figure:
    """One row: ``reached`` is None where there is no limit to compare with."""

    what: str
    limit: str
    measured: str
    reached: bool | None = None


def _spread(values: list[float], unit: str, places: int = 2) -> str:
    """Median, and from least to most."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{places}f} {unit} ({low:.{places}f} to {high:.{places}f}, {len(values)} times)"


def _at_most(what: str, limit: float, values: list[float], unit: str, places: int = 2) -> Figure:
    return Figure(what, f"{limit:g} {unit}", _spread(values, unit, places), statistics.median(values) <= limit)


# --- what a dispatch costs -----------------------------------------------------------------------


def costs(process: MeasuredProcess, rounds: int) -> Iterator[Figure]:
    """Counting, tracing, an empty program at the same places, breakpoints: slow-down of torch.mm, in turn."""
    with top(process.pid) as tool:
        process.best("mm", 1000, 1)
        dispatches = total(tool.document) / 1000
    ways: dict[str, Callable[[], Any]] = {
        "empty": lambda: _Empty(process),
        "count": lambda: top(process.pid),
        "trace": lambda: trace(process.pid),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, begin in ways.items():
            plain = process.best("mm")
            with begin():
                found[way].append((process.best("mm") - plain) / dispatches)
    stops = [_stop_cost(process) for _ in range(2)]
    yield Figure("of which an empty BPF program, per dispatch", "", _spread(found["empty"], "µs"))
    yield _at_most("counting, per dispatch", 1.0, found["count"], "µs")
    yield _at_most("tracing, per dispatch", 2.0, found["trace"], "µs")
    ratio = min(stops) / statistics.median(found["count"])
    text = f"{ratio:.0f} times ({_spread(stops, 'µs', 0)} a stop)"
    yield Figure("dispatch-trace mm --engine breakpoints, beside counting", "100 times", text, ratio >= 100)


class _Empty:
    """All places, with a program that does nothing: what the kernel takes for itself."""

    def __init__(self, process: MeasuredProcess) -> None:
        with process.session() as session:
            architecture = session.memory.architecture
            self._probes = ProbeSet(architecture, process.pid)
            places = TracePlaces(session).everything()
            self._probes.start(places, bpf.assemble("return 0"))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._probes.close()


def _stop_cost(process: MeasuredProcess) -> float:
    """Microseconds of a stop at a breakpoint: mm has one for its call and one for its redispatch."""
    plain = process.lasts("mm", 200, 5)
    with Tool(*process.where, "dispatch-trace", "mm", "--engine", "breakpoints", "--output", "/dev/null"):
        harness.wait_until(lambda: process.lasts("mm", 20, 5) > 20 * plain, "the breakpoints are set")
        return (process.lasts("mm", 200, 3) - plain) / 2


def others(process: MeasuredProcess, rounds: int) -> Iterator[Figure]:
    """torch.add while mm is counted, and while mm is traced: best of each round, in turn."""
    for what, begin in (("counted", top), ("traced", trace)):
        ratios = []
        for _ in range(rounds):
            plain = process.best("add", 20000, 10)
            with begin(process.pid, "mm"):
                under = process.best("add", 20000, 10)
            ratios.append(under / min(plain, process.best("add", 20000, 10)))
        yield _at_most(f"torch.add while aten::mm is {what}", 1.02, ratios, "of its time without", 3)


# --- is all of it there --------------------------------------------------------------------------

_SECONDS, _RATE = 60, 200_000
UNOBSERVED = {"aten::size", "aten::is_leaf", "aten::output_nr", "aten::_version", "aten::is_complex"}
"""RecordFunction leaves these out (ATen/core/dispatch/ObservedOperators.cpp)."""


def eight(process: MeasuredProcess, seconds: int = _SECONDS) -> Iterator[Figure]:
    """Eight threads, traced with the default ring and counted meanwhile."""
    with process.session() as session, top(process.pid, "--by", "thread") as counter:
        places = TracePlaces(session).everything()
        with DispatchTracer(session.memory.architecture, process.pid, places) as tracer:
            process.begin("eight", seconds, _RATE)
            began, kept = time.monotonic(), []
            while time.monotonic() - began < seconds + 1:
                kept.append(tracer.read())
                for _ in tracer.snapshots():
                    pass
                time.sleep(0.02)
            truth = {int(tid): each for tid, each in process.answer().items()}
            kept.append(tracer.read())
            lost = tracer.lost()
            calls, records = _calls(tracer, kept, session.dispatcher.by_def, set(truth))
    counted = {row["tid"]: row["count"] for row in counter.document["top"]["rows"]}
    rate = sum(records.values()) / seconds
    yield Figure("dispatches a second, 8 threads", f"{_RATE:,}", f"{rate:,.0f} for {seconds} s", rate > 0.97 * _RATE)
    exact = sum(counted.get(tid, 0) for tid in truth) == sum(records.values()) + lost
    yield Figure("lost of them, default ring", "0, or counted exactly", f"{lost:,}", lost == 0 or exact)
    yield from _compared(truth, calls, lost)
    text = f"{sum(counted.get(tid, 0) for tid in truth):,}, {sum(records.values()):,} and {lost:,}"
    yield Figure("counted by dispatch-top; traced, and lost", "equal in sum", text, exact)


def _calls(
    tracer: DispatchTracer, kept: list[bytes], operator: Callable[[int], Any], tids: set[int]
) -> tuple[dict[int, list[str]], Counter[int]]:
    """For each thread the operators it called, and how many records it has."""
    names: dict[int, str] = {}
    calls: dict[int, list[str]] = {tid: [] for tid in tids}
    records: Counter[int] = Counter()
    opens = [not place.event.is_redispatch for place in tracer.places]
    for data in kept:
        for seen in tracer.dispatches(data):
            if seen.tid not in calls:
                continue
            records[seen.tid] += 1
            if opens[seen.place]:
                if seen.operator not in names:
                    names[seen.operator] = operator(seen.operator).name
                calls[seen.tid].append(names[seen.operator])
    return calls, records


def _compared(truth: dict[int, Any], calls: dict[int, list[str]], lost: int) -> Iterator[Figure]:
    """With what the threads counted themselves, and with what the profiler saw."""
    right, made, sequences, seen = True, 0, True, 0
    for tid, (tally, profiled) in truth.items():
        counts = Counter(calls[tid])
        right = right and all(counts[name] == count for name, count in tally.items())
        made += sum(tally.values())
        mine = [name for name in calls[tid] if name not in UNOBSERVED]
        sequences = sequences and bool(profiled) and _has(mine, profiled)
        seen += len(profiled)
    text = f"{made:,} calls" + ("" if right else f", traced: {sum(map(len, calls.values())):,}")
    yield Figure("calls of six operators, each thread's own count", "equal", text, right or bool(lost))
    what = f"{seen:,} calls in {len(truth)} threads" + ("" if sequences else ": not equal")
    yield Figure("torch.profiler's calls in the same run: sequence and counts", "equal", what, sequences)


def _has(whole: list[str], part: list[str]) -> bool:
    """``part`` stands somewhere in ``whole``, without a gap."""
    text, wanted = "\n".join(["", *whole, ""]), "\n".join(["", *part, ""])
    return wanted in text


# --- beginning and ending ------------------------------------------------------------------------


def begins(process: MeasuredProcess, rounds: int) -> Iterator[Figure]:
    """From the command to the first line, and from Ctrl+C to the end: all operators."""
    starts: dict[str, list[float]] = {"dispatch-top": [], "dispatch-trace --all": []}
    stops: dict[str, list[float]] = {"dispatch-top": [], "dispatch-trace --all": []}
    process.ask("busy", 0.002)
    for _ in range(rounds):
        with Tool(*process.where, "dispatch-top", "--interval", "0.05", "--count", "10000") as tool:
            starts["dispatch-top"].append(tool.first_line() - 0.05)
            tool.stop()
        stops["dispatch-top"].append(tool.stopped)
        with Tool(*process.where, "dispatch-trace", "--all", "--engine", "probes") as tool:
            starts["dispatch-trace --all"].append(tool.first_line())
            tool.stop()
        stops["dispatch-trace --all"].append(tool.stopped)
    for what, values in starts.items():
        yield _at_most(f"{what}: start to first line", 0.5, values, "s")
    for what, values in stops.items():
        yield _at_most(f"{what}: stop", 0.5, values, "s")


def killed(process: MeasuredProcess, times: int) -> Iterator[Figure]:
    """kill -9 in the middle: at any moment, while probes are placed, when they are, and while they are taken away."""
    with process.session() as session:
        read, where = session.target.memory.read, probing.places_of(session)

        def code() -> list[bytes]:
            return [read(address, 8) for address in where]

        original, good, placed, chosen = code(), 0, 0, random.Random(0)
        for number in range(times):
            top_or_trace = ("dispatch-trace", "--all", "--last", "9"), ("dispatch-top", "--interval", "600")
            words = top_or_trace[number % 8 < 4]
            with Tool(*process.where, *words) as tool:
                _until(tool, number % 4, chosen)
                placed += code() != original
                tool.stop(signal.SIGKILL)
            harness.wait_until(lambda: not probing.links_on(process.pid) and code() == original, "nothing is left", 20)
            good += process.best("mm", 100, 1) > 0
    text = f"{good} of {times}: it runs on, its code is the original, no probe is left; {placed} had changed the code"
    yield Figure(f"kill -9, {times} times", "nothing is left", text, good == times)


def _until(tool: Tool, moment: int, chosen: random.Random) -> None:
    """The moment to kill it: at any, while it places probes, when it has, while it takes them away."""
    if moment == 1:
        harness.wait_until(lambda: probing.keeper_of(tool.process.pid), "probes are being placed")
    elif moment:
        tool.wait_for_probes()
    if moment == 3:
        tool.process.send_signal(signal.SIGINT)
    time.sleep(chosen.uniform(0.0, 1.0 if moment in (0, 2) else 0.2))


def training(process: MeasuredProcess, rounds: int) -> Iterator[Figure]:
    """A training loop, beside one that is counted."""
    process.ask("train", 50)
    digests, extra, repeats = set(), [], 20
    for _ in range(rounds):
        plain = [process.ask("train", 100) for _ in range(repeats)]
        with top(process.pid) as tool:
            under = [process.ask("train", 100) for _ in range(repeats)]
            dispatches = total(tool.document) / repeats
        digests |= {each["digest"] for each in (*plain, *under)}
        best, counted = (min(each["seconds"] for each in runs) for runs in (plain, under))
        extra.append((counted - best) / dispatches * 1e6)
    yield Figure(
        "parameters after 100 steps of training",
        "bit-identical",
        "equal" if len(digests) == 1 else "differ",
        len(digests) == 1,
    )
    yield _at_most("slow-down of that training, per dispatch", 1.0, extra, "µs")


# --- breakpoints, and the watch ------------------------------------------------------------------


def breakpoints(process: MeasuredProcess, rounds: int) -> Iterator[Figure]:
    """From the command until the process runs again, and how long a stop takes that reports and goes on."""
    starts, stops = [], {"call": [], "register": []}  # type: list[float], dict[str, list[float]]
    for _ in range(rounds):
        process.begin("gaps", "add", 3, 0.02)
        with Tool(*process.where, "dispatch-break", "call", "aten::mm", "--continue") as tool:
            gaps = process.answer()
        longest = max((gap for gap in gaps if gap[0] > tool.began), key=lambda gap: float(gap[1] - gap[0]))
        starts.append(longest[1] - tool.began)
        for place, operator, hits in (("call", "mm", 1), ("register", "register", 2)):
            process.begin("gaps", operator, 5, 0.1)
            with Tool(*process.where, "dispatch-break", place, "aten::mm", "--continue") as tool:
                gaps = process.answer()
                text = tool.stop()
            times = text.count(f"aten::mm at {place}")
            at = [to - since for since, to, called in gaps if called and since > tool.began][1:]  # the first one reads
            if at and times:
                hits = max(1, round(times / (len(at) + 1)))
                stops[place].append(statistics.median(at) / hits * 1e3)
    yield _at_most("dispatch-break call aten::mm: from the command until the process runs", 0.5, starts, "s")
    for place, values in stops.items():
        yield _at_most(f"a stop of dispatch-break {place} aten::mm --continue", 3.0, values, "ms")


def watch(process: MeasuredProcess, seconds: int) -> Iterator[Figure]:
    """Processor time while the process dispatches, without their start: of a watch, and of one that keeps a trace."""
    process.ask("busy", 0.001)
    with contextlib.ExitStack() as both:
        tools = [
            both.enter_context(Tool("watch", *process.where, "--save", folder, *words))
            for words in ((), ("--trace", "60"))
            for folder in [both.enter_context(tempfile.TemporaryDirectory(prefix="gdbext-measured-"))]
        ]
        time.sleep(33)  # two looks: torch is found, the probe's place and the trace are there
        before = [processor_seconds(tool.process.pid) for tool in tools]
        time.sleep(seconds)
        shares = []
        for tool, used in zip(tools, before):
            tool.ended()
            shares.append((processor_seconds(tool.process.pid) - used) / seconds * 100)
    told = [f"{share:.3f} % of a core (in {seconds} s, at most 5,000 dispatches a second)" for share in shares]
    yield Figure("scripts/dispatch watch", "0.1 %", told[0], shares[0] <= 0.1)
    yield Figure("watch --trace 60", "", told[1])
