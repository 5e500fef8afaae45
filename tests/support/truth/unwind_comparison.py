"""Compares gdb's frames with ours, as gdb_unwind_probe.py wrote them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.programs.harness import UNDEMANGLED

PROBE = Path(__file__).with_name("gdb_unwind_probe.py")


def probe(output: Path, *arguments: str, **settings: str) -> list[list[dict[str, Any]]]:
    """One list of threads per stop: the same object for stops with the same frames, of which the probe has looked at
    two. ``arguments`` are gdb's own: -p PID, or a program."""
    quiet = ["-iex", "set debuginfod enabled off", *UNDEMANGLED]
    command = ["gdb", "-nx", "-batch", *quiet, "-x", str(PROBE), *arguments]
    environment = {**os.environ, "PROBE_OUTPUT": str(output), **settings}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        errors="replace",
    )
    assert output.exists(), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    stops: list[list[dict[str, Any]]] = []
    for line in output.read_text().splitlines():
        found = json.loads(line)
        stops.append(stops[found] if isinstance(found, int) else found)
    assert stops, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return stops


def differences(thread: dict[str, Any]) -> Iterator[str]:
    """What is not the same in this thread: number of frames, or a register of a frame."""
    theirs, ours = thread["gdb"], thread["ours"]
    for level, (expected, found) in enumerate(zip(theirs, ours)):
        if "error" in expected:
            yield f"frame {level}: gdb says {expected['error']}"
            return
        if expected["signal"] != found["signal"]:
            yield f"frame {level} ({expected['name']}): signal frame {expected['signal']}, ours {found['signal']}"
        for name, value in found["registers"].items():
            if name in expected["registers"] and expected["registers"][name] != value:
                yield f"frame {level} ({expected['name']}): {name} {expected['registers'][name]:#x}, ours {value:#x}"
        for name in ("rip", "rsp"):
            if name not in found["registers"]:
                yield f"frame {level}: {name} is missing"
        if level + 1 < len(ours) and not found["signal"] and found["cfa"] != ours[level + 1]["registers"]["rsp"]:
            yield f"frame {level}: CFA {found['cfa']:#x} is not the caller's rsp"
    if len(theirs) != len(ours):
        more = [hex(frame["registers"]["rip"]) for frame in (theirs + ours)[len(ours) :][:3] if "registers" in frame]
        yield f"{len(theirs)} frames, ours {len(ours)} ({thread['stopped']}) {more if len(theirs) > len(ours) else ''}"


def all_differences(stops: list[list[dict[str, Any]]]) -> list[str]:
    """Every difference of every thread at every stop, with where it is."""
    first = {id(threads): number for number, threads in reversed(list(enumerate(stops)))}
    return [
        f"stop {number}, thread {thread['tid']}, pc {thread['gdb'][0]['registers']['rip']:#x}: {text}"
        for number, threads in enumerate(stops)
        if first[id(threads)] == number
        for thread in threads
        for text in differences(thread)
    ]
