"""Stacks through signal handlers, and of calls that do not return, against what their programs do."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.unwind import NativeFrame, Unwinder
from support.programs import procfs
from support.programs.harness import INFERIORS, ready, wait_until

pytestmark = pytest.mark.compiler

OVERFLOWING_FRAME = 131
"""Bytes of stack of a call of ``overflow`` in signals.c."""
NESTED = ["arrived", "inner_handler", "outer_handler"]
CASES = {
    "signals nested same": [*NESTED, "body", "main"],
    "signals nested alternate thread": [*NESTED, "body"],
    "signals overflow alternate": ["arrived", "crash_handler", *["overflow"] * 1000],
    "signals nowhere same": ["arrived", "crash_handler", "call_nowhere", "body", "main"],
    "signals stray alternate thread": ["arrived", "crash_handler", "call_nowhere", "body"],
    "signals write same": ["arrived", "crash_handler", "write_nowhere", "body", "main"],
    "ends direct": ["arrived", "last_words", "never", "picks", "main"],
    "ends callback": ["arrived", "last_words", "never", "picks", "compare", "main"],
}
"""A program, its arguments, and its functions on the stack that waits, innermost first."""


@contextmanager
def running(folder: Path, name: str, *arguments: str) -> Iterator[int]:
    program = folder / name
    source = INFERIORS / f"native/unwind/{name}.c"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1200 * OVERFLOWING_FRAME, resource.RLIM_INFINITY))

    own_limit = limit if "overflow" in arguments else None
    with ready([program, *arguments], stderr=subprocess.DEVNULL, preexec_fn=own_limit) as process:
        wait_until(procfs.sleeps_on(process.pid), "it has come from printing to where it stays")
        yield process.pid


def stacks(pid: int) -> Iterator[tuple[list[NativeFrame], list[str]]]:
    with ProcTarget(pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        unwinder, symbolizer = Unwinder(memory, modules), Symbolizer(modules)
        for thread in target.memory.threads():
            frames = list(unwinder.frames(thread.registers(), 200_000))
            assert unwinder.stopped == "end of stack", frames
            functions = [symbolizer.function(frame.lookup_pc) for frame in frames]
            yield frames, [function.names[0] if function else "" for function in functions]


@pytest.mark.parametrize("case", CASES)
def test_the_frames(tmp_path: Path, case: str) -> None:
    expected = CASES[case]
    with running(tmp_path, *case.split()) as pid:
        frames, names = next(found for found in stacks(pid) if "arrived" in found[1])
    own = [name for name in names if name in {*expected, "main"}]
    assert own[: len(expected)] == expected
    assert ("_start" in names) == ("thread" not in case)
    trampolines = {"signals": 1, "ends": 0}[case.split()[0]] + ("nested" in case)
    assert sum(frame.is_signal for frame in frames) == sum(frame.how == "signal" for frame in frames) == trampolines
    assert any(frame.how == "return-address" for frame in frames) == ("nowhere same" in case or "stray" in case)
    for frame, caller in zip(frames, frames[1:]):
        assert frame.is_signal or frame.cfa == caller.registers["rsp"]
