"""``scripts/dispatch``: examines a process, a core or a program from the shell. Imports little, to start at once."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext import __version__
from gdbext.engine.targets.budget import raise_gc_threshold
from gdbext.engine.terminal import PROGRAM, CommandLine, typed_name, write
from gdbext.engine.vocabulary import DEBUGGERS, NO_DEBUGGER
from gdbext.errors import GdbextError, HelpRequested, UsageError
from gdbext.hosts.cli.options import Options, before_program, parse, spelled_out, wants_color, without_debugger
from gdbext.tools import table
from gdbext.tools.outcome import Outcome, failure, guard, interruption

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from gdbext.tools.program import Program

USAGE = """\
usage: dispatch [-p] PID [COMMAND [ARGUMENTS]]       examine a running process; it resumes afterwards
       dispatch -c CORE [COMMAND [ARGUMENTS]]        examine a core dump
       dispatch -r FILE [COMMAND [ARGUMENTS]]        examine a recording
       dispatch [EXE] PID|CORE|FILE.rec [COMMAND …]  the same, as gdb's users type it (EXE -c CORE, attach PID, too):
                                                     EXE is compared, never started
       dispatch [COMMAND [ARGUMENTS] --] PROGRAM …   start PROGRAM; report when it crashes, or on Ctrl+C; without --
                                                     only if no other word may be a core, a process or a word of gdbext
       dispatch ps                                   list the processes that use PyTorch
       dispatch watch -p PID|-- PROGRAM …            wait until it hangs, then say why: dispatch watch --help
       dispatch ranks SOURCE                         examine all ranks of a job: dispatch ranks --help
       dispatch timeout DURATION -- COMMAND …        run it; when it takes too long, diagnose it and kill it
       dispatch report -p PID                        write one bundle for a bug report
       dispatch shell SOURCE                         a Python prompt with the process: dispatch shell --help
       dispatch known [FILE]                         compare a report with the known bugs of other projects
       dispatch measure DIR                          measure the structures of an unknown PyTorch
       dispatch mcp                                  serve diagnoses to agents by the Model Context Protocol
       dispatch core-handler …                       for the kernel's core_pattern: dispatch core-handler --help
       dispatch help COMMAND                         explain a command

Explains what a hung or crashed PyTorch process is doing, without debug information. Read-only, except for commands
marked as resuming the process.

options:
  -p, --pid PID        the process
  -c, --core CORE      the core dump, compressed or not; systemd (the newest in its store), coredumpctl:PID
  -r, --recording FILE a recording: replayed without its process, its libraries or a debugger
  --record FILE        record everything that is read, for -r: memory, registers, maps; attach it to a bug report
  --sysroot DIR        root of the files that the core came from; / = this machine (also shows your Python sources)
  --debugger NAME      {debuggers} (default: none, which needs no debugger at all and is the fastest; gdb where the
                       process must run or stop at breakpoints)
  --no-stop            do not stop the process: running threads are reported as unknown
  --measure-as-me      compile the headers of an unknown PyTorch with your privileges, even if it is another user's
  --timeout SECONDS    give up after that time (default 60) and resume the process; with PROGRAM: report then
  --memory-limit GB    give up when gdbext itself needs more memory than that (default 1)
  --json               one JSON document on standard output, also when it fails
  -q, --quiet          print errors only (and that EXE did not write the core)
  --color WHEN         auto (default: on a terminal), always or never
  -V, --version        show the version
  --init-path DEBUGGER print the file to load: {loading}

commands (default: {default}; bt is short for dispatch-bt, threads for all-threads):
{commands}

The report alone goes to standard output. Exit status: 0 a report was produced, 1 the target could not be analyzed,
2 wrong usage; dispatch-diagnose --exit-code has more.
"""


def main(argv: Sequence[str], typed: str = PROGRAM) -> int:
    """Run ``scripts/dispatch`` with these arguments, and return its exit status. ``typed``: our program as the user
    called it."""
    for fd in range(3):  # a pipe of ours must not take the place of one that the caller closed
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest number that is free
    raise_gc_threshold()
    json_option = ["--json"] if "--json" in before_program(argv) else []
    options = Options()
    options.typed = typed
    try:
        if not argv or argv[0] in ("-h", "--help") or list(argv) == ["help"]:
            return deliver(Outcome(0, usage(typed)), typed)
        argv = spelled_out(without_debugger(argv))
        if "--version" in argv[:1]:
            return deliver(Outcome(0, f"gdbext {__version__}\n"), typed)
        if "--init-path" in argv[:1]:
            return deliver(Outcome(0, f"{init_path(argv[1:])}\n"), typed)
        row = table.program(argv[0])
        if row:
            program_row, words = row, argv[1:]

            def run_program() -> Outcome:
                """Run a program of the table, such as ``dispatch ps``."""
                program: Program = table.tool_of(program_row)
                try:
                    return program.main(words, lambda typed_words: main(typed_words, typed), wants_color())
                except HelpRequested as request:
                    return Outcome(0, f"{request}\n")

            return deliver(guard(row.name, argv, run_program), typed)
        parse(argv, options)
        from gdbext.hosts.cli import command_runner  # 40 ms, which --help, --version and ps need not wait for

        outcome = guard(options.command, json_option, lambda: command_runner.run(options))
    except HelpRequested as request:
        outcome = Outcome(0, str(request))
    except GdbextError as error:
        outcome = failure(options.command, json_option, error)
    except (KeyboardInterrupt, SystemExit) as end:
        outcome = failure(options.command, json_option, interruption(end))
    return deliver(outcome, typed, options.called)


def run() -> NoReturn:
    """Run ``main`` with this process's arguments, and end this process with its exit status."""
    leave(main(sys.argv[1:], typed_name(sys.argv[0])))


def leave(status: int) -> NoReturn:
    """Exit without freeing objects (a seventh of the time); exit handlers run, and non-daemon threads are joined."""
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


def deliver(outcome: Outcome, typed: str = PROGRAM, called: CommandLine | None = None) -> int:
    """Write an outcome to standard output and error, and return the exit status. ``called``: the command line with
    which suggestions begin."""
    try:
        write(1, outcome.output)
    except BrokenPipeError:  # the reader (head, less) has exited
        return outcome.status
    except OSError as error:
        outcome.error = f"{outcome.error}\ncannot write the report: {error.strerror}".lstrip()
        outcome.status = 1
    if outcome.error:
        with suppress(OSError):  # no reader is left
            write(2, f"{_name(typed)}: {_as_called(outcome.error, typed, called)}\n")
    return outcome.status


def _name(typed: str) -> str:
    """The program's name without folders, with which its messages begin."""
    return typed if " " in typed else typed.rpartition("/")[2]


def _as_called(text: str, typed: str, called: CommandLine | None = None) -> str:
    """An error text whose suggestions name our program as the user called it: ``gdbext ps`` for ``dispatch ps``, and,
    with ``called``, a whole command line for ``dispatch-op mm``."""
    if called:
        whole = CommandLine(typed, called.source or "-p PID")
        advice = "  try: "  # the beginning of an error's line with what to do (error_text)
        lines = text.split("\n")
        text = "\n".join(
            advice + whole.complete_commands(line[len(advice) :]) if line.startswith(advice) else line for line in lines
        )
    programs = (f"{row.name} " for row in table.TABLE if row.mode == "program")
    for word in ("-", "ps", "help ", *programs):
        for name in (PROGRAM, "dispatch"):
            text = text.replace(f" {name} {word}", f" {typed}\0{word}")
    return text.replace("\0", " ")


def usage(typed: str = PROGRAM) -> str:
    """The text that --help shows."""
    lines = [f"  {row.name:20} {row.summary}" for row in table.commands()]
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
    """The path of the file that defines the commands inside the debugger that ``words`` name. Raises UsageError."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    if len(words) != 1 or words[0] not in DEBUGGERS:
        raise UsageError("--init-path needs the name of a debugger", help=f"one of: {', '.join(DEBUGGERS)}")
    return f"{package}/{DEBUGGERS[words[0]].file}"
