"""``scripts/dispatch``: look at a process, a core or a program from the shell.

Imports little, for it must start at once.
"""

from __future__ import annotations

import os

from gdbext.commands import registry
from gdbext.errors import GdbextError, TargetError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gdbext.commands.recorded import RecordedCommand
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Target

DEBUGGERS = ("gdb", "lldb", "none")
MAX_TIMEOUT = 1e9
"""Seconds (31 years): the system's timers refuse much larger numbers, and so infinity."""

USAGE = """\
usage: dispatch -p PID  [COMMAND [ARGUMENTS]]        look at a running process; it goes on afterwards
       dispatch -c CORE [COMMAND [ARGUMENTS]]        look at a core dump
       dispatch -r FILE [COMMAND [ARGUMENTS]]        look at a recording
       dispatch [COMMAND [ARGUMENTS]] -- PROGRAM …   start PROGRAM; report when it crashes, or on Ctrl+C
       dispatch COMMAND --help                       explain a command

Explains what a hung or crashed PyTorch process is doing, without debug information. Reads only, save where a command
says that it lets the process run.

options:
  -p, --pid PID        the process
  -c, --core CORE      the core dump; executable and libraries are found through it
  -r, --recording FILE a recording: replayed without its process, its libraries or a debugger
  --record FILE        write down what is read, for -r: memory, registers, maps; the right thing for a bug report
  --sysroot DIR        where the files of the core's machine or container are found
  --debugger NAME      gdb (default), lldb, or none: needs no debugger at all
  --timeout SECONDS    give up after that time and let the process go on; with PROGRAM: report then
  --json               one JSON document on standard output, also when it fails
  --version            show the version
  --init-path DEBUGGER print the file to source in gdb: (gdb) source FILE

commands (default: {default}):
{commands}

The report alone goes to standard output. Exit status: 0 a report was produced, 1 the target could not be analysed,
2 wrong usage.
"""


class Options:
    """The command line, split. ``argv`` is what the command gets."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.core: str | None = None
        self.recording: str | None = None
        self.record: str | None = None
        self.sysroot = ""
        self.debugger = "gdb"
        self.timeout: float | None = None
        self.command = ""
        self.argv: list[str] = []
        self.program: list[str] = []


def main(argv: Sequence[str]) -> int:
    """Run ``scripts/dispatch`` with these arguments; its exit status."""
    _occupy_standard_descriptors()
    json_wanted = "--json" in _before_program(argv)
    options = Options()
    try:
        if _asks_for_help(argv):
            return deliver(registry.Outcome(0, usage()))
        if "--version" in argv[:1]:
            from gdbext import __version__

            return deliver(registry.Outcome(0, f"gdbext {__version__}\n"))
        if "--init-path" in argv[:1]:
            return deliver(registry.Outcome(0, f"{init_path(argv[1:])}\n"))
        parse(argv, options)
        outcome = _run(options)
    except GdbextError as error:
        outcome = registry.failure(options.command, ["--json"] if json_wanted else [], error)
    except (KeyboardInterrupt, SystemExit) as end:
        why = "Ctrl+C" if isinstance(end, KeyboardInterrupt) else "this command was told to end by a signal"
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
    lines = "\n".join(f"  {entry.name:20} {entry.summary}" for entry in registry.available())
    return USAGE.format(default=registry.DEFAULT, commands=lines)


def init_path(words: Sequence[str]) -> str:
    """The file that defines the commands inside a debugger. Raises UsageError."""
    from gdbext.debuggers import table

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if len(words) != 1 or words[0] not in DEBUGGERS[:-1]:
        raise UsageError("--init-path needs the name of a debugger", help=f"one of: {', '.join(DEBUGGERS[:-1])}")
    if words[0] not in table.ENTRIES:
        raise UsageError(f"{words[0]} is not supported by this version", help="gdbext --init-path gdb")
    return f"{package}/{table.ENTRIES[words[0]]}"


def parse(argv: Sequence[str], options: Options) -> None:
    """Fill in ``options``. Our own options may stand before or after the command. Raises UsageError."""
    words = _before_program(argv)
    options.program = list(argv[len(words) + 1 :])
    options.command = registry.DEFAULT
    setters = _setters(options)
    rest: list[str] = []
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if name not in setters:
            rest.append(words[position - 1])
            continue
        if not equals:
            if position == len(words):
                raise UsageError(f"{name} needs a value", help="dispatch --help")
            value = words[position]
            position += 1
        setters[name](value)
    _take_command(rest, options)
    _check_target(options, "--" in argv)


def _before_program(argv: Sequence[str]) -> list[str]:
    words = list(argv)
    return words[: words.index("--")] if "--" in words else words


def _asks_for_help(argv: Sequence[str]) -> bool:
    return not argv or argv[0] in ("-h", "--help", "help")


def _take_command(rest: list[str], options: Options) -> None:
    """The first word is the command, unless only options of the default command were given."""
    place = next((index for index, word in enumerate(rest) if not word.startswith("-")), None)
    if place is not None and not any(word != "--json" and word != "--why" for word in rest[:place]):
        options.command = rest.pop(place)
    options.argv = rest
    registry.find(options.command)


def _setters(options: Options) -> dict[str, Callable[[str], None]]:
    def pid(value: str) -> None:
        if not value.isdecimal():
            raise UsageError(f"{value!r} is no process id", help="find it with: pgrep -af python")
        options.pid = int(value)

    def core(value: str) -> None:
        options.core = value

    def recording(value: str) -> None:
        options.recording = value

    def record(value: str) -> None:
        options.record = os.path.abspath(value)  # noqa: PTH100

    def sysroot(value: str) -> None:
        if not os.path.isdir(value):  # noqa: PTH112
            raise UsageError(f"--sysroot: {value} is no folder")
        options.sysroot = value

    def debugger(value: str) -> None:
        if value not in DEBUGGERS:
            raise UsageError(f"--debugger: {value!r} is none of {', '.join(DEBUGGERS)}")
        options.debugger = value

    def timeout(value: str) -> None:
        try:
            options.timeout = float(value)
        except ValueError:
            raise UsageError(f"--timeout: {value!r} is no number of seconds") from None
        if not 0 < options.timeout <= MAX_TIMEOUT:
            raise UsageError(f"--timeout: the number of seconds must be greater than 0, and at most {MAX_TIMEOUT:g}")

    return {
        "-p": pid, "--pid": pid, "-c": core, "--core": core, "--sysroot": sysroot,
        "-r": recording, "--recording": recording, "--record": record, "--debugger": debugger, "--timeout": timeout,
    }  # fmt: skip


def _check_target(options: Options, has_dashes: bool) -> None:
    if {"--help", "-h"} & set(options.argv):
        return
    chosen = (options.pid is not None, options.core is not None, options.recording is not None, bool(options.program))
    if sum(chosen) != 1:
        what = "say what to look at" if not any(chosen) else "only one of -p, -c, -r and -- PROGRAM can be looked at"
        if has_dashes and not options.program:
            what = "there is no PROGRAM after --"
        raise UsageError(what, help="-p PID, -c CORE, -r FILE or -- PROGRAM; see dispatch --help")
    if options.sysroot and options.core is None:
        raise UsageError("--sysroot is for core dumps (-c): a live process shows its own files")
    if options.program and options.debugger == "none":
        raise UsageError("without a debugger no PROGRAM can be started", help="start it yourself, then use -p PID")
    if (options.core or options.recording) is not None and registry.find(options.command).live:
        what = "a core dump" if options.core is not None else "a recording"
        raise UsageError(f"{options.command} resumes the process, and {what} cannot run", help="use -p or --")
    if options.record is not None and options.recording is not None:
        raise UsageError("a recording cannot be recorded again", help="copy the file: it holds all that there is")


def _run(options: Options) -> registry.Outcome:
    if {"--help", "-h"} & set(options.argv):
        return registry.Outcome(0, registry.help_text(registry.find(options.command)))
    if options.pid is not None:
        from gdbext.targets.proc_checks import check_process

        check_process(options.pid)
    recorded = _recorded_command(options)  # refuses, if it has to, before anything is stopped
    if options.debugger == "none" or options.recording is not None:
        return _run_alone(options, recorded)
    from gdbext.debuggers import table

    if options.debugger not in table.ENTRIES:
        raise TargetError(
            f"{options.debugger} is not supported by this version",
            why="it can look through gdb, or by itself without any debugger",
            help="use --debugger gdb or --debugger none",
        )
    from gdbext.cli import debugger_runner

    return debugger_runner.run(options, terminal())


def _run_alone(options: Options, recorded: RecordedCommand | None) -> registry.Outcome:
    """The command in this very process. Raises TargetError."""
    opened: list[Target] = []

    def open_target() -> Target:
        opened.append(_target(options))
        return opened[0]

    def open_session() -> Session:
        from gdbext.inspection.session import Session

        return Session(open_target())

    if registry.find(options.command).live:
        raise UsageError(f"{options.command} needs a debugger", help="use --debugger gdb")
    limit = _TimeLimit(options.timeout)
    try:
        with limit:
            if recorded is not None:
                outcome = recorded.run(open_target, terminal())
            else:
                outcome = registry.execute(options.command, options.argv, open_session, terminal())
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
    from gdbext.targets.proc_target import ProcTarget

    measure_for_process(options.pid or 0, 2)
    return ProcTarget(options.pid or 0)


def _recorded_command(options: Options) -> RecordedCommand | None:
    if options.record is None:
        return None
    from gdbext.commands.recorded import RecordedCommand

    return RecordedCommand(options.command, options.argv, options.record)


class _TimeIsUp(BaseException):
    """Not an Exception: nobody who survives the fault of one thread may survive this."""


class _TimeLimit:
    """Raises _TimeIsUp in the main thread after that many seconds."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

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
        raise _TimeIsUp


def timeout_error(seconds: float) -> TargetError:
    """The error of --timeout."""
    return TargetError(
        f"no report within {seconds:g} s",
        why="the process is large, the machine is busy or the disk slow (libraries are read once)",
        help="give more time with --timeout; the process was let go and goes on",
    )


def terminal() -> registry.Terminal:
    """How standard output wants its text."""
    if not os.isatty(1) or os.environ.get("NO_COLOR"):
        return registry.Terminal()
    return registry.Terminal(os.environ.get("TERM", "dumb") != "dumb", os.get_terminal_size(1).columns or 120)
