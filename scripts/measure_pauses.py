#!/usr/bin/env python3
"""Measure by a process's own clock for how long each tool stops it: docs/measurements/pauses.md.

A thread of the process sleeps 0.1 ms at a time and notes the longest delay. All tools look at the same process in turn;
between them nobody does, which says what the machine itself adds. Run it on a quiet machine, from the development
environment (scripts/test makes it), as root: chrt -f 10 .venv/bin/python scripts/measure_pauses.py
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

from support.programs import harness  # noqa: E402 - the tests' folder is on the path from here on

PAGE = ROOT / "docs" / "measurements" / "pauses.md"
NO_TOOL = "none"
_HEAD = """# How long each tool stops a process

`scripts/measure_pauses.py` writes this page. It ran {rounds} rounds on {cores} CPUs, with the process and the tools
at real-time priority (`chrt -f 10`). The process (tests/inferiors/threads200.py) has threads inside operators, half
of them in C++ and half in Python.

One more thread sleeps for 0.1 ms repeatedly and records the longest delay, in milliseconds. The row "{no_tool}" is
the baseline, measured for one second without any tool. "reported" is the longest `target.paused_ms` of the reports,
which is the sum of all stops of an inspection.

| threads | tool | median | longest | reported |
|---|---|---|---|---|
"""


class Clock:
    """The file in which the process notes its longest delay."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._place = mmap.mmap(file.fileno(), 4096)

    def reset(self) -> None:
        """From here on."""
        self._place[:8] = bytes(8)

    def longest(self) -> float:
        """Milliseconds since the last reset."""
        return int.from_bytes(self._place[:8], "little") / 1e6


def commands(pid: int, chosen: Sequence[str]) -> dict[str, list[str]]:
    """What looks at the process, by name."""
    ours = [str(harness.DISPATCH), "-p", str(pid), "--json"]
    beside = Path(sys.prefix) / "bin"
    attach = [
        "gdb",
        "-nx",
        "-q",
        "-batch",
        "--readnever",
        "-iex",
        "set sysroot /nonexistent",
        "-iex",
        "set auto-solib-add off",
        "-iex",
        "set libthread-db-search-path /nonexistent",
        "-p",
        str(pid),
        "-ex",
        "detach",
    ]
    found = {
        NO_TOOL: ["sleep", "1"],
        "dispatch-diagnose": [*ours, "--debugger", "none", "dispatch-diagnose"],
        "dispatch-diagnose --no-stop": [*ours, "--debugger", "none", "--no-stop", "dispatch-diagnose"],
        "dispatch-diagnose, gdb": [*ours, "--debugger", "gdb", "dispatch-diagnose"],
        "gdb alone: attach, detach": attach,
        "py-spy dump --native": [str(beside / "py-spy"), "dump", "--native", "--pid", str(pid)],
        "pystack remote --native": [str(beside / "pystack"), "remote", "--native", str(pid)],
    }
    return {name: command for name, command in found.items() if not chosen or name in (NO_TOOL, *chosen)}


def look(command: Sequence[str], clock: Clock) -> tuple[float, float | None]:
    """(longest delay, what the report says itself) of one run. Raises CalledProcessError."""
    time.sleep(0.05)
    clock.reset()
    output = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout
    time.sleep(0.01)
    longest = clock.longest()
    if not output.startswith(b"{"):
        return longest, None
    said = json.loads(output)["target"].get("paused_ms")
    return longest, float(said or 0)


def rows(threads: int, rounds: int, chosen: Sequence[str]) -> Iterator[list[str]]:
    """The rows of the table for a process with so many threads."""
    with tempfile.TemporaryDirectory(prefix="gdbext-pauses-") as folder:
        place = Path(folder) / "clock"
        with harness.started("threads200", str(threads - 2), str(place)) as inferior:
            clock, tools = Clock(place), commands(inferior.pid, chosen)
            found: dict[str, list[tuple[float, float | None]]] = {name: [] for name in tools}
            for number in range(rounds + 1):
                for name, command in tools.items():
                    result = look(command, clock)
                    if number:  # the first round fills the caches
                        found[name].append(result)
                    progress = f"{threads} threads, round {number}, {name}: {result[0]:.1f} ms"
                    print(progress, file=sys.stderr, flush=True)
            actual = len(list(Path(f"/proc/{inferior.pid}/task").iterdir()))
    for name, results in found.items():
        delays = [delay for delay, _ in results]
        said = [each for _, each in results if each is not None]
        yield [
            str(actual),
            name,
            f"{statistics.median(delays):.1f}",
            f"{max(delays):.1f}",
            f"{max(said):.1f}" if said else "",
        ]


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[10, 200], metavar="N")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--tool", action="append", default=[], metavar="NAME", help="only this one, as the table names it"
    )
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    head = _HEAD.format(rounds=options.rounds, cores=os.cpu_count(), no_tool=NO_TOOL)
    table = [row for threads in options.threads for row in rows(threads, options.rounds, options.tool)]
    text = "".join(f"| {' | '.join(row)} |\n" for row in table)
    options.output.write_text(head + text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
