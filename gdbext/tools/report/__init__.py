"""The tool report: lists the contents of a bundle for a bug report, then writes it.

It has the verdict, the recording that the verdict was made from, versions and known bugs. ``--scrub`` leaves out the
recording and every text of the program: it keeps what a list of allowed fields names.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

from gdbext.diagnosis.report import json_report
from gdbext.engine.formats import read_file, whole_file
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.numbers import integer
from gdbext.engine.terminal import escape, write
from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.tools.family import run_aside
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from gdbext.tools.program import Dispatch

_TARGET = ("kind", "architecture", "debugger", "torch", "python", "paused_ms")
_THREAD = ("tid", "state", "signal", "frame_count")
_DISPATCH = ("level", "event", "op", "overload", "keyset", "key", "table_index", "stage", "confidence")
_FRAME = ("level", "kind", "function", "file", "line")
_ALLOWED: Mapping[str, Any] = {
    **dict.fromkeys(("schema", "command"), True),
    "target": dict.fromkeys(_TARGET, True),
    "threads": {
        **dict.fromkeys(_THREAD, True),
        "wait": dict.fromkeys(("kind", "certainty", "timed", "owner"), True),
        "holds": {"kind": True},
        "dispatch": dict.fromkeys(_DISPATCH, True),
        "python_frames": dict.fromkeys(_FRAME, True),
        "frames": dict.fromkeys((*_FRAME, "module"), True),
    },
    "verdict": dict.fromkeys(("kind", "threads", "op", "key", "stage"), True),
    "findings": dict.fromkeys(("kind", "threads"), True),
    "known": dict.fromkeys(("id", "url"), True),
}
"""The fields of a report that --scrub keeps; all others are left out."""
_ALLOWED_TEXT = (
    "verdicts, states and waits by kind; names of operators and dispatch keys; functions, files and lines of libraries "
    "(extensions in C++ and all installed packages among them); thread ids; versions"
)
_EPILOG = """\
FILE.tar.gz contains verdict.txt, verdict.json and page.html (dispatch-diagnose), threads.json (all-threads --stacks),
info.txt (dispatch-info), and recording.rec, from which others can see what you see: scripts/dispatch -r recording.rec.
A recording contains parts of the process's memory (docs/recording.md). With --scrub, the bundle contains only
verdict.json and threads.json, without values, environment variables, source lines and paths, and without the names of
the program's own Python code and threads.
"""


class ReportProgram(Program):
    """The program ``scripts/dispatch report`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog, add = _EPILOG, parser.add_argument
        add("-p", "--pid", type=integer, metavar="PID", help="a running process")
        add("-c", "--core", metavar="CORE", help="a core dump")
        add("-r", "--recording", metavar="FILE", help="a recording")
        add("--output", metavar="FILE", default="", help="the bundle to write (default: gdbext-report-TIME.tar.gz)")
        add("--scrub", action="store_true", help="omit the recording, values, and the names in your code")
        add("--yes", action="store_true", help="write it without asking")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Diagnose, show what would be in the bundle, and write it. Raises GdbextError."""
        args = self.parse(argv)
        path = args.output or f"gdbext-report-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
        folder = os.path.dirname(path) or "."  # noqa: PTH120
        with Workplace(folder) as place:
            files = _collect(args, dispatch, place)
        note = "it contains what the report shows"
        if args.scrub:
            files = {name: _scrub_report(data) for name, data in files.items() if name.endswith(".json")}
            note = f"it contains: {_ALLOWED_TEXT}"
        elif "recording.rec" in files:
            note = "recording.rec contains parts of the process's memory: strings, tensor values, perhaps secrets"
        lines = [f"{name:15} {len(data) / 1e3:8.1f} kB" for name, data in sorted(files.items())]
        contents = "".join(f"{line}\n" for line in (*lines, note))
        if not args.yes and sys.stdin.isatty():
            write(2, f"{contents}write this to {escape(path)}? [y/N] ")
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                return Outcome(0, "nothing was written\n")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(f"gdbext-report/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
        whole_file.write(path, packed.getvalue(), whole_file.PRIVATE)
        return Outcome(0, f"{contents}written: {escape(path)}\n")


def _collect(args: Namespace, dispatch: Dispatch, place: Workplace) -> dict[str, bytes]:
    """The files of the bundle, all from one recording. Raises UsageError, TargetError."""
    chosen = [
        [option, value if option == "-p" else os.path.abspath(value)]  # noqa: PTH100
        for option, value in (("-p", str(args.pid or "")), ("-c", args.core or ""), ("-r", args.recording or ""))
        if value
    ]
    if len(chosen) != 1:
        raise UsageError("name the subject of the report: -p PID, -c CORE or -r FILE", help="dispatch report --help")
    files: dict[str, bytes] = {}
    source = chosen[0]
    if source[0] != "-r":
        status = run_aside(dispatch, [*source, "--record", "recording.rec", "--json"], place, "first.json")
        if status != 0:
            try:
                problem = json_report.parse(place.data("first.json"), "the report").problem
            except GdbextError:
                problem = "no report was made"
            raise TargetError(problem, help=f"scripts/dispatch {' '.join(source)}")
        files["recording.rec"] = place.data("recording.rec")
        source = ["-r", "recording.rec"]
    else:
        files["recording.rec"] = read_file(source[1])
    for name, words in (
        ("verdict.json", ["--json", "dispatch-diagnose"]),
        ("verdict.txt", ["dispatch-diagnose", "--why", "--html", "page.html"]),
        ("threads.json", ["--json", "all-threads", "--stacks"]),
        ("info.txt", ["dispatch-info"]),
    ):
        run_aside(dispatch, [*source, *words], place, name)
        files[name] = place.data(name)
    files["page.html"] = place.data("page.html")
    return files


def _scrub_report(data: bytes) -> bytes:
    """The JSON report with only the fields in _ALLOWED; an empty one if ``data`` is not JSON."""
    try:
        report = scrub(json.loads(data), _ALLOWED)
    except ValueError:
        report = {}
    return json.dumps(report, indent=1).encode()


def scrub(value: Any, allowed: Any) -> Any:
    """The JSON value with only the allowed members. ``allowed``: True for everything, or member → what is allowed in
    it. A frame of the program's own code keeps only its line."""
    if isinstance(value, list):
        return [scrub(item, allowed) for item in value]
    if not isinstance(value, dict) or allowed is True:
        return value
    members = {name: scrub(value[name], allowed[name]) for name in allowed if name in value}
    if "function" in members:
        _scrub_frame(members)
    return members


def _scrub_frame(frame: dict[str, Any]) -> None:
    """Shorten the path of a library's frame to the part from the package on; remove function and path of a frame of the
    program's own Python code."""
    if frame.get("kind") != "python":
        if "file" in frame:
            frame["file"] = ""
        if "module" in frame:
            frame["module"] = str(frame.get("module") or "").rpartition("/")[2]
        return
    # A package or Python's own module, as far as the path and name can tell.
    file = str(frame.get("file") or "")
    match = _LIBRARY_FILE.fullmatch(file)
    first = re.split(r"[/.>]", match["file"])[0] if match else ""
    if match and (match["packages"] or first in getattr(sys, "stdlib_module_names", ())):
        frame["file"] = file if file.startswith("<") else match["file"]
    else:
        frame["file"] = frame["function"] = "(the program's)"


_LIBRARY_FILE = re.compile(
    r"(?:.*/lib(?:64)?/python3(?:\.\d+t?)?/|<frozen )(?P<packages>(?:site|dist)-packages/)?(?P<file>.*)", re.DOTALL
)
"""A file of Python's own modules or of an installed package, or a module that is a part of Python's program."""
