"""Times dispatch-bt and its alternatives on the same processes in one run, and a whole job; started by scripts/bench.

Whole processes are timed, from start to exit, rounds interleaved so that a noisy neighbour hits everybody. A tool that
fails or gives no stack has no time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.programs import harness  # noqa: E402

TIME_LIMIT = 300.0
"""Seconds after which a tool counts as failed."""
ENVIRONMENT = {"GDBEXT_ROOM": "-" * 100}
"""What tests/inferiors/job.py wants."""


@dataclass
class Tool:
    """One competitor in one scene: how it is started, and how its output is known to be an answer."""

    name: str
    command: Sequence[str]
    answers: Callable[[str], bool]
    env: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    """Runs before each round, outside the measured time."""
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    failure: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and not self.failure else None


@dataclass
class Goal:
    """``measured`` must be at most ``factor`` times ``reference`` (a tool's name), or ``seconds``."""

    what: str
    measured: str
    reference: str = ""
    factor: float = 1.0
    seconds: float = 0.0


@dataclass
class Scene:
    """Something to look at, with the tools that look at it."""

    name: str
    tools: list[Tool]
    goals: list[Goal]


def measure(tool: Tool) -> None:
    """Run the tool once; adds its wall time and the largest resident set of its processes."""
    tool.before()
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(
            tool.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **tool.env},
        )
        usage = _wait(process, started)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    if usage is None:
        tool.failure = f"took more than {TIME_LIMIT:.0f} s"
    elif process.returncode != 0 or not tool.answers(text):
        tool.failure = f"exit status {process.returncode}, no answer in: {text[-200:]!r}"
    else:
        tool.seconds.append(seconds)
        tool.peak_mb = max(tool.peak_mb, usage / 1024)


def _wait(process: subprocess.Popen[bytes], started: float) -> float | None:
    """Wait with wait4, for ru_maxrss in KiB (of the process or its largest child); None when it takes too long."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return float(usage.ru_maxrss)
        if time.monotonic() - started > TIME_LIMIT:
            process.kill()
            process.wait()
            return None
        time.sleep(0.001)


# --- the competitors -----------------------------------------------------------------------------------------------


def mentions(*words: str) -> Callable[[str], bool]:
    """Does the output contain all these words?"""
    return lambda text: all(word in text for word in words)


def is_report(*operators: str) -> Callable[[str], bool]:
    """Is the output one JSON document whose steps name these operators?"""

    def answers(text: str) -> bool:
        try:
            document = json.loads(text[text.index("{") : text.rindex("}") + 1])
        except ValueError:
            return False
        steps = {step["op"] for thread in document["threads"] for step in thread["dispatch"]}
        return bool(document["threads"]) and steps >= set(operators)

    return answers


def ours(where: Sequence[str], operators: Sequence[str], cache: Path, threads: str = "--all") -> list[Tool]:
    """dispatch-bt through gdb and without a debugger, with a warm and with an empty cache."""

    def command(debugger: str) -> list[str]:
        return [str(harness.DISPATCH), "--debugger", debugger, "--json", *where, "dispatch-bt", threads]

    def empty() -> None:
        shutil.rmtree(cache / "cold", ignore_errors=True)

    warm = {"XDG_CACHE_HOME": str(cache / "warm")}
    cold = {"XDG_CACHE_HOME": str(cache / "cold")}
    answers = is_report(*operators)
    return [
        Tool("gdbext (gdb)", command("gdb"), answers, warm),
        Tool("gdbext (none)", command("none"), answers, warm),
        Tool("gdbext (gdb, cold)", command("gdb"), answers, cold, empty),
    ]


def gdb_plain(where: Sequence[str], *words: str) -> Tool:
    """gdb as everybody uses it."""
    options = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *where]
    return Tool("gdb, all bt", [*options, "-ex", "thread apply all bt"], mentions("#0", *words))


def beside_us(name: str) -> str:
    """The script of a package in our environment."""
    return str(Path(sys.prefix) / "bin" / name)


def py_spy(pid: int, *words: str) -> Tool:
    return Tool("py-spy --native", [beside_us("py-spy"), "dump", "--native", "--pid", str(pid)], mentions(*words))


def pystack_remote(pid: int, *words: str) -> Tool:
    return Tool("pystack --native", [beside_us("pystack"), "remote", "--native", str(pid)], mentions(*words))


def pystack_core(core: Path, *words: str) -> Tool:
    command = [beside_us("pystack"), "core", "--native", str(core), os.path.realpath(sys.executable)]
    return Tool("pystack --native", command, mentions(*words))


# --- the scenes ----------------------------------------------------------------------------------------------------


def live(inferior: harness.Inferior, cache: Path) -> Scene:
    where = ["-p", str(inferior.pid)]
    tools = [
        *ours(where, ["aten::mm", "aten::matmul", "aten::linear"], cache),
        py_spy(inferior.pid, "mm"),
        pystack_remote(inferior.pid, "mm"),
        gdb_plain(where, "mm"),
    ]
    goals = [
        Goal("no slower than py-spy --native", "gdbext (gdb)", "py-spy --native"),
        Goal("aim: no slower than pystack --native", "gdbext (gdb)", "pystack --native"),
        Goal("five times faster than gdb", "gdbext (gdb)", "gdb, all bt", factor=0.2),
        Goal("a cold cache costs at most 1 s more", "gdbext (gdb, cold)", "gdbext (gdb)", seconds=1.0),
    ]
    return Scene("meta-mm, live", tools, goals)


def core(inferior: harness.Inferior, cache: Path) -> Scene:
    path = inferior.core()
    tools = [
        *ours(["-c", str(path)], ["aten::mm", "aten::matmul", "aten::linear"], cache),
        pystack_core(path, "mm"),
        gdb_plain([os.path.realpath(sys.executable), str(path)], "mm"),
    ]
    goals = [Goal("no slower than pystack core --native", "gdbext (gdb)", "pystack --native")]
    return Scene(f"meta-mm, core of {path.stat().st_size / 1e6:.0f} MB", tools, goals)


def many_threads(inferior: harness.Inferior, cache: Path) -> Scene:
    where = ["-p", str(inferior.pid)]
    operators = ["gdbext_test::wait_unboxed", "gdbext_test::gil_mutex"]
    tools = [
        *ours(where, operators, cache),
        py_spy(inferior.pid, "threads200"),
        pystack_remote(inferior.pid, "threads200"),
        gdb_plain(where, "wait_unboxed"),
    ]
    return Scene("200 threads in operators, live", tools, [Goal("at most 1 s", "gdbext (gdb)", seconds=1.0)])


def deep(inferior: harness.Inferior, cache: Path) -> Scene:
    where = ["-p", str(inferior.pid)]
    tools = [*ours(where, [inferior.truth["op"]], cache), py_spy(inferior.pid, "recurse"), gdb_plain(where, "#25000")]
    goals = [Goal("seconds", "gdbext (gdb)", seconds=5.0)]
    return Scene(f"{inferior.name}, more than 25,000 frames, live", tools, goals)


def overflow(inferior: harness.Inferior, cache: Path) -> Scene:
    path = inferior.core()
    tools = [
        *ours(["-c", str(path)], [inferior.truth["op"]], cache),
        gdb_plain([os.path.realpath(sys.executable), str(path)], "#25000"),
    ]
    return Scene("stack overflow, core", tools, [Goal("seconds", "gdbext (gdb)", seconds=10.0)])


def ranks(inferior: harness.Inferior, cache: Path) -> Scene:
    pid = str(inferior.truth["pids"]["eight"][0])
    warm = {"XDG_CACHE_HOME": str(cache / "warm")}
    one = [str(harness.DISPATCH), "--debugger", "none", "-p", pid, "--json", "dispatch-diagnose"]
    tools = [
        Tool("gdbext (gdb)", [each if each != "none" else "gdb" for each in one], mentions("waiting-external"), warm),
        Tool("gdbext (none)", one, mentions("waiting-external"), warm),
        Tool("gdbext, all ranks", [str(harness.DISPATCH), "ranks", "-p", pid, "--json"], mentions("late-rank"), warm),
    ]
    goals = [Goal("at most three times as long as one rank", "gdbext, all ranks", "gdbext (none)", factor=3.0)]
    return Scene("8 ranks over gloo, live", tools, goals)


SCENES: dict[str, tuple[Callable[[harness.Inferior, Path], Scene], Sequence[str]]] = {
    "live": (live, ["meta-mm"]),
    "core": (core, ["meta-mm"]),
    "threads": (many_threads, ["threads200", "200"]),
    "redispatch": (deep, ["boxed-recursion", "fallback", "25000"]),
    "overflow": (overflow, ["boxed-recursion", "fallback", "0"]),
    "ranks": (ranks, ["job", "eight"]),
}


def run_scene(name: str, runs: int) -> Scene:
    """Start what is to be looked at, warm the cache, then run all tools in turn, ``runs`` times; where that is 0, the
    round that warms the cache counts."""
    make, start = SCENES[name]
    cache = Path(tempfile.mkdtemp(prefix="gdbext-bench-"))
    try:
        with harness.started(*start, env=ENVIRONMENT) as inferior:
            scene = make(inferior, cache)
            for number in range(runs + 1):
                for tool in scene.tools:
                    if not tool.failure:
                        measure(tool)
                        progress(f"{scene.name}: round {number} of {runs}, {tool.name}")
                if number == 0 and runs:
                    for tool in scene.tools:
                        tool.seconds.clear()  # the first round filled the caches, ours and the system's
            inferior.assert_undisturbed()
            return scene
    finally:
        shutil.rmtree(cache, ignore_errors=True)


# --- what is said about them ---------------------------------------------------------------------------------------


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def judge(scene: Scene) -> Iterator[tuple[Goal, str, bool]]:
    """(goal, the figures, reached) of each goal."""
    medians = {tool.name: tool.median for tool in scene.tools}
    for goal in scene.goals:
        mine = medians[goal.measured]
        other = medians.get(goal.reference)
        if mine is None:
            yield goal, f"{goal.measured} failed", False
        elif goal.reference and other is None:
            yield goal, f"{mine:.2f} s; {goal.reference} failed", True
        elif other is not None and goal.seconds:
            yield goal, f"{mine:.2f} - {other:.2f} = {mine - other:.2f} s", mine - other <= goal.seconds
        elif other is not None:
            ratio = mine / other
            yield goal, f"{mine:.2f} / {other:.2f} = {ratio:.2f} (at most {goal.factor})", ratio <= goal.factor
        else:
            yield goal, f"{mine:.2f} s (at most {goal.seconds})", mine <= goal.seconds


def as_text(scene: Scene) -> str:
    """A table with ratios to our run through gdb, then the goals."""
    base = next((tool.median for tool in scene.tools if tool.name == "gdbext (gdb)"), None)
    lines = [scene.name, f"  {'tool':<20} {'median s':>9} {'min':>7} {'max':>7} {'ratio':>7} {'peak MB':>8}"]
    for tool in scene.tools:
        if tool.median is None:
            lines.append(f"  {tool.name:<20} failed: {tool.failure}")
            continue
        ratio = f"{tool.median / base:.2f}" if base else "-"
        spread = f"{min(tool.seconds):>7.3f} {max(tool.seconds):>7.3f}"
        lines.append(f"  {tool.name:<20} {tool.median:>9.3f} {spread} {ratio:>7} {tool.peak_mb:>8.0f}")
    for goal, figures, reached in judge(scene):
        lines.append(f"  {'reached' if reached else 'MISSED '}  {goal.what}: {figures}")
    return "\n".join(lines)


def as_json(scenes: Sequence[Scene]) -> dict[str, object]:
    """All that was measured."""
    return {
        "schema": "gdbext-bench/1",
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "scenes": [
            {
                "name": scene.name,
                "tools": [
                    {
                        "name": tool.name,
                        "command": list(tool.command),
                        "median": tool.median,
                        "seconds": tool.seconds,
                        "peak_mb": round(tool.peak_mb, 1),
                        "failure": tool.failure or None,
                    }
                    for tool in scene.tools
                ],
                "goals": [
                    {"what": goal.what, "figures": figures, "reached": reached}
                    for goal, figures, reached in judge(scene)
                ],
            }
            for scene in scenes
        ],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Times dispatch-bt against gdb, py-spy and pystack on the same hung processes and cores, and "
        "a whole job against one of its ranks.",
        epilog="ratio: the tool's median over ours through gdb. peak MB: resident memory of the largest process.",
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"any of: {', '.join(SCENES)} (default: all)")
    parser.add_argument(
        "--runs", type=int, default=5, help="rounds that count; one more warms up (default 5; 0: that one counts)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a goal is missed")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.scenes if name not in SCENES]
    if unknown or chosen.runs < 0:
        parser.error(f"unknown scene {unknown[0]}" if unknown else "--runs must be at least 0")
    return chosen


def main() -> int:
    chosen = arguments()
    scenes = []
    for name in chosen.scenes or SCENES:
        scenes.append(run_scene(name, chosen.runs))
        if not chosen.json:
            print(as_text(scenes[-1]) + "\n", flush=True)
    if chosen.json:
        print(json.dumps(as_json(scenes), indent=1))
    missed = [goal for scene in scenes for goal, _, reached in judge(scene) if not reached]
    return 1 if chosen.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
