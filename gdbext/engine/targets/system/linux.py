"""The constants of Linux for every target: signals, the text of /proc, and which of it must not be shown.

Secrets are recognised by the names that they have: values of variables and of options, arguments of other processes. A
recording is given away. Names are all that can be judged; what a secret itself looks like, nobody knows.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gdbext.engine import libc
from gdbext.engine.numbers import number
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.system import proc_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import NoReturn

PAGE_SIZE = 4096

SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    16: "SIGSTKFLT",
    17: "SIGCHLD",
    18: "SIGCONT",
    19: "SIGSTOP",
    20: "SIGTSTP",
    21: "SIGTTIN",
    22: "SIGTTOU",
    23: "SIGURG",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    26: "SIGVTALRM",
    27: "SIGPROF",
    28: "SIGWINCH",
    29: "SIGIO",
    30: "SIGPWR",
    31: "SIGSYS",
}
"""Linux's numbers (asm-generic/signal.h; Alpha, MIPS, PA-RISC and SPARC have others): the host's own table would be
wrong for a core from elsewhere."""

ENDING_SIGNALS = (15, 1, 3)
"""TERM, HUP, QUIT: `kill`, `timeout`, a scheduler, a closed terminal and Ctrl+\\ send them to end a command."""

CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11, 31})
"""ILL, ABRT, BUS, FPE, SEGV, SYS: a thread stopped by one of these crashed, whoever looks at it.

SIGTRAP is no member: under a debugger it is a breakpoint or a step.
"""

STOP_SIGNALS = frozenset({19, 20, 21, 22})
"""STOP, TSTP, TTIN, TTOU: the signals that stop a whole process (signal(7))."""

SIGNALS_WITH_ADDRESS = frozenset({4, 5, 7, 8, 11})
"""Signals for which siginfo_t carries si_addr when the kernel sent them (sigaction(2))."""

_MAPS_LINE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+) *(.*)$",
    re.MULTILINE,
)
_DELETED = " (deleted)"


def signal_name(number: int) -> str:
    """The name of a signal, "SIGRT34" style for real-time ones."""
    return SIGNAL_NAMES.get(number) or f"SIGRT{number}"


def fault_address(number: int, code: int | None, raw_address: int) -> int | None:
    """si_addr, or None where the union holds something else (a signal that a process sent: si_code <= 0).

    SI_KERNEL (0x80) marks a general protection fault, for which the kernel knows no address and writes 0.
    """
    si_kernel = 0x80
    if number not in SIGNALS_WITH_ADDRESS or code is None or code <= 0 or code == si_kernel:
        return None
    return raw_address


def split_deleted(path: str) -> tuple[str, bool]:
    """A path of /proc/PID/maps without the kernel's " (deleted)" mark, and whether it had one."""
    if path.endswith(_DELETED):
        return path[: -len(_DELETED)], True
    return path, False


def parse_maps(text: str) -> list[MemoryMapping]:
    """The text of /proc/PID/maps (proc_pid_maps(5)), sorted by start as the kernel writes it."""
    found = []
    for start, end, permissions, offset, device, inode, raw in _MAPS_LINE.findall(text):
        path, deleted = split_deleted(raw.replace("\\012", "\n")) if raw else ("", False)
        found.append(
            MemoryMapping(int(start, 16), int(end, 16), int(offset, 16), path, permissions, deleted, device, int(inode))
        )
    return found


def command_text(data: bytes) -> str:
    """The words of /proc/PID/cmdline with spaces between, and asterisks in place of the secrets in them."""
    words = data.rstrip(b"\0").split(b"\0")
    public = (blanked(word, [each for each in found if each[:1] != b"/"]) for word, found in _secrets_of(words))
    return b" ".join(public).decode("utf-8", "replace")


def split_stat(stat: str | bytes) -> tuple[str, str]:
    """The name in /proc/PID/stat, and the text of the fields behind it, the state first: the third of proc_pid_stat(5).

    The name stands in parentheses and may itself contain them: the last one ends it. An empty text has neither.
    """
    begin, _, fields = (stat if isinstance(stat, str) else os.fsdecode(stat)).rpartition(")")
    return begin.partition("(")[2], fields[1:]


def stat_fields(stat: str | bytes) -> list[str]:
    """The fields of /proc/PID/stat behind the name, the state first; none of an empty one."""
    return split_stat(stat)[1].split()


def status_values(status: str | bytes) -> dict[str, str]:
    """The values of /proc/PID/status by their names (proc_pid_status(5)); none of an empty one."""
    text = status if isinstance(status, str) else os.fsdecode(status)
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in text.split("\n")) if colon}


def signals_in(status: Mapping[str, str], *names: str) -> int | None:
    """The signals in some of these values (SigCgt and its like), a bit each; None where one of them is not known."""
    found = 0
    for name in names:
        mask = number(status.get(name, ""), 16)
        if mask is None:
            return None
        found |= mask
    return found


def has_ended(stat: str | bytes) -> bool:
    """True for the /proc/PID/stat of a zombie, or of nobody ("")."""
    return stat_fields(stat)[:1] in ([], ["Z"], ["X"])


def is_alive(pid: int) -> bool:
    """The process is there, and is no zombie."""
    try:
        return not has_ended(proc_files.read(f"/proc/{pid}/stat"))
    except OSError:
        return False


@contextmanager
def signals_handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object] | int) -> Iterator[None]:
    """Give these signals to ``handler`` meanwhile; afterwards they do what they did, here and in children that follow.

    To be entered by the main thread. A handler that was not Python's becomes the default.
    """
    before = [(each, signal.signal(each, handler)) for each in numbers]
    try:
        yield
    finally:
        for each, old in before:
            signal.signal(each, signal.SIG_DFL if old is None else old)


@contextmanager
def actions_restored(numbers: Collection[int]) -> Iterator[None]:
    """Restore the actions of these signals afterwards, also those that Python did not set (sigaction(2))."""
    sigaction, before = libc.function("sigaction"), {n: ctypes.create_string_buffer(_ACTION_SIZE) for n in numbers}
    for each, action in before.items():
        sigaction(each, None, action)
    try:
        yield
    finally:
        for each, action in before.items():
            sigaction(each, action, None)


_ACTION_SIZE = 512
"""More bytes than ``struct sigaction`` has on any architecture."""


@contextmanager
def signals_held(numbers: Collection[int] = ()) -> Iterator[None]:
    """Keep these signals from this thread meanwhile, all of them where no ``numbers`` are given.

    What came is delivered at the end: no KeyboardInterrupt comes between the answer of a call and the note of it.
    Children that are forked inside keep the signals out.

    The mask of before is asked for by itself: to block raises what was due, and is done nevertheless (CPython,
    Modules/signalmodule.c, signal_pthread_sigmask_impl).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers or signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_survivor(work: Callable[[], None], name: str, keep: Iterable[int] | None = None) -> int:
    """The id of a process that does this and ends, that no signal reaches but SIGKILL, and that has these descriptors
    only, all for None; ``name`` is what ps shows, at most 15 characters (TASK_COMM_LEN, include/linux/sched.h). Raises
    OSError."""
    with signals_held():
        child = os.fork()
        if not child:
            _survive(work, name, None if keep is None else {*keep})
        return child


def _survive(work: Callable[[], None], name: str, keep: set[int] | None) -> NoReturn:
    """Do it in the new process: what belongs to the program's own end, as to flush its files, is not for us."""
    try:
        os.setsid()  # kill -9 of the program's process group does not reach us
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):  # whoever reads what the program writes is not to wait for our end
            os.dup2(nowhere, descriptor)
        has = {int(each) for each in os.listdir("/proc/self/fd")}  # noqa: PTH208 - pathlib is slow to import
        for descriptor in has - keep - {0, 1, 2} if keep is not None else ():
            with suppress(OSError):
                os.close(descriptor)
        with suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write(name)
        work()
    finally:
        os._exit(0)


_MOST_VARIABLES = 1 << 16


def parse_environ(data: bytes) -> dict[str, str]:
    """NUL-separated NAME=VALUE strings, as in /proc/PID/environ; the first of equal names wins, as in getenv. Only the
    first 65,536 count: whoever made more did it to exhaust us."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0", _MOST_VARIABLES)[:_MOST_VARIABLES]:
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


_SHOWN = re.compile(
    r"^(TORCH|PYTORCH|ATEN|NCCL|GLOO|CUDA|OMP|MKL|KMP|GOMP|OPENBLAS|UCX|TP_|MASTER_|PYTHON|LD_|MALLOC_|MASTER)"
    r"|^(RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|TOKENIZERS_PARALLELISM)$"
    r"|^(OMPI_COMM_WORLD_|PMIX?_RANK$|PMI_SIZE$|MPI_LOCAL|SLURM_(JOB_ID|STEP_ID|PROCID|NTASKS|LOCALID)$)"
)


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``shown``, with secrets hidden."""
    return {name: value for name, value in shown(environ).items() if not is_secret(name)}


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what torch, OpenMP, NCCL or Python do, by name; the values of secrets are hidden."""
    return hide_values({name: value for name, value in sorted(environ.items()) if _SHOWN.match(name)})


HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASS(?:WORD|WD|PHRASE|CODE)|CREDENTIAL|CREDS?(?![A-Z])|AUTH|PRIVATE|API_?KEY|COOKIE|SESSION_?ID"
    r"|(?:^|_)(?:KEY|PWD|PASS|PW)(?:S|_|$)|(?:ACCESS|SIGNING|ENCRYPTION|LICEN[CS]E|SSH|DEPLOY)_?KEY",
    re.IGNORECASE,
)
_FOLDERS = ("PWD", "OLDPWD")
"""Folders of the shell: where it is, and was."""
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SHORTEST = 6
"""Bytes of a value that is looked for in memory: "1" and "true" stand everywhere."""
_FILE = re.compile(r"[^-=@:\s][^=@:\s]*\.(?:pyc?|cpp|cc|c|cu|ptx|sh)")
_KEPT = re.compile(r"-[A-Za-z]|--(?:local[-_])?rank=\d+")
"""Arguments that say how a program was started, and which rank it is."""


def is_secret(name: str) -> bool:
    """A variable or an option of that name holds a secret, as far as a name can tell."""
    return name not in _FOLDERS and bool(_SECRET.search(name.lstrip("-").replace("-", "_")))


def without_user(value: str) -> str:
    """A value without the user and the password of the addresses (URLs) in it."""
    return _USER_IN_URL.sub(HIDDEN, value) if "://" in value else value


def hide_values(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the values of secrets hidden."""
    return {name: HIDDEN if is_secret(name) else without_user(value) for name, value in environ.items()}


def program_only(command: str) -> str:
    """A command line (words that end in NUL) without its arguments, save names of source files, flags of one letter and
    a rank: what a diagnosis says of another process."""
    program, *words = command.removesuffix("\0").split("\0")
    kept = [word if _FILE.fullmatch(word) or _KEPT.fullmatch(word) else HIDDEN for word in words]
    return "".join(f"{word}\0" for word in [program, *kept] if word)


def secrets_among(words: Sequence[bytes]) -> list[bytes]:
    """The secrets in the arguments and variables of a process: values of ``NAME=…``, ``--name=…``, ``--name …``.

    The longest first, so that none is left in part. Paths are none (SSH_AUTH_SOCK): files are told by them.
    """
    values = (value for _, found in _secrets_of(words) for value in found)
    found = {value for value in values if len(value) >= _SHORTEST and not value.startswith(b"/")}
    return sorted(found, key=lambda each: (-len(each), each))


def _secrets_of(words: Sequence[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Each word with the secrets in it, by its own name or by that of the option before it."""
    previous = ""
    for word in words:
        name, equals, value = word.partition(b"=")
        text, found = name.decode("latin-1"), list[bytes]()
        if equals and is_secret(text):
            found = [value]
        elif previous.startswith("-") and is_secret(previous) and not word.startswith(b"-"):
            found = [word]
        elif b"://" in word:
            found = [each.encode("latin-1") for each in _USER_IN_URL.findall(word.decode("latin-1"))]
        yield word, found
        previous = "" if equals else text


def blanked(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """``data`` with asterisks in place of the secrets."""
    for secret in filter(None, secrets):
        if secret in data:
            data = data.replace(secret, b"*" * len(secret))
    return data
