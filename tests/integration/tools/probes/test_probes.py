"""dispatch-top and dispatch-trace by kernel probes: exactly what was dispatched; nothing is stopped or left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.errors import ProbesRefused
from gdbext.live.dispatch_places import OperatorFunctions
from gdbext.tools.probes.bpf.bpf_kernel import Circumstances
from gdbext.tools.probes.dispatch_counter import DispatchCounter
from gdbext.tools.probes.trace_places import TracePlaces
from support.installed import probing
from support.installed.probing import interrupt, keeper_of, links_on, tool_with_probes, work
from support.programs import procfs
from support.programs.debugger_terminal import DebuggerTerminal
from support.programs.harness import DISPATCH, INFERIORS, PATIENCE, Inferior, Start, run, started, wait_until
from support.source import contract_schema

pytestmark = [pytest.mark.torch, pytest.mark.program("counted-calls"), probing.PROBES]

TOP = ("--json", "dispatch-top", "--interval", "600")
TRACE_MM = ("--json", "dispatch-trace", "mm", "--output", os.devnull)
UNOBSERVED = {"aten::size", "aten::is_leaf", "aten::output_nr", "aten::_version", "aten::is_complex"}
"""RecordFunction leaves these out (ATen/core/dispatch/ObservedOperators.cpp)."""


@pytest.fixture
def counted(inferior: Start) -> Inferior:
    return inferior("counted-calls")


@contextmanager
def session_of(pid: int) -> Iterator[Session]:
    with closing(RunningProcess(pid)) as target:
        yield Session(target)


def top(counted: Inferior, *args: str, requests: tuple[str, ...] = ("go",), links: int = 2) -> dict[str, Any]:
    with tool_with_probes(counted.pid, *TOP, *args, links=links) as tool:
        work(counted, *requests)
        document: dict[str, Any] = json.loads(interrupt(tool))
    contract_schema.check(document)
    return document


def counts_of(document: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    rows = document["top"]["rows"]
    names = [(f"{row['op']}.{row['overload']}".rstrip("."), row["event"], row["key"]) for row in rows]
    assert len({*names}) == len(rows)
    return {name: int(row["count"]) for name, row in zip(names, rows)}


def test_every_dispatch_is_counted_with_its_keyset(counted: Inferior) -> None:
    found = top(counted, "mm", "aten::add_.Tensor", "aten::mul.out")
    steps = [("call", "AutogradCPU"), ("redispatch", "ADInplaceOrView"), ("redispatch", "CPU")]
    expected = {(name, *step) for name in ("aten::mm", "aten::add_.Tensor", "aten::mul.out") for step in steps}
    expected.remove(("aten::mm", "redispatch", "ADInplaceOrView"))
    assert counts_of(found) == dict.fromkeys(expected, 2 * counted.truth["calls"])
    rows = {row["event"]: row for row in found["top"]["rows"] if row["op"] == "aten::mm"}
    assert rows["call"]["keyset"]["keys"] == counted.truth["mm"]
    assert rows["call"]["kernel"].endswith("VariableType::(anonymous namespace)::mm")
    assert rows["redispatch"]["kernel"].endswith("wrapper_CPU_mm")
    assert found["top"]["lost"] == 0


def test_by_thread_and_by_line(counted: Inferior) -> None:
    calls = counted.truth["calls"]  # each is redispatched once
    rows = top(counted, "--by", "thread", "mm")["top"]["rows"]
    assert {row["tid"]: row["count"] for row in rows} == {counted.tid(role): 2 * calls for role in ("main", "other")}
    (row,) = top(counted, "--by", "line", "mm")["top"]["rows"]
    source = (INFERIORS / "counted_calls.py").read_text().splitlines()
    number = next(at for at, line in enumerate(source, 1) if line.strip() == "torch.mm(a, b)")
    assert (row["count"], row["line"].rpartition("/")[2]) == (4 * calls, f"counted_calls.py:{number} (work)")


def test_the_kernel_leaves_out_other_threads_and_keys(counted: Inferior) -> None:
    found = top(counted, "mm", "aten::add_.Tensor", "--thread", str(counted.tid("other")), "--key", "CPU")
    names = ("aten::mm", "aten::add_.Tensor")
    assert counts_of(found) == {(name, "redispatch", "CPU"): counted.truth["calls"] for name in names}


def test_every_call_is_timed_and_an_exception_passes(counted: Inferior) -> None:
    names = ("mm", "aten::add_.Tensor", "gdbext_counted::sleep")
    latency = top(counted, "--latency", *names, requests=("go", "fail", "sleep", "fail"), links=4)["latency"]
    rows = {row["op"]: row for row in latency["rows"]}
    calls = 2 * counted.truth["calls"]
    assert {op: (row["event"], row["count"], row["not_returned"]) for op, row in rows.items()} == {
        "aten::mm": ("call", calls, 2),
        "aten::add_": ("call", calls, 0),
        "gdbext_counted::sleep": ("callBoxed", 10, 0),
    }
    assert latency["lost"] == 0
    for row in rows.values():
        assert sum(bucket["count"] for bucket in row["histogram"]) == row["count"]
    assert rows["gdbext_counted::sleep"]["histogram"][0]["to_us"] >= counted.truth["sleep"] * 1e6


def test_an_extension_that_is_loaded_later_gets_probes(counted: Inferior) -> None:
    """It has the dispatcher inlined; what it calls through libtorch is counted as before."""
    with tool_with_probes(counted.pid, *TOP) as tool:
        before = links_on(counted.pid)
        work(counted, "load")
        wait_until(lambda: links_on(counted.pid) == before + 1, "the extension has probes")
        work(counted, "late")
        found = json.loads(interrupt(tool))
    assert 0 < found["top"]["unseen"] < 20  # in torch's own libraries
    counts = counts_of(found)
    assert counts["gdbext_test::guarded", "callBoxed", "AutogradCPU"] == 10
    assert counts["gdbext_test::plain", "call", "AutogradCPU"] == 10  # by a typed handle
    assert links_on(counted.pid) == 0
    with session_of(counted.pid) as session:
        paths = [module.path for module in session.modules.modules if module.name == "liboperators.so"]
        finder = TracePlaces(session)
        events = Counter(place.event.value for place in finder.shared_places(paths, False))
        assert not finder.unseen.total()
    assert events == {"call": 2, "redispatchBoxed": 1}


@pytest.mark.parametrize("one_by_one", [False, True])
def test_places_that_are_added_count(counted: Inferior, monkeypatch: pytest.MonkeyPatch, one_by_one: bool) -> None:
    """Also on kernels before 6.6, which do not place many probes at once."""
    monkeypatch.setattr(Circumstances, "lacks_many", property(lambda _: one_by_one))
    with session_of(counted.pid) as session:
        operator = session.dispatcher.find_one("aten::mm")
        architecture, places = session.memory.architecture, TracePlaces(session)
        if one_by_one:
            with pytest.raises(ProbesRefused, match="one at a time"):
                DispatchCounter(architecture, counted.pid, places.everything())
        own = [place for place in places.places_of([operator]) if place.operator]
        with DispatchCounter(architecture, counted.pid, own[:1], [operator.address]) as counter:
            counter.add(own[1:])
            work(counted, "go")
            counts: Counter[tuple[int, str]] = Counter()
            for count in counter.counts():
                counts[count.entry, count.event.value] += count.times
    calls = 2 * counted.truth["calls"]
    assert counts == {(operator.address, "call"): calls, (operator.address, "redispatch"): calls}
    assert links_on(counted.pid) == 0


def test_a_screen_until_q(counted: Inferior) -> None:
    command = [DISPATCH, "-p", str(counted.pid), "dispatch-top", "mm", "--interval", "0.2"]
    with closing(DebuggerTerminal(command, "q quit", "xterm")) as terminal:
        assert "\x1b[?1049h" in terminal.until("q quit")
        terminal.type("q")
        terminal.until("\x1b[?1049l")
        assert terminal.process.wait(PATIENCE) == 0


def traced(counted: Inferior, request: str, *args: str) -> str:
    with tool_with_probes(counted.pid, *args) as tool:
        work(counted, request)
        return interrupt(tool)


def test_calls_are_those_of_the_profiler(counted: Inferior, tmp_path: Path) -> None:
    seen = tmp_path / "profile.json"
    document = json.loads(traced(counted, f"profile {seen}", "--json", "dispatch-trace", "--all"))["trace"]
    assert (document["engine"], document["lost"]) == ("probes", 0)
    threads: dict[int, list[str]] = {}
    for event in document["events"]:
        if event["step"] == "dispatch" and event["event"].startswith("call") and event["op"] not in UNOBSERVED:
            threads.setdefault(event["tid"], []).append(event["op"])
    wanted = json.loads(seen.read_text())
    assert sum(map(len, wanted)) > 40
    for calls in wanted:
        assert any(" ".join(calls) in " ".join(mine) for mine in threads.values()), (calls, threads)


def test_nesting_is_the_profilers_from_the_first_dispatch_on(counted: Inferior, tmp_path: Path) -> None:
    """In every round, although the stacks are unwound while the first ones run."""
    seen = tmp_path / "profile.json"
    document = json.loads(traced(counted, f"nested {seen}", "--json", "dispatch-trace", "--all"))["trace"]
    events = [event for event in document["events"] if event["step"] == "dispatch" and event["tid"] == counted.pid]
    calls, around = [], list[tuple[int, bool]]()
    for event in events:
        while around and around[-1][0] >= event["depth"]:
            around.pop()
        is_call = event["event"].startswith("call") and event["op"] not in UNOBSERVED
        if is_call:
            calls.append([event["op"], sum(counts for _, counts in around)])
        around.append((event["depth"], is_call))
    wanted = json.loads(seen.read_text())
    assert len(wanted) > 9 * 60
    begin = next(start for start in range(len(calls)) if calls[start : start + 30] == wanted[:30])
    assert calls[begin : begin + len(wanted)] == wanted
    assert not [event for event in events if "nesting" in event]


def test_functions_that_are_not_seen_are_named(counted: Inferior) -> None:
    """Constant keysets, several lookups in one function and lookups without a shift are seen."""
    unseen = json.loads(traced(counted, "go", *TRACE_MM))["trace"]["unseen_in"]
    assert "functionaliz" not in " ".join(unseen).lower()
    assert "fallback" not in " ".join(unseen).lower()
    assert all(": " in text for text in unseen), unseen


def test_two_tools_on_one_process(counted: Inferior) -> None:
    with tool_with_probes(counted.pid, *TRACE_MM) as other:
        texts = [traced(counted, "go", *TRACE_MM), interrupt(other)]
    counts = [json.loads(text)["trace"]["count"] for text in texts]
    assert counts == [4 * counted.truth["calls"]] * 2  # two threads, each call is redispatched once


def test_one_thread_and_a_limit(counted: Inferior) -> None:
    tid = counted.tid("other")
    with tool_with_probes(counted.pid, "--json", "dispatch-trace", "mm", "--thread", str(tid), "--limit", "7") as tool:
        work(counted, "go")
        document = json.loads(tool.communicate(timeout=PATIENCE)[0])["trace"]
    assert document["ending"]["kind"] == "limit"
    assert [event["tid"] for event in document["events"] if event["step"] == "dispatch"] == [tid] * 7


def test_the_last_dispatches_before_it_hangs(counted: Inferior) -> None:
    with tool_with_probes(counted.pid, "dispatch-trace", "mm", "--last", "0.02", "--hung-after", "2") as tool:
        counted.send("go")
        counted.send("go")
        stdout, stderr = tool.communicate(timeout=PATIENCE)
    assert tool.returncode == 0, stderr
    assert "ended: nothing was dispatched for 2 s" in stdout
    assert re.search(r"^ \[call\] op=\[aten::mm\]", stdout, re.MULTILINE)
    (count,) = re.findall(r"^([\d,]+) dispatches traced", stdout, re.MULTILINE)
    assert 0 < int(count.replace(",", "")) < 8 * counted.truth["calls"]


def code(pid: int) -> bytes:
    """The bytes of mm's own functions in the process: a probe is a breakpoint instruction there."""
    with session_of(pid) as session:
        functions = OperatorFunctions(session).extents(session.dispatcher.find_one("aten::mm"))
        assert [event for event, _, _ in functions] == ["call", "redispatch"]
        return b"".join(session.memory.read(address, size) for _, address, size in functions)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_tool_is_ended_the_process_runs_on(counted: Inferior, number: signal.Signals) -> None:
    before = code(counted.pid)
    with tool_with_probes(counted.pid, *TOP) as tool:
        assert code(counted.pid) != before
        assert links_on(counted.pid) >= 2
        assert procfs.status(counted.pid)["TracerPid"] == "0"
        tool.send_signal(number)
        tool.communicate(timeout=PATIENCE)
    wait_until(lambda: code(counted.pid) == before, "the probes are gone")
    assert links_on(counted.pid) == 0
    work(counted, "go")


def test_a_kill_while_probes_are_placed_leaves_nothing(counted: Inferior) -> None:
    """Of the tool's process group: the process that places them is in another one."""
    with session_of(counted.pid) as session:
        where = probing.places_of(session)
        before = [session.memory.read(address, 4) for address in where]
    command = [DISPATCH, "-p", str(counted.pid), *TOP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as tool:
        keeper = wait_until(lambda: keeper_of(tool.pid), "probes are being placed")
        os.killpg(tool.pid, signal.SIGKILL)
        tool.communicate(timeout=PATIENCE)
    wait_until(lambda: not procfs.alive(keeper), "the process that places them ends")
    with session_of(counted.pid) as session:
        assert [session.memory.read(address, 4) for address in where] == before
    assert links_on(counted.pid) == 0
    work(counted, "go")


def test_when_the_process_that_keeps_the_probes_is_killed_the_tool_counts_on(counted: Inferior) -> None:
    with tool_with_probes(counted.pid, *TOP, "mm") as tool:
        wait_until(lambda: probing.is_counting(tool.pid), "it counts")
        keeper = keeper_of(tool.pid)
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not procfs.alive(keeper), "it is dead")
        work(counted, "go")
        counts = counts_of(json.loads(interrupt(tool)))
    assert counts["aten::mm", "call", "AutogradCPU"] == 2 * counted.truth["calls"]
    assert links_on(counted.pid) == 0


def test_a_process_that_ends() -> None:
    with (
        started("counted-calls") as inferior,
        tool_with_probes(inferior.pid, *TRACE_MM) as tracer,
        tool_with_probes(inferior.pid, *TOP, "mm") as counter,
    ):
        os.kill(inferior.pid, signal.SIGKILL)
        traced, counted = (tool.communicate(timeout=PATIENCE)[0] for tool in (tracer, counter))
        assert (tracer.returncode, counter.returncode) == (0, 0)
    assert json.loads(traced)["trace"]["ending"]["kind"] == "gone"
    assert json.loads(counted.splitlines()[-1])["errors"][0]["what"] == "the process ended"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dispatch-top --latency", "dispatch-top --latency mm"),
        ("dispatch-top --thread 1", "there is no thread"),
        ("dispatch-top --key CPUU", "did you mean CPU"),
        ("dispatch-top aten::matmull", "aten::matmul"),
        ("dispatch-trace aten::matmull", "aten::matmul"),
        ("dispatch-trace mm --thread 1", "{other}"),
        ("dispatch-trace mm --verbose --engine probes", "--engine breakpoints"),
    ],
)
def test_what_is_refused_before_anything_is_counted(counted: Inferior, words: str, said: str) -> None:
    outcome = run([DISPATCH, "-p", str(counted.pid), *words.split()])
    assert outcome.status == 2, outcome
    assert said.format(other=counted.tid("other")) in outcome.stderr


def test_samples_say_whether_dispatches_go_on(counted: Inferior) -> None:
    looked = ("-p", str(counted.pid), "--debugger", "none", "dispatch-diagnose", "--samples", "2", "--interval", "0.3")
    quiet = run([DISPATCH, "--json", *looked]).document
    assert quiet["samples"]["calls"] == 0
    assert any(finding["summary"] == "No operator was called meanwhile." for finding in quiet["findings"])
