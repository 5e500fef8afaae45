"""``scripts/dispatch``: look at a process, a core or a program from the shell.

Imports little, for it must start at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.engine.targets import budget
from gdbext.engine.targets.budget import raise_gc_threshold
from gdbext.engine.terminal import PROGRAM, CommandLine, write
from gdbext.errors import GdbextError, UsageError
from gdbext.hosts.cli.options import Options, before_program, parse, spelled_out, without_debugger
from gdbext.tools import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.recorded_command import RecordedCommand
    from gdbext.tools.program import Program

USAGE = """\
usage: dispatch [-p] PID [COMMAND [ARGUMENTS]]       look at a running process; it goes on afterwards
       dispatch -c CORE [COMMAND [ARGUMENTS]]        look at a core dump
       dispatch -r FILE [COMMAND [ARGUMENTS]]        look at a recording
       dispatch [EXE] PID|CORE|FILE.rec [COMMAND …]  the same, as gdb's users type it (EXE -c CORE, attach PID, too):
                                                     EXE is compared, never started
       dispatch [COMMAND [ARGUMENTS] --] PROGRAM …   start PROGRAM; report when it crashes, or on Ctrl+C; without --
                                                     only if no other word may be a core, a process or a word of ours
       dispatch ps                                   list the processes that have PyTorch loaded
       dispatch watch -p PID|-- PROGRAM …            wait until it hangs, then say why: dispatch watch --help
       dispatch ranks SOURCE                         look at all ranks of a job: dispatch ranks --help
       dispatch timeout DURATION -- COMMAND …        run it; when it takes too long, explain it and end it
       dispatch report -p PID                        write one bundle for a bug report
       dispatch shell SOURCE                         a Python prompt with the process: dispatch shell --help
       dispatch help COMMAND                         explain a command

Explains what a hung or crashed PyTorch process is doing, without debug information. Reads only, save where a command
says that it lets the process run.

options:
  -p, --pid PID        the process
  -c, --core CORE      the core dump, compressed or not; systemd or coredumpctl:PID for one of systemd's store
  -r, --recording FILE a recording: replayed without its process, its libraries or a debugger
  --record FILE        keep everything that is read, for -r: memory, registers, maps; the right file for a bug report
  --sysroot DIR        where the files of the core's machine or container are found; / says that they are those of this
                       machine: then Python sources outside of the interpreter's folders are also shown
  --debugger NAME      {debuggers} (default: none, which needs no debugger at all and is the fastest; gdb where the
                       process must run or stop at breakpoints)
  --no-stop            do not stop the process: sleeping threads are read as they sleep, what others do is unknown
  --measure-as-me      compile the headers of an unknown PyTorch with your rights, even if it is another user's
  --timeout SECONDS    give up after that time (default 60) and let the process go on; with PROGRAM: report then
  --memory-limit GB    give up when gdbext itself needs more memory than that (default 1)
  --json               one JSON document on standard output, also when it fails
  -q, --quiet          no progress and no warnings on standard error, only why there is no report, and that EXE did
                       not write the core
  --color WHEN         auto (default: on a terminal), always or never
  -V, --version        show the version
  --init-path DEBUGGER print the file to load: {loading}

commands (default: {default}; bt is short for dispatch-bt, threads for all-threads):
{commands}

The report alone goes to standard output. Exit status: 0 a report was produced, 1 the target could not be analysed,
2 wrong usage; dispatch-diagnose --exit-code has more.
"""


def main(argv: Sequence[str], typed: str = PROGRAM) -> int:
    """Run ``scripts/dispatch`` with these arguments; its exit status. ``typed``: the program as it was called."""
    _occupy_standard_descriptors()
    raise_gc_threshold()
    json_wanted = "--json" in before_program(argv)
    options = Options()
    options.typed = typed
    try:
        if _asks_for_help(argv):
            return deliver(table.Outcome(0, usage(typed)), typed)
        argv = spelled_out(without_debugger(argv))
        if "--version" in argv[:1]:
            from gdbext import __version__

            return deliver(table.Outcome(0, f"gdbext {__version__}\n"), typed)
        if "--init-path" in argv[:1]:
            return deliver(table.Outcome(0, f"{init_path(argv[1:])}\n"), typed)
        program = table.program(argv[0])
        if program:
            return deliver(table.guard(program.name, argv, lambda: _run_program(program, argv[1:], typed)), typed)
        parse(argv, options)
        with _silence(options.quiet and not options.program):
            outcome = _run_supervised(options)
        if options.quiet and not outcome.status:
            outcome.error = ""
        if options.executable and (warning := _other_executable(options)):  # gdb's -q keeps it, too
            outcome.error = f"{warning}\n{outcome.error}".rstrip()
    except GdbextError as error:
        outcome = table.failure(options.command, ["--json"] if json_wanted else [], error)
    except (KeyboardInterrupt, SystemExit) as end:
        why = "Ctrl+C" if isinstance(end, KeyboardInterrupt) else "a signal asked this command to end"
        interrupted = GdbextError("interrupted", why=why, help=_state(options.pid))
        outcome = table.failure(options.command, ["--json"] if json_wanted else [], interrupted)
    return deliver(outcome, typed, options.called)


def _other_executable(options: Options) -> str:
    """The warning that the program named on the command line is not the one that the process runs, or that wrote the
    core; "" if it is, or if that is unknown."""
    from gdbext.hosts import opening

    named = find_program(options.executable) or options.executable
    if options.pid:
        actual, what = opening.other_program(options.pid, named), f"process {options.pid} runs"
    else:
        actual, what = options.other_writer, f"{options.core} was written by"
    if actual and not os.path.exists(named):  # noqa: PTH110
        return f"warning: there is no file {options.executable}; {what} {actual}"
    return f"warning: {what} {actual}, not {options.executable}" if actual else ""


def _state(pid: int) -> str:
    """What became of the examined process, "" without one; read from it now."""
    if not pid:
        return ""
    from gdbext.engine.targets.live.debugger_guard import state_after_detach

    return state_after_detach(pid)


@contextmanager
def _silence(wanted: bool) -> Iterator[None]:
    """Nothing that is written to standard error meanwhile is seen, where that is wanted."""
    if not wanted:
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def leave(status: int) -> NoReturn:
    """End this process. Taking apart all that a look has read is a seventh of its time, so nobody does. What asked to
    be called at the end is called, and a thread that Python would wait for is waited for."""
    threading, atexit = sys.modules.get("threading"), sys.modules.get("atexit")
    if threading and threading.active_count() > 1:
        sys.exit(status)
    if atexit:
        atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        sys.exit(status)  # as Python says it
    os._exit(status)


def _run_program(row: table.ToolRow, argv: Sequence[str], typed: str) -> table.Outcome:
    """The outcome of a program, which may have shown by itself what it found."""
    from gdbext.diagnosis.tool_arguments import HelpRequested

    program: Program = table.load(row.place)()
    try:
        return program.main(argv, lambda words: main(words, typed), wants_color())
    except HelpRequested as request:
        return table.Outcome(0, f"{request}\n")


def deliver(outcome: table.Outcome, typed: str = PROGRAM, called: CommandLine | None = None) -> int:
    """Write an outcome to standard output and error; the exit status. ``called``: what was looked at."""
    status = outcome.status
    try:
        write(1, outcome.output)
    except BrokenPipeError:  # the reader (head, less) had enough
        return status
    except OSError as error:
        outcome.error = f"{outcome.error}\ncannot write the report: {error.strerror}".lstrip()
        status = 1
    if outcome.error:
        try:
            write(2, f"{_name(typed)}: {_as_called(outcome.error, typed, called)}\n")
        except OSError:  # there is nobody left to tell
            return status
    return status


def _occupy_standard_descriptors() -> None:
    """Open something that cannot be written in place of 0 to 2, where the caller closed one: else a pipe of ours
    becomes it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest number that is free


def _name(typed: str) -> str:
    """The program's name without folders, as its messages begin with it."""
    return typed if " " in typed else typed.rpartition("/")[2]


_TRY = "  try: "
"""The beginning of an error's line with what to do (table.error_text)."""


def _as_called(text: str, typed: str, called: CommandLine | None = None) -> str:
    """The error with suggestions that have our program as it was called: ``dispatch ps`` is ``gdbext ps``, and
    ``dispatch-op mm`` a whole command line."""
    if called:
        whole = CommandLine(typed, called.source or "-p PID")
        lines = text.split("\n")
        text = "\n".join(_TRY + whole.pasted(line[len(_TRY) :]) if line.startswith(_TRY) else line for line in lines)
    programs = (f"{row.name} " for row in table.TABLE if row.mode == "program")
    for word in (*_SUGGESTED, *programs):
        for name in (PROGRAM, "dispatch"):
            text = text.replace(f" {name} {word}", f" {typed}\0{word}")
    return text.replace("\0", " ")


_SUGGESTED = ("-", "ps", "help ")


def usage(typed: str = PROGRAM) -> str:
    """The text that --help shows."""
    lines = [f"  {row.name:20} {row.summary}" for row in table.commands()]
    from gdbext.engine.vocabulary import DEBUGGERS, NO_DEBUGGER

    added = table.AddedCommands()
    if added.rows or added.problems:
        lines += ["", "commands of other packages:", *(f"  {row.name:20} {row.summary}" for row in added.rows)]
        lines += [f"  {name:20} cannot be used: {error.what}" for name, error in added.problems.items()]
    text = USAGE
    for before in ("usage: ", "\n       "):
        text = text.replace(f"{before}dispatch", f"{before}{_name(typed)}")
    return text.format(
        default=table.DEFAULT,
        commands="\n".join(lines),
        debuggers=f"{', '.join(DEBUGGERS)} or {NO_DEBUGGER}",
        loading="   or   ".join(each.command for each in DEBUGGERS.values()),
    )


def init_path(words: Sequence[str]) -> str:
    """The file that defines the commands inside a debugger. Raises UsageError."""
    from gdbext.engine.vocabulary import DEBUGGERS

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    if len(words) != 1 or words[0] not in DEBUGGERS:
        raise UsageError("--init-path needs the name of a debugger", help=f"one of: {', '.join(DEBUGGERS)}")
    return f"{package}/{DEBUGGERS[words[0]].file}"


def _asks_for_help(argv: Sequence[str]) -> bool:
    return not argv or argv[0] in ("-h", "--help") or list(argv) == ["help"]


def _run_supervised(options: Options) -> table.Outcome:
    """The outcome of the command; of a process that the kernel may keep us from reading, by a child of ours."""
    pid = options.pid
    if not pid or _watches(options) or {"--help", "-h"} & set(options.argv):
        return _run(options)
    from gdbext.engine.targets.live import supervision
    from gdbext.hosts import opening

    if not options.no_stop and options.chosen_debugger != "none":
        supervision.check_can_stop(pid)
        return _run(options)
    if not supervision.is_suspect(pid):
        return _run(options)
    return opening.supervised(pid, lambda: _guarded(options, _run), lambda: _guarded(options, _run_unreadable))


def _guarded(options: Options, run: Callable[[Options], table.Outcome]) -> table.Outcome:
    try:
        return run(options)
    except GdbextError as error:
        return table.failure(options.command, options.argv, error)


def _run_unreadable(options: Options) -> table.Outcome:
    """The command on a process whose memory the kernel lets nobody read."""
    from gdbext.engine.targets.live.unstopped import UnreadableProcess

    def open_session() -> Session:
        from gdbext.diagnosis.session import Session

        return Session(UnreadableProcess(options.pid))

    return table.execute(options.command, options.argv, open_session, wants_color())


def _run(options: Options) -> table.Outcome:
    if {"--help", "-h"} & set(options.argv):
        return table.Outcome(0, table.help_text(table.find(options.command)))
    if not options.called.source and not options.program:
        return table.execute_alone(options.command, options.argv, wants_color(options.color))
    if options.measure_as_me:
        from gdbext.engine.layouts import store

        os.environ[store.PERMISSION] = store.AS_ME  # which is there in a debugger of ours, too
    recorded = _recorded_command(options)  # refuses, if it has to, before anything is stopped
    if options.pid:
        from gdbext.engine.targets.live import proc_checks

        needs_tracer = options.chosen_debugger != "none" or _watches(options)
        traced = not needs_tracer and proc_checks.foreign_tracer(options.pid)
        (proc_checks.check_readable if traced else proc_checks.check_process)(options.pid)
    alone = options.no_stop or options.recording or _watches(options)
    debugger = "none" if alone else options.chosen_debugger
    if debugger == "none":
        return _run_alone(options, recorded)
    from gdbext.hosts.cli import debugger_runner

    if options.core:
        from gdbext.engine.formats import elf_core

        elf_core.check_regular(options.core)
        if options.executable:
            with suppress(GdbextError):  # the debugger's own error is told
                _compare_writer(target := _target(options), options)
                target.close()
    return debugger_runner.run(options, debugger, wants_color(options.color))


def _run_alone(options: Options, recorded: RecordedCommand | None) -> table.Outcome:
    """The command in this very process. Raises TargetError."""
    opened: list[Target] = []

    def open_target() -> Target:
        opened.append(_target(options, again=bool(opened)))
        return opened[-1]

    def open_session() -> Session:
        from gdbext.diagnosis.session import Session

        return Session(open_target())

    from gdbext.diagnosis.tool import Alone

    host, color = Alone(called=options.called), wants_color(options.color)
    watches = _watches(options)
    if not watches and table.needs_running(options.command, options.argv):
        raise UsageError(f"{options.command} needs a debugger", help="use --debugger gdb, or --debugger lldb")
    limit = budget.TimeLimit(options.time_limit, KeyboardInterrupt if watches else budget.TimeIsUp)
    try:
        with budget.MemoryLimit(options.memory), limit:
            if recorded:
                outcome = recorded.run(open_target, color, host)
                if not _is_one_moment(opened):
                    opened[0].close()
                    outcome = recorded.run(open_target, color, host)
            else:
                outcome = table.execute(options.command, options.argv, open_session, color, host)
    except budget.TimeIsUp:
        return table.failure(options.command, options.argv, budget.time_error(options.time_limit or 0))
    finally:
        if opened:
            _compare_writer(opened[0], options)
        for target in opened:
            target.close()
    if recorded:
        recorded.save(outcome)
    return outcome


def _compare_writer(target: Target, options: Options) -> None:
    """Note in ``options`` which program wrote the core, if that is not the one named on the command line."""
    if options.executable and options.core:
        from gdbext.hosts import opening

        named = find_program(options.executable) or options.executable
        options.other_writer = opening.other_writer(target, named)


def _is_one_moment(opened: Sequence[Target]) -> bool:
    """False for a process that was recorded as it slept, and woke meanwhile, or of which a proof needs registers."""
    from gdbext.engine.targets.live.unstopped import AsleepProcess

    return not (opened and isinstance(opened[0], AsleepProcess)) or opened[0].is_enough()


def _target(options: Options, again: bool = False) -> Target:
    """The target of the command line; ``again``: what is recorded has moved, and is stopped now."""
    from gdbext.hosts.opening import Standstill, open_core, open_live, open_recording, open_running

    if options.recording:
        return open_recording(options.recording)
    if options.core:
        return open_core(options.core, options.sysroot)
    if _watches(options):
        return open_running(options.pid)
    if options.no_stop:
        return open_live(options.pid, Standstill.NONE)
    recorded = Standstill.HELD if again else Standstill.ASLEEP
    return open_live(options.pid, recorded if options.record else Standstill.BRIEF)


def _watches(options: Options) -> bool:
    """The command looks at a process that is not stopped, and needs no debugger for it."""
    return table.needs_no_stop(options.command, options.argv, bool(options.pid))


def _recorded_command(options: Options) -> RecordedCommand | None:
    if not options.record:
        return None
    from gdbext.hosts.debugger.recorded_command import RecordedCommand

    return RecordedCommand(options.command, options.argv, options.record)


def wants_color(when: str = "auto") -> bool:
    """Colours are wanted: "always", "never", or where standard output is a terminal that shows them."""
    if when != "auto":
        return when == "always"
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
