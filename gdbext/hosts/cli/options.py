"""The options of ``scripts/dispatch``: what to look at, with what, and the command with its own arguments.

Parsed by hand: our options may stand among those of the command, whose own parser gets the rest; and importing argparse
takes 8.3 ms (Python 3.11, best of 6), where everything else that the launcher imports takes 2.5 ms. Through gdb nobody
else in this process needs it: the command's arguments are parsed inside gdb.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gdbext.engine.numbers import number
from gdbext.engine.targets.budget import MEMORY, SECONDS, duration, memory_size
from gdbext.engine.terminal import PROGRAM, CommandLine, quoted
from gdbext.engine.vocabulary import DEBUGGERS, NO_DEBUGGER
from gdbext.errors import UsageError
from gdbext.hosts.cli.typed_forms import as_options, is_startable, start_line
from gdbext.tools import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLAGS = ("--no-stop", "-q", "--quiet", "--measure-as-me")
_ALONE = ("-V", "--version", "--init-path")
COLORS = ("auto", "always", "never")
_BY_PID = ("watch", "ranks", "shell", "report")
"""Programs whose first word may be a process id without ``-p``."""


class Options:
    """The command line, split. ``argv`` is what the command gets."""

    def __init__(self) -> None:
        self.pid = 0
        self.core = ""
        self.recording = ""
        self.executable = ""
        """The program that was named beside a core or a process, as gdb takes it; it is only compared."""
        self.other_writer = ""
        """The program that wrote the core, if it is known and is not ``executable``."""
        self.named = ""
        """The path by which suggestions name the recording; "" for that by which it is opened."""
        self.record = ""
        self.sysroot = ""
        self.debugger = ""
        """"gdb", "lldb" or "none"; "" where the user leaves that to us."""
        self.timeout: float | None = None
        self.memory = MEMORY
        """Bytes of our own memory that a look may take."""
        self.no_stop = False
        self.measure_as_me = False
        self.command = ""
        self.argv: list[str] = []
        self.program: list[str] = []
        self.typed = PROGRAM
        """Our own program, as it was called."""
        self.color = "auto"
        self.quiet = False

    @property
    def called(self) -> CommandLine:
        """The words for what is suggested. A program that was started is gone with the report, and started again."""
        source = ""
        if self.pid:
            source = f"-p {self.pid}"
        elif self.core:
            source = f"-c {quoted(self.core)}" + (f" --sysroot {quoted(self.sysroot)}" if self.sysroot else "")
        elif self.recording:
            source = f"-r {quoted(self.named or self.recording)}"
        elif self.program:
            source = f"-- {' '.join(map(quoted, self.program))}"
        return CommandLine(self.typed, source, may_run=not self.recording)

    @property
    def chosen_debugger(self) -> str:
        """The one that was asked for; else gdb where the process must run, or stop at breakpoints, and none where it is
        only read. Raises UsageError for arguments of the command that it cannot parse."""
        if self.debugger:
            return self.debugger
        if self.program or (self.pid and table.needs_running(self.command, self.argv)):
            return "gdb"
        gains = self.pid and not self.no_stop and table.gains_by_running(self.command, self.argv)
        return "gdb" if gains and is_startable("gdb") else "none"

    @property
    def time_limit(self) -> float | None:
        """The seconds after which a look ends; None for what lasts until it is told to end."""
        runs_on = bool(self.program) or table.find(self.command).runs_on(self.argv)
        return self.timeout if self.timeout is not None or runs_on else SECONDS


def parse(argv: Sequence[str], options: Options) -> None:
    """Fill in ``options``. Our own options may stand before or after the command. Raises UsageError."""
    words = before_program(argv)
    options.program = list(argv[len(words) + 1 :])
    options.command = table.DEFAULT
    setters = _setters(options)
    rest: list[str] = []
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if name == "--no-stop" and not equals:
            options.no_stop = True
            continue
        if name in ("-q", "--quiet") and not equals:
            options.quiet = True
            continue
        if name == "--measure-as-me" and not equals:
            options.measure_as_me = True
            continue
        if name not in setters:
            rest.append(words[position - 1])
            continue
        if not equals:
            if position == len(words):
                raise UsageError(f"{name} needs a value", help="dispatch --help")
            value = words[position]
            position += 1
        setters[name](value)
    _take_pid(rest, options)
    try:
        _take_command(rest, options)
    except UsageError as error:
        if options.executable:  # perhaps the words were its own
            error.help = f"to start it: dispatch {start_line([options.executable])} …"
        raise
    _check_target(options, "--" in argv)


def launcher_words(words: Sequence[str]) -> list[str]:
    """Those of the words that the launcher would take for itself, wherever they stand: its own options and what starts
    a program, but for --json, which every command has."""
    own = {*_setters(Options()), *_FLAGS, *_ALONE, "--"}
    return [word for word in words if word.partition("=")[0] in own]


def before_program(argv: Sequence[str]) -> list[str]:
    """The words of a command line before "--"."""
    words = list(argv)
    return words[: words.index("--")] if "--" in words else words


def spelled_out(argv: Sequence[str]) -> list[str]:
    """The command line without its short ways: ``7392 …`` is ``-p 7392 …``, ``ranks 7392`` and ``7392 ranks`` are
    ``ranks -p 7392``, ``PROGRAM …`` is ``-- PROGRAM …``, ``help NAME`` is ``NAME --help``, ``-V`` is ``--version``."""
    words = list(argv)
    if words[0] == "-V":
        return ["--version"]
    if words[0] == "help" and len(words) > 1:
        return [words[1], "--help"]
    if words[0].isdecimal():
        words = ["-p", *words]
    if words[0] in ("-p", "--pid") and words[2:] and words[2] in _BY_PID:
        return [words[2], "-p", words[1], *words[3:]]
    if table.program(words[0]):
        has_pid = words[0] in _BY_PID and words[1:2] and words[1].isdecimal()
        return [words[0], "-p", *words[1:]] if has_pid else words
    if "--" in words or words[0] in (*_ALONE, "-h", "--help"):
        return words
    own = _setters(Options())
    words, executable = as_options(words, own, [*_FLAGS, "--json", "--why"])
    return ["--executable", executable, *words] if executable else words


def without_debugger(argv: Sequence[str]) -> list[str]:
    """The command line of a program (``watch``, ``ranks``, …) without ``--debugger none``, wherever it stands. Raises
    UsageError for another debugger: these look without one."""
    words = before_program(argv)
    rest = list(argv[len(words) :])
    places = [at for at, word in enumerate(words) if word.partition("=")[0] == "--debugger"]
    if not places:
        return list(argv)
    at = places[0]
    taken = 1 if "=" in words[at] else 2
    others = words[:at] + words[at + taken :]
    program = table.program(others[0]) if others else None
    if not program:
        return [*words, *rest]
    name = words[at].partition("=")[2] or " ".join(words[at + 1 : at + 2])
    if name != "none":
        why = f"{program.name} looks at its processes without a debugger, which is faster and stops them for less"
        raise UsageError(f"{program.name} takes no --debugger {name}", why=why, help="leave it out")
    return [*others, *rest]


def _take_pid(rest: list[str], options: Options) -> None:
    """Take a number in the place of the command as a process, behind options, too: ``--debugger none 7392``."""
    place = _first_word(rest)
    pid = number(rest[place]) if place is not None and rest[place].isdecimal() else 0
    if place is not None and pid and not options.called.source:
        options.pid = pid
        rest.pop(place)


def _first_word(rest: Sequence[str]) -> int | None:
    """Find the command's name; None where only options of the default command were given."""
    place = next((index for index, word in enumerate(rest) if not word.startswith("-")), None)
    return None if any(word not in ("--json", "--why") for word in rest[:place]) else place


def _take_command(rest: list[str], options: Options) -> None:
    """The first word is the command, unless only options of the default command were given."""
    place = _first_word(rest)
    if place is not None:
        options.command = table.find(rest.pop(place)).name
    elif not {"--json", "--why"} >= set(rest) and not {"--help", "-h"} & set(rest):
        _check_default(rest)
    options.argv = rest


def _check_default(rest: Sequence[str]) -> None:
    """Blame what was typed, not the command that was not."""
    try:
        table.parser_of(table.find(table.DEFAULT)).parse(rest)
    except UsageError as error:
        typed = next((word for word in rest if word.startswith("-")), rest[0])
        what = f"there is no option {typed}, or it is not used like this"
        raise UsageError(what, why=error.what, help="dispatch --help") from None


def _setters(options: Options) -> dict[str, Callable[[str], None]]:
    def pid(value: str) -> None:
        options.pid = number(value) or 0
        if not options.pid:
            raise UsageError(f"{value!r} is not a process id", help="find it with: dispatch ps")

    def core(value: str) -> None:
        options.core = _path("--core", value)

    def recording(value: str) -> None:
        options.recording = _path("--recording", value)

    def record(value: str) -> None:
        options.record = os.path.abspath(_path("--record", value))  # noqa: PTH100

    def sysroot(value: str) -> None:
        if not os.path.isdir(value):  # noqa: PTH112
            raise UsageError(f"--sysroot: {value!r} is not a folder")
        options.sysroot = value

    def debugger(value: str) -> None:
        if value != "none":
            _check_debugger(value)
        options.debugger = value

    def timeout(value: str) -> None:
        options.timeout = duration(value, "--timeout")

    def memory_limit(value: str) -> None:
        options.memory = memory_size(value)

    def color(value: str) -> None:
        options.color = _color(value)

    return {
        "-p": pid,
        "--pid": pid,
        "-c": core,
        "--core": core,
        "--sysroot": sysroot,
        "-r": recording,
        "--recording": recording,
        "--record": record,
        "--named": lambda value: setattr(options, "named", value),
        "--executable": lambda value: setattr(options, "executable", value),
        "--debugger": debugger,
        "--timeout": timeout,
        "--memory-limit": memory_limit,
        "--color": color,
    }


def _path(option: str, value: str) -> str:
    """The path. Raises UsageError for an empty one."""
    if not value:
        raise UsageError(f"{option} needs a path", help="dispatch --help")
    return value


def _color(value: str) -> str:
    if value not in COLORS:
        raise UsageError(f"--color: {value!r} is not one of {', '.join(COLORS)}")
    return value


def _check_debugger(name: str) -> None:
    if name not in DEBUGGERS:
        raise UsageError(f"--debugger: {name!r} is not one of {', '.join((*DEBUGGERS, NO_DEBUGGER))}")


def _check_target(options: Options, has_dashes: bool) -> None:
    if {"--help", "-h"} & set(options.argv):
        return
    if table.find(options.command).mode == "setting":
        raise UsageError(
            f"{options.command} is for the debugger that you work in",
            help="in gdb: source gdbext/init.py; in LLDB: command script import gdbext/lldb_init.py; then there",
        )
    chosen = [each for each in (options.pid, options.core, options.recording, options.program) if each]
    if not chosen and table.find(options.command).is_alone and not has_dashes:
        return
    if len(chosen) != 1:
        what = "say what to look at" if not chosen else "only one of -p, -c, -r and -- PROGRAM can be looked at"
        if has_dashes and not options.program:
            what = "there is no PROGRAM after --"
        raise UsageError(what, help="-p PID, -c CORE, -r FILE or -- PROGRAM; see dispatch --help")
    if options.no_stop:
        _check_no_stop(options)
    if options.sysroot and not options.core:
        raise UsageError("--sysroot is for core dumps (-c): a live process shows its own files")
    if options.program and options.debugger == "none":
        raise UsageError("without a debugger no PROGRAM can be started", help="start it yourself, then use -p PID")
    if (options.core or options.recording) and table.needs_running(options.command, options.argv):
        what = "a core dump" if options.core else "a recording"
        raise UsageError(f"{options.command} resumes the process, and {what} cannot run", help="use -p or --")
    if options.record and options.recording:
        raise UsageError("a recording cannot be recorded again", help="copy the file: it holds all that there is")


def _check_no_stop(options: Options) -> None:
    if not options.pid:
        raise UsageError("--no-stop is for a running process (-p PID)")
    if table.find(options.command).resumes:
        raise UsageError(f"{options.command} stops the process at breakpoints", help="leave out --no-stop")
    if options.record:
        raise UsageError("--record keeps one moment of a process that stands still", help="leave out --no-stop")


def wants_color(when: str = "auto") -> bool:
    """Colours are wanted: "always", "never", or where standard output is a terminal that shows them."""
    if when != "auto":
        return when == "always"
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
