"""dispatch-trace on real programs, against PyTorch's own trace and against the profiler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support.programs import native_build
from support.programs.harness import BRISK, DISPATCH, INFERIORS, PATIENCE, Inferior, Outcome, run, started, wait_until
from support.source import contract_schema

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

SCRIPT = INFERIORS / "traced_calls.py"
TRACED = ("aten::linear", "aten::matmul", "aten::mm.default", "aten::t", "aten::transpose.int", "aten::add_.Tensor")
UNOBSERVED = {"aten::size", "aten::is_leaf", "aten::output_nr", "aten::_version", "aten::is_complex"}
"""RecordFunction leaves these out (ATen/core/dispatch/ObservedOperators.cpp)."""


def trace(options: Sequence[str], *program: str, timeout: float = 300) -> Outcome:
    """``dispatch-trace OPTIONS -- python traced_calls.py PROGRAM``."""
    command = [DISPATCH, "dispatch-trace", *options, "--", sys.executable, SCRIPT, *program]
    return run(command, timeout=timeout, env={"TORCH_SHOW_DISPATCH_TRACE": "0"})


def interrupted_once(reached: Callable[[], bool], shown: Path, *words: str | Path) -> str:
    """What scripts/dispatch has written to ``shown``: it gets a Ctrl+C once that is true, and ends with status 0."""
    with shown.open("w") as output:
        process = subprocess.Popen(
            [DISPATCH, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    wait_until(lambda: reached() or process.poll() is not None, "it is where it should be interrupted")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (shown.read_text(), stderr)
    return shown.read_text()


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
    assert outcome.status == 0, outcome
    assert trace_lines(outcome.stdout) == wanted
    assert "the process exited with status 7" in outcome.stdout


def test_all_equals_the_profiler(tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    outcome = trace(["--all", "--since", "aten::trace"], "model", str(names), "ordinarily")
    assert outcome.status == 0, outcome
    called = re.findall(r"^( +)\[call(?:Boxed)?\] op=\[([\w:]+)", outcome.stdout, re.MULTILINE)
    outermost = [index for index, (indent, _) in enumerate(called) if len(indent) == 1]
    marks = [index for index in outermost if called[index][1] == "aten::trace"]
    assert len(marks) == 2, outcome
    begin = next(index for index in outermost if index > marks[0])  # behind what aten::trace itself calls
    seen = [name for _, name in called[begin : marks[1]] if name not in UNOBSERVED]
    assert seen == json.loads(names.read_text())
    assert len(seen) > 50


def test_the_nine_steps_come_in_order() -> None:
    outcome = trace(["--verbose", "aten::mm.default"], "linear")
    assert outcome.status == 0, outcome
    lines = outcome.stdout.splitlines()
    start = max(index for index, line in enumerate(lines) if "[call]" in line and "AutogradMeta" in line) - 1
    steps = [re.match(r"( *)\[(\w+)\]", line) for line in lines[start:]]
    words = [match.group(2) for match in steps if match]
    assert words[:14] == [
        "entry",
        "call",
        "lookup",
        "index",
        "found",
        "enter",
        "entry",
        "redispatch",
        "lookup",
        "index",
        "found",
        words[11],
        "return",
        "return",
    ]
    assert words[11] in ("enter", "boxed")
    assert words[14:16] == ["return", "return"]
    text = "\n".join(lines[start:])
    assert "keyset=[DispatchKeySet(Meta, AutogradMeta)]" in text
    assert "keyset=[DispatchKeySet(Meta)]" in text
    assert re.search(r"key=\[Meta\], index=\[\d+\], valid=\[1\]", text)


def test_chrome_trace_is_nested(tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    outcome = trace(["aten::linear", "aten::mm.default", "--output", str(output)], "linear")
    assert outcome.status == 0, outcome
    document = json.loads(output.read_text())
    contract_schema.check(document, "chrome_trace")
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in events} == {"call", "redispatch", "kernel"}
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    linear = [event for event in events if event["name"] == "aten::linear"]
    products = [event for event in events if event["name"] == "aten::mm" and event["cat"] == "call"]
    assert len(linear) == len(products) == 4
    for outer, inner in zip(linear, products):
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6
        assert inner["args"]["returned"]
    assert products[-1]["args"]["key"] == "AutogradMeta"


@pytest.fixture(scope="module")
def calls() -> Iterator[Inferior]:
    """A program that goes on calling, for what ends a trace before the program does."""
    with started("small_calls") as running:
        yield running


BY_BREAKPOINTS = ("dispatch-trace", "--engine", "breakpoints", "aten::add")


@pytest.mark.parametrize("output", ["trace.txt", "trace.json"])
def test_a_full_disk_ends_the_trace(calls: Inferior, tmp_path: Path, output: str) -> None:
    link = tmp_path / output
    link.symlink_to("/dev/full")
    outcome = run([DISPATCH, "-p", str(calls.pid), *BY_BREAKPOINTS, "--output", link])
    assert outcome.status == 0, outcome  # a report was produced: what was traced until then, and why it ended
    assert "ended: the trace cannot be written: No space left on device" in outcome.stdout, outcome
    assert "make room, or name another --output" in outcome.stdout


def test_a_full_disk_in_the_document(calls: Inferior, tmp_path: Path) -> None:
    """Of the third form of output; how its end is told is the same for all."""
    link = tmp_path / "trace.jsonl"
    link.symlink_to("/dev/full")
    outcome = run([DISPATCH, "--json", "-p", str(calls.pid), *BY_BREAKPOINTS, "--output", link])
    assert outcome.status == 0, outcome
    reasons = [each for each in outcome.document["errors"] if each["where"] == "dispatch-trace"]
    assert [each["what"] for each in reasons] == ["the trace cannot be written: No space left on device"]
    assert reasons[0]["help"] == "make room, or name another --output"
    assert outcome.document["trace"]["ending"]["kind"] == "failed"


def test_exec_in_the_middle() -> None:
    outcome = trace(["aten::mm"], "exec")
    assert outcome.status == 0, outcome
    assert len(trace_lines(outcome.stdout)) == 2
    assert "replaced itself by another program" in outcome.stdout


def test_children_are_not_disturbed() -> None:
    outcome = trace(["aten::mm"], "children")
    assert outcome.status == 0, outcome
    assert len(trace_lines(outcome.stdout)) == 4
    assert "exited with status 7" in outcome.stdout


def test_limit_depth_and_json() -> None:
    outcome = run(
        [
            DISPATCH,
            "--json",
            "dispatch-trace",
            "aten::linear",
            "aten::mm",
            "--depth",
            "1",
            "--limit",
            "2",
            "--",
            sys.executable,
            SCRIPT,
            "linear",
        ]
    )
    assert outcome.status == 0, outcome
    document = outcome.document["trace"]
    shown = [event for event in document["events"] if event["step"] == "dispatch"]
    assert [event["op"] for event in shown] == ["aten::linear", "aten::linear"]
    assert [event["depth"] for event in shown] == [1, 1]
    assert document["ending"]["kind"] == "limit"


def test_a_program_runs_on_to_its_end_after_the_limit(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    calls = "a = torch.ones(2, 2); [torch.mm(a, a) for _ in range(9)]"
    code = f"{BRISK}; import torch, pathlib; {calls}; pathlib.Path({str(ended)!r}).touch(); brisk.leave()"
    outcome = run([DISPATCH, "dispatch-trace", "aten::mm", "--limit", "2", "--", sys.executable, "-c", code])
    assert outcome.status == 0, outcome
    assert "2 dispatches traced" in outcome.stdout
    assert "has not come back" not in outcome.stdout
    assert ended.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name the operators"),
        (["mm", "--limit", "0"], "greater than 0"),
    ],
)
def test_wrong_usage(options: list[str], said: str) -> None:
    outcome = trace(options, "linear")
    assert outcome.status == 2, outcome
    assert said in outcome.stderr
    assert outcome.stdout == ""


def test_an_unknown_operator_is_waited_for() -> None:
    outcome = trace(["aten::mmm"], "linear")
    assert outcome.status == 0, outcome
    assert outcome.stdout.startswith("note: no operator 'aten::mmm' is registered"), outcome
    assert "did you mean aten::mm" in outcome.stdout
    assert "0 dispatches traced; ended: the process exited with status 7" in outcome.stdout


def test_a_core_is_refused(tmp_path: Path) -> None:
    outcome = run([DISPATCH, "-c", str(tmp_path / "core"), "dispatch-trace", "mm"])
    assert outcome.status == 2, outcome
    assert "a core dump cannot run" in outcome.stderr


def test_an_extension_without_optimisation(tmp_path: Path) -> None:
    """Its Dispatcher::call, redispatch and callBoxed are functions of their own, with their own copy of lookup."""
    script = tmp_path / "debug.py"
    library = native_build.build("debug_dispatch")
    script.write_text(
        f"{BRISK}\nimport torch\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "a = torch.ones(2, 2, requires_grad=True)\n"
        "torch.mm(a, a)\n"
        "torch.ops.gdbext_debug.mm_typed(a, a)\n"
        "torch.ops.gdbext_debug.mm_boxed(a, a)\n"
        "brisk.leave()\n"
    )
    outcome = run([DISPATCH, "dispatch-trace", "aten::mm.default", "--", sys.executable, script])
    assert outcome.status == 0, outcome
    below = "  [redispatch] op=[aten::mm], key=[CPU]"
    typed, boxed = (f" [{event}] op=[aten::mm], key=[AutogradCPU]" for event in ("call", "callBoxed"))
    assert trace_lines(outcome.stdout) == [typed, below, typed, below, boxed, below]


def test_operators_and_kernels_that_appear_later(tmp_path: Path) -> None:
    script = tmp_path / "later.py"
    script.write_text(
        f"{BRISK}\nimport torch\n"
        "a = torch.ones(2, 2)\n"
        "torch.mm(a, a)\n"
        "library = torch.library.Library('gdbext_later', 'DEF')\n"
        "library.define('mm(Tensor a) -> Tensor')\n"
        "library.impl('mm', lambda a: a + 1, 'CPU')\n"
        "torch.ops.gdbext_later.mm(a)\n"
        "other = torch.library.Library('aten', 'IMPL')\n"
        "def late_mm(a, b): return a\n"
        "other.impl('mm', late_mm, 'CPU')\n"
        "torch.mm(a, a)\n"
        "brisk.leave()\n"
    )
    outcome = run([DISPATCH, "--json", "dispatch-trace", "aten::mm.default", "*::mm", "--", sys.executable, script])
    assert outcome.status == 0, outcome
    events = [each for each in outcome.document["trace"]["events"] if each["step"] == "dispatch"]
    names = [(each["event"], each["op"], each["key"]) for each in events if each["op"].endswith("::mm")]
    mm = [("call", "aten::mm", "AutogradCPU"), ("redispatch", "aten::mm", "CPU")]
    assert names[:2] == mm
    assert names[2][:2] == ("callBoxed", "gdbext_later::mm")
    assert names[3] == ("redispatchBoxed", "gdbext_later::mm", "CPU")
    assert names[-2:] == mm
    kernels = [each["kernel"]["function"] for each in events if each["key"] == "CPU" and each["op"] == "aten::mm"]
    assert "wrapper_CPU_mm" in kernels[0]
    assert kernels[-1].startswith("late_mm at ")


def test_a_call_that_does_not_come_back(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        f"{BRISK}\nimport threading, torch\n"
        "def meta_mm(a, b):\n"
        f"    open({str(tmp_path / 'entered')!r}, 'w')\n"
        "    threading.Event().wait()\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('mm', meta_mm, 'Meta')\n"
        "x = torch.ones(2, 2, device='meta', requires_grad=True)\n"
        "torch.mm(x, x)\n"
    )
    words = ["dispatch-trace", "aten::mm.default", "--verbose", "--", sys.executable, script]
    text = interrupted_once((tmp_path / "entered").exists, tmp_path / "shown", *words)
    assert "ended: interrupted" in text
    steps = text[: text.index("dispatches traced")].splitlines()
    assert steps[-2].lstrip().startswith("[boxed] kernel=[meta_mm at "), text
    told = text[text.index("has not come back from:") :].splitlines()
    assert told[1].strip() == "[call] op=[aten::mm], key=[AutogradMeta]  last step seen: enter"
    assert told[2].strip() == "[redispatch] op=[aten::mm], key=[Meta]  last step seen: boxed"
    assert "aten::mm, key Meta, in-kernel, kernel meta_mm at " in told[3]
    assert "the kernel was entered and has not returned" in told[4]


def places_of(pid: int, prefix: str) -> list[tuple[int, int]]:
    """(address, size) of libtorch's functions with that mangled prefix, as nm gives them."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    line = next(each for each in maps if each.endswith("libtorch_cpu.so"))
    base, path = int(line.split("-")[0], 16), line.split()[-1]
    with subprocess.Popen(["nm", "-p", "-S", path], stdout=subprocess.PIPE) as names:
        wanted = ["grep", "-F", f" {prefix}"]
        listing = subprocess.run(wanted, stdin=names.stdout, capture_output=True, text=True, check=True).stdout
    entries = [entry.split() for entry in listing.splitlines()]
    return [(base + int(words[0], 16), int(words[1], 16)) for words in entries if len(words) == 4]


def contents(pid: int, places: list[tuple[int, int]]) -> list[bytes]:
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        return [memory.read(size) for address, size in places if memory.seek(address)]


def test_nothing_is_left_in_memory(tmp_path: Path) -> None:
    code = (
        f"{BRISK}\nimport torch,time\na=torch.ones(2,2)\ntorch.mm(a,a)\nprint('ready',flush=True)\n"
        "while 1: torch.mm(a,a); time.sleep(0.05)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"  # while torch is imported its tables are in motion
        outcome = run([DISPATCH, "-p", str(process.pid), "dispatch-trace", "aten::mm", "--limit", "3"])
        assert len(trace_lines(outcome.stdout)) == 3, outcome
        places = places_of(process.pid, "_ZN2at4_ops2mm")
        before = contents(process.pid, places)
        assert sum(map(len, before)) > 500
        attached = ["-p", str(process.pid)]
        shown = tmp_path / "shown"
        for words, said in (
            (("dispatch-trace", "aten::mm", "--verbose"), "aten::mm"),
            (("dispatch-break", "call", "mm", "--continue"), "at call"),
        ):
            assert said in interrupted_once(lambda: "aten::mm" in shown.read_text(), shown, *attached, *words)
            assert contents(process.pid, places) == before
        assert process.poll() is None
        assert "TracerPid:\t0" in Path(f"/proc/{process.pid}/status").read_text()
    finally:
        os.killpg(process.pid, 9)
        process.wait()
