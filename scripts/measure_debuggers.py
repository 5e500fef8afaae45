#!/usr/bin/env python3
"""Measure what the commands that resume a process leave behind, in the debuggers that people use.

Writes a table for --output; docs/measurements/debuggers-measured.md summarizes several of them.

  kill    kill -9 of the debugger while each command runs, at a random moment: the job goes on, with the code of its
          files, and can load a library
  end     the command ends in each way (TERM, HUP, QUIT, closed pipe or terminal, full disk, no memory, kill -9 of the
          launcher or the debugger) while its debugger lets the job run: the job goes on as before, no debugger stays
  repeat  each command many times in one debugger: descriptors, objects of ours and memory as after the first few, and
          every setting of the debugger as it was
  mi      commands over gdb's machine interface: each has its result, each line is well-formed

From the development environment (scripts/test makes it); as root for kernel probes: .venv/bin/python
scripts/measure_debuggers.py [SCENE …] [--debugger NAME …] [--command NAME …] [--times N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

import ended_commands  # noqa: E402 - the folders are on the path from here on
from debugged_process import DebuggedJob, Debugger, GdbSession, debuggers  # noqa: E402 - the folders are on the path from here on

PAGE = Path("debuggers-measured.md")
ADD = "aten::add.Tensor"
COMMANDS = {
    "trace": ("dispatch-trace --all", "--limit 3"),
    "trace-breakpoints": (f"dispatch-trace {ADD} --engine breakpoints", "--limit 3"),
    "values": (f"dispatch-values print {ADD}", "--limit 1"),
    "names": (f"dispatch-values names {ADD}", "--limit 1"),
    "nan": (f"dispatch-values nan {ADD}", "--limit 3"),
    "values-breakpoints": (f"dispatch-values print {ADD} --engine breakpoints", "--limit 1"),
    "samples": ("dispatch-diagnose --samples 100 --interval 0.1", ""),
    "break": (f"dispatch-break call {ADD} --continue", ""),
    "break-probes": (f"dispatch-break call {ADD} --engine probes", ""),
    "break-stop": (f"dispatch-break call {ADD}", ""),
    "break-seldom": ("dispatch-break call aten::sub.Tensor", ""),
    "break-breakpoints": (f"dispatch-break call {ADD} --engine breakpoints --continue", ""),
}
"""Name → the command, and what has it end by itself."""
SAMPLES = "dispatch-diagnose --samples 2 --interval 0.1"
READING = ("dispatch-bt", "all-threads", "dispatch-tls", "dispatch-info", "dispatch-diagnose", "dispatch-op aten::add")
"""Commands that resume nothing."""


class Row(NamedTuple):
    """One line of the page: ``reached`` is None where there is no limit to compare with."""

    scene: str
    debugger: str
    what: str
    measured: str
    reached: bool | None


def kills(name: str, debugger: Debugger, command: str, times: int, loads: bool = False) -> Row:
    """Kill the debugger at a random moment of the command, and see what became of the job."""
    found: Counter[str] = Counter()
    slowest, job = 0.0, DebuggedJob(loads)
    try:
        for _ in range(times):
            if not job.is_well:
                job.close()
                job = DebuggedJob(loads)
            with debugger.attached(job.pid) as session:
                if command.startswith("dispatch-break"):
                    session.run(command)
                    session.send_console("continue")  # it may stop before it has counted
                else:
                    job.runs_by(session, command)
                time.sleep(random.uniform(0, 1.5))
                session.process.kill()
                session.process.wait()
            harm, seconds = job.harm()
            found[harm or "unharmed"] += 1
            slowest = max(slowest, seconds)
    finally:
        job.close()
    what = f"kill -9 during {command}" + (", a job that loads 20 libraries a second" if loads else "")
    harmed = times - found["unharmed"]
    reasons = "; ".join(f"{count} {each}" for each, count in found.items() if each != "unharmed")
    text = f"{harmed} of {times} harmed" + (f": {reasons}" if reasons else f", whole after {slowest:.1f} s at most")
    return Row("kill", name, what, text, None if "breakpoints" in command and harmed else not harmed)


@contextmanager
def another_traced() -> Iterator[None]:
    """Have another job traced meanwhile, by kernel probes at each dispatch."""
    job = DebuggedJob()
    words = [str(ROOT / "scripts" / "dispatch"), "-p", str(job.pid), "dispatch-trace", "--all", "--last", "1"]
    tracing = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
        if tracing.poll() is not None:
            raise RuntimeError("the trace of the other job has ended")
    finally:
        tracing.terminate()
        tracing.wait()
        job.close()


def endings(name: str, debugger: Debugger, times: int) -> Iterator[Row]:
    """Each command of our own debuggers, ended in each way."""
    job = DebuggedJob()
    try:
        for command, way in itertools.product(ended_commands.COMMANDS, ended_commands.WAYS):
            harms: Counter[str] = Counter()
            for _ in range(times):
                if not job.is_well:
                    job.close()
                    job = DebuggedJob()
                harms[ended_commands.end(job, debugger, command, way)] += 1
            harmed = times - harms.pop("", 0)
            text = ", ".join([f"{harmed} of {times} harmed", *harms])
            unavoidable = way == "killed-debugger" and debugger.kind == "gdb" and command != "samples"
            yield Row("end", name, f"{command}, {way}", text, None if unavoidable else not harmed)
    finally:
        job.close()


def repeats(name: str, debugger: Debugger, command: str, times: int) -> Row:
    """The command again and again in one debugger: what it has after three times, and after all."""
    job = DebuggedJob()
    with tempfile.TemporaryDirectory(prefix="gdbext-measured-") as folder:
        found = Path(folder) / "found.json"
        commands = [command, "dispatch-break --delete"] if command.startswith("dispatch-break") else [command]
        script = Path(folder) / "repeat.py"
        text = _REPEAT.format(
            lines=commands, times=times, found=str(found), settings=debugger.settings, package=f"{ROOT}/gdbext"
        )
        script.write_text(text)
        try:
            with debugger.attached(job.pid) as session:
                session.run(debugger.script(script), seconds=60 + times * 20)
                harm = "" if found.exists() else "the debugger did not come to the end"
            harm = harm or job.harm()[0]
        finally:
            job.close()
        if harm:
            return Row("repeat", name, f"{times} × {command}", harm, False)
        first, last, changed, failed, more = json.loads(found.read_text())
        if not last:
            return Row("repeat", name, f"{times} × {command}", f"failed: {failed}", False)
    facts = [f"{what} {one} → {other}" for what, one, other in zip(("descriptors", "objects", "KiB"), first, last)]
    same = last[0] <= first[0] and last[1] <= first[1] and last[2] <= first[2] * 1.1 + 20480
    facts += [f"more: {', '.join(more)}"] * (last[1] > first[1])
    facts += [f"changed: {', '.join(changed)}"] * bool(changed) + [f"failed: {failed}"] * bool(failed)
    return Row("repeat", name, f"{times} × {command}", ", ".join(facts), same and not changed and not failed)


_REPEAT = """
import collections, contextlib, functools, gc, importlib, json, os, pathlib, time

try:
    import gdb

    def run(command):
        return gdb.execute(command, False, True)
except ImportError:
    import lldb

    def run(command):
        result = lldb.SBCommandReturnObject()
        lldb.debugger.GetCommandInterpreter().HandleCommand(command, result)
        if not result.Succeeded():
            raise RuntimeError(result.GetError())
        return result.GetOutput() or ""


def load():
    # What modules declare is there from the beginning: which of them a command needs depends on where threads stand.
    root = pathlib.Path({package!r})
    for path in root.glob("**/*.py"):
        if path.name not in ("__main__.py", "init.py", "lldb_init.py"):
            with contextlib.suppress(Exception):
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


def state():
    # So do what one session has read, and caches that have a limit. Threads that look each second end meanwhile.
    time.sleep(3)
    for kept in gc.get_objects():
        if type(kept).__name__ == "SessionCache":
            kept.forget()
        elif isinstance(kept, functools._lru_cache_wrapper) and kept.__module__.startswith("gdbext"):
            kept.cache_clear()
    gc.collect()
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    ours = collections.Counter(each.__name__ for each in kinds if each.__module__.startswith("gdbext"))
    with open("/proc/self/statm") as file:
        return len(os.listdir("/proc/self/fd")), sum(ours.values()), int(file.read().split()[1]) * 4, ours


def settings():
    if {settings!r} != "show":
        return {{*run({settings!r}).splitlines()}}
    # One by one: gdb 18 aborts over "show convenience" ($_linker_namespace) where it has stopped in a loaded library.
    names = {{words.split()[1].rstrip(",") for words in run("help show").splitlines() if words.startswith("show ")}}
    return {{line for name in names - {{"convenience", "values", "commands", "history"}}
            for line in run("show " + name).splitlines() if "history" not in line}}


load()
changed, failed, states = set(), "", []
for number in range({times}):
    before = settings() if number % 10 == 0 else set()
    try:
        for line in {lines!r}:
            run(line)
    except Exception as error:
        failed = str(error)
        break
    if before:
        changed |= before ^ settings()
    if number in (2, {times} - 1):
        states.append(state())
(*first, before), (*last, after) = (states[0], states[-1]) if states else ([{{}}], [{{}}])
more = [f"{{count - before[kind]}} {{kind}}" for kind, count in after.items() if count > before[kind]]
with open({found!r}, "w") as file:
    json.dump([first, last, sorted(changed), failed, more], file)
"""


def machine_interface(name: str, debugger: Debugger, times: int) -> Row:
    """Commands in a row over MI, those that resume among them. Those that use breakpoints in a job of their own: one
    that has had probes runs past them where anybody probes the same file, in any process."""
    resuming = [f"{command} {ends}" for command, ends in COMMANDS.values() if ends]
    by_breakpoints = [each for each in resuming if "breakpoints" in each]
    kinds = (
        [*READING, SAMPLES, *(each for each in resuming if each not in by_breakpoints)],
        [*READING, *by_breakpoints],
    )
    missing, bad, harm = 0, 0, ""
    for commands in kinds:
        job = DebuggedJob()
        try:
            with debugger.attached(job.pid) as session:
                assert isinstance(session, GdbSession)
                results = [session.result_of(commands[number % len(commands)]) for number in range(times // len(kinds))]
                bad += len(session.malformed())
            harm = harm or job.harm()[0]
        finally:
            job.close()
        missing += sum(result not in ("done", "running") for result in results)
    text = f"{times} commands: {missing} without a result, {bad} lines malformed" + (f", {harm}" if harm else "")
    count = len({command for commands in kinds for command in commands})
    return Row("mi", name, f"{count} commands in turn", text, not missing and not bad and not harm)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Everything that was asked for, as soon as it is measured."""
    for name, debugger in debuggers().items():
        if options.debugger and name not in options.debugger:
            continue
        for command in options.command or COMMANDS:
            line, ends = COMMANDS[command]
            if "kill" in options.scenes:
                with another_traced() if options.beside else nullcontext():
                    row = kills(name, debugger, line, options.times, options.loads)
                yield row._replace(what=f"{row.what}, another job traced beside it") if options.beside else row
            if "repeat" in options.scenes and command not in ("break-probes", "break-stop", "break-seldom"):
                once = SAMPLES if command == "samples" else f"{line} {ends}".strip()
                yield repeats(name, debugger, once, options.times)
        if "end" in options.scenes:
            yield from endings(name, debugger, options.times)
        if "mi" in options.scenes and debugger.has_machine_interface:
            yield machine_interface(name, debugger, options.times * 4)


SCENES = ("kill", "end", "repeat", "mi")


def main() -> int:
    """Exit status 0: every limit was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenes", nargs="*", metavar="SCENE", default=SCENES, help="kill, end, repeat, mi (default: all)"
    )
    parser.add_argument("--debugger", action="append", help=f"any of: {', '.join(debuggers())} (default: all)")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="default: all")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--loads", action="store_true", help="kill: the job loads a library twenty times a second")
    parser.add_argument("--beside", action="store_true", help="kill: another job is traced meanwhile, by probes")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE", help="the page")
    options = parser.parse_args()
    load, found = os.getloadavg()[0], []
    for row in rows(options):
        found.append(row)
        print(f"{_word(row):4} {row.debugger}: {row.what}: {row.measured}", flush=True)
        options.output.write_text(page(found, load))
    return 0 if all(row.reached is not False for row in found) else 1


def _word(row: Row) -> str:
    return {True: "yes", False: "NO", None: ""}[row.reached]


def page(found: list[Row], load: float) -> str:
    """The page in Markdown."""
    system = f"Linux {platform.release().partition('-')[0]}, {platform.machine()}, {os.cpu_count()} processors"
    lines = [
        "# What is left behind when a command that resumes a process is killed",
        "",
        "Generated by `scripts/measure_debuggers.py`.",
        f"{system}; load {load:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| scene | debugger | what | measured | reached |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {row.scene} | {row.debugger} | {row.what} | {row.measured} | {_word(row)} |" for row in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
