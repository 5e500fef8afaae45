"""Linux for every target: signals, the texts of /proc, helper processes, and secrets that must not be shown.

Secrets are recognized by the names of variables and options alone; what a secret itself looks like is unknown.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine import libc
from gdbext.engine.numbers import number
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.system import proc_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

PAGE_SIZE = 4096

_SIGNALS = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
"""In the order of Linux's numbers, from 1 (asm-generic/signal.h; Alpha, MIPS, PA-RISC and SPARC have others); this
machine's own table would be wrong for a core from elsewhere."""

ENDING_SIGNALS = (15, 1, 3)
"""TERM, HUP, QUIT: `kill`, `timeout`, a scheduler, a closed terminal and Ctrl+\\ send them to end a command."""

CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11, 31})
"""ILL, ABRT, BUS, FPE, SEGV, SYS: a thread stopped by one of these crashed. Not TRAP: under a debugger that is a
breakpoint or a step."""

STOP_SIGNALS = frozenset({19, 20, 21, 22})
"""STOP, TSTP, TTIN, TTOU: the signals that stop a whole process (signal(7))."""

_MAPS_LINE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+) *(.*)$", re.MULTILINE)


def signal_name(number: int) -> str:
    """The name of a signal by its number: "SIGSEGV"; "SIGRT34" for a real-time signal."""
    return f"SIG{_SIGNALS[number - 1]}" if 0 < number <= len(_SIGNALS) else f"SIGRT{number}"


def fault_address(number: int, code: int | None, raw_address: int) -> int | None:
    """``raw_address``, the si_addr of a signal, if it is an address: not if a process sent the signal (si_code <= 0),
    nor for a general protection fault (SI_KERNEL, 0x80), for which the kernel writes 0."""
    has_address = number in (4, 5, 7, 8, 11)  # for these siginfo_t has si_addr if the kernel sent them (sigaction(2))
    return raw_address if has_address and code is not None and code > 0 and code != 0x80 else None


def split_deleted(path: str) -> tuple[str, bool]:
    """A path of /proc/PID/maps without the kernel's " (deleted)" mark, and whether it had one."""
    plain = path.removesuffix(" (deleted)")
    return plain, plain != path


def parse_maps(text: str) -> list[MemoryMapping]:
    """The text of /proc/PID/maps (proc_pid_maps(5)), sorted by start as the kernel writes it."""
    maps = []
    for start, end, permissions, offset, device, inode, raw in _MAPS_LINE.findall(text):
        path, deleted = split_deleted(raw.replace("\\012", "\n"))
        numbers = int(start, 16), int(end, 16), int(offset, 16)
        maps.append(MemoryMapping(*numbers, path, permissions, deleted, device, int(inode)))
    return maps


def command_text(data: bytes) -> str:
    """The words of /proc/PID/cmdline with spaces between, and asterisks in place of the secrets in them."""
    words = data.rstrip(b"\0").split(b"\0")
    public_words = [
        blank_secrets(word, [secret for secret in secrets if not secret.startswith(b"/")])
        for word, secrets in _secrets_of(words)
    ]
    return b" ".join(public_words).decode("utf-8", "replace")


def split_stat(stat: str | bytes) -> tuple[str, str]:
    """(name, text of the fields after it) of /proc/PID/stat; the first field is the state, the third of
    proc_pid_stat(5). The name is in parentheses and may contain some: the last one ends it. An empty text has neither.
    """
    begin, _, fields = (stat if isinstance(stat, str) else os.fsdecode(stat)).rpartition(")")
    return begin.partition("(")[2], fields[1:]


def stat_fields(stat: str | bytes) -> list[str]:
    """The fields of /proc/PID/stat from the state on (the third of proc_pid_stat(5)); [] for an empty text."""
    return split_stat(stat)[1].split()


class Mount(NamedTuple):
    """One mounted file system (proc_pid_mountinfo(5))."""

    number: str
    """The mount's ID; an fd's fdinfo has it as mnt_id."""
    device: str
    """``major:minor``, as st_dev has it."""
    root: str
    """The folder of the file system that is mounted."""
    mount_point: str
    type: str
    """``ext4``, ``nfs4``, ``fuse.sshfs``."""
    source: str
    """``server:/export``, a device."""
    controllers: tuple[str, ...]
    """For cgroup v1, the words of its options, controllers among them."""


def mounts(pid: int | str) -> list[Mount]:
    """The mounts of a process, in the kernel's order; [] if they cannot be read."""
    rows = []
    for line in proc_files.file_text(f"/proc/{pid}/mountinfo", proc_files.TABLE).splitlines():
        mount, file_system = (part.split() for part in line.partition(" - ")[::2])
        if len(mount) > 4 and len(file_system) > 1:
            root, point, source = map(_unescaped, (mount[3], mount[4], file_system[1]))
            options = tuple(file_system[2].split(",")) if len(file_system) > 2 else ()
            rows.append(Mount(mount[0], mount[2], root, point, file_system[0], source, options))
    return rows


def _unescaped(path: str) -> str:
    """A path of mountinfo without its escapes: the kernel writes four characters as octal digits (show_mountinfo,
    fs/proc_namespace.c)."""
    for digits, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        path = path.replace(f"\\{digits}", character)
    return path


def signals_in(status: Mapping[str, str], *names: str) -> int | None:
    """The signals in any of the masks ``names`` (SigCgt, SigPnd, …) of a status file, as a mask: bit 0 is signal 1.
    None if one of the masks is unknown."""
    signals = 0
    for name in names:
        mask = number(status.get(name, ""), 16)
        if mask is None:
            return None
        signals |= mask
    return signals


def has_exited(stat: str | bytes) -> bool:
    """True for the /proc/PID/stat of a zombie, and for ""."""
    return stat_fields(stat)[:1] in ([], ["Z"], ["X"])


def is_alive(pid: int) -> bool:
    """The process exists and is not a zombie."""
    return not has_exited(proc_files.file_text(f"/proc/{pid}/stat"))


@contextmanager
def signals_handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object] | int) -> Iterator[None]:
    """Handle these signals by ``handler`` inside; afterwards as before, here and in later children. Must be entered by
    the main thread. A handler that was not Python's becomes the default."""
    before = [(signal_number, signal.signal(signal_number, handler)) for signal_number in numbers]
    try:
        yield
    finally:
        for signal_number, old_handler in before:
            signal.signal(signal_number, signal.SIG_DFL if old_handler is None else old_handler)


@contextmanager
def actions_restored(numbers: Collection[int]) -> Iterator[None]:
    """Restore the actions of these signals afterwards, also those that Python did not set (sigaction(2))."""
    sigaction = libc.function("sigaction")
    # 512 bytes: more than struct sigaction has on any architecture
    before = {signal_number: ctypes.create_string_buffer(512) for signal_number in numbers}
    for signal_number, action in before.items():
        sigaction(signal_number, None, action)
    try:
        yield
    finally:
        for signal_number, action in before.items():
            sigaction(signal_number, action, None)


@contextmanager
def signals_blocked(numbers: Collection[int] = ()) -> Iterator[None]:
    """Block these signals in this thread inside, all signals if no ``numbers`` are given; they are delivered at the
    end. So no KeyboardInterrupt comes between a call and recording its result. Children forked inside keep them
    blocked."""
    # asked separately: blocking raises what was pending, and blocks nevertheless (signal_pthread_sigmask_impl, CPython)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers or signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_STACK = struct.Struct("PiN")
"""``stack_t`` of Linux: address, flags, size (sigaltstack(2))."""
_STACK_OFF, _FRAME_VALUE = 2, 51
"""SS_DISABLE (sigaltstack(2)), AT_MINSIGSTKSZ (getauxval(3)): the size of the largest frame that the kernel writes."""
_OLD_FRAME = 8192
"""That of kernels that do not tell it is smaller: 3.4 kB with AVX-512."""
_LAST_SIGNAL = 64


def enlarge_signal_stack() -> None:
    """Make room on this thread's alternate signal stack for the handlers of all signals, each interrupted by the next.
    To be called before Python handles signals of a debugger; does nothing without such a stack.

    CPython's handlers run on it (SA_ONSTACK, PyOS_setsig), and so does whatever interrupts them. gdb's has SIGSTKSZ
    bytes (gdbsupport/alt-stack.h), 8 kB in a gdb that was built for glibc before 2.34, the gdb 18 of PyPI for example:
    enough for two frames of a CPU with AVX-512. For want of room the kernel kills the debugger by SIGSEGV
    (get_sigframe and force_sigsegv), whose breakpoints then kill the process. SIGTERM, our SIGINT and SIGCHLD did that
    in 4 of 171 requests to end on a busy machine.
    """
    sigaltstack = libc.function("sigaltstack")
    current = ctypes.create_string_buffer(_STACK.size)
    wanted = _LAST_SIGNAL * max(int(libc.function("getauxval")(_FRAME_VALUE)), _OLD_FRAME)
    if sigaltstack(None, current) != 0:
        return
    _, flags, size = _STACK.unpack(current.raw)
    if flags & _STACK_OFF or size >= wanted:
        return
    allocate = libc.function("malloc")  # never freed: signals come until the process has exited
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    if address := allocate(wanted):
        sigaltstack(_STACK.pack(address, 0, wanted), None)


def start_survivor(work: Callable[[], None], name: str, keep: Iterable[int] | None = None) -> int:
    """Fork a process that does ``work`` and exits, and that only SIGKILL ends; its PID. ``keep``: the only fds that it
    keeps, None for all; ``name`` is what ps shows, at most 15 characters (TASK_COMM_LEN, include/linux/sched.h). Raises
    OSError."""
    with signals_blocked():
        child = os.fork()
        if child:
            return child
        try:  # os._exit: what belongs to the program's own exit, like flushing its files, is not for this process
            os.setsid()  # kill -9 of the program's process group does not reach us
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):  # a reader of the program's output must not wait for our exit
                os.dup2(null, fd)
            opened = {int(fd) for fd in os.listdir("/proc/self/fd")}  # noqa: PTH208 - pathlib is slow to import
            for fd in opened - {*keep, 0, 1, 2} if keep is not None else ():
                with suppress(OSError):
                    os.close(fd)
            with suppress(OSError), open("/proc/self/comm", "w") as file:
                file.write(name)
            work()
        finally:
            os._exit(0)


_MOST_VARIABLES = 1 << 16


def parse_environ(data: bytes) -> dict[str, str]:
    """Name → value of NUL-separated NAME=VALUE strings, as in /proc/PID/environ; the first of equal names wins, as in
    getenv(3). Only the first 65,536 are read: more were made to exhaust us."""
    environ: dict[str, str] = {}
    for entry in data.split(b"\0", _MOST_VARIABLES)[:_MOST_VARIABLES]:
        name, equals, value = entry.partition(b"=")
        if equals and name:
            environ.setdefault(os.fsdecode(name), os.fsdecode(value))
    return environ


_SHOWN_VARIABLE = re.compile(
    r"^(TORCH|PYTORCH|ATEN|NCCL|GLOO|CUDA|OMP|MKL|KMP|GOMP|OPENBLAS|UCX|TP_|MASTER_|PYTHON|LD_|MALLOC_|MASTER)"
    r"|^(RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|TOKENIZERS_PARALLELISM)$"
    r"|^(OMPI_COMM_WORLD_|PMIX?_RANK$|PMI_SIZE$|MPI_LOCAL|SLURM_(JOB_ID|STEP_ID|PROCID|NTASKS|LOCALID)$)"
)


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """``shown_variables`` without secret ones."""
    return {name: value for name, value in shown_variables(environ).items() if not is_secret(name)}


def shown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what torch, OpenMP, NCCL or Python do, sorted by name; the values of secrets are hidden."""
    return {
        name: HIDDEN if is_secret(name) else without_user(value)
        for name, value in sorted(environ.items())
        if _SHOWN_VARIABLE.match(name)
    }


HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASS(?:WORD|WD|PHRASE|CODE)|CREDENTIAL|CREDS?(?![A-Z])|AUTH|PRIVATE|API_?KEY|COOKIE|SESSION_?ID"
    r"|(?:^|_)(?:KEY|PWD|PASS|PW)(?:S|_|$)|(?:ACCESS|SIGNING|ENCRYPTION|LICEN[CS]E|SSH|DEPLOY)_?KEY",
    re.IGNORECASE,
)
_PROPERTY = re.compile(
    r"^(?:N|NUM|MAX|MIN|IS|HAS)_|_(?:PREFIX|SUFFIX|SIZE|LEN|LENGTH|COUNT|LIMIT|TYPE|FORMAT|DIMS?|MASK|INDEX|TTL|TIMEOUT)$",
    re.IGNORECASE,
)
"""Names of what is known about a secret, such as its length, and not of the secret: ``key_prefix``, ``num_tokens``."""
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SOURCE_FILE = re.compile(r"[^-=@:\s][^=@:\s]*\.(?:pyc?|cpp|cc|c|cu|ptx|sh)")
_SHOWN_ARGUMENT = re.compile(r"-[A-Za-z]|--(?:local[-_])?rank=\d+")
"""Arguments that say how a program was started, and which rank it is."""


def is_secret(name: str) -> bool:
    """True if a variable or an option of that name may hold a secret, by its name alone."""
    word = name.lstrip("-").replace("-", "_")
    return name not in ("PWD", "OLDPWD") and bool(_SECRET.search(word)) and not _PROPERTY.search(word)


def without_user(value: str) -> str:
    """``value`` without the user and the password of the URLs in it."""
    return _USER_IN_URL.sub(HIDDEN, value) if "://" in value else value


def hide_arguments(command: str) -> str:
    """A command line (words that end in NUL) without its arguments, except names of source files, flags of one letter
    and a rank: a diagnosis shows no more of another process."""
    program, *words = command.removesuffix("\0").split("\0")
    words = [word if _SOURCE_FILE.fullmatch(word) or _SHOWN_ARGUMENT.fullmatch(word) else HIDDEN for word in words]
    return "".join(f"{word}\0" for word in [program, *words] if word)


def secrets_among(words: Sequence[bytes]) -> list[bytes]:
    """The secrets in the arguments and variables of a process: values of ``NAME=…``, ``--name=…``, ``--name …``.
    Longest first, so that none is left in part. Not paths (SSH_AUTH_SOCK), which name files, nor values below 6 bytes:
    "1" and "true" occur everywhere in memory."""
    values = {value for _, secrets in _secrets_of(words) for value in secrets}
    long_values = (value for value in values if len(value) >= 6 and not value.startswith(b"/"))
    return sorted(long_values, key=lambda value: (-len(value), value))


def _secrets_of(words: Sequence[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Each word with the secrets in it, judged by its own name or by the option before it."""
    previous = ""
    for word in words:
        name, equals, value = word.partition(b"=")
        text, secrets = name.decode("latin-1"), list[bytes]()
        if equals and is_secret(text):
            secrets = [value]
        elif previous.startswith("-") and is_secret(previous) and not word.startswith(b"-"):
            secrets = [word]
        elif b"://" in word:
            secrets = [user.encode("latin-1") for user in _USER_IN_URL.findall(word.decode("latin-1"))]
        yield word, secrets
        previous = "" if equals else text


def blank_secrets(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """``data`` with asterisks in place of the secrets."""
    for secret in filter(None, secrets):
        if secret in data:
            data = data.replace(secret, b"*" * len(secret))
    return data
