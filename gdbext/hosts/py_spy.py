"""``gdbext-py-spy``: ``py-spy dump`` in the words of py-spy 0.4, for users who call that by its name.

The text, the members of the JSON and their order are those of py-spy 0.4.3. Only ``dump`` is supported: for sampling
there are dispatch-top and dispatch-trace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gdbext.cpython.abi import FrameObjects, InterpreterFrames
from gdbext.cpython.abi.python_structures import PyInterpreterFrame
from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.report.thread_report import FrameKind, RunState
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.thread_reporting import all_frames
from gdbext.engine.numbers import integer
from gdbext.engine.targets import budget
from gdbext.engine.targets.live.local_process import read_command
from gdbext.engine.targets.live.proc_checks import check_process
from gdbext.engine.targets.system.linux import command_text
from gdbext.engine.terminal import escape, shown_json
from gdbext.errors import GdbextError
from gdbext.hosts import opening
from gdbext.hosts.cli import launcher
from gdbext.tools.family import descendants
from gdbext.tools.outcome import Outcome, guard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.engine.targets.base_target import Target

_SECONDS = 60.0
_LONGEST = 128
"""Most characters of a value (py-spy, format_variable)."""


class DumpedProcess:
    """The Python threads of one process, in py-spy's order: the newest first."""

    def __init__(self, target: Target, options: argparse.Namespace) -> None:
        """Read the threads, as they are at one moment. Raises GdbextError."""
        self._options = options
        self.pid = target.pid
        is_core = target.origin.is_core
        self.command = getattr(target, "command", "") if is_core else command_text(read_command(target.pid))
        session = Session(target)
        reading = session.read_at_one_moment if options.locals else session.read_consistently
        self._session, self.traces = reading(self._read)
        """A stack for each thread of the interpreter that runs Python, as in py-spy's JSON."""

    def _read(self, session: Session) -> list[dict[str, Any]]:
        self._session, self._inspected = session, inspect_threads(session)
        table = session.python_threads
        if not session.python:
            raise unsupported(f"process {self.pid} runs no Python that can be read")
        self.version = session.python.version or "?"
        self._runtime = table.runtime
        self._tids = {state.address: tid for tid, states in table.states.items() for state in states}
        traces = map(self._trace, self._runtime.thread_states())
        return [trace for trace in traces if trace["frames"]]

    def _trace(self, state: Any) -> dict[str, Any]:
        """One thread in py-spy's JSON, by its PyThreadState."""
        tid = self._tids.get(state.address)
        report = next((thread for thread in self._inspected.threads if thread.tid == tid), None)
        groups = self._runtime.frames.groups([state])
        frames = [frame for group in groups for frame in self._frames(group, group is groups[-1])]
        if self._options.native and tid is not None:
            frames = self._with_native(tid, frames)
        return {
            "pid": self.pid,
            "thread_id": state.ident,
            "thread_name": report.python_name if report else None,
            "os_thread_id": tid,
            "active": report is not None and report.state is RunState.RUNNING,
            "owns_gil": report is not None and any(held.kind is WaitKind.GIL for held in report.holds),
            "frames": frames,
            "process_info": None,
        }

    def _frames(self, group: Any, is_last: bool) -> Iterator[dict[str, Any]]:
        """The frames of one evaluation loop in py-spy's JSON; ``is_last``: it is the outermost loop. py-spy marks the
        frames that entered a loop: before 3.11 all, in 3.11 those with is_entry, since 3.12 the one above a shim."""
        form = self._runtime.layout.abi.frames
        by_shim = isinstance(form, InterpreterFrames) and bool(form.codeless_owners)
        for frame in group:
            is_outermost = frame is group[-1]
            is_entry = isinstance(form, FrameObjects)
            if not is_entry and not by_shim:
                # In 3.11 is_entry is the byte before owner (pycore_frame.h). A coroutine through which an exception was
                # thrown has it from its last run, though no loop evaluates it now.
                offset = PyInterpreterFrame.owner.offset(self._runtime.space) - 1
                try:
                    is_entry = self._session.memory.u8(frame.address + offset) != 0
                except GdbextError:
                    is_entry = is_outermost
            marks = (False, is_outermost) if by_shim else (is_entry, is_outermost and is_last)
            yield self._frame(frame.function, frame.file, frame.line or 0, self._locals(frame), *marks)

    def _frame(
        self, name: str, file: str, line: int, variables: Any = None, is_entry: bool = False, is_last: bool = False
    ) -> dict[str, Any]:
        """One frame in py-spy's JSON; ``is_last``: a shim frame is below it."""
        return {
            "name": name,
            "filename": file,
            "module": None,
            "short_filename": self._short(file),
            "line": line,
            "locals": variables,
            "is_entry": is_entry,
            "is_shim_entry": is_last,
        }

    def _locals(self, frame: Any) -> list[dict[str, Any]] | None:
        """The variables of a frame, as in py-spy's JSON; None unless they were asked for."""
        if not self._options.locals:
            return None
        code, values = PyRef(self._runtime, frame.code).code, PyStack(self._runtime).locals(frame)
        if not code or values.fault:
            return []
        try:
            count, names = code.argument_count, code.local_names()
        except GdbextError:
            return []
        return [
            {"name": name, "addr": values[name].address, "arg": index < count, "repr": _value(values[name])}
            for index, name in enumerate(names)
            if name in values
        ]

    def _with_native(self, tid: int, python: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The stack with its native frames; those of the interpreter's own evaluation are replaced by Python frames."""
        thread = next((thread for thread in self._session.target.memory.threads() if thread.tid == tid), None)
        if not thread:
            return python
        remaining, merged = list(python), []
        for frame in all_frames(self._session, self._session.threads.snapshot(thread)):
            if frame.kind is FrameKind.PYTHON:
                merged += remaining[:1]
                del remaining[:1]
            elif not frame.function.startswith(("_Py", "Py", "_PyEval", "method_", "cfunction_", "object_")):
                name = f"{frame.pc or 0:#x}" if frame.function in ("", "??") else frame.function
                merged.append(self._frame(name, os.path.basename(frame.module), 0))  # noqa: PTH119
        return merged + remaining

    def _short(self, file: str) -> str:
        """The part of a path from its outermost package on: ``torch/nn/modules/module.py``."""
        if self._options.full_filenames or not file.startswith("/"):
            return file
        folder, _, name = file.rpartition("/")
        while folder and self._session.target.origin.foreign.exists(f"{folder}/__init__.py"):
            folder, _, package = folder.rpartition("/")
            name = f"{package}/{name}"
        return name

    def text(self, parent: DumpedProcess | None) -> Iterator[str]:
        """The lines of the process and of its threads, the oldest first."""
        target, executable = self._session.target, "?"
        if target.origin.is_core:
            executable = str(target.executable()) if hasattr(target, "executable") else "?"
        else:
            with suppress(OSError):
                executable = os.readlink(f"/proc/{target.pid}/exe")  # noqa: PTH115
        yield f"Process {self.pid}: {self.command}"
        yield f"Python v{self.version} ({executable})"
        if parent:
            yield f"Parent Process {parent.pid}: {parent.command}"
        yield ""
        for trace in reversed(self.traces):
            identity = trace["os_thread_id"] or f"0x{trace['thread_id']:X}"
            state = ("active+gil" if trace["owns_gil"] else "active") if trace["active"] else "idle"
            yield f"Thread {identity} ({state})" + (f': "{trace["thread_name"]}"' if trace["thread_name"] else "")
            for frame in trace["frames"]:
                source = frame["short_filename"] + (f":{frame['line']}" if frame["line"] else "")
                yield f"    {frame['name']} ({source})"
                for title, is_argument in (("Arguments", True), ("Locals", False)):
                    variables = [variable for variable in frame["locals"] or () if variable["arg"] is is_argument]
                    if variables:
                        yield f"        {title}:"
                    yield from (f"            {variable['name']}: {variable['repr']}" for variable in variables)


def _value(value: PyRef) -> str:
    """The value as py-spy writes it: strings in double quotes, objects by type and address."""
    try:
        text = _text(value, 0, _LONGEST + 1)
    except GdbextError:
        return "?"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: PyRef, depth: int, room: int) -> str:
    """The text of a value at a ``depth`` of containers; of a container only as many items are read as fill ``room``
    characters. Raises GdbextError."""
    kind = value.read(type_name)
    if kind in ("NoneType", "bool", "int", "float"):
        return repr(value.plain())
    if kind == "str":
        return '"{}"'.format(str(value.plain(_LONGEST)).replace("\n", "\\n"))
    is_sequence = kind in ("list", "tuple")
    if depth >= 3 or not (value.is_dict or is_sequence):
        return f"<{kind} at {value.address:#x}>"
    # items of one value, or of key and value
    items: Sequence[tuple[PyRef, ...]] = value.items(_LONGEST).checked() if value.is_dict else ()
    if is_sequence:
        items = [(item,) for item in value.elements(_LONGEST).checked()]
    texts: list[str] = []
    for item in items:
        if room <= 0:
            break
        texts.append(": ".join(_text(part, depth + 1, room) for part in item))
        room -= len(texts[-1]) + 2
    start, end = {"list": ("[", "]"), "tuple": ("(", ")")}.get(kind, ("{", "}"))
    return f"{start}{', '.join(texts)}{end}"


# --- the command line ----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    """The parser of py-spy's own options."""
    parser = argparse.ArgumentParser(prog="py-spy", description="Prints Python stacks as py-spy does, by gdbext.")
    parser.add_argument("--version", "-V", action="version", version="py-spy 0.4.3 (gdbext)")
    dump = parser.add_subparsers(dest="command", required=True).add_parser("dump", help="stacks of a running program")
    what = dump.add_mutually_exclusive_group(required=True)
    what.add_argument("--pid", "-p", type=lambda text: integer(text, 0), metavar="PID", help="the process")
    what.add_argument("--core", "-c", metavar="FILE", help="a core dump")
    dump.add_argument("--full-filenames", action="store_true", help="whole paths of files")
    dump.add_argument("--locals", "-l", action="count", default=0, help="also the variables of each frame")
    dump.add_argument("--json", "-j", action="store_true", help="as JSON")
    dump.add_argument("--subprocesses", "-s", action="store_true", help="also of child processes")
    dump.add_argument("--native", "-n", action="store_true", help="also native frames")
    dump.add_argument("--nonblocking", action="store_true", help="do not stop the process")
    return parser


def _dumped_processes(options: argparse.Namespace) -> Iterator[tuple[DumpedProcess, DumpedProcess | None]]:
    """(the chosen process, None), then with --subprocesses (child that runs Python, the chosen process)."""
    standstill = opening.Standstill.NONE if options.nonblocking else opening.Standstill.BRIEF
    if options.core:
        yield DumpedProcess(opening.open_core(options.core, "/"), options), None
        return
    check_process(options.pid)
    first = DumpedProcess(opening.open_live(options.pid, standstill), options)
    yield first, None
    for pid in descendants(options.pid) if options.subprocesses else ():
        with suppress(GdbextError):  # no Python, or it has exited
            yield DumpedProcess(opening.open_live(pid, standstill), options), first


def main(argv: Sequence[str]) -> int:
    """Run a command line of py-spy; returns the exit status."""
    options = _parser().parse_args(list(argv))
    try:
        with budget.MemoryLimit(budget.MEMORY), budget.TimeLimit(_SECONDS):
            outcome = guard("py-spy", argv, lambda: _dump(options))
    except budget.TimeLimitExceeded:
        outcome = _failed(budget.time_error(_SECONDS, "process", "dispatch -p PID --timeout SECONDS gives more time"))
    return launcher.deliver(outcome, "Error")


def _dump(options: argparse.Namespace) -> Outcome:
    """The outcome of py-spy dump."""
    try:
        processes = list(_dumped_processes(options))
        if options.json:
            traces = [trace for process, _ in processes for trace in process.traces]
            return Outcome(0, shown_json(json.dumps(traces, indent=2)) + "\n")
        texts = ["".join(f"{escape(line)}\n" for line in process.text(parent)) for process, parent in processes]
        return Outcome(0, f"\n{'-' * 80}\n".join(texts))
    except GdbextError as error:
        return _failed(error)


def _failed(error: GdbextError) -> Outcome:
    """The error in py-spy's form."""
    reasons = filter(None, (error.why, error.help))
    numbered = "".join(f"\n    {number}: {escape(text)}" for number, text in enumerate(reasons))
    return Outcome(1, error=escape(error.what) + (f"\n\nCaused by:{numbered}" if numbered else ""))


def run() -> None:
    """Run this process's own command line, and exit."""
    sys.exit(main(sys.argv[1:]))
