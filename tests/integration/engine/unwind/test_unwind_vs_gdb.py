"""Our unwinder against gdb's, frame by frame and register by register, on real processes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.unwind import Unwinder
from support.programs import procfs
from support.programs.harness import INFERIORS, HarnessError, interpreter, wait_until
from support.truth.unwind_comparison import all_differences, probe

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

PROGRAMS = INFERIORS / "native" / "unwind"

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

BUSY = """
import torch
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3),
                            torch.nn.Flatten(), torch.nn.Linear(16 * 28 * 28, 64), torch.nn.LayerNorm(64))
data = torch.randn(8, 3, 32, 32)
print("ready", flush=True)
while True:
    model(data).sum().backward()
"""


MATRIX_PRODUCTS = """
import torch
torch.set_num_threads(1)
a = torch.randn(700, 700)
print("ready", flush=True)
while True:
    torch.mm(a, a)
"""


Start = Callable[..., "subprocess.Popen[str]"]
Stop = list[dict[str, Any]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program and waits for its "ready"."""
    with programs() as run:
        yield run


@contextmanager
def programs() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def run(*command: str, stack: int = 0, settles: bool = True, **environment: str) -> subprocess.Popen[str]:
        def limit() -> None:
            if stack:
                resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.RLIM_INFINITY))

        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=limit,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if settles:
            wait_until(procfs.sleeps_on(process.pid), "it has come from printing to where it stays")
        return process

    try:
        yield run
    finally:
        for process in running:
            process.kill()
            process.wait()


def build(folder: Path, name: str, *flags: str) -> str:
    program = folder / name
    subprocess.run(["gcc", *flags, "-pthread", "-o", program, PROGRAMS / f"{name}.c"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], Stop | None]:
    """What one gdb saw of each program that hangs, by its words; None for a Python that is not installed."""
    folder, pids = tmp_path_factory.mktemp("hanging"), {}
    signals, ends = build(folder, "signals", "-O2"), build(folder, "ends", "-O2")
    with programs() as run:
        for case in SIGNALS:
            pids[case] = run(signals, *case, stack=1200 * OVERFLOWING_FRAME).pid
        for argument in ENDS:
            pids[argument,] = run(ends, argument).pid
        for version in PYTHONS:
            with suppress(HarnessError):
                executable = "/usr/bin/python3" if version == "debian" else interpreter(version)[0]
                pids[version,] = run(executable, "-c", PYTHON).pid
        stops = probe(folder / "out", PROBE_PIDS=" ".join(map(str, pids.values())))
    assert len(stops) == len(pids)
    return {**dict.fromkeys((version,) for version in PYTHONS), **dict(zip(pids, stops))}


def assert_same(stops: list[Stop]) -> None:
    found = all_differences(stops)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])


def complete(stops: list[Stop]) -> None:
    """Every walk reached the end of its stack."""
    assert {thread["stopped"] for threads in stops for thread in threads} == {"end of stack"}


STEPPED = {
    "O0": ("-O0",),
    "O2": ("-O2",),
    "O2-omit-frame-pointer": ("-O2", "-fomit-frame-pointer", "-fcf-protection=full"),
    "O3-frame-pointer-avx2": ("-O3", "-march=haswell", "-fno-omit-frame-pointer"),
    "Os-static": ("-Os", "-static"),
}


@pytest.mark.parametrize("flags", STEPPED.values(), ids=STEPPED)
def test_every_instruction(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Prologues, epilogues, function entries, dynamic and realigned frames, longjmp, the vdso."""
    program = build(tmp_path, "stepped", *flags)
    stops = probe(tmp_path / "out", program, PROBE_BREAK="main", PROBE_STEPS="2500", LD_BIND_NOW="1")
    assert len(stops) > 1000
    assert_same(stops)
    complete(stops)


def test_every_instruction_of_lazy_binding(tmp_path: Path) -> None:
    """Linkage stubs and the dynamic linker's resolver."""
    program = build(tmp_path, "stepped", "-O2", "-fcf-protection=full", "-Wl,-z,lazy")
    stops = probe(tmp_path / "out", program, PROBE_BREAK="main", PROBE_STEPS="700")
    assert_same(stops)
    complete(stops)
    assert any(frame["module"] == "ld-linux-x86-64.so.2" for stop in stops for frame in stop[0]["ours"])


SIGNALS = [
    (case, stack, *more)
    for case in ("nested", "overflow", "nowhere", "stray", "write")
    for stack in ("same", "alternate")
    for more in ((), ("thread",))
    if (case, stack) != ("overflow", "same") and (case, more) != ("overflow", ("thread",))
]


OVERFLOWING_FRAME = 131
"""Bytes of stack of a call of ``overflow`` in signals.c. gdb takes the square of their number to read registers."""


@pytest.mark.parametrize("case", SIGNALS, ids="-".join)
def test_signal_handlers(hanging: Mapping[tuple[str, ...], Stop], case: tuple[str, ...]) -> None:
    """Nested handlers, alternate stacks, a stack overflow, calls to nowhere and into data."""
    stops = [hanging[case]]
    assert_same(stops)
    complete(stops)
    ours = [frame for thread in stops[0] for frame in thread["ours"]]
    trampolines = 2 if case[0] == "nested" else 1
    assert sum(frame["signal"] for frame in ours) == trampolines
    assert sum(frame["how"] == "signal" for frame in ours) == trampolines
    assert any(frame["how"] == "return-address" for frame in ours) == (case[0] in ("nowhere", "stray"))
    if case[0] == "overflow":
        assert len(ours) > 1000


def test_every_instruction_around_signals(tmp_path: Path) -> None:
    """Into a nested handler on another stack, out of it through the trampoline and the system call."""
    program = build(tmp_path, "signals", "-O2")
    arguments = ("--args", program, "nested", "alternate")
    stops = probe(tmp_path / "out", *arguments, PROBE_BREAK="outer_handler", PROBE_STEPS="700")
    assert_same(stops)
    complete(stops)
    depths = Counter(sum(frame["signal"] for frame in stop[0]["ours"]) for stop in stops)
    assert depths[1] > 10
    assert depths[2] > 10


ENDS = ["direct", "callback"]


@pytest.mark.parametrize("argument", ENDS)
def test_calls_that_do_not_return(hanging: Mapping[tuple[str, ...], Stop], argument: str) -> None:
    stops = [hanging[argument,]]
    assert len(stops[0]) == 2
    assert_same(stops)
    complete(stops)


PYTHONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "debian"]


@pytest.mark.parametrize("version", PYTHONS)
def test_python(hanging: Mapping[tuple[str, ...], Stop | None], version: str) -> None:
    stop = hanging[version,]
    if stop is None:
        pytest.skip(f"Python {version} is not installed")
    assert len(stop) == 4
    assert_same([stop])
    complete([stop])


def test_torch_live_and_core(tmp_path: Path, start: Start) -> None:
    """OpenMP's pool, the autograd engine's threads, a functorch transform; then its core."""
    process = start(sys.executable, "-c", TORCH)
    core = tmp_path / "core"
    try:
        stops = probe(tmp_path / "out", "-p", str(process.pid), PROBE_CORE=str(core))
    finally:
        core.unlink(missing_ok=True)
    assert len(stops[0]) > 4
    assert_same(stops)
    complete(stops)
    live, dead = ({thread["tid"]: thread["ours"] for thread in threads} for threads in stops)
    assert {tid: [f["cfa"] for f in frames] for tid, frames in live.items()} == {
        tid: [f["cfa"] for f in frames] for tid, frames in dead.items()
    }


@pytest.mark.slow
def test_busy_torch(tmp_path: Path, start: Start) -> None:
    """Stopped anywhere in a training loop. Much of MKL and what oneDNN generates has no CFI: there gdb only guesses,
    and ours must still come to the end of the stack."""
    process = start(sys.executable, "-c", BUSY, settles=False)
    stops = probe(tmp_path / "out", "-p", str(process.pid), PROBE_SAMPLES="6")
    process.send_signal(signal.SIGKILL)
    complete(stops)
    proven = [
        thread
        for threads in stops
        for thread in threads
        if {frame["how"] for frame in thread["ours"]} <= {"registers", "cfi"}
    ]
    assert_same([proven])
    assert len(stops) == 7
    assert len(proven) >= 6


@pytest.mark.slow
def test_busy_in_code_without_cfi(start: Start) -> None:
    """A matrix product spends its time in MKL's kernels; the operator must be seen behind them."""
    process = start(sys.executable, "-c", MATRIX_PRODUCTS, settles=False)

    def is_followed() -> bool:
        with ProcTarget(process.pid) as target:
            memory = Memory(target)
            modules = ModuleTable(target, memory)
            unwinder, symbolizer = Unwinder(memory, modules), Symbolizer(modules)
            thread = next(thread for thread in target.threads() if thread.tid == process.pid)
            frames = list(unwinder.frames(thread.registers()))
            assert unwinder.stopped == "end of stack", frames
            if "code" not in {frame.how for frame in frames}:
                return False
            names = [name for frame in frames for name in names_of(symbolizer, frame.lookup_pc)]
            assert any("4mm4call" in name or "wrapper_CPU_mm" in name for name in names), names
            assert "_start" in names
            return True

    for _ in range(3):
        wait_until(is_followed, "a look falls into a kernel without CFI")


def names_of(symbolizer: Symbolizer, address: int) -> tuple[str, ...]:
    function = symbolizer.function(address)
    return function.names if function is not None else ()
