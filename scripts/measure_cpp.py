#!/usr/bin/env python3
"""Compare what gdbext says of people's own C++, compiled in every way that this machine knows, with what the programs
say themselves: docs/measurements/own-cpp.md.

    .venv/bin/python scripts/measure_cpp.py [--parts passes,arguments,recursions,traces,breaks] [WORD …]

The programs are those of tests/inferiors/native/matrix; each is compiled once (15 s) and kept in the tests'
cache. WORD: only ways whose name has one of them ("clang", "O3-s"). It needs torch and g++, and gdb for the last two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.programs import matrix  # noqa: E402
from support.programs.harness import DISPATCH, run, wait_until  # noqa: E402

BREAKS = (
    ("call", "zoo::plain"),
    ("redispatch", "zoo::layered"),
    ("lookup", "zoo::tail"),
    ("boxed", "zoo::plain"),
    ("kernel", "zoo::pair"),
    ("kernel", "zoo::lambda"),
    ("return", "zoo::plain"),
    ("return", "zoo::layered"),
    ("impl", "zoo::pair"),
)
"""Places and operators that the program reaches once in each of its ten turns."""


class Way(NamedTuple):
    """A compiler and one of matrix.FLAGS."""

    compiler: str
    flags: str

    def __str__(self) -> str:
        return f"{self.compiler} {self.flags}"


class Result(NamedTuple):
    """A line of the page for one way, and what is wrong or missing in it."""

    line: str
    details: tuple[str, ...] = ()


def passes(way: Way) -> Result:
    """The dispatcher's passes of all calls."""
    with matrix.running(way.flags, way.compiler) as program:
        score = matrix.compare(program.truth, matrix.look(program))
    line = f"{score.passes} | {score.found} | {score.right} | {score.proven} | {len(score.wrong)}"
    return Result(line, (*score.wrong, *(f"missing: {one}" for one in score.missing), *score.lacking))


def arguments(way: Way) -> Result:
    """Arguments of every kind of the schema language."""
    with matrix.running(way.flags, way.compiler) as program:
        shown = matrix.shown_arguments(program.truth, matrix.look(program))
    known = [pair for pair in shown if pair[0] is not None]
    wrong = [f"{value} instead of {true}" for value, true in known if value != true]
    return Result(f"{len(shown)} | {len(known)} | {len(wrong)}", tuple(wrong))


def recursions(way: Way) -> Result:
    """Recursions that end and that do not."""
    library = matrix.build(way.flags, way.compiler, "recursions")
    with matrix.started(matrix.host(), library) as program:
        score = matrix.compare_recursions(program.truth, program.document("dispatch-diagnose"))
    details = [*(f"alarm: {one}" for one in score.alarms), *(f"not found: {one}" for one in score.missed)]
    line = f"{score.finite} | {len(score.alarms)} | {score.endless} | {score.endless - len(score.missed)}"
    return Result(line, tuple(details))


def traces(way: Way) -> Result:
    """Whether traces are nested as the program says, by breakpoints."""
    with matrix.started(matrix.host(), matrix.build(way.flags, way.compiler, "turns")) as program:
        words = ["--timeout", "90", "--json", "-p", str(program.pid), "dispatch-trace", "--all", "--limit", "60"]
        outcome = run([DISPATCH, *words, "--engine", "breakpoints"], timeout=matrix.PATIENCE)
        calls = matrix.called(outcome.document["trace"]["events"])
    agrees = matrix.repeats(calls, program.truth["turn"])
    return Result("yes" if agrees else "no", () if agrees else (str(calls)[:400],))


def breaks(way: Way) -> Result:
    """Breakpoints that are hit within ten calls, or say at once that they cannot be."""
    hit, said = 0, []
    with matrix.running(way.flags, way.compiler, only="tens") as program:
        for where, operator in BREAKS:
            text = _break_in_ten_calls(program, where, operator)
            hit += not text
            said += [f"{where} {operator}: {text}"] if text else []
    return Result(f"{hit} of {len(BREAKS)}", tuple(said))


def _break_in_ten_calls(program: matrix.Matrix, where: str, operator: str) -> str:
    """Let the program make ten calls as soon as gdb has let it go on with its breakpoints; "" where one was hit."""
    words = ["--timeout", "200", "--json", "-p", str(program.pid), "dispatch-break", where, operator]
    with subprocess.Popen([DISPATCH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not _is_watched(program.pid):
            time.sleep(0.2)
        trigger, done = (program.folder / f"truth.{ending}" for ending in ("go", "gone"))
        done.unlink(missing_ok=True)
        trigger.touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        missed = process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        wait_until(done.exists, "ten turns are done")
    document = json.loads(output[output.index("{") :]) if "{" in output else {}
    requests = (document.get("breaks") or {}).get("requests", ())
    hits = sum(one["hits"] for request in requests for one in request["breakpoints"])
    return "" if hits and not missed else f"not hit: {document.get('errors') or errors[-300:]}"


def _is_watched(pid: int) -> bool:
    """A debugger is attached, and the process has run on for a while."""
    for _ in range(10):
        status = Path(f"/proc/{pid}/status").read_text()
        if "TracerPid:\t0\n" in status or "State:\tt" in status:
            return False
        time.sleep(0.1)
    return True


PARTS: dict[str, tuple[Callable[[Way], Result], str]] = {
    "passes": (passes, "passes | found | right | proven | wrong"),
    "arguments": (arguments, "arguments | known | wrong"),
    "recursions": (recursions, "that end | alarms | endless | found"),
    "traces": (traces, "nested as the program says"),
    "breaks": (breaks, "breakpoints hit within ten calls"),
}


def main(argv: Sequence[str]) -> int:
    """Exit status 0: nothing is wrong; 1: something is shown that is not so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only ways with one of these in their names")
    parser.add_argument("--parts", default=",".join(PARTS), help="of passes, arguments, recursions, traces, breaks")
    options = parser.parse_args(argv)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    is_wrong = False
    for name in options.parts.split(","):
        measure, columns = PARTS[name]
        print(f"\n| {name} | {columns} |\n|{'---|' * (columns.count('|') + 2)}")
        details = []
        for way in ways(options.words):
            result = measure(way)
            print(f"| {way} | {result.line} |", flush=True)
            details += [f"- {way}: {one}" for one in result.details]
            is_wrong |= result.line.rpartition(" ")[2] not in ("0", "yes") and name in ("passes", "arguments", "traces")
        print("\n" + "\n".join(details) if details else "")
    return int(is_wrong)


def ways(words: Sequence[str]) -> Iterator[Way]:
    """Those of this machine's compilers."""
    for compiler in filter(shutil.which, matrix.COMPILERS):
        for flags in matrix.FLAGS:
            way = Way(compiler, flags)
            if not words or any(word in str(way) for word in words):
                yield way


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
