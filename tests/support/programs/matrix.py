"""Compiles and runs tests/inferiors/native/matrix: operators of every kind in a program without Python.

Each of its threads stands inside of one call, and wrote down by which passes it came there. `compare` counts what a
report says of them. scripts/measure_cpp.py does so for every way of compiling that the machine knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from support.programs import native_build
from support.programs.harness import DISPATCH, HarnessError, Outcome, run, wait_until

SOURCES = native_build.SOURCES / "matrix"
HIDDEN = ("-fvisibility=hidden", "-fvisibility-inlines-hidden")
FLAGS = {
    "O0-g": ("-O0", "-g"),
    "O2": ("-O2",),
    "O3-hidden": ("-O3", "-DNDEBUG"),
    "O3-s": ("-O3", "-DNDEBUG"),
    "O3-s-hidden": ("-O3", "-DNDEBUG"),
    "O3-fvisibility": ("-O3", "-DNDEBUG", *HIDDEN),
    "O2-lto": ("-O2", "-flto"),
    "O2-no-plt": ("-O2", "-fno-plt"),
    "O2-own-libstdc++": ("-O2", "-static-libstdc++"),
}
"""The ways of compiling; "-hidden" (by the linker) and "-s" (by strip) come afterwards: all of -O3 are one."""
WITH_FUNCTION = ("O3-hidden", "O3-s", "O3-s-hidden")
"""With g++, they have a call of an autograd function, too, whose header costs three seconds."""
COMPILERS = ("g++", "clang++", "clang++-14", "clang++-16", "clang++-19")
IN_SUITE = ("O0-g", "O3-hidden", "O3-s-hidden")
"""With g++: three of the ways, that is two compilations, once for each machine."""
PATIENCE = 240.0


class Matrix(NamedTuple):
    """The running program. ``truth`` has its cases, each with passes from the innermost one outwards."""

    truth: dict[str, Any]
    folder: Path
    """Where it writes its truth."""

    @property
    def pid(self) -> int:
        return int(self.truth["pid"])

    def case(self, name: str) -> dict[str, Any]:
        return next(case for case in self.truth["cases"] if case["name"] == name)

    def _look(self, *args: str) -> Outcome:
        outcome = run([DISPATCH, "--debugger", "none", "-p", str(self.pid), *args], timeout=PATIENCE)
        if outcome.status != 0:
            raise HarnessError(f"scripts/dispatch failed\n{outcome}")
        return outcome

    def text(self, *args: str) -> str:
        return self._look(*args).stdout

    def document(self, *args: str) -> dict[str, Any]:
        return self._look("--json", *args).document


def running(way: str, compiler: str = "g++", only: str = "") -> AbstractContextManager[Matrix]:
    """The program, compiled that way, when all its threads stand where they are to be looked at."""
    return started(host(), build(way, compiler), only)


@contextlib.contextmanager
def started(program: Path, library: Path, only: str = "") -> Iterator[Matrix]:
    """The same of a library that is compiled already."""
    with tempfile.TemporaryDirectory(prefix="gdbext-matrix-") as name:
        folder = Path(name)
        words = [str(program), str(folder / "truth"), str(library), *([only] if only else [])]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            truth = wait_until(lambda: _truth(folder) or process.poll() is not None, "the matrix program is ready")
            if truth is True:
                raise HarnessError(f"the matrix program ended: {(folder / 'output').read_text()[-3000:]}")
            yield Matrix(truth, folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _truth(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / "truth").read_text()))
    return {}


def host() -> Path:
    return _built("host", ["g++", "-O1", "SOURCE", "-o", "TARGET", "-ldl"], SOURCES / "host.cpp")


def build(way: str, compiler: str = "g++", name: str = "matrix") -> Path:
    """The library of that name, compiled that way or found compiled."""
    flags = (*FLAGS[way], *(["-fopenmp"] if name == "chains" else []))
    if (compiler, name) == ("g++", "matrix") and way in WITH_FUNCTION:
        flags += ("-DAUTOGRAD_FUNCTION",)
    torch = native_build.torch_folder()
    include = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    # g++ takes 1.2 GB then, and a tenth of the time less
    speed = ("--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=4000000") if compiler == "g++" else ()
    command = [compiler, "-std=c++20", "-fPIC", "-pthread", *speed, *flags, *include, "-c", "SOURCE", "-o", "TARGET"]
    compiled = _built(f"{name}.o", command, SOURCES / f"{name}.cpp")
    hiding = [f"-Wl,--version-script={SOURCES / 'hidden.map'}"] if "-hidden" in way else []
    link = [compiler, "-shared", "-pthread", *flags, "SOURCE", "-o", "TARGET", *hiding]
    link += [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
    whole = _built(f"lib{name}.so", link, compiled)
    if "-s" not in way:
        return whole
    return _built(f"lib{name}.so", ["strip", "-s", str(whole), "-o", "TARGET"], whole)


def _built(name: str, command: list[str], source: Path) -> Path:
    digest = hashlib.sha256(repr([command[0], *sorted(command)]).encode())
    digest.update(subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout)
    for file in (source, SOURCES / "account.h", native_build.torch_folder() / "version.py"):
        digest.update(file.read_bytes())

    def words(partial: Path) -> list[str]:
        return [{"SOURCE": str(source), "TARGET": str(partial)}.get(word, word) for word in command]

    return native_build.made(native_build.cache_folder() / f"matrix-{digest.hexdigest()[:16]}" / name, words)


@dataclass
class Score:
    """What a report says of all passes. ``wrong`` are sentences."""

    passes: int = 0
    found: int = 0
    right: int = 0
    """Found, with an event and a keyset where the program knows it."""
    proven: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    """Passes of which something is unknown."""

    def add(self, case: Score) -> None:
        """Add those of one case. One that is a recursion counts as eight passes, so that it does not outweigh the
        others; what is wrong in it counts in full."""
        weight = min(1.0, 8 / max(case.passes, 1))
        for name in ("passes", "found", "right", "proven"):
            setattr(self, name, getattr(self, name) + round(weight * getattr(case, name)))
        for name in ("wrong", "missing", "lacking"):
            getattr(self, name).extend(getattr(case, name))


def compare(truth: dict[str, Any], document: dict[str, Any]) -> Score:
    score = Score()
    threads = {thread["tid"]: thread for thread in document["threads"]}
    for case in truth["cases"]:
        score.add(_matched(case["name"], case["passes"], _unfolded(threads[case["tid"]]["dispatch"])))
    return score


class RecursionScore(NamedTuple):
    """What a report says of recursions.cpp; ``alarms``: names of cases that end, and were said not to."""

    finite: int
    endless: int
    alarms: list[str]
    missed: list[str]


def compare_recursions(truth: dict[str, Any], document: dict[str, Any]) -> RecursionScore:
    found = [one for one in document["findings"] if one["kind"] == "runaway-recursion"]
    runaway = {tid for one in found for tid in one["threads"]}
    wrong = [case for case in truth["cases"] if case["ends"] == (case["tid"] in runaway)]
    alarms, missed = ([case["name"] for case in wrong if case["ends"] == ends] for ends in (True, False))
    count = sum(case["ends"] for case in truth["cases"])
    return RecursionScore(count, len(truth["cases"]) - count, alarms, missed)


def _unfolded(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found, at = [], 0
    while at < len(steps):
        repeats = steps[at].get("repeats") or {"period": 1, "times": 1}
        found += steps[at : at + repeats["period"]] * repeats["times"]
        at += repeats["period"]
    return found


def _matched(name: str, wanted: list[dict[str, Any]], steps: list[dict[str, Any]]) -> Score:
    """Aligns both sequences, innermost first; a pass without a step is missing, a step without a pass wrong."""
    if len(wanted) != len(steps):
        wanted, steps = wanted[:700], steps[:700]
    places = _alignment(wanted, steps)
    score = Score(len(wanted), len(places))
    others = [step for number, step in enumerate(steps) if number not in places.values() and step["op"] not in IGNORED]
    score.wrong += [f"{name}: no such pass: {_short(step)}" for step in others]
    for number, one in enumerate(wanted):
        if number in places:
            _judge(name, one, steps[places[number]], score)
        else:
            score.missing.append(f"{name}: {one['op']} {one['key']} {one['event']}")
    return score


IGNORED = {"aten::add", "aten::mul"}
"""Operators that the program calls in passing; none of them is on a stack that waits."""


def _alignment(wanted: list[dict[str, Any]], steps: list[dict[str, Any]]) -> dict[int, int]:
    """Pass number to step number, in order, by operator and (where known) key: the longest common sequence."""
    if len(wanted) == len(steps):
        return {number: number for number in range(len(wanted))}
    rows = [[0] * (len(steps) + 1) for _ in range(len(wanted) + 1)]
    for i in range(len(wanted) - 1, -1, -1):
        for j in range(len(steps) - 1, -1, -1):
            both = _likeness(wanted[i], steps[j])
            rows[i][j] = max(rows[i + 1][j], rows[i][j + 1], both + rows[i + 1][j + 1] if both else 0)
    places, i, j = {}, 0, 0
    while i < len(wanted) and j < len(steps):
        both = _likeness(wanted[i], steps[j])
        if both and rows[i][j] == both + rows[i + 1][j + 1]:
            places[i] = j
            i, j = i + 1, j + 1
        elif rows[i][j] == rows[i + 1][j]:
            i += 1
        else:
            j += 1
    return places


def _likeness(one: dict[str, Any], step: dict[str, Any]) -> int:
    if step["op"] not in (one["op"], None):
        return 0
    return 4 if step["key"] == one["key"] else 3 if step["key"] is None else 1


def _judge(name: str, one: dict[str, Any], step: dict[str, Any], score: Score) -> None:
    keyset = int(step["keyset"]["bits"], 16) if step["keyset"] else 0
    shown, true = {**step, "keyset": keyset}, {**one, "keyset": int(one["keyset"], 16)}
    names = ("op", "key", "event", "keyset")
    if bad := [what for what in names if shown[what] and true[what] and shown[what] != true[what]]:
        score.wrong.append(f"{name}: {', '.join(bad)} of {_short(step)}, is {one}")
        return
    lacks = [what for what in ("op", "key", "event") if not step[what]]
    if lacks or not keyset:
        score.lacking.append(f"{name}: {', '.join([*lacks, *([] if keyset else ['keyset'])])} of {_short(step)}")
    score.right += not lacks
    score.proven += not lacks and step["confidence"] in ("exact", "verified")


def _short(step: dict[str, Any]) -> str:
    kernel = step["kernel"]["function"] if step["kernel"] else None
    keyset = step["keyset"]["bits"] if step["keyset"] else None
    words = (step["level"], step["op"], step["key"], step["event"], keyset, step["confidence"], step["stage"], kernel)
    return " ".join(str(word) for word in words)


TENSOR = "f32[3] cpu"
TYPES, SIZES = ("torch.float32", "torch.float16"), ("9", "[2, 3]")
GIVEN = {
    "stable": (TENSOR,),
    "kinds": (TENSOR, TENSOR, "None", f"[{TENSOR}, {TENSOR}]", f"[{TENSOR}, None]", "7", "8", "None", "[4, 5]", "[6]"),
    "numbers": (TENSOR, "0.5", "1.5", "[1.5, 2.5]", "True", "False", "[True, False, True]", "3", "4.5", "(1-2j)"),
    "words": (TENSOR, '"here"', '"there"', *TYPES, "torch.strided", "cpu", "cuda:1", "torch.channels_last", *SIZES),
}
"""What the program calls its operators with, in order: every kind of the schema language."""


def shown_arguments(truth: dict[str, Any], document: dict[str, Any]) -> list[tuple[str | None, str]]:
    """What is shown of the arguments of these calls, each with what was given."""
    shown = []
    for case in truth["cases"]:
        given = GIVEN.get(case["name"].partition("/")[0])
        if given is not None:
            (steps,) = [each["dispatch"] for each in document["threads"] if each["tid"] == case["tid"]]
            pairs = [pair for step in steps for pair in zip(step["arguments"], given, strict=True)]
            shown += [(one["value"], true) for one, true in pairs]
    return shown


def look(program: Matrix) -> dict[str, Any]:
    """The report of all stacks with their arguments. A busy machine wakes threads while they are read, and what was
    read of those counts for nothing: then it is asked again."""
    for _ in range(5):
        document = program.document("dispatch-bt", "--all", "--args")
        if not document["target"].get("moved"):
            break
    return document


def called(events: list[dict[str, Any]]) -> list[Any]:
    """[operator, [calls inside of it]] of the calls that a trace shows; those of torch's operators are left out."""
    outermost: list[Any] = []
    open_calls: list[tuple[int, list[Any] | None]] = [(0, outermost)]
    for event in events:
        if event["step"] != "dispatch":
            continue
        while open_calls[-1][0] >= event["depth"]:
            open_calls.pop()
        around = open_calls[-1][1]
        if not event["event"].startswith("call") or around is None:
            open_calls.append((event["depth"], around))
            continue
        inside: list[Any] = []
        around.append([event["op"], inside])
        open_calls.append((event["depth"], inside if event["op"].startswith("turns") else None))
    return outermost


def repeats(calls: list[Any], turn: list[Any]) -> bool:
    """Somewhere ``turn`` begins, and from there on there is nothing else, to the last whole turn."""
    size = len(turn)
    begins = [at for at in range(len(calls) - size) if calls[at : at + size] == turn]
    return bool(begins) and all(calls[at : at + size] == turn for at in range(begins[0], len(calls) - size, size))
