"""The command line of ``scripts/dispatch``: what to examine, with what, and the command with its own arguments; also as
gdb users and coredumpctl type it (``EXE -c CORE``, ``EXE PID``, ``CORE``).

Parsed by hand: our options may stand among those of the command, whose own parser gets the rest; and importing argparse
takes 8 ms.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.engine.formats import open_nonblocking
from gdbext.engine.numbers import number
from gdbext.engine.targets.budget import MEMORY, SECONDS, duration, memory_size
from gdbext.engine.terminal import PROGRAM, CommandLine, quoted
from gdbext.engine.vocabulary import DEBUGGERS, NO_DEBUGGER
from gdbext.errors import UsageError
from gdbext.tools import table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_FLAGS = {"--no-stop": "no_stop", "-q": "quiet", "--quiet": "quiet", "--measure-as-me": "measure_as_me"}
"""Option without a value → attribute of Options that it sets."""
_ALONE = ("-V", "--version", "--init-path")  # options that make a whole command line
_HELP = frozenset({"--help", "-h"})
COLORS = ("auto", "always", "never")
_BY_PID = ("watch", "ranks", "shell", "report")  # programs whose first word may be a process id without ``-p``


class Options:
    """The command line of the launcher, in parts; the paths are "" and ``pid`` is 0 if they are not given."""

    def __init__(self) -> None:
        self.pid = 0
        self.core = ""
        self.recording = ""
        self.executable = ""  # the program named beside a core or process, as for gdb; it is only compared
        self.other_writer = ""  # the program that wrote the core, if it is known and is not ``executable``
        self.named = ""  # the path by which suggestions name the recording, if it is not ``recording``
        self.record = ""
        self.sysroot = ""
        self.debugger = ""  # "gdb", "lldb" or "none"; "" if the user named none
        self.timeout: float | None = None  # in seconds
        self.memory = MEMORY  # bytes of our own memory that an inspection may take
        self.no_stop = False
        self.measure_as_me = False
        self.command = ""
        self.argv: list[str] = []  # of the command
        self.program: list[str] = []  # the command line of a program to start
        self.typed = PROGRAM  # our own program, as it was called
        self.color = "auto"
        self.quiet = False

    @property
    def called(self) -> CommandLine:
        """The command line with which our suggestions begin: it examines the same process, core, recording or program
        once more."""
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
        """The debugger that the user named; else "gdb" if the process must run or stop at breakpoints, "none" if it is
        only read. Raises UsageError for arguments that the command cannot parse."""
        if self.debugger:
            return self.debugger
        if self.program or (self.pid and table.needs_running(self.command, self.argv)):
            return "gdb"
        gains = self.pid and not self.no_stop and table.gains_by_running(self.command, self.argv)
        return "gdb" if gains and is_startable("gdb") else "none"

    @property
    def source(self) -> str:
        """What is examined, in a word."""
        return "core" if self.core else "recording" if self.recording else "process"

    @property
    def time_limit(self) -> float | None:
        """The seconds after which an inspection ends; None for a command that runs until it is interrupted."""
        runs_on = bool(self.program) or table.find(self.command).runs_on(self.argv)
        return self.timeout if self.timeout is not None or runs_on else SECONDS


def parse(argv: Sequence[str], options: Options) -> None:
    """Fill in ``options``. Our own options may stand before or after the command. Raises UsageError."""
    words = before_program(argv)
    options.program = list(argv[len(words) + 1 :])
    options.command = table.DEFAULT
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name in _FLAGS and not equals:
            setattr(options, _FLAGS[name], True)
        elif name not in _VALUED:
            rest.append(word)
        else:
            attribute, read = _VALUED[name]
            following = value if equals else next(remaining, None)
            if following is None:
                raise UsageError(f"{name} needs a value", help="dispatch --help")
            setattr(options, attribute, read(following))
    # a number in place of the command is a process, also after options: ``--debugger none 7392``
    command_at = _command_index(rest)
    pid = number(rest[command_at]) if command_at is not None and rest[command_at].isdecimal() else 0
    if command_at is not None and pid and not options.called.source:
        options.pid = pid
        rest.pop(command_at)
    try:
        _take_command(rest, options)
    except UsageError as error:
        if options.executable:  # perhaps the words were its own
            error.help = f"to start it: dispatch {start_line([options.executable])} …"
        raise
    _check_target(options, "--" in argv)


def launcher_words(words: Sequence[str]) -> list[str]:
    """The words that the launcher itself would interpret: its options and "--", but not --json."""
    own = {*_VALUED, *_FLAGS, *_ALONE, "--"}
    return [word for word in words if word.partition("=")[0] in own]


def before_program(argv: Sequence[str]) -> list[str]:
    """The words of a command line before "--"."""
    words = list(argv)
    return words[: words.index("--")] if "--" in words else words


def spelled_out(argv: Sequence[str]) -> list[str]:
    """The command line with short forms spelled out: ``7392 …`` as ``-p 7392 …``, ``ranks 7392`` and ``7392 ranks`` as
    ``ranks -p 7392``, ``PROGRAM …`` as ``-- PROGRAM …``, ``help NAME`` as ``NAME --help``, ``-V`` as ``--version``."""
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
    words, executable = as_options(words, _VALUED, [*_FLAGS, "--json", "--why"])
    return ["--executable", executable, *words] if executable else words


def without_debugger(argv: Sequence[str]) -> list[str]:
    """The command line of a program (``watch``, ``ranks``, …) without ``--debugger none``, wherever it is. Raises
    UsageError for another debugger: these read processes without one."""
    words = before_program(argv)
    index = next((index for index, word in enumerate(words) if word.partition("=")[0] == "--debugger"), None)
    if index is None:
        return list(argv)
    end = index + 1 if "=" in words[index] else index + 2
    others = [*words[:index], *words[end:]]
    program = table.program(others[0]) if others else None
    name = words[index].partition("=")[2] or " ".join(words[index + 1 : index + 2])
    if not program:
        return list(argv)
    if name != "none":
        why = f"{program.name} examines processes without a debugger, which is faster and stops them for less time"
        raise UsageError(f"{program.name} takes no --debugger {name}", why=why, help="omit it")
    return [*others, *argv[len(words) :]]


def _command_index(rest: Sequence[str]) -> int | None:
    """The index of the command's name; None if the words are options of the default command."""
    index = next((index for index, word in enumerate(rest) if not word.startswith("-")), None)
    return None if any(word not in ("--json", "--why") for word in rest[:index]) else index


def _take_command(rest: list[str], options: Options) -> None:
    """Set ``options.command`` and ``options.argv`` from the words that are no options of ours. Raises UsageError."""
    command_at = _command_index(rest)
    if command_at is not None:
        options.command = table.find(rest.pop(command_at)).name
    elif not {"--json", "--why"} >= set(rest) and not _HELP & set(rest):
        try:
            table.parser_of(table.find(table.DEFAULT)).parse(rest)
        except UsageError as error:  # blame what was typed, not the command that was not
            typed = next((word for word in rest if word.startswith("-")), rest[0])
            what = f"option {typed} is unknown, or misused"
            raise UsageError(what, why=error.what, help="dispatch --help") from None
    options.argv = rest


def _pid(value: str) -> int:
    """The number of a process. Raises UsageError."""
    pid = number(value)
    if not pid:
        raise UsageError(f"{value!r} is not a process id", help="find it with: dispatch ps")
    return pid


def _path(option: str, value: str) -> str:
    """The value. Raises UsageError if it is empty."""
    if not value:
        raise UsageError(f"{option} needs a path", help="dispatch --help")
    return value


def _folder(value: str) -> str:
    """The value. Raises UsageError unless it is the path of a folder."""
    if not os.path.isdir(value):  # noqa: PTH112
        raise UsageError(f"--sysroot: {value!r} is not a folder")
    return value


def _choice(option: str, words: Sequence[str], value: str) -> str:
    """The value. Raises UsageError if it is none of the words."""
    if value not in words:
        raise UsageError(f"{option}: {value!r} is not one of {', '.join(words)}")
    return value


_VALUED: Mapping[str, tuple[str, Callable[[str], object]]] = {
    **dict.fromkeys(("-p", "--pid"), ("pid", _pid)),
    **dict.fromkeys(("-c", "--core"), ("core", partial(_path, "--core"))),
    **dict.fromkeys(("-r", "--recording"), ("recording", partial(_path, "--recording"))),
    "--sysroot": ("sysroot", _folder),
    "--record": ("record", lambda value: os.path.abspath(_path("--record", value))),  # noqa: PTH100
    "--named": ("named", str),
    "--executable": ("executable", str),
    "--debugger": ("debugger", partial(_choice, "--debugger", (*DEBUGGERS, NO_DEBUGGER))),
    "--timeout": ("timeout", lambda value: duration(value, "--timeout")),
    "--memory-limit": ("memory", memory_size),
    "--color": ("color", partial(_choice, "--color", COLORS)),
}
"""Option with a value → attribute of Options that it sets, and the function that checks and converts the value."""


def _check_target(options: Options, has_dashes: bool) -> None:
    """Raise UsageError unless the options name one source that fits the command. ``has_dashes``: "--" was typed."""
    row = table.find(options.command)
    if _HELP & set(options.argv):
        return
    if row.mode == "setting":
        raise UsageError(
            f"{options.command} works only inside a debugger",
            help="in gdb: source gdbext/init.py; in LLDB: command script import gdbext/lldb_init.py; then there",
        )
    sources = [source for source in (options.pid, options.core, options.recording, options.program) if source]
    if not sources and row.is_alone and not has_dashes:
        return
    if len(sources) != 1:
        what = "specify what to examine" if not sources else "only one of -p, -c, -r and -- PROGRAM can be examined"
        if has_dashes and not options.program:
            what = "there is no PROGRAM after --"
        raise UsageError(what, help="-p PID, -c CORE, -r FILE or -- PROGRAM; see dispatch --help")
    if options.no_stop:
        if not options.pid:
            raise UsageError("--no-stop is for a running process (-p PID)")
        if row.resumes:
            raise UsageError(f"{options.command} stops the process at breakpoints", help="omit --no-stop")
        if options.record:
            raise UsageError("--record needs a stopped process", help="omit --no-stop")
    if options.sysroot and not options.core:
        raise UsageError("--sysroot is for core dumps (-c): a live process shows its own files")
    if options.program and options.debugger == "none":
        raise UsageError("a PROGRAM can be started only by a debugger", help="start it yourself, then use -p PID")
    if (options.core or options.recording) and table.needs_running(options.command, options.argv):
        what = "a core dump" if options.core else "a recording"
        raise UsageError(f"{options.command} resumes the process, and {what} cannot run", help="use -p or --")
    if options.record and options.recording:
        raise UsageError("a recording cannot be recorded again", help="copy the file: it is complete")


def wants_color(when: str = "auto") -> bool:
    """True if colors are wanted: "always", "never", or if standard output is a terminal that shows them."""
    if when != "auto":
        return when == "always"
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


_RECORDING, _ELF, _PACKED = (
    b"\x89gdbrec\n",
    b"\x7fELF",
    (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"BZh"),
)
"""The first bytes of recordings (engine/targets/recording/container.py), of ELF files, and of files compressed by gzip,
zstd, xz, lz4 and bzip2."""
_ET_CORE, _TYPE, _BIG_ENDIAN = 4, slice(16, 18), b"\x02"
"""e_type of an ELF file, where it is, and EI_DATA of the byte order that is not ours (elf.h)."""
_STORE, _BY_COREDUMPCTL = "systemd", "coredumpctl:"  # cores of systemd's store (engine/targets/core_sources.py)
_SOURCES = ("-p", "--pid", "-c", "--core", "-r", "--recording")
_OTHER_WORDS = ("attach", "-h", "--help", "-V", "--version")
"""Words that we give a meaning to, but that are neither options of the launcher nor names of commands."""


def as_options(words: Sequence[str], valued: Collection[str], flags: Collection[str]) -> tuple[list[str], str]:
    """(command line with -p, -c, -r or "--"; the EXE that was named beside a core or a process, "" for none).
    ``valued``: our options with a value, ``flags``: those without. Raises UsageError if no meaning fits.

    EXE is not started: it may be the training job that crashed. A program is started only after "--", or if the first
    word is a program or a Python script and no other word could be a core, a process, a recording or an option of ours.
    """
    # gdb takes these long options with one dash, too
    words = [f"-{word}" if word.partition("=")[0] in ("-pid", "-core") else word for word in words]
    places = _free_word_indexes(words, valued)
    if not places or table.is_command(words[places[0]]):
        return words, ""
    first, rest = places[0], places[1:]
    word = words[first]
    if word == "attach" and rest:
        return as_options([*words[:first], "-p", *words[first + 1 :]], valued, flags)
    has_source = any(each.partition("=")[0] in _SOURCES for each in words)
    option = "" if has_source else source_option(word)
    if option:
        return as_options([*words[:first], option, *words[first:]], valued, flags)
    option = source_option(words[rest[0]]) if rest and not has_source else ""
    if has_source or option:
        if not (is_startable(word) or "/" in word or os.path.isfile(word)):  # noqa: PTH113
            return words, ""
        source_at = rest[0] if option else first + 1
        added = [option] if option else []
        return [*words[:first], *words[first + 1 : source_at], *added, *words[source_at:]], word
    if not is_startable(word):
        return words, ""
    _check_startable(words, first, {*valued, *flags})
    return ["--", *_start_words(words)], ""


def _check_startable(words: Sequence[str], first: int, options: Collection[str]) -> None:
    """Raise UsageError if words beside the program, which is the word at index ``first``, may be meant for us."""
    before, after = words[:first], words[first + 1 :]
    own_options = set(options)
    if after:
        actions = table.parser_of(table.find(table.DEFAULT)).options()
        own_options |= {name for action in actions for name in action.option_strings}
    ambiguous = (word for word in chain(before, after) if _may_be_ours(word, own_options))
    doubtful = next(ambiguous, before[0] if before else "")
    if doubtful:
        raise UsageError(
            f"unclear whether to start {words[first]}: "
            f"{doubtful} may be an option, a command, a core or a process for gdbext",
            help=" ".join(("dispatch", *(word for word in before if word in options), start_line(words[first:]))),
        )


def start_line(words: Sequence[str]) -> str:
    """The end of the unambiguous command line that starts a program: ``-- python train.py``."""
    return " ".join(quoted(word) for word in ("--", *_start_words(words)))


def _may_be_ours(word: str, options: Collection[str]) -> bool:
    """True if the word may be an option, a command, a program or a source (core, process, recording) of ours."""
    name, _, value = word.partition("=")
    return (
        name in options
        or word in _OTHER_WORDS
        or bool(source_option(word))
        or (word.startswith("-") and source_option(value) in ("-c", "-r"))
        or (word.startswith(("-p", "-c", "-r")) and bool(source_option(word[2:])))
        or table.is_command(word)
        or table.program(word) is not None
    )


def _free_word_indexes(words: Sequence[str], valued: Collection[str]) -> list[int]:
    """Indexes of the words that are neither options nor values of our options."""
    indexes, is_value = [], False
    for index, word in enumerate(words):
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = word in valued
        else:
            indexes.append(index)
    return indexes


def source_option(word: str) -> str:
    """The option for what the word names: -p for a number, -c for a core, -r for a recording; "" for anything else.

    A missing file named like core.1234 counts, so that the error is about that file. So does a file that may be one: an
    empty or a cut file, one that we may not read, a pipe (which is not opened).
    """
    if word.isdecimal():
        return "-p"
    if word == _STORE or word.startswith(_BY_COREDUMPCTL):
        return "-c"
    by_name = "-r" if word.endswith(".rec") else "-c"
    try:
        mode = os.stat(word).st_mode  # noqa: PTH116
        if not stat.S_ISREG(mode):
            return by_name if _names_evidence(word) or not stat.S_ISDIR(mode) else ""
        with open(word, "rb", opener=open_nonblocking) as file:
            head = file.read(_TYPE.stop)
    except PermissionError:
        return "" if os.access(word, os.X_OK) else by_name
    except (OSError, ValueError):
        return by_name if _names_evidence(word) else ""
    if head.startswith(_RECORDING):
        return "-r"
    if head.startswith(_PACKED) or _is_core(head):
        return "-c"
    if word.endswith(".py") or os.access(word, os.X_OK):
        return ""
    if head and _RECORDING.startswith(head):
        return "-r"
    is_cut = any(magic.startswith(head) for magic in (_ELF, *_PACKED))
    return by_name if is_cut or _names_evidence(word) else ""


def _is_core(head: bytes) -> bool:
    """True if a file that begins with ``head`` is an ELF core of either byte order, or too short to show its type."""
    kind = int.from_bytes(head[_TYPE], "big" if head[5:6] == _BIG_ENDIAN else "little")
    return head.startswith(_ELF) and (len(head) < _TYPE.stop or kind == _ET_CORE)


def _names_evidence(word: str) -> bool:
    """True for names of cores and recordings: core, core7392, core_7392, train.core.zst, hung.rec."""
    parts = word.rpartition("/")[2].replace("-", ".").replace("_", ".").split(".")
    numbered = parts[0].startswith("core") and parts[0][4:].isdecimal()
    return numbered or "core" in parts or parts[-1] == "rec"


def is_startable(word: str) -> bool:
    """True if the shell would start a program by that word, or it is a Python script."""
    folders = [""] if "/" in word else [f"{each}/" for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    is_program = any(os.access(folder + word, os.X_OK) and os.path.isfile(folder + word) for folder in folders)  # noqa: PTH113
    return is_program or _is_script(word)


def _is_script(word: str) -> bool:
    """True for the path of a Python script."""
    return word.endswith(".py") and os.path.isfile(word)  # noqa: PTH113


def _start_words(words: Sequence[str]) -> list[str]:
    """The words that start a program: a script that cannot run itself by Python."""
    if not _is_script(words[0]) or (os.access(words[0], os.X_OK) and "/" in words[0]):
        return list(words)
    return ["python" if find_program("python") else "python3", *words]
