#!/usr/bin/env python3
"""Compare what gdbext says of programs that wait for a CUDA device with what they say themselves:
docs/measurements/cuda.md.

    python3 scripts/measure_cuda.py [SCENE …]

Each scene (scripts/lib/cuda_scenes.py) is started, looked at without a debugger, and ended. It needs this folder, an
NVIDIA device and a Python that has torch, and neither gdb, a network nor a compiler; Triton's scenes, which need a
compiler, say so where there is none. --made-up FILE: a driver that is made up (tests/inferiors/native), which tries the
script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCENES = ROOT / "scripts" / "lib" / "cuda_scenes.py"
NAMES = ("stream", "two-streams", "event", "device", "second-device", "item", "allocator", "host-function", "graph",
         "capture", "triton", "compiled", "nccl")  # fmt: skip
MADE_UP = "GDBEXT_MADE_UP"
_ON_MADE_UP = tuple(name for name in NAMES if name not in ("triton", "compiled"))
"""Scenes that a made-up driver can play."""
_PATIENCE = 90.0
_LOOK = 60
_PROBE = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
_COMPARED = ("call", "stream", "stream_id", "event", "device")


class Row(NamedTuple):
    """One scene: what the program said, what was found, and where they differ."""

    scene: str
    said: str
    found: str
    differs: str
    milliseconds: float = 0.0
    """For so long the look took, Python's start included."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0: all scenes that ran agree; 1: one does not; 3: there is no device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (default: this one)")
    parser.add_argument("--made-up", metavar="FILE", help="a driver that is made up, instead of a device")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page there, too")
    options = parser.parse_args(argv)
    unknown = set(options.scenes) - set(NAMES)
    if unknown:
        parser.error(f"there is no scene {', '.join(sorted(unknown))}")
    device = "a driver that is made up" if options.made_up else _device(options.python)
    if not device:
        print("no NVIDIA device that torch can use was found: nothing was measured", file=sys.stderr)
        return 3
    wanted = options.scenes or (_ON_MADE_UP if options.made_up else NAMES)
    rows = [measured(scene, options.python, options.made_up) for scene in wanted]
    text = "\n".join(page(device, rows)) + "\n"
    print(text, end="")
    if options.output is not None:
        options.output.write_text(text)
    return 1 if any(row.differs and not row.differs.startswith("not run") for row in rows) else 0


def _device(python: str) -> str:
    """The device's name with its driver, "" where there is none."""
    try:
        name = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PATIENCE).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{name}, {_driver()}" if name else ""


def _driver() -> str:
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return "a driver of unknown version"
    return f"driver {next((word for word in first.split() if word[:1].isdigit()), 'of unknown version')}"


def measured(scene: str, python: str, made_up: str | None) -> Row:
    """The row of one scene; it is started for this and ended afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        told, errors = Path(folder) / "told.json", Path(folder) / "errors"
        with errors.open("w") as out:
            program = subprocess.Popen(
                [python, "-W", "ignore", str(SCENES), scene, str(told)],
                stdout=out, stderr=out, env=_environment(made_up), start_new_session=True,
            )  # fmt: skip
        try:
            while not told.exists() and program.poll() is None:
                time.sleep(0.05)
            if not told.exists():
                return Row(scene, "", "", f"not run: {_last_line(errors)}")
            return _compared(scene, json.loads(told.read_text()))
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def _environment(made_up: str | None) -> dict[str, str]:
    if made_up is None:
        return dict(os.environ)
    device = {"GDBEXT_DEVICE_MEMORY": str(64 << 20), "GDBEXT_DEVICES": "2"}
    return {**os.environ, "LD_PRELOAD": made_up, MADE_UP: made_up, **device}


def _last_line(errors: Path) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines()
    return lines[-1][:120] if lines else "it ended without a word"


def _compared(scene: str, truth: dict[str, Any]) -> Row:
    """The last of several looks: the program needs a moment from its word into the wait."""
    row = Row(scene, "", "", "no look succeeded")
    ends = time.monotonic() + 10
    while row.differs and time.monotonic() < ends:
        began = time.monotonic()
        report = _look(truth["pid"])
        if report is not None:
            row = _row(scene, truth, report, 1000 * (time.monotonic() - began))
    return row


def _look(pid: int) -> dict[str, Any] | None:
    words = [str(ROOT / "scripts" / "dispatch"), "-p", str(pid), "--json"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LOOK)
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found


def _row(scene: str, truth: dict[str, Any], report: dict[str, Any], milliseconds: float) -> Row:
    main = next((each for each in report.get("threads", ()) if each["tid"] == truth["pid"]), None)
    wait = (main or {}).get("wait") or {}
    found = {**(wait.get("device") or {}), "verdict": (report.get("verdict") or {}).get("kind")}
    found["collective"] = (wait.get("collective") or {}).get("op")
    found["op"] = main["dispatch"][0]["op"] if main and main["dispatch"] else None
    lines = [each["line"] for each in (main or {}).get("python_frames", ()) if each["file"] == str(SCENES)]
    found["line"] = lines[0] if lines else None
    memory = (report.get("device") or {}).get("memory") or ()
    found["captures"] = sum(each["captures"] for each in memory)
    found["pending"] = [[each["stream_id"], each["block"], each["bytes"]] for one in memory for each in one["events"]]
    more = ("op", "line", "collective", "verdict", "captures", "pending")
    keys = [key for key in (*_COMPARED, *more) if key in truth]
    differs = [key for key in keys if truth[key] != found.get(key)]
    return Row(scene, _words(truth, keys), _words(found, keys), ", ".join(differs), milliseconds)


def _words(facts: dict[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {facts.get(key)}" for key in keys)


def page(device: str, rows: Sequence[Row]) -> Iterator[str]:
    """The table with its head."""
    yield "# Waits for a CUDA device, compared"
    yield ""
    yield f"Made by `scripts/measure_cuda.py` on {device}: what each program says of itself, and what gdbext found."
    yield ""
    yield "| scene | the program's own account | found | differs | look, ms |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {row.scene} | {row.said} | {row.found} | {row.differs or 'nothing'} | {row.milliseconds:.0f} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
