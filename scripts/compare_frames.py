#!/usr/bin/env python3
"""Compare Python frames with those of py-spy and pystack, on every CPython of this machine.

Writes docs/measurements/frames-compared.md.

Each program says itself where its threads are; a tool is right about a thread if functions, files and lines are all
those. Run it from the development environment (scripts/test makes it):
.venv/bin/python scripts/compare_frames.py [VERSION …]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

from support.installed import pythons  # noqa: E402
from support.programs import harness  # noqa: E402 - the tests' folder is on the path from here on
from support.programs.python_targets import running  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "frames-compared.md"
_HEAD = """# Python frames, compared with py-spy and pystack

`scripts/compare_frames.py` writes this page. The threads of two programs (tests/inferiors/python_stacks.py and
python_interpreters.py) wait in generators, coroutines, `finally` and `except` blocks, a 300-deep recursion, callbacks
from C, class bodies, comprehensions, `exec` and a subinterpreter. The programs report their own frames
(`sys._current_frames()`).

A tool is right about a thread if every frame matches in function, file, line and order. Names are compared without
the enclosing class or function, because py-spy omits these.

The thread "guest" runs in a subinterpreter. py-spy, and pystack up to 3.10, show the frames of only one interpreter.
The function "through_long_function" is in a file with a Japanese name, whose frames pystack omits. 3.13t and 3.14t
are free-threaded builds.

{versions}

| CPython | dispatch-bt | py-spy | pystack | who differs where |
|---|---|---|---|---|
"""
_TIMEOUT = 120

Line = tuple[str, str, int]
"""The last part of the function's name, the last part of the file's, the line."""
Stacks = dict[int, list[Line]]
"""By thread id, innermost first."""


class Outcome(NamedTuple):
    """What one tool said: the stacks, or why there are none."""

    stacks: Stacks
    failure: str = ""


def line(function: str, file: str, number: int | None) -> Line:
    """As all tools can be compared."""
    return function.rpartition(".")[2], Path(file).name, number or 0


def _run(command: Sequence[str]) -> str:
    """Raises RuntimeError with the first line of what went wrong."""
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise RuntimeError(words[0][:120] if words else f"exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def ours(pid: int) -> Stacks:
    """dispatch-bt's Python frames."""
    command = [str(harness.DISPATCH), "--debugger", "none", "-p", str(pid), "--json", "dispatch-bt", "--all"]
    return {
        thread["tid"]: [line(each["function"], each["file"], each["line"]) for each in thread["python_frames"]]
        for thread in json.loads(_run(command))["threads"]
        if thread["python_frames"]
    }


def py_spy(pid: int) -> Stacks:
    """py-spy's; without --native, which takes frames away and adds others."""
    told = json.loads(_run([_beside("py-spy"), "dump", "--json", "--pid", str(pid)]))
    return {
        thread["os_thread_id"] or thread["thread_id"]: [
            line(each["name"], each["filename"], each["line"]) for each in thread["frames"]
        ]
        for thread in told
    }


_THREAD = re.compile(r"Traceback for thread (\d+)")
_FRAME = re.compile(r'\(Python\) File "(.*)", line (\d+), in (.*)$')


def pystack(pid: int) -> Stacks:
    """pystack's, which are outermost first."""
    stacks: Stacks = {}
    tid = 0
    for text in _run([_beside("pystack"), "--no-color", "remote", "--no-block", str(pid)]).splitlines():
        thread, frame = _THREAD.search(text), _FRAME.search(text)
        if thread is not None:
            tid = int(thread[1])
        elif frame is not None:
            stacks.setdefault(tid, []).insert(0, line(frame[3].strip(), frame[1], int(frame[2])))
    return stacks


def _beside(name: str) -> str:
    return str(Path(sys.prefix) / "bin" / name)


TOOLS = {"dispatch-bt": ours, "py-spy": py_spy, "pystack": pystack}


def outcomes(pid: int) -> dict[str, Outcome]:
    """What each tool says of a process."""
    found = {}
    for name, tool in TOOLS.items():
        try:
            found[name] = Outcome(tool(pid))
        except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            found[name] = Outcome({}, str(error) or type(error).__name__)
    return found


def truths(program: str, inferior: harness.Inferior) -> dict[int, tuple[str, list[Line]]]:
    """Thread id to name and stack, as the program tells them."""
    if program == "python_stacks":
        return {
            each["tid"]: (each["name"].partition("-")[0], [line(*frame) for frame in each["stack"]])
            for each in inferior.truth["stacks"]
        }
    source = (harness.INFERIORS / "python_interpreters.py").read_text().splitlines()
    inner = guest_frames(source, inferior.truth["file"])
    called = next(number for number, text in enumerate(source, 1) if "_interpreters.run_string(" in text)
    own = [*inner, ("run_in_interpreter", "python_interpreters.py", called)]
    return {inferior.truth["tid"]: ("guest", own)}


def guest_frames(source: Sequence[str], file: str) -> list[Line]:
    """The frames inside of the subinterpreter; lines count from the beginning of its program."""
    start = source.index('SOURCE = """')
    lines = {text.strip(): number - start for number, text in enumerate(source) if number > start}
    deepest = lines["os.read({block}, 1)"] + 1
    again = lines["inside(depth - 1)"] + 1
    top = lines["inside(3)"] + 1
    return [("inside", file, deepest), *[("inside", file, again)] * 3, ("<module>", file, top)]


def differences(truth: Mapping[int, tuple[str, list[Line]]], outcome: Outcome) -> Iterator[str]:
    """The names of the threads that a tool is not right about."""
    for tid, (name, stack) in truth.items():
        found = outcome.stacks.get(tid, [])
        known = [each for each in found if each[1] != "threading.py"] if name == "guest" else found
        if known != stack:
            yield name


def row(version: str) -> list[str]:
    """The row of one CPython."""
    wrong: dict[str, list[str]] = {name: [] for name in TOOLS}
    failures: dict[str, str] = {}
    count, exact = 0, version
    for program in ("python_stacks", "python_interpreters"):
        with running(version, program, *(["plain"] if program == "python_stacks" else [])) as inferior:
            exact = inferior.truth["python"]
            truth = truths(program, inferior)
            count += len(truth)
            for name, outcome in outcomes(inferior.pid).items():
                wrong[name] += differences(truth, outcome)
                if outcome.failure:
                    failures[name] = outcome.failure
    cells = [f"{count - len(wrong[name])} of {count}" for name in TOOLS]
    remarks = [f"{name}: {failures.get(name) or ', '.join(found)}" for name, found in wrong.items() if found]
    if version.endswith("t"):
        exact += "t"
    return [exact, *cells, "; ".join(remarks)]


def main() -> int:
    """Exit status 0: dispatch-bt is right about every thread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=[*pythons.SUPPORTED, *pythons.newer()], metavar="VERSION")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    table = []
    for version in options.versions:
        table.append(row(version))
        print(" | ".join(table[-1]), file=sys.stderr, flush=True)
    numbers = ((name, _run([_beside(name), "--version"]).split()[-1]) for name in ("py-spy", "pystack"))
    versions = ", ".join(f"{name} {number}" for name, number in numbers)
    text = "".join(f"| {' | '.join(each)} |\n" for each in table)
    options.output.write_text(_HEAD.format(versions=f"Versions: {versions}.") + text)
    return 0 if all(each[1].split()[0] == each[1].split()[2] for each in table) else 1


if __name__ == "__main__":
    sys.exit(main())
