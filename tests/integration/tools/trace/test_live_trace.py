"""dispatch-trace by breakpoints on real programs, against PyTorch's own trace."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.programs import native_build
from support.programs.harness import DISPATCH, INFERIORS, PATIENCE, Inferior, Outcome, run, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

SCRIPT = INFERIORS / "traced_calls.py"
TRACED = ("aten::linear", "aten::matmul", "aten::mm.default", "aten::t", "aten::transpose.int", "aten::add_.Tensor")


def trace(options: Sequence[str], *program: str | Path, script: Path = SCRIPT, status: int = 0) -> Outcome:
    command = [DISPATCH, "dispatch-trace", *options, "--", sys.executable, script, *program]
    outcome = run(command, timeout=300, env={"TORCH_SHOW_DISPATCH_TRACE": "0"})
    assert outcome.status == status, outcome
    return outcome


def dispatches(outcome: Outcome) -> list[dict[str, Any]]:
    return [event for event in outcome.document["trace"]["events"] if event["step"] == "dispatch"]


def trace_lines(text: str) -> list[str]:
    """Lines as PyTorch has them: ours have a time behind."""
    words = r"( +\[(?:call|redispatch|callBoxed|redispatchBoxed)\] op=\[[^]]+\], key=\[\w+\])(?:, at=\[\d+\.\d{6} s\])?"
    return [found.group(1) for found in (re.fullmatch(words, line) for line in text.splitlines()) if found]


def test_equals_pytorchs_own_trace() -> None:
    shim = native_build.build("show_trace")
    libraries = str(native_build.torch_folder() / "lib")  # it may have been built in another checkout, gone since
    preloaded = {"LD_PRELOAD": str(shim), "LD_LIBRARY_PATH": libraries, "TORCH_SHOW_DISPATCH_TRACE": "1"}
    truth = run([sys.executable, SCRIPT, "linear"], env=preloaded)
    wanted = trace_lines(truth.stderr)
    assert truth.status == 7, truth
    assert len(wanted) > 40, truth
    outcome = trace(TRACED, "linear")
    assert trace_lines(outcome.stdout) == wanted
    assert "the process exited with status 7" in outcome.stdout


def test_the_nine_steps_come_in_order() -> None:
    lines = trace(["--verbose", "aten::mm.default"], "linear").stdout.splitlines()
    start = max(index for index, line in enumerate(lines) if "[call]" in line and "AutogradMeta" in line) - 1
    text = "\n".join(lines[start:])
    words = re.findall(r"^ *\[(\w+)\]", text, re.MULTILINE)
    found = ["lookup", "index", "found"]
    assert words[:11] == ["entry", "call", *found, "enter", "entry", "redispatch", *found]
    assert words[12:16] == ["return"] * 4
    assert words[11] in ("enter", "boxed")
    assert {"Meta", "Meta, AutogradMeta"} <= set(re.findall(r"keyset=\[DispatchKeySet\((.*?)\)\]", text))
    assert re.search(r"key=\[Meta\], index=\[\d+\], valid=\[1\]", text)


@pytest.mark.parametrize(
    ("operator", "program", "count", "said"),
    [
        ("aten::mm", "exec", 2, "replaced itself by another program"),
        ("aten::mm", "children", 4, "exited with status 7"),
        ("aten::mmm", "linear", 0, "did you mean aten::mm"),
    ],
)
def test_how_it_ends(operator: str, program: str, count: int, said: str) -> None:
    """Other programs are not disturbed; an operator that is not registered is waited for."""
    outcome = trace([operator], program)
    assert len(trace_lines(outcome.stdout)) == count
    assert said in outcome.stdout


def test_a_program_runs_on_to_its_end_after_the_limit(tmp_path: Path) -> None:
    options = ("--json", "aten::linear", "aten::mm", "--depth", "1", "--limit", "2")
    outcome = trace(options, "linear", tmp_path / "ended")
    assert [(event["op"], event["depth"]) for event in dispatches(outcome)] == [("aten::linear", 1)] * 2
    assert outcome.document["trace"]["ending"]["kind"] == "limit"
    assert (tmp_path / "ended").exists()


def test_operators_and_kernels_that_appear_later() -> None:
    events = dispatches(trace(["--json", "aten::mm.default", "*::twice"], script=INFERIORS / "late_operators.py"))
    names = [(each["event"], each["op"], each["key"]) for each in events if each["op"].endswith(("::mm", "::twice"))]
    mm = [("call", "aten::mm", "AutogradCPU"), ("redispatch", "aten::mm", "CPU")]
    assert names[:2] == names[-2:] == mm
    assert names[2][:2] == ("callBoxed", "late::twice")
    assert names[3] == ("redispatchBoxed", "late::twice", "CPU")
    kernels = [each["kernel"]["function"] for each in events if each["key"] == "CPU" and each["op"] == "aten::mm"]
    assert "wrapper_CPU_mm" in kernels[0]
    assert kernels[-1].startswith("<lambda> at ")


def test_a_call_that_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, shown = tmp_path / "entered", tmp_path / "shown"
    monkeypatch.setenv("GDBEXT_READY", str(entered))  # which the program writes in its kernel
    program = [sys.executable, INFERIORS / "meta_mm.py"]
    words = [DISPATCH, "dispatch-trace", "aten::mm.default", "--verbose", "--", *program]
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with shown.open("w") as output:
        process = subprocess.Popen(words, stdout=output, text=True, start_new_session=True, **streams)
    wait_until(lambda: entered.exists() or process.poll() is not None, "it is where it should be interrupted")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    text = shown.read_text()
    assert process.returncode == 0, (text, stderr)
    assert "ended: interrupted" in text
    steps = text[: text.index("dispatches traced")].splitlines()
    assert steps[-2].lstrip().startswith("[boxed] kernel=[meta_mm at "), text
    told = [line.strip() for line in text[text.index("has not returned from:") :].splitlines()]
    assert told[1] == "[call] op=[aten::mm], key=[AutogradMeta]  last step seen: enter"
    assert told[2] == "[redispatch] op=[aten::mm], key=[Meta]  last step seen: boxed"
    assert "aten::mm, key Meta, in-kernel, kernel meta_mm at " in told[3]
    assert "the kernel was entered and has not returned" in told[4]


@pytest.mark.parametrize("name", ["trace.json", "trace.jsonl"])
def test_a_full_disk_ends_the_trace(small_calls: Inferior, tmp_path: Path, name: str) -> None:
    """A report is produced: what was traced until then, and why it ended."""
    (tmp_path / name).symlink_to("/dev/full")
    words = ["dispatch-trace", "--engine", "breakpoints", "aten::add", "--output", tmp_path / name]
    outcome = run([DISPATCH, "--json", "-p", str(small_calls.pid), *words])
    assert outcome.status == 0, outcome
    (error,) = (each for each in outcome.document["errors"] if each["where"] == "dispatch-trace")
    assert error["what"] == "the trace cannot be written: No space left on device"
    assert error["help"] == "make room, or name another --output"
    assert outcome.document["trace"]["ending"]["kind"] == "failed"


def test_an_operator_that_is_not_traced_runs_at_full_speed() -> None:
    """Nobody stops it: a stop for each call would be 20,000 switches. A traced one stops."""
    for operator, calls, bounds in (("add", 20_000, range(200)), ("mm", 500, range(500, 100_000))):
        outcome = trace(["aten::mm"], operator, str(calls), script=INFERIORS / "costs.py")
        (stops,) = re.findall(r"^stops (\d+)", outcome.stdout + outcome.stderr, re.MULTILINE)
        assert int(stops) in bounds, outcome
