"""dispatch-top --latency: every call that returns is timed, an exception passes, and nobody's stack is touched."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from support.installed.probing import PROBES, probes_placed
from support.programs.harness import DISPATCH, Inferior, run, wait_until
from support.source import contract_schema

pytestmark = [pytest.mark.torch, pytest.mark.program("counted-calls"), PROBES]


@pytest.fixture
def counted(inferior: Callable[..., Inferior]) -> Inferior:
    return inferior("counted-calls")


def measured(inferior: Inferior, *work: str) -> dict[str, Any]:
    """The row of each operator, of a dispatch-top --latency while the inferior does that."""
    names = ("mm", "aten::add_.Tensor", "gdbext_counted::sleep")
    command = [DISPATCH, "--json", "-p", str(inferior.pid), "dispatch-top", "--latency", "--interval", "600", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid, 4) or tool.poll() is not None, "the probes are placed")
            for word in work:
                before = inferior.output().count("done")
                inferior.send(word)
                wait_until(lambda before=before: inferior.output().count("done") > before, "the work is done")
            tool.send_signal(signal.SIGINT)
            stdout, stderr = tool.communicate(timeout=120)
        finally:
            tool.kill()
    assert tool.returncode == 0, stderr
    document = json.loads(stdout)
    contract_schema.check(document)
    assert document["latency"]["lost"] == 0
    return {row["op"]: row for row in document["latency"]["rows"]}


def test_every_call_is_timed_and_an_exception_passes(counted: Inferior) -> None:
    rows = measured(counted, "go", "fail", "sleep", "fail")
    calls = 2 * counted.truth["calls"]
    found = {op: (row["event"], row["key"], row["count"], row["not_returned"]) for op, row in rows.items()}
    sleep = found.pop("gdbext_counted::sleep")
    assert found == {
        "aten::mm": ("call", "AutogradCPU", calls, 2),
        "aten::add_": ("call", "AutogradCPU", calls, 0),
    }
    assert (sleep[0], sleep[2], sleep[3]) == ("callBoxed", 10, 0)
    for row in rows.values():
        assert sum(bucket["count"] for bucket in row["histogram"]) == row["count"]
        lowest, highest = row["histogram"][0]["from_us"], row["histogram"][-1]["to_us"]
        assert lowest <= row["mean_us"] <= highest
        assert lowest < row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= highest
    slow = rows["gdbext_counted::sleep"]
    assert slow["histogram"][0]["to_us"] >= counted.truth["sleep"] * 1e6
    assert rows["aten::mm"]["p50_us"] < slow["p50_us"] / 10


def test_it_wants_operators(counted: Inferior) -> None:
    outcome = run([DISPATCH, "-p", str(counted.pid), "dispatch-top", "--latency"])
    assert outcome.status == 2, outcome
    assert "dispatch-top --latency mm" in outcome.stderr
