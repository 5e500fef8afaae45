"""dispatch-trace by kernel probes: what the profiler saw, in the same order and as nested, and nobody is stopped."""

from __future__ import annotations

import difflib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.installed.probing import PROBES, links_on, probes_placed
from support.programs import procfs
from support.programs.harness import DISPATCH, Inferior, run, started, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.program("counted-calls"), PROBES]

UNOBSERVED = {"aten::size", "aten::is_leaf", "aten::output_nr", "aten::_version", "aten::is_complex"}
"""RecordFunction leaves these out (ATen/core/dispatch/ObservedOperators.cpp)."""


@pytest.fixture
def counted(inferior: Callable[..., Inferior]) -> Inferior:
    return inferior("counted-calls")


def traced(inferior: Inferior, work: str, *args: str) -> tuple[str, str]:
    """Standard output and error of a trace that is interrupted when the inferior has done ``work``."""
    command = [DISPATCH, "-p", str(inferior.pid), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid) or tool.poll() is not None, "the probes are placed")
            before = inferior.output().count("done")
            inferior.send(work)
            wait_until(lambda: inferior.output().count("done") > before, "the work is done")
            if "--limit" not in args:
                tool.send_signal(signal.SIGINT)
            stdout, stderr = tool.communicate(timeout=120)
        finally:
            tool.kill()
    assert tool.returncode == 0, stderr
    return stdout, stderr


def test_calls_are_those_of_the_profiler_and_as_nested(counted: Inferior, tmp_path: Path) -> None:
    seen = tmp_path / "profile.json"
    stdout, _ = traced(counted, f"profile {seen}", "--json", "dispatch-trace", "--all")
    document = json.loads(stdout)["trace"]
    assert (document["engine"], document["lost"]) == ("probes", 0)
    threads: dict[int, list[tuple[str, int]]] = {}
    open_calls: dict[int, list[tuple[int, bool]]] = {}
    for event in document["events"]:
        if event["step"] != "dispatch":
            continue
        around = open_calls.setdefault(event["tid"], [])
        while around and around[-1][0] >= event["depth"]:
            around.pop()
        counts = event["event"].startswith("call") and event["op"] not in UNOBSERVED
        if counts:
            threads.setdefault(event["tid"], []).append((event["op"], sum(each for _, each in around)))
        around.append((event["depth"], counts))
    wanted = [[tuple(each) for each in calls] for calls in json.loads(seen.read_text())]
    assert sum(map(len, wanted)) > 40
    threads = {tid: merged(calls) for tid, calls in threads.items()}
    for calls in wanted:
        assert any(within(calls, mine) for mine in threads.values()), "\n".join(
            line for mine in threads.values() for line in difflib.unified_diff([*map(str, calls)], [*map(str, mine)])
        )


def merged(calls: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Without a call that is all that another one of the same name makes: the profiler shows them as one
    (EventList._remove_dup_nodes, torch/autograd/profiler_util.py)."""
    for at in range(1, len(calls)):
        name, depth = calls[at]
        end = next((later for later in range(at + 1, len(calls)) if calls[later][1] <= depth), len(calls))
        is_only = end == len(calls) or calls[end][1] < depth
        if calls[at - 1] == (name, depth - 1) and is_only:
            inside = [(each, level - 1) for each, level in calls[at + 1 : end]]
            return merged([*calls[:at], *inside, *calls[end:]])
    return calls


def within(part: list[Any], whole: list[Any]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def test_a_python_kernel_is_seen_boxed_and_redispatched(counted: Inferior, tmp_path: Path) -> None:
    operators = ("gdbext_counted::twice", "aten::add.Tensor")
    stdout, _ = traced(counted, f"profile {tmp_path / 'unused'}", "dispatch-trace", *operators)
    lines = [line.partition(", at=[")[0] for line in stdout.splitlines()]
    at = lines.index(" [callBoxed] op=[gdbext_counted::twice], key=[AutogradCPU]")
    assert lines[at + 1 : at + 4] == [
        "  [redispatchBoxed] op=[gdbext_counted::twice], key=[CPU]",
        "   [call] op=[aten::add.Tensor], key=[AutogradCPU]",
        "    [redispatch] op=[aten::add.Tensor], key=[CPU]",
    ]


def test_every_dispatch_is_in_the_chrome_trace(counted: Inferior, tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    stdout, _ = traced(counted, "go", "dispatch-trace", "mm", "--output", str(output))
    events = [event for event in json.loads(output.read_text())["traceEvents"] if event["ph"] == "X"]
    expected = counted.truth["calls"]
    for tid in (counted.tid("main"), counted.tid("other")):
        mine = [event for event in events if event["tid"] == tid]
        assert [event["cat"] for event in mine] == ["call", "redispatch"] * expected
        for outer, inner in zip(mine[::2], mine[1::2]):
            assert outer["ts"] <= inner["ts"]
            assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6
        assert mine[0]["args"]["keyset"]["keys"] == counted.truth["mm"]
    assert f"{4 * expected:,} dispatches traced" in stdout


def test_two_tools_on_one_process(counted: Inferior) -> None:
    words = [DISPATCH, "--json", "-p", str(counted.pid), "dispatch-trace", "mm", "--output", os.devnull]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        try:
            wait_until(lambda: probes_placed(other.pid) or other.poll() is not None, "the probes are placed")
            mine, _ = traced(counted, "go", "--json", "dispatch-trace", "mm", "--output", os.devnull)
            other.send_signal(signal.SIGINT)
            theirs, _ = other.communicate(timeout=120)
        finally:
            other.kill()
    counts = [json.loads(text)["trace"]["count"] for text in (mine, theirs)]
    assert counts == [4 * counted.truth["calls"]] * 2  # two threads, each call is redispatched once


def test_a_process_that_ends() -> None:
    with started("counted-calls") as inferior:
        process = [DISPATCH, "-p", str(inferior.pid), "--json"]
        trace = [*process, "dispatch-trace", "mm", "--output", os.devnull]
        top = [*process, "dispatch-top", "mm", "--interval", "600"]
        with (
            subprocess.Popen(trace, stdout=subprocess.PIPE, text=True) as tracer,
            subprocess.Popen(top, stdout=subprocess.PIPE, text=True) as counter,
        ):
            try:
                wait_until(lambda: all(probes_placed(tool.pid) for tool in (tracer, counter)), "the probes are placed")
                os.kill(inferior.pid, signal.SIGKILL)
                traced, counted = (tool.communicate(timeout=120)[0] for tool in (tracer, counter))
            finally:
                tracer.kill()
                counter.kill()
    assert (tracer.returncode, counter.returncode) == (0, 0)
    assert json.loads(traced)["trace"]["ending"]["kind"] == "gone"
    assert json.loads(counted.splitlines()[-1])["errors"][0]["what"] == "the process ended"


def test_one_thread_and_a_limit(counted: Inferior) -> None:
    tid = counted.tid("other")
    stdout, _ = traced(counted, "go", "--json", "dispatch-trace", "mm", "--thread", str(tid), "--limit", "7")
    document = json.loads(stdout)["trace"]
    assert document["ending"]["kind"] == "limit"
    shown = [event for event in document["events"] if event["step"] == "dispatch"]
    assert [event["tid"] for event in shown] == [tid] * 7


def test_the_last_dispatches_before_it_hangs(counted: Inferior) -> None:
    stdout, _ = traced_until_quiet(counted, "dispatch-trace", "mm", "--last", "0.02", "--hung-after", "2")
    assert "ended: nothing was dispatched for 2 s" in stdout
    assert re.search(r"^ \[call\] op=\[aten::mm\]", stdout, re.MULTILINE)
    count = int(re.search(r"^([\d,]+) dispatches traced", stdout, re.MULTILINE).group(1).replace(",", ""))  # type: ignore[union-attr]
    assert 0 < count < 8 * counted.truth["calls"]


def traced_until_quiet(inferior: Inferior, *args: str) -> tuple[str, str]:
    command = [DISPATCH, "-p", str(inferior.pid), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid) or tool.poll() is not None, "the probes are placed")
            assert procfs.status(inferior.pid)["TracerPid"] == "0"
            inferior.send("go")
            inferior.send("go")
            return tool.communicate(timeout=120)
        finally:
            tool.kill()


def test_what_only_breakpoints_can_do_is_said() -> None:
    outcome = run([DISPATCH, "-p", str(os.getpid()), "dispatch-trace", "mm", "--verbose", "--engine", "probes"])
    assert outcome.status == 2, outcome
    assert "--engine breakpoints" in outcome.stderr


def test_an_unknown_operator_and_thread(counted: Inferior) -> None:
    outcome = run([DISPATCH, "-p", str(counted.pid), "dispatch-trace", "aten::matmull"])
    assert outcome.status == 2, outcome
    assert "aten::matmul" in outcome.stderr
    outcome = run([DISPATCH, "-p", str(counted.pid), "dispatch-trace", "mm", "--thread", "1"])
    assert outcome.status == 2, outcome
    assert str(counted.tid("other")) in outcome.stderr


def test_watch_keeps_the_last_seconds_before_a_hang(counted: Inferior, tmp_path: Path) -> None:
    """The inferior waits to be told what to do, which is its hang."""
    words = [DISPATCH, "watch", "-p", str(counted.pid), "--hung-after", "3", "--save", str(tmp_path), "--trace", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
        try:
            wait_until(lambda: links_on(counted.pid) > 1, "the probes are placed")  # one is not the trace's
            counted.send("go")
            assert watch.stdout is not None
            assert any(".trace.html" in line for line in watch.stdout)  # reads as far as that
            watch.send_signal(signal.SIGINT)
            watch.communicate(timeout=60)
        finally:
            watch.kill()
    assert "aten::mm" in next(tmp_path.glob("*.trace.html")).read_text()
    assert not list(tmp_path.glob(".trace-*"))
    wait_until(lambda: not links_on(counted.pid), "no probe is left")
