#!/usr/bin/env python3
"""Write docs/measurements/compared.md: how plain gdb, py-spy, pystack and dispatch-diagnose do on each scenario.

``--show`` prints their outputs, too: the first LINES lines, each clipped to WIDTH columns. Run it from the development
environment (scripts/test makes it): .venv/bin/python scripts/compare_tools.py [--show] [SCENARIO…]
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from support.programs import harness  # noqa: E402 - the tests' folder is on the path from here on

LINES, WIDTH = 16, 150
ROUNDS = 7
"""Times that each tool runs on a scenario, in turn with the others; gdb, the slowest by far, runs once."""
TIMEOUT = 120
_HOMES = "|".join(re.escape(str(folder)) for folder in (ROOT, Path.home(), Path(sys.prefix), Path(sys.base_prefix)))
MACHINE_PATH = re.compile(rf"(?:{_HOMES})/(?:[^\s:,()\"']*/)?")
"""The folders of an absolute path below this checkout, the home folder or the Pythons."""


class Scenario(NamedTuple):
    name: str
    args: tuple[str, ...]
    what: str


SCENARIOS = (
    Scenario("meta-mm", (), "A Python kernel for aten::mm on Meta never returns."),
    Scenario("gil-mutex", (), "One thread has the GIL and wants a mutex, another has the mutex and wants the GIL."),
    Scenario("guard-entry", (), "One thread runs a static's initializer and wants the GIL, another has it and waits."),
    Scenario("mutex-abba", (), "Two native mutexes in opposite order, inside operators."),
    Scenario("python-lock-abba", (), "Two threading.Lock in opposite order."),
    Scenario("fork-mutex", (), "A mutex held by another thread while the process forked."),
    Scenario("fork-openmp", (), "A parallel operator in a forked child; the OpenMP pool did not survive."),
    Scenario("boxed-recursion", (), "A boxed fallback that redispatches with the same keyset, 200 deep so far."),
    Scenario("gloo-mismatch", (), "Rank 0 is in all_reduce, rank 1 never enters it."),
    Scenario("dataloader", (), "The main thread waits for a worker process that is stopped."),
    Scenario("pools", (), "Healthy: idle pools, the main thread reads standard input."),
)


class Tool(NamedTuple):
    title: str
    command: tuple[str, ...]
    keep: tuple[str, ...] = ()
    """Beginnings of the lines that tell of the process; () keeps all. gdb's start-up talk is left out so."""


def tools(pid: int) -> list[Tool]:
    """The commands as a user would type them."""
    binaries = Path(sys.executable).parent
    return [
        Tool("dispatch-diagnose", (str(harness.DISPATCH), "-p", str(pid))),
        Tool(
            "gdb: thread apply all bt",
            ("gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-p", str(pid), "-ex", "thread apply all bt"),
            ("Thread ", "#"),
        ),
        Tool("py-spy dump --native", (str(binaries / "py-spy"), "dump", "--native", "-p", str(pid))),
        Tool("pystack remote --native", (str(binaries / "pystack"), "remote", "--native", str(pid))),
    ]


def run(tool: Tool) -> tuple[float, list[str]]:
    """Seconds, and all lines of the output (of both streams where there is nothing on the first)."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            tool.command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return time.monotonic() - started, [f"(no answer after {TIMEOUT} s)"]
    seconds = time.monotonic() - started
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return seconds, [line for line in lines if line.startswith(tool.keep)] if tool.keep else lines


def shortened(lines: list[str]) -> list[str]:
    """The first lines, clipped; says how many there are."""
    kept = [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines[:LINES]]
    return [*kept, f"… {len(lines) - LINES} more lines"] if len(lines) > LINES else kept


def neutral(text: str) -> str:
    """Absolute paths without the folders that only this machine has: "…/threading.py"."""
    return MACHINE_PATH.sub("…/", text)


def row_of(scenario: Scenario, show: bool) -> str:
    """Run all tools on the scenario: its row of the table. ``show`` prints what they said."""
    with harness.started(scenario.name, *scenario.args) as inferior:
        ours, *others = tools(inferior.pid)
        outputs = {tool.title: run(tool)[1] for tool in (ours, *others)}  # this also fills the caches
        seconds: dict[str, list[float]] = {tool.title: [] for tool in (ours, *others)}
        for number in range(ROUNDS):
            for tool in (ours, *others):
                if number == 0 or not tool.keep:
                    seconds[tool.title].append(run(tool)[0])
    lines = outputs[ours.title]
    if show:
        for title, output in outputs.items():
            print(neutral("\n".join([f"\n{title} ({statistics.median(seconds[title]):.2f} s)", *shortened(output)])))
    cells = [f"{statistics.median(seconds[ours.title]):.2f} s, {len(lines)} lines"]
    for tool in others:
        ratio = statistics.median(theirs / own for theirs, own in zip(seconds[tool.title], seconds[ours.title]))
        cells.append(f"{ratio:.1f}, {len(outputs[tool.title])} lines")
    verdict = lines[0].split(":")[0] if lines else ""
    return f"| {scenario.name} | {scenario.what} | {verdict} | {' | '.join(cells)} |"


def main(words: list[str]) -> None:
    """Run all, or those named, and write the page."""
    names = [word for word in words if word != "--show"]
    rows = []
    for scenario in SCENARIOS:
        if names and scenario.name not in names:
            continue
        print(scenario.name, file=sys.stderr, flush=True)
        rows.append(row_of(scenario, "--show" in words))
    versions = [
        _version("gdb"),
        _version(str(Path(sys.executable).parent / "py-spy")),
        _version(str(Path(sys.executable).parent / "pystack")),
    ]
    page = [
        "# Time and output, compared with gdb, py-spy and pystack",
        "",
        "`scripts/compare_tools.py` writes this page. It runs each tool on the same live process and counts the",
        "lines that it prints. With `--show`, it prints the outputs, too.",
        "",
        f"The time of `scripts/dispatch -p PID` is the median of {ROUNDS} runs (wall clock, two cores). For the",
        "other tools, the table has the median of their times as a multiple of it, so 2.0 means twice as long. The",
        "tools ran in turn on the same process, gdb once. The other tools print the stacks of all threads but no",
        "verdict.",
        "",
        f"The versions were {'; '.join(versions)}.",
        "",
        "| scenario | what happens | verdict of scripts/dispatch | scripts/dispatch | gdb: thread apply all bt "
        "| py-spy dump --native | pystack remote --native |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    target = ROOT / "docs" / "measurements" / "compared.md"
    target.write_text("\n".join(page) + "\n")
    print(target)


def _version(program: str) -> str:
    if shutil.which(program) is None:
        return f"{os.path.basename(program)} (missing)"  # noqa: PTH119
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.splitlines()[0] if done.stdout else "unknown version"
    name = os.path.basename(program)  # noqa: PTH119
    return words if name.split("-")[0] in words.lower() else f"{name} {words}"


if __name__ == "__main__":
    main(sys.argv[1:])
