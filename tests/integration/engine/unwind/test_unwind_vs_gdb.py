"""Our unwinder against gdb's, frame by frame and register by register, on real processes that hang."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.unwind import NativeFrame, Unwinder
from support.installed import pythons
from support.programs import procfs
from support.programs.harness import INFERIORS, ROOT, UNDEMANGLED, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

PROBE = ROOT / "tests/support/truth/gdb_unwind_probe.py"
PYTHON = """
import queue, select, threading, time
def nested(depth):
    if depth:
        return list(map(nested, [depth - 1]))
    sorted([2, 1], key=lambda _: time.sleep(1000))
threading.Thread(target=nested, args=(20,), daemon=True).start()
threading.Thread(target=lambda: queue.Queue().get(), daemon=True).start()
threading.Thread(target=lambda: select.select([], [], [], 1000), daemon=True).start()
print("ready", flush=True)
nested(40)
"""
TORCH = """
import threading, time, torch
torch.set_num_threads(4)
x = torch.randn(400, 400, requires_grad=True)
(x @ x).relu().sum().backward()
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        print("ready", flush=True)
        time.sleep(1000)
threading.Thread(target=lambda: Slow.apply(x).sum().backward(), daemon=True).start()
torch.vmap(lambda t: (time.sleep(1000), t)[1])(x)
"""
OVERFLOWING_FRAME = 131
"""Bytes of stack of a call of ``overflow`` in signals.c. gdb takes the square of their number to read registers."""
SIGNALS = {
    ("nested", "same"): 2,
    ("nested", "alternate", "thread"): 2,
    ("overflow", "alternate"): 1,
    ("nowhere", "same"): 1,
    ("stray", "alternate", "thread"): 1,
    ("write", "same"): 1,
}
"""Arguments of signals.c, and how many trampolines are on the stack."""
CASES = [*SIGNALS, ("direct",), ("callback",), ("debian",), ("3.8",), ("3.13",), ("torch",)]


class Walk(NamedTuple):
    """The stack of one thread."""

    ours: list[NativeFrame]
    stopped: str
    gdb: list[dict[str, Any]]


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], int]]:
    """Of each program that hangs; without a Python that is not installed."""
    folder, running = tmp_path_factory.mktemp("programs"), {}
    try:
        for case in CASES:
            words = command(case, folder)
            if words:
                running[case] = process = start(words, case)
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
        for process in running.values():
            wait_until(procfs.sleeps_on(process.pid), "it has come from printing to where it stays")
        yield {case: process.pid for case, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def start(words: tuple[str, ...], case: tuple[str, ...]) -> subprocess.Popen[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1200 * OVERFLOWING_FRAME, resource.RLIM_INFINITY))

    own_limit = limit if "overflow" in case else None
    environment = {"PATH": "/usr/bin:/bin"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=own_limit, env=environment)


def command(case: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """Of the program that hangs that way; () where there is no such Python."""
    if case[0] in ("direct", "callback") or case in SIGNALS:
        name = "signals" if case in SIGNALS else "ends"
        program, source = folder / name, INFERIORS / f"native/unwind/{name}.c"
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)
        return str(program), *case
    executable = {"debian": "/usr/bin/python3", "torch": sys.executable}.get(case[0]) or pythons.executable(case[0])
    return (executable, "-c", TORCH if case[0] == "torch" else PYTHON) if executable else ()


@pytest.fixture(scope="module")
def hanging(
    pids: dict[tuple[str, ...], int], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, ...], list[Walk]]:
    """Their threads, gdb's stacks by one gdb."""
    output = tmp_path_factory.mktemp("gdb") / "out"
    said = {"PROBE_OUTPUT": str(output), "PROBE_PIDS": " ".join(map(str, pids.values()))}
    gdb = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *UNDEMANGLED, "-x", PROBE]
    subprocess.run(gdb, env={**os.environ, **said}, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    theirs = json.loads(output.read_text())
    return {case: list(walks(pid, threads)) for (case, pid), threads in zip(pids.items(), theirs, strict=True)}


def walks(pid: int, theirs: dict[str, list[dict[str, Any]]]) -> Iterator[Walk]:
    with ProcTarget(pid) as target:
        memory = Memory(target)
        unwinder = Unwinder(memory, ModuleTable(target, memory))
        threads = {str(thread.tid): thread for thread in target.threads()}
        assert threads.keys() == theirs.keys()
        for tid, thread in threads.items():
            yield Walk(list(unwinder.frames(thread.registers(), 200_000)), unwinder.stopped, theirs[tid])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_same_frames(hanging: dict[tuple[str, ...], list[Walk]], case: tuple[str, ...]) -> None:
    """Nested handlers, alternate stacks, a stack overflow, calls to nowhere and into data; calls that do not return;
    interpreters; OpenMP's pool, the autograd engine's threads, a functorch transform."""
    if case not in hanging:
        pytest.skip("not installed")
    for walk in hanging[case]:
        assert walk.stopped == "end of stack"
        assert [frame.is_signal for frame in walk.ours] == [frame["signal"] for frame in walk.gdb]
        for frame, other, caller in zip(walk.ours, walk.gdb, [*walk.ours[1:], None]):
            common = frame.registers.keys() & other["registers"].keys()
            assert {"rip", "rsp"} <= common
            assert {name: frame.registers[name] for name in common} == {n: other["registers"][n] for n in common}, other
            assert frame.is_signal or caller is None or frame.cfa == caller.registers["rsp"]
    if case in SIGNALS:
        ours = [frame for walk in hanging[case] for frame in walk.ours]
        assert sum(frame.is_signal for frame in ours) == SIGNALS[case]
        assert sum(frame.how == "signal" for frame in ours) == SIGNALS[case]
        assert any(frame.how == "return-address" for frame in ours) == (case[0] in ("nowhere", "stray"))
        assert case[0] != "overflow" or len(ours) > 1000
