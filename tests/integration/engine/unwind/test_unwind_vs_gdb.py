"""Our unwinder against gdb's, frame by frame and register by register, on real processes that hang."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
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
MATRIX_PRODUCTS = """
import torch
torch.set_num_threads(1)
a = torch.randn(700, 700)
print("ready", flush=True)
while True:
    torch.mm(a, a)
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

Start = Callable[..., "subprocess.Popen[str]"]


class Walk(NamedTuple):
    """The stack of one thread."""

    ours: list[NativeFrame]
    stopped: str
    gdb: list[dict[str, Any]]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts a program and waits for its "ready"."""
    running: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_STACK, (1200 * OVERFLOWING_FRAME, resource.RLIM_INFINITY))

        own_limit = limit if "overflow" in command else None
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=own_limit, env={"PATH": "/usr/bin:/bin"}
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


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
def hanging(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[Walk]]:
    """The threads of each program that hangs, gdb's stacks by one gdb."""
    folder = tmp_path_factory.mktemp("hanging")
    commands = {case: command(case, folder) for case in CASES}
    pids = {case: start(*words).pid for case, words in commands.items() if words}
    for pid in pids.values():
        wait_until(procfs.sleeps_on(pid), "it has come from printing to where it stays")
    said = {"PROBE_OUTPUT": str(folder / "out"), "PROBE_PIDS": " ".join(map(str, pids.values()))}
    gdb = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *UNDEMANGLED, "-x", PROBE]
    subprocess.run(gdb, env={**os.environ, **said}, stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
    theirs = json.loads((folder / "out").read_text())
    return {case: list(walks(pid, threads)) for (case, pid), threads in zip(pids.items(), theirs, strict=True)}


@contextmanager
def unwinding(pid: int) -> Iterator[tuple[ProcTarget, Unwinder, Symbolizer]]:
    with ProcTarget(pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        yield target, Unwinder(memory, modules), Symbolizer(modules)


def walks(pid: int, theirs: dict[str, list[dict[str, Any]]]) -> Iterator[Walk]:
    with unwinding(pid) as (target, unwinder, _):
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


@pytest.mark.slow
def test_busy_in_code_without_cfi(start: Start) -> None:
    """A matrix product spends its time in MKL's kernels; the operator must be seen behind them."""
    process = start(sys.executable, "-c", MATRIX_PRODUCTS)

    def is_followed() -> bool:
        with unwinding(process.pid) as (target, unwinder, symbolizer):
            thread = next(thread for thread in target.threads() if thread.tid == process.pid)
            frames = list(unwinder.frames(thread.registers()))
            assert unwinder.stopped == "end of stack", frames
            if "code" not in {frame.how for frame in frames}:
                return False
            functions = [symbolizer.function(frame.lookup_pc) for frame in frames]
            names = [name for function in functions if function is not None for name in function.names]
            assert any("4mm4call" in name or "wrapper_CPU_mm" in name for name in names), names
            assert "_start" in names
            return True

    for _ in range(3):
        wait_until(is_followed, "a look falls into a kernel without CFI")
