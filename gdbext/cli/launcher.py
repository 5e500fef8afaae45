"""``scripts/dispatch``: look at a process, a core or a program from the shell.

Imports little, for it must start at once.
"""

from __future__ import annotations

import os

from gdbext.cli.options import DEBUGGERS, Options, before_program, parse, timeout_error
from gdbext.commands import registry
from gdbext.errors import GdbextError, UsageError
from gdbext.garbage import collect_seldom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.commands.recorded import RecordedCommand
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Target

USAGE = """\
usage: dispatch -p PID  [COMMAND [ARGUMENTS]]        look at a running process; it goes on afterwards
       dispatch -c CORE [COMMAND [ARGUMENTS]]        look at a core dump
       dispatch -r FILE [COMMAND [ARGUMENTS]]        look at a recording
       dispatch [COMMAND [ARGUMENTS]] -- PROGRAM …   start PROGRAM; report when it crashes, or on Ctrl+C
       dispatch watch -p PID|-- PROGRAM …            wait until it hangs, then say why: dispatch watch --help
       dispatch ranks SOURCE                         look at all ranks of a job: dispatch ranks --help
       dispatch COMMAND --help                       explain a command

Explains what a hung or crashed PyTorch process is doing, without debug information. Reads only, save where a command
says that it lets the process run.

options:
  -p, --pid PID        the process
  -c, --core CORE      the core dump; executable and libraries are found through it
  -r, --recording FILE a recording: replayed without its process, its libraries or a debugger
  --record FILE        write down what is read, for -r: memory, registers, maps; the right thing for a bug report
  --sysroot DIR        where the files of the core's machine or container are found
  --debugger NAME      gdb (default), lldb, or none: needs no debugger at all, and is the fastest; lldb the slowest
  --no-stop            stop nobody: threads that sleep are read as they sleep, what others do is said to be unknown
  --timeout SECONDS    give up after that time and let the process go on; with PROGRAM: report then
  --json               one JSON document on standard output, also when it fails
  --version            show the version
  --init-path DEBUGGER print the file to load: (gdb) source FILE   or   (lldb) command script import FILE

commands (default: {default}):
{commands}

The report alone goes to standard output. Exit status: 0 a report was produced, 1 the target could not be analysed,
2 wrong usage.
"""


def main(argv: Sequence[str]) -> int:
    """Run ``scripts/dispatch`` with these arguments; its exit status."""
    _occupy_standard_descriptors()
    collect_seldom()
    json_wanted = "--json" in before_program(argv)
    options = Options()
    try:
        if _asks_for_help(argv):
            return deliver(registry.Outcome(0, usage()))
        if "--version" in argv[:1]:
            from gdbext import __version__

            return deliver(registry.Outcome(0, f"gdbext {__version__}\n"))
        if "--init-path" in argv[:1]:
            return deliver(registry.Outcome(0, f"{init_path(argv[1:])}\n"))
        if argv[0] == "watch":
            from gdbext.cli import watch

            return watch.main(argv[1:], main)
        if argv[0] == "ranks":
            from gdbext.cli.ranks import launcher as ranks

            return deliver(ranks.run(argv[1:], wants_color()))
        parse(argv, options)
        outcome = _run(options)
    except GdbextError as error:
        outcome = registry.failure(options.command, ["--json"] if json_wanted else [], error)
    except (KeyboardInterrupt, SystemExit) as end:
        why = "Ctrl+C" if isinstance(end, KeyboardInterrupt) else "a signal asked this command to end"
        interrupted = GdbextError("interrupted", why=why, help="the process was let go and goes on")
        outcome = registry.failure(options.command, ["--json"] if json_wanted else [], interrupted)
    return deliver(outcome)


def deliver(outcome: registry.Outcome) -> int:
    """Write an outcome to standard output and error; the exit status."""
    status = outcome.status
    try:
        _write(1, outcome.output)
    except BrokenPipeError:  # the reader (head, less) had enough
        return status
    except OSError as error:
        outcome.error = f"{outcome.error}\ncannot write the report: {error.strerror}".lstrip()
        status = 1
    if outcome.error:
        try:
            _write(2, f"dispatch: {outcome.error}\n")
        except OSError:  # there is nobody left to tell
            return status
    return status


def _occupy_standard_descriptors() -> None:
    """Where the caller closed one of 0 to 2, something that cannot be written: else a pipe of ours becomes it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest number that is free


def _write(descriptor: int, text: str) -> None:
    """Past Python's buffers, which would complain once more at exit. Raises OSError."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(descriptor, data) :]


def usage() -> str:
    """The text of --help."""
    lines = "\n".join(f"  {entry.name:20} {entry.summary}" for entry in registry.TABLE)
    return USAGE.format(default=registry.DEFAULT, commands=lines)


def init_path(words: Sequence[str]) -> str:
    """The file that defines the commands inside a debugger. Raises UsageError."""
    from gdbext.debuggers import table

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if len(words) != 1 or words[0] not in DEBUGGERS[:-1]:
        raise UsageError("--init-path needs the name of a debugger", help=f"one of: {', '.join(DEBUGGERS[:-1])}")
    return f"{package}/{table.ENTRIES[words[0]]}"


def _asks_for_help(argv: Sequence[str]) -> bool:
    return not argv or argv[0] in ("-h", "--help", "help")


def _run(options: Options) -> registry.Outcome:
    if {"--help", "-h"} & set(options.argv):
        return registry.Outcome(0, registry.help_text(registry.find(options.command)))
    recorded = _recorded_command(options)  # refuses, if it has to, before anything is stopped
    if options.pid is not None:
        from gdbext.targets.live.proc_checks import check_process

        check_process(options.pid)
    if options.debugger == "none" or options.no_stop or options.recording is not None or _watches(options):
        return _run_alone(options, recorded)
    from gdbext.cli import debugger_runner

    return debugger_runner.run(options, wants_color())


def _run_alone(options: Options, recorded: RecordedCommand | None) -> registry.Outcome:
    """The command in this very process. Raises TargetError."""
    opened: list[Target] = []

    def open_target() -> Target:
        opened.append(_target(options))
        return opened[0]

    def open_session() -> Session:
        from gdbext.inspection.session import Session

        return Session(open_target())

    watches = _watches(options)
    if not watches and registry.needs_running(options.command, options.argv):
        raise UsageError(f"{options.command} needs a debugger", help="use --debugger gdb, or --debugger lldb")
    limit = _TimeLimit(options.timeout, KeyboardInterrupt if watches else _TimeIsUp)
    try:
        with limit:
            if recorded is not None:
                outcome = recorded.run(open_target, wants_color())
            else:
                outcome = registry.execute(options.command, options.argv, open_session, wants_color())
    except _TimeIsUp:
        return registry.failure(options.command, options.argv, timeout_error(options.timeout or 0))
    finally:
        for target in opened:
            target.close()
    if recorded is not None:
        recorded.save(outcome)
    return outcome


def _target(options: Options) -> Target:
    if options.recording is not None:
        from gdbext.targets.recording.replay_target import ReplayTarget

        return ReplayTarget.load(options.recording)
    if options.core is not None:
        from gdbext.targets.core_target import CoreTarget

        return CoreTarget(options.core, options.sysroot)
    from gdbext.layouts.measure.ahead import measure_for_process
    from gdbext.targets.live.proc_target import ProcTarget
    from gdbext.targets.live.running_process import RunningProcess

    measure_for_process(options.pid or 0, 2)
    if _watches(options):
        return RunningProcess(options.pid or 0)
    if options.no_stop:
        from gdbext.glibc.find_thread import ThreadFinder
        from gdbext.targets.live.unstopped import UnstoppedProcess

        return UnstoppedProcess(options.pid or 0, ThreadFinder())
    if options.record is not None:
        return ProcTarget(options.pid or 0)
    from gdbext.targets.live.brief_stop import brief_stop

    return brief_stop(options.pid or 0)


def _watches(options: Options) -> bool:
    """The command looks at a process that is not stopped, and needs no debugger for it."""
    entry = registry.find(options.command)
    if not entry.running or not entry.live:
        return entry.running
    return options.pid is not None and bool(registry.module_of(entry).watches(options.argv))


def _recorded_command(options: Options) -> RecordedCommand | None:
    if options.record is None:
        return None
    from gdbext.commands.recorded import RecordedCommand

    return RecordedCommand(options.command, options.argv, options.record)


class _TimeIsUp(BaseException):
    """Not an Exception: nobody who survives the fault of one thread may survive this."""


class _TimeLimit:
    """Raises the error in the main thread after that many seconds."""

    def __init__(self, seconds: float | None, error: type[BaseException]) -> None:
        self._seconds = seconds
        self._error = error

    def __enter__(self) -> None:
        if self._seconds is not None:
            import signal

            signal.signal(signal.SIGALRM, self._expired)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            import signal

            signal.setitimer(signal.ITIMER_REAL, 0)

    def _expired(self, *_: object) -> None:
        raise self._error


def wants_color() -> bool:
    """Standard output is a terminal that shows colours."""
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
