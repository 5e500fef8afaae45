"""dispatch-top: what it counts, names and marks as odd, its buckets, and when it ends."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.errors import BadData
from gdbext.render import short_name
from gdbext.tools.probes import top, top_view, trace_places
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.latency_meter import ENTERED, PARTS_BITS, LatencyBucket, _quantile, powers, range_of
from gdbext.tools.probes.summary import Anomalies, Summary, TopSection
from gdbext.tools.probes.trace_places import NewLibrarySites, function_names
from gdbext.torch.stack import DispatchEvent
from support.fakes.fake_target import FakeTarget


class FakeSession:
    """Each session after the first knows one operator more."""

    target = None

    def __init__(self, known: set[int], opened: list[FakeSession]) -> None:
        keys = SimpleNamespace(stray=bool)
        operator = SimpleNamespace(dispatcher=SimpleNamespace(keys=keys, kernels=None))
        self.dispatcher: Any = SimpleNamespace(by_def=lambda address: operator if address in known else None)
        self.known, self.opened = known, opened

    def session_after_stop(self, _: object) -> FakeSession:
        self.opened.append(FakeSession(self.known | {0x2000}, self.opened))
        return self.opened[-1]


def test_an_operator_that_was_registered_since() -> None:
    session: Any = FakeSession({0x1000}, [])
    summary = Summary(session)
    for entry, opened in ((0x1000, 0), (0x2000, 1), (0x3000, 2), (0x3000, 2), (0x2000, 2)):
        found = summary.dispatched(DispatchCount(entry, 1, 7, CALL, 1))
        assert (found.operator, len(session.opened)) == (entry, opened)
        assert (found.keyset is None) == (entry != 0x3000)  # read by an operator's keys, which say that it is none


def test_kernels_in_tables_have_no_unnamed_namespaces() -> None:
    name = "at::(anonymous namespace)::(anonymous namespace)::wrapper_CPU_mm"
    assert short_name(name) == "wrapper_CPU_mm"
    name = "torch::autograd::VariableType::(anonymous namespace)::mm"
    assert short_name(name) == "torch::autograd::VariableType::mm"
    assert short_name("?") == "?"


def test_functions_that_cannot_be_counted_are_named_where_they_are_the_programs_own() -> None:
    functions = {start: SimpleNamespace(demangled=(f"mine::f{start}(at::Tensor const&)",)) for start in range(5)}
    symbolizer: Any = SimpleNamespace(function=functions.get)
    assert function_names(symbolizer, {2, 1}) == "mine::f1, mine::f2"
    assert function_names(symbolizer, set(range(5))) == "mine::f0, mine::f1, mine::f2, …"
    assert function_names(symbolizer, {99}) == ""

    def nothing_seen(*unseen: str) -> str:
        return top_view.nothing_text(TopSection(2.0, "probes", 0, 0, 3, (), unseen=2, unseen_in=unseen))

    assert nothing_seen("2 in libtorch_cpu.so") == top_view.NOTHING
    text = nothing_seen("1 in libtorch_cpu.so", "1 in ops.so: mine::f")
    assert text.endswith("recognize these functions: 1 in ops.so: mine::f")


@pytest.mark.parametrize(
    ("ends", "interrupted", "over", "learnt"), [(9, 9, True, 3), (2, 9, False, 1), (0, 9, False, 0), (9, 2.5, False, 2)]
)
def test_it_learns_until_the_process_ends(
    ends: float, interrupted: float, over: bool, learnt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that is there until that second, for a user who interrupts at that one."""
    now, calls = [0.0], []

    def sleep(seconds: float) -> bool:
        now[0] += seconds
        return now[0] < interrupted

    gone = Ending(EndingKind.GONE, "the process ended")
    world: Any = SimpleNamespace(sleep=sleep, ending=lambda: gone if now[0] >= ends else None)
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter: Any = SimpleNamespace(learn=lambda: calls.append(now[0]))
    none: Any = None
    reports = top._Reports(none, none, Namespace(interval=2.5), none, meter, world, world)
    assert reports._wait() is over
    assert len(calls) == learnt


KEYS = {1: ("CPU",), 2: ("CUDA", "AutogradCUDA"), 3: ("CPU", "CUDA"), 4: ("AutogradCPU", "CPU")}
CALL, AGAIN = DispatchEvent.CALL, DispatchEvent.REDISPATCH


def operator_of(kernel: str = "kernel", reason: str = "kernel") -> Any:
    """``kernel``: "none", "fallthrough", "unreadable" or another; ``reason``: how the table's entry was chosen."""

    def kernel_for(_: int) -> Any:
        if kernel == "unreadable":
            raise BadData("gone")
        return 0, SimpleNamespace(valid=kernel != "none", name=kernel)

    return SimpleNamespace(address=7, kernel_for=kernel_for, reason=reason)


def mark(of: Any, counts: list[tuple[DispatchEvent, int, int]], event: DispatchEvent = CALL, keyset: int = 1) -> str:
    """``counts``: event, keyset and times of operator 7."""
    kernels = SimpleNamespace(fallthrough=lambda kernel: kernel.name == "fallthrough")
    dispatcher = SimpleNamespace(keys=SimpleNamespace(decode=KEYS.__getitem__), kernels=kernels)
    tables = SimpleNamespace(entry=lambda one, _: SimpleNamespace(reason=one.reason))
    session: Any = SimpleNamespace(dispatcher=dispatcher, tables=tables)
    odd = Anomalies(session, [DispatchCount(7, number, 0, each, times) for each, number, times in counts])
    return odd.mark(of, event.value, keyset)


def test_marks() -> None:
    kinds = [{"kernel": kind} for kind in ("none", "fallthrough", "unreadable", "any")]
    kinds += [{"reason": reason} for reason in ("math kernel", "backend fallback")]
    marks = ["no kernel", "falls through", "", "", "decomposes", "boxed fallback"]
    assert [mark(operator_of(**kind), [(CALL, 1, 5), (AGAIN, 1, 10)]) for kind in kinds] == marks
    for calls, redispatches, marked in ((5, 100, "redispatched 20 times a call"), (5, 40, ""), (0, 8, "")):
        counts = [*[(CALL, 1, calls)] * bool(calls), (AGAIN, 1, redispatches)]
        assert (mark(operator_of(), counts, AGAIN), mark(operator_of(), counts, CALL)) == (marked, "")
    assert mark(operator_of(), [(AGAIN, 1, 9)], AGAIN) == "redispatched 9 times a call"
    for on_device, keyset, marked in ((6, 1, "on the CPU"), (6, 4, "on the CPU"), (6, 3, ""), (5, 1, "")):
        assert mark(operator_of(), [(CALL, 1, 5), (CALL, 2, on_device)], keyset=keyset) == marked


def bucket_of(nanoseconds: int) -> int:
    power = max(0, nanoseconds.bit_length() - 1)
    return (power << PARTS_BITS) + ((nanoseconds << PARTS_BITS) >> power & (1 << PARTS_BITS) - 1)


def test_a_duration_lies_in_its_bucket_and_powers_join_buckets_without_gaps() -> None:
    for nanoseconds in (*range(1, 300), 1023, 1024, 5000, 10**9, 2**61):
        bucket = bucket_of(nanoseconds)
        low, high = range_of(bucket)
        assert low <= nanoseconds < high
        assert bucket < ENTERED
        assert nanoseconds < 4 or high == range_of(bucket + 1)[0]
    counts = {bucket_of(1000): 50, bucket_of(3000): 49, bucket_of(900000): 1}
    assert [_quantile(counts, share) for share in (0.5, 0.9, 0.99, 1.0)] == [1.024, 3.072, 3.072, 917.504]
    assert _quantile({}, 0.5) is None
    quarters = [LatencyBucket(*(edge / 1e3 for edge in range_of(bucket_of(at))), count=1) for at in (1024, 1300, 9000)]
    found = [(bucket.from_us, bucket.count) for bucket in powers(quarters)]
    assert found == [(1.024, 2), (2.048, 0), (4.096, 0), (8.192, 1)]
    assert powers([]) == []


class MappedSession:
    """Of a process whose maps change; ``number`` tells it from those that are opened anew."""

    def __init__(self, maps: list[MemoryMapping], number: int = 0) -> None:
        self.target = FakeTarget({}, maps)
        self.number = number

    def session_after_stop(self, target: FakeTarget) -> MappedSession:
        return MappedSession(target.memory.maps(), self.number + 1)


def mapped(path: str, permissions: str = "r-xp") -> MemoryMapping:
    return MemoryMapping(0x1000, 0x2000, 0, path, permissions)


def test_each_library_once_and_one_that_cannot_be_read_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Places:
        def __init__(self, session: MappedSession) -> None:
            self.session = session
            self.unseen = Counter(lib=session.number)

        def shared_places(self, paths: frozenset[str], filtered: bool) -> list[tuple[int, list[str], bool]]:
            if paths == {"/ext/torn.so"}:
                raise BadData("it is torn")
            return [(self.session.number, sorted(paths), filtered)]

    monkeypatch.setattr(trace_places, "TracePlaces", Places)
    maps = [mapped("/lib/torch.so")]
    late = NewLibrarySites(MappedSession(maps), True)  # type: ignore[arg-type]
    assert late.find() == ()
    maps += [mapped("/ext/a.so"), mapped("/ext/a.so", "rw-p"), mapped("/ext/data", "r--p"), mapped("")]
    assert late.find() == [(1, ["/ext/a.so"], True)]
    assert late.find() == ()
    maps += [mapped("/ext/b.so")]
    assert late.find() == [(2, ["/ext/b.so"], True)]
    assert late.unseen == {"lib": 1 + 2}
    maps += [mapped("/ext/torn.so")]
    for _ in range(3):
        with pytest.raises(BadData):
            late.find()
    assert late.find() == ()
