#!/usr/bin/env python3
"""Compare what gdbext says of programs that wait for a CUDA device with what they say themselves:
docs/measurements/cuda.md.

    python3 scripts/measure_cuda.py [SCENE …]

Each scene (scripts/lib/cuda_scenes.py) is started, looked at without a debugger, and ended. It needs this folder, an
NVIDIA device and a Python that has torch, and neither gdb, a network nor a compiler; Triton's scenes, which need a
compiler, say so where there is none. --made-up FILE: a driver that is made up (tests/inferiors/native), which tries the
script itself; beside it lies a made-up libnvidia-ml.so.1.
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
NAMES = (
    "stream",
    "two-streams",
    "event",
    "device",
    "second-device",
    "item",
    "allocator",
    "host-function",
    "graph",
    "capture",
    "uninitialized",
    "silent",
    "assertion",
    "core",
    "system",
    "triton",
    "compiled",
    "nccl",
    "ranks",
)
MADE_UP = "GDBEXT_MADE_UP"
_ON_MADE_UP = tuple(name for name in NAMES if name not in ("triton", "compiled"))
"""Scenes that a made-up driver can play."""
_PATIENCE = 90.0
_LOOK = 60
_CORE = 60
"""Seconds in which a core of the device is written."""
_OPTIONS = {"system": ("dispatch-diagnose", "--device"), "ranks": ("ranks",)}
_CORES = {"core": "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "assertion": "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"}
"""Scenes with a core of the device, and the variable that asks for one."""
_PROBE = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
_COMPARED = ("call", "stream", "stream_id", "event", "device", "work")
_MORE = (
    "op",
    "line",
    "collective",
    "verdict",
    "captures",
    "graphs",
    "replayed",
    "pending",
    "devices",
    "section",
    "handling",
    "names",
    "mig",
    "busy",
    "core",
    "at_fault",
)


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
                stdout=out,
                stderr=out,
                env=_environment(made_up, scene, folder),
                start_new_session=True,
            )
        try:
            while not told.exists() and program.poll() is None:
                time.sleep(0.05)
            if not told.exists():
                return Row(scene, "", "", f"not run: {_last_line(errors)}")
            return _compared(scene, json.loads(told.read_text()), made_up)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def _environment(made_up: str | None, scene: str, folder: str) -> dict[str, str]:
    found = dict(os.environ)
    if scene in _CORES:
        found.update(
            {_CORES[scene]: "1", "CUDA_COREDUMP_PIPE": f"{folder}/pipe.%p", "CUDA_COREDUMP_FILE": f"{folder}/core.%p"}
        )
        found["CUDA_COREDUMP_GENERATION_FLAGS"] = "skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort"
    if made_up is not None:
        found.update(
            {"LD_PRELOAD": made_up, MADE_UP: made_up, "GDBEXT_DEVICE_MEMORY": str(64 << 20), "GDBEXT_DEVICES": "2"}
        )
    return found


def _last_line(errors: Path) -> str:
    lines = [each for each in errors.read_text(errors="replace").strip().splitlines() if "frame #" not in each]
    return lines[-1][:120] if lines else "it ended without a word"


def _compared(scene: str, truth: dict[str, Any], made_up: str | None) -> Row:
    """The last of several looks: the program needs a moment from its word into the wait."""
    row = Row(scene, "", "", "no look succeeded")
    ends = time.monotonic() + 10
    while row.differs and time.monotonic() < ends:
        began = time.monotonic()
        report = _look(truth["pid"], _OPTIONS.get(scene, ()), made_up)
        if report is not None:
            took = 1000 * (time.monotonic() - began)
            row = _row(scene, truth, {**report, "core": _core(truth, report) if "core" in truth else None}, took)
    return row


def _look(pid: int, command: Sequence[str], made_up: str | None) -> dict[str, Any] | None:
    words = [str(ROOT / "scripts" / "dispatch"), "-p", str(pid), *command, "--json"]
    environment = {"LD_LIBRARY_PATH": str(Path(made_up).parent)} if made_up else {}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LOOK, env={**os.environ, **environment})
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found


def _core(truth: dict[str, Any], report: dict[str, Any]) -> str:
    """What a core of the device says, which the report's command asks for once where there is one; the words of the
    truth alone where they are in it."""
    environ = Path(f"/proc/{truth['pid']}/environ").read_text().split("\0")
    name = next(each.partition("=")[2] for each in environ if each.startswith("CUDA_COREDUMP_FILE="))
    file = Path(name.replace("%p", str(truth["pid"])))
    trigger = ((report.get("device") or {}).get("core") or {}).get("trigger")
    try:
        if trigger and not file.exists():
            subprocess.run(trigger, shell=True, capture_output=True, timeout=_CORE)
        _wait_for(file)
        words = [str(ROOT / "scripts" / "dispatch"), "-c", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LOOK)
        text = done.stdout + done.stderr + file.read_bytes()[:16].decode("ascii", "replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no core: {error}"[:200]
    return truth["core"] if truth["core"] in text else text[:200]


def _wait_for(file: Path) -> None:
    """Wait until the file is there and grows no more, for a while."""
    ends, size = time.monotonic() + _CORE, -1
    while time.monotonic() < ends and not (file.exists() and size == file.stat().st_size > 0):
        size = file.stat().st_size if file.exists() else -1
        time.sleep(1)


def _row(scene: str, truth: dict[str, Any], report: dict[str, Any], milliseconds: float) -> Row:
    main = next((each for each in report.get("threads", ()) if each["tid"] == truth["pid"]), None)
    wait = (main or {}).get("wait") or {}
    device = report.get("device") or {}
    found = {**(wait.get("device") or {}), "verdict": (report.get("verdict") or {}).get("kind")}
    found["at_fault"] = (report.get("verdict") or {}).get("ranks")
    found["collective"] = (wait.get("collective") or {}).get("op")
    found["op"] = main["dispatch"][0]["op"] if main and main["dispatch"] else None
    lines = [each["line"] for each in (main or {}).get("python_frames", ()) if each["file"] == str(SCENES)]
    found["line"] = lines[0] if lines else None
    found.update({"section": "device" in report, "devices": device.get("devices"), "core": report.get("core")})
    found.update(_graphs(device))
    memory = device.get("memory") or ()
    found["pending"] = [[each["stream_id"], each["block"], each["bytes"]] for one in memory for each in one["events"]]
    figures = list(((report.get("device_system") or {}).get("facts") or {}).get("figures") or ())
    found.update({"names": [each["name"] for each in figures], "mig": [each["mig"] for each in figures]})
    found["busy"] = bool(figures) and (figures[0]["busy_percent"] or 0) >= 90
    handling = str(wait.get("handling"))
    found["handling"] = truth["handling"] if truth.get("handling", "\0") in handling else handling
    keys = [key for key in (*_COMPARED, *_MORE) if key in truth]
    differs = [key for key in keys if truth[key] != found.get(key)]
    return Row(scene, _words(truth, keys), _words(found, keys), ", ".join(differs), milliseconds)


def _graphs(device: dict[str, Any]) -> dict[str, Any]:
    """The captures and graphs of a report, in a scene's words: streams and pools."""
    memory = device.get("memory") or ()
    captured = [each for one in memory for each in one.get("graphs", ())]
    replayed = [each["graph"] for each in device.get("replayed", ())]
    return {
        "captures": sum(each["captures"] or 0 for each in memory),
        "graphs": [[each["stream_id"], each["pool"]] for each in captured],
        "replayed": [[each["stream_id"], each["pool"]] for each in replayed],
    }


def _words(facts: dict[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {facts.get(key)}" for key in keys)


def page(device: str, rows: Sequence[Row]) -> Iterator[str]:
    """The table with its head."""
    yield "# Waits for a CUDA device, compared with what the program records"
    yield ""
    yield f"`scripts/measure_cuda.py` compared each program's own account with gdbext's report, on {device}."
    yield ""
    yield "| scene | the program's own account | found | differs | look, ms |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {row.scene} | {row.said} | {row.found} | {row.differs or 'nothing'} | {row.milliseconds:.0f} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
