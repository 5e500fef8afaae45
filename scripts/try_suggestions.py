#!/usr/bin/env python3
"""Run every command that our texts suggest, where it is suggested: how many there are, and how many are refused.

    .venv/bin/python scripts/try_suggestions.py                         all recordings of the tests, in a shell
    .venv/bin/python scripts/try_suggestions.py FILE.rec PID …          these
    .venv/bin/python scripts/try_suggestions.py --live [--inside gdb18] programs of the tests that hang, started for it
    .venv/bin/python scripts/try_suggestions.py --errors                wrong command lines, of which the help is tried

The texts are those of dispatch-diagnose and all-threads (and of ``ranks``, for the rank of a job). With --inside they
are asked for in that debugger (gdb, gdb18, lldb-16 …), and what they suggest is typed there, or into a shell while it
has the process. What changes a process (gcore, kill, echo into a file of the kernel's) is counted and not run, save the
core that a debugger keeps, once. Exit status 0: each command ended with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.installed import gdbs, lldbs  # noqa: E402
from support.programs import harness  # noqa: E402

DISPATCH = str(ROOT / "scripts" / "dispatch")
_SUGGESTED = re.compile(rf"(?:: |   )({re.escape(DISPATCH)} .*?)\.?$", re.MULTILINE)
_CHANGES = re.compile(r": ((?:gcore|kill -CONT|echo) .*)$", re.MULTILINE)
_COMMAND = re.compile(r"\b(dispatch-[a-z]+|all-threads|ranks|ps|generate-core-file|--record|--help|help)\b")
_FORM = re.compile(r" (?:[A-Z]{2,}|[A-Z]\b|…)|/path/")
"""A word that stands for what only the user knows."""
_SECONDS = 120
LIVE = (
    ("meta-mm",),
    ("python-lock-abba",),
    ("gil-mutex",),
    ("fork-mutex",),
    ("boxed-recursion",),
    ("dataloader",),
    ("idle",),
    ("busy",),
    ("gloo-mismatch",),
    ("asyncio-waits",),
    ("flock-held",),
    ("job", "late_sleep"),
)
"""Programs of the tests, with their arguments: one for each kind of advice."""
ERRORS = (
    "-p 4194304",
    "-p 1",
    "nonsense",
    "-c /etc/passwd",
    "-c /nowhere",
    "-r /etc/passwd",
    "-p PID dispatch-op aten::mmm",
    "-p PID dispatch-op",
    "-p PID dispatch-lookup aten::mm CPUU",
    "-p PID dispatch-tensor --py nothing",
    "-p PID dispatch-bt --thread 1",
    "-p PID dispatch-tensor --py x --frame nowhere",
    "-p PID dispatch-bt --localz",
    "-p PID dispatch-keyset Nothing",
    "-p PID dispatch-autograd --py nothing",
    "-p PID dispatch-frames on",
    "--pid",
    "-q",
    "ranks",
    "ranks -p 1",
    "ranks --cores /nowhere",
    "watch",
    "watch -p 4194304 --save /tmp",
    "report",
    "measure /nowhere",
    "shell",
    "help nonsense",
    "-p PID --no-stop dispatch-top --seconds x",
    "-p PID --debugger no",
)
"""Wrong command lines; PID is that of a program that hangs."""


def main() -> int:
    """Exit status 0 when every suggestion was taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="FILE.rec|PID|CORE", help="default: all recordings of the tests")
    parser.add_argument("--live", action="store_true", help="programs of the tests, one after the other")
    parser.add_argument("--errors", action="store_true", help="what errors advise")
    parser.add_argument("--inside", action="append", default=[], metavar="DEBUGGER", help="in that debugger")
    parser.add_argument("--only", default="", metavar="NAME", help="with --live: that program")
    parser.add_argument("--texts", action="store_true", help="show the commands, too")
    options = parser.parse_args()
    tried = Tried()
    if options.live or options.errors:
        programs = LIVE if options.live else LIVE[:1]
        for name, *arguments in (each for each in programs if options.only in each[0]):
            with ExitStack() as stack:
                inferior = stack.enter_context(harness.started(name, *arguments, env={"GDBEXT_ROOM": "-" * 100}))
                _look(tried, " ".join((name, *arguments)), _pids(inferior), options)
    else:
        for source in options.sources or sorted(map(str, (ROOT / "tests" / "recordings").glob("*.rec"))):
            _look(tried, source, [source], options)
    tried.show(options.texts)
    return 1 if tried.refused else 0


def _pids(inferior: harness.Inferior) -> list[str]:
    """The process that it is about: of a job its ranks, and who started them."""
    jobs: dict[str, list[int]] = inferior.truth.get("pids", {})
    return [str(pid) for pids in jobs.values() for pid in pids] or [str(inferior.pid)]


class Tried:
    """What was suggested, and what came of it."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.refused: list[str] = []
        self.not_run: set[str] = set()
        self.sources = 0

    def add(self, where: str, command: str, refusal: str) -> None:
        """``refusal``: the last words of what refused it; "" where nothing did."""
        self.seen.add(f"{where}: {command}")
        kind = _COMMAND.search(command)
        self.commands[kind[0] if kind else "diagnosis"] += 1
        print(f"{where}: {command}{' REFUSED' if refusal else ''}", file=sys.stderr, flush=True)
        if refusal:
            self.refused.append(f"{where}: {command}: {refusal}")

    def show(self, texts: bool) -> None:
        """The numbers, and each refusal."""
        print(
            f"{self.sources} sources, {sum(self.commands.values())} commands, {len(self.refused)} refused; "
            f"not run: {len(self.not_run)}"
        )
        print(", ".join(f"{name} {count}" for name, count in self.commands.most_common()))
        if texts:
            print("\n".join(sorted((*self.seen, *(f"not run: {each}" for each in self.not_run)))))
        print("\n".join(self.refused))


def _look(tried: Tried, name: str, sources: Iterable[str], options: argparse.Namespace) -> None:
    for source in sources:
        tried.sources += 1
        if options.errors:
            _of_errors(tried, source)
        for debugger in options.inside:
            _inside(tried, debugger, name, source)
        if not options.inside and not options.errors:
            _in_shell(tried, name, source)


def _in_shell(tried: Tried, name: str, source: str) -> None:
    option = "-p" if source.isdecimal() else "-r" if source.endswith(".rec") else "-c"
    looks: list[list[str]] = [[DISPATCH, option, source, *words] for words in ([], ["all-threads"])]
    for look in looks:
        status, text = _run(look)
        if status:
            tried.add(name, " ".join(look), text.strip().splitlines()[-1])
        tried.not_run.update(_CHANGES.findall(text))
        for command in dict.fromkeys(_SUGGESTED.findall(text)):
            if f"{name}: {command}" in tried.seen:
                continue
            status, said = _run(command)
            tried.add(name, command, f"status {status}: {said.strip().splitlines()[-1:]}" if status else "")
            if " ranks " in command:  # it suggests something itself
                looks.append(command.split())


def _inside(tried: Tried, debugger: str, name: str, source: str) -> None:
    """The same in a debugger, which writes what came of it into a file."""
    live = source.isdecimal()
    helper = ROOT / "scripts" / "lib" / "suggestions_inside.py"
    if debugger.startswith("gdb"):
        words = [gdbs.usable()[debugger], "-nx", "-q", "-batch", "-iex", "set debuginfod enabled off"]
        words += ["-p", source] if live else ["-ex", f"core-file {source}"]
        words += ["-ex", f"source {ROOT}/gdbext/init.py", "-x", str(helper)]
    else:
        words = [lldbs.every()[debugger], "--no-lldbinit", "-b", *(["-p", source] if live else ["-c", source])]
        words += ["-o", f"command script import {ROOT}/gdbext/lldb_init.py", "-o", f"command script import {helper}"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tried"
        given = {"looks": ["dispatch-diagnose", "all-threads"], "program": "scripts/dispatch", "root": str(ROOT)}
        file.write_text(json.dumps(given))
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            check=False,
            env={**os.environ, "SUGGESTIONS": str(file)},
        )
        found = json.loads(file.read_text()).get("tried")
    if found is None:
        tried.add(f"{name} in {debugger}", "all", (done.stdout + done.stderr)[-1000:])
    for command, refusal in found or ():
        tried.add(f"{name} in {debugger}", command, refusal)


def _of_errors(tried: Tried, pid: str) -> None:
    """What wrong command lines are answered with."""
    for line in ERRORS:
        typed = re.sub(r"\bPID\b", pid, line)
        status, text = _run(f"{DISPATCH} {typed}")
        helps = [
            part.strip() for each in re.findall(r"^ *try: (.*)$", text, re.MULTILINE) for part in each.split("   ")
        ]
        if not status:
            tried.add("errors", typed, "was taken")
        for part in helps:
            command = part[part.find(DISPATCH) :].rstrip(".") if DISPATCH in part else ""
            if not command or _FORM.search(command):
                tried.not_run.add(f"{typed}: {part}")
                continue
            status, said = _run(command)
            tried.add(f"errors of {typed}", command, f"status {status}: {said.strip()[-300:]}" if status else "")


def _run(command: str | Sequence[str]) -> tuple[int, str]:
    """The exit status and all that was written; a text is run by a shell."""
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
