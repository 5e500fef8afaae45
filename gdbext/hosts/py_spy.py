"""``gdbext-py-spy``: answers ``py-spy dump`` in the words of py-spy 0.4, for whoever calls that by its name.

The text, the members of the JSON and their order are those that py-spy 0.4.3 prints. Only ``dump`` is answered: for
sampling there are dispatch-top and dispatch-trace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gdbext.cpython.abi import FrameObjects, InterpreterFrames
from gdbext.cpython.abi.python_structures import PyInterpreterFrame
from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.cpython.threads.py_stack import PyStack
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
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.engine.targets.base_target import Target

VERSION = "py-spy 0.4.3"
"""The version whose words these are."""
_SECONDS = 60.0
_LINE = "-" * 80
_LONGEST = 128
"""Most characters of a value (py-spy, format_variable)."""
_DEPTH = 3


class DumpedProcess:
    """The Python threads of one process, in py-spy's order: the newest first."""

    def __init__(self, target: Target, options: argparse.Namespace) -> None:
        """Read its threads, of one moment. Raises GdbextError."""
        self._options = options
        self.pid = target.pid
        self.command = _command(target)
        session, self._inspected = Session(target).settled(inspect_threads)
        self._session = session
        table = session.python_threads
        if not session.python:
            raise unsupported(f"process {self.pid} runs no Python that can be read")
        self.version = session.python.version or "?"
        self._runtime = table.runtime
        self._names = table.names
        self._tids = {state.address: tid for tid, states in table.states.items() for state in states}

    @cached_property
    def traces(self) -> list[dict[str, Any]]:
        """A stack for each thread of the interpreter that runs Python, as py-spy's JSON has it."""
        found = [self._trace(state) for state in self._runtime.thread_states()]
        return [trace for trace in found if trace["frames"]]

    def _trace(self, state: Any) -> dict[str, Any]:
        tid = self._tids.get(state.address)
        report = next((each for each in self._inspected.threads if each.tid == tid), None)
        groups = self._runtime.frames.groups([state])
        frames = [each for group in groups for each in self._frames(group, group is groups[-1])]
        if self._options.native and tid is not None:
            frames = self._with_native(tid, frames)
        return {
            "pid": self.pid,
            "thread_id": state.ident,
            "thread_name": report.python_name if report else None,
            "os_thread_id": tid,
            "active": report is not None and report.state is RunState.RUNNING,
            "owns_gil": report is not None and any(each.kind is WaitKind.GIL for each in report.holds),
            "frames": frames,
            "process_info": None,
        }

    def _frames(self, group: Any, is_last: bool) -> Iterator[dict[str, Any]]:
        """py-spy's marks of the frames by which an evaluation loop was entered: before 3.11 that is each of them, since
        3.12 a shim frame below it."""
        form = self._runtime.layout.abi.frames
        by_shim = isinstance(form, InterpreterFrames) and bool(form.codeless_owners)
        for number, frame in enumerate(group):
            ends = number == len(group) - 1
            is_entry = isinstance(form, FrameObjects) or (not by_shim and self._was_entered(frame, ends))
            marks = (False, ends) if by_shim else (is_entry, ends and is_last)
            yield self._frame(frame.function, frame.file, frame.line or 0, self._locals(frame), *marks)

    def _was_entered(self, frame: Any, ends: bool) -> bool:
        """Ask the frame itself, in 3.11: ``is_entry`` is the byte before ``owner`` (pycore_frame.h). A coroutine
        through which an exception was thrown has it from its last run, though no loop evaluates it now."""
        at = PyInterpreterFrame.owner.offset(self._runtime.space) - 1
        try:
            return self._session.memory.u8(frame.address + at) != 0
        except GdbextError:
            return ends

    def _frame(
        self, name: str, file: str, line: int, variables: Any = None, is_entry: bool = False, is_last: bool = False
    ) -> dict[str, Any]:
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
        if not self._options.locals:
            return None
        code, found = PyRef(self._runtime, frame.code).code, PyStack(self._runtime).locals(frame)
        if not code or found.fault:
            return []
        try:
            count, names = code.argument_count, code.local_names()
        except GdbextError:
            return []
        return [
            {"name": name, "addr": found[name].address, "arg": at < count, "repr": _value(found[name])}
            for at, name in enumerate(names)
            if name in found
        ]

    def _with_native(self, tid: int, python: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The stack with its native frames; those of the interpreter's own evaluation are the Python frames."""
        thread = next((each for each in self._session.target.memory.threads() if each.tid == tid), None)
        if not thread:
            return python
        left, merged = list(python), []
        for frame in all_frames(self._session, self._session.threads.of(thread)):
            if frame.kind is FrameKind.PYTHON:
                merged += left[:1]
                del left[:1]
            elif not frame.function.startswith(("_Py", "Py", "_PyEval", "method_", "cfunction_", "object_")):
                name = f"{frame.pc or 0:#x}" if frame.function in ("", "??") else frame.function
                merged.append(self._frame(name, os.path.basename(frame.module), 0))  # noqa: PTH119
        return merged + left

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
        yield f"Process {self.pid}: {self.command}"
        yield f"Python v{self.version} ({_executable(self._session.target)})"
        if parent:
            yield f"Parent Process {parent.pid}: {parent.command}"
        yield ""
        for trace in reversed(self.traces):
            identity = trace["os_thread_id"] or f"0x{trace['thread_id']:X}"
            state = ("active+gil" if trace["owns_gil"] else "active") if trace["active"] else "idle"
            yield f"Thread {identity} ({state})" + (f': "{trace["thread_name"]}"' if trace["thread_name"] else "")
            for frame in trace["frames"]:
                place = frame["short_filename"] + (f":{frame['line']}" if frame["line"] else "")
                yield f"    {frame['name']} ({place})"
                yield from _variables(frame["locals"] or ())


def _variables(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    for title, is_argument in (("Arguments", True), ("Locals", False)):
        some = [each for each in found if each["arg"] is is_argument]
        if some:
            yield f"        {title}:"
        yield from (f"            {each['name']}: {each['repr']}" for each in some)


def _command(target: Target) -> str:
    if target.origin.is_core:
        return str(getattr(target, "command", ""))
    return command_text(read_command(target.pid))


def _executable(target: Target) -> str:
    if target.origin.is_core:
        return str(target.executable()) if hasattr(target, "executable") else "?"
    try:
        return os.readlink(f"/proc/{target.pid}/exe")  # noqa: PTH115
    except OSError:
        return "?"


# --- values --------------------------------------------------------------------------------------


def _value(value: PyRef) -> str:
    """The value as py-spy writes it: strings in double quotes, objects by type and address."""
    try:
        text = _text(value, 0, _LONGEST + 1)
    except GdbextError:
        return "?"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: PyRef, depth: int, room: int) -> str:
    """The text of a value; of a container only as many items are read as fill ``room`` characters. Raises
    GdbextError."""
    kind = value.read(type_name)
    if kind in ("NoneType", "bool", "int", "float"):
        return repr(value.plain())
    if kind == "str":
        return '"{}"'.format(str(value.plain(_LONGEST)).replace("\n", "\\n"))
    if depth < _DEPTH and value.is_dict:
        pairs = value.items(_LONGEST).checked()
        return f"{{{_joined(pairs, room, lambda pair, left: _pair(pair, depth + 1, left))}}}"
    if depth < _DEPTH and kind in ("list", "tuple"):
        found = value.elements(_LONGEST).checked()
        inside = _joined(found, room, lambda item, left: _text(item, depth + 1, left))
        return f"[{inside}]" if kind == "list" else f"({inside})"
    return f"<{kind} at {value.address:#x}>"


def _pair(pair: tuple[PyRef, PyRef], depth: int, room: int) -> str:
    return ": ".join(_text(each, depth, room) for each in pair)


def _joined(items: Sequence[Any], room: int, text: Callable[[Any, int], str]) -> str:
    """The texts of the items, with commas between, until the room is used up."""
    found: list[str] = []
    for item in items:
        if room <= 0:
            break
        found.append(text(item, room))
        room -= len(found[-1]) + 2
    return ", ".join(found)


# --- the command line ----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="py-spy", description="Prints Python stacks as py-spy does, by gdbext.")
    parser.add_argument("--version", "-V", action="version", version=f"{VERSION} (gdbext)")
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


def _dumped(options: argparse.Namespace) -> Iterator[tuple[DumpedProcess, DumpedProcess | None]]:
    """The process, then its children that run Python."""
    standstill = opening.Standstill.NONE if options.nonblocking else opening.Standstill.BRIEF
    if options.core:
        yield DumpedProcess(opening.open_core(options.core, "/"), options), None
        return
    check_process(options.pid)
    first = DumpedProcess(opening.open_live(options.pid, standstill), options)
    yield first, None
    for pid in descendants(options.pid) if options.subprocesses else ():
        try:
            yield DumpedProcess(opening.open_live(pid, standstill), options), first
        except GdbextError:
            continue  # no Python, or it has ended


def main(argv: Sequence[str]) -> int:
    """Answer a command line of py-spy's; the exit status."""
    options = _parser().parse_args(list(argv))
    try:
        with budget.MemoryLimit(budget.MEMORY), budget.TimeLimit(_SECONDS):
            outcome = guard("py-spy", argv, lambda: _answered(options))
    except budget.TimeLimitExceeded:
        outcome = _failed(budget.time_error(_SECONDS))
    return launcher.deliver(outcome, "Error")


def _answered(options: argparse.Namespace) -> Outcome:
    try:
        found = list(_dumped(options))
        if options.json:
            traces = [trace for each, _ in found for trace in each.traces]
            return Outcome(0, shown_json(json.dumps(traces, indent=2)) + "\n")
        texts = ["".join(f"{escape(line)}\n" for line in each.text(parent)) for each, parent in found]
        return Outcome(0, f"\n{_LINE}\n".join(texts))
    except GdbextError as error:
        return _failed(error)


def _failed(error: GdbextError) -> Outcome:
    """The error in py-spy's form."""
    reasons = filter(None, (error.why, error.help))
    numbered = "".join(f"\n    {number}: {escape(text)}" for number, text in enumerate(reasons))
    return Outcome(1, error=escape(error.what) + (f"\n\nCaused by:{numbered}" if numbered else ""))


def run() -> None:
    """Answer this process's own command line, and end it."""
    sys.exit(main(sys.argv[1:]))
