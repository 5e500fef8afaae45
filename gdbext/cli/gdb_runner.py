"""Runs one command in a gdb of our own and brings back its result, whatever happens to that gdb."""

from __future__ import annotations

import os
import select
import time

from gdbext.cache import cache_folder, may_fill
from gdbext.commands import registry
from gdbext.errors import GdbextError, TargetError
from gdbext.targets.proc_checks import thread_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gdbext.cli.launcher import Options

NO_SYMBOLS = (
    "--readnever",
    "-iex", "set sysroot /nonexistent",
    "-iex", "set auto-solib-add off",
    "-iex", "set libthread-db-search-path /nonexistent",
)  # fmt: skip
"""Keeps gdb from reading any file of the target: attaching to torch takes 10 ms so, instead of 2.4 s.

Without a program file it also needs no libthread_db; it finds the threads in /proc.
"""
LIVE_PROGRAM = (
    "--readnever",
    "-iex", "set auto-solib-add off",
    "-iex", "set libthread-db-search-path /nonexistent",
)  # fmt: skip
"""The same for a program that gdb starts for a live command; it needs the program's file."""
QUIET = (
    "-iex", "set debuginfod enabled off",
    "-iex", "set auto-load no",
    "-iex", "set confirm off",
    "-iex", "set pagination off",
    "-iex", "set print thread-events off",
)  # fmt: skip

SIGINT, SIGKILL, SIGTERM, SIGCONT = 2, 9, 15, 18

GRACE_SECONDS = 3.0
"""How long gdb gets to detach after SIGTERM before it is killed."""

STOP_SECONDS = 0.3
"""How long the SIGSTOP of a gdb that was ended may take to reach its process."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def run(options: Options, terminal: registry.Terminal) -> registry.Outcome:
    """The command's outcome. Raises TargetError (no gdb, no result, time is up), KeyboardInterrupt."""
    gdb = find_gdb()
    job = _Job(gdb, options, terminal)
    try:
        _end_by_exception()
        data = job.result(options.timeout)
    except BaseException:
        job.end()
        raise
    outcome = registry.Outcome.decode(data)
    if outcome is None:
        job.end()
        raise _no_result(job, options)
    if os.environ.get("GDBEXT_DEBUG"):
        outcome.error = f"{outcome.error}\ngdb said:\n{job.chatter()}".lstrip()
    return outcome


def _end_by_exception() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that gdb lets the process go before we end."""
    import signal  # 3 ms, while gdb starts

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def find_gdb() -> str:
    """The gdb of $GDB or of $PATH. Raises TargetError with how to install one."""
    wanted = os.environ.get("GDB") or "gdb"
    folders = [""] if "/" in wanted else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, wanted)  # noqa: PTH118
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            return path
    raise TargetError(
        f"gdb was not found ({wanted})",
        why="it is not installed, or not in $PATH",
        help="apt-get install gdb   or   dnf install gdb;   or use --debugger none, which needs no debugger at all",
    )


def environment() -> dict[str, str]:
    """The environment of a gdb that runs nothing but our job.

    gdb's messages in English, the user's Python settings out of the way, and a place for compiled Python files:
    few installations have those of gdb's own modules, and PYTHONDONTWRITEBYTECODE would keep ours from being made.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ours["LC_ALL"] = "C.UTF-8"
    ours["PYTHONNOUSERSITE"] = "1"
    folder = f"{cache_folder()}/pycache"
    if may_fill(folder):
        try:
            os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
        except OSError:
            return ours
        ours["PYTHONPYCACHEPREFIX"] = folder
    return ours


class _Job:
    """One gdb process. Its standard output is kept apart from ours; the result comes through a pipe."""

    def __init__(self, gdb: str, options: Options, terminal: registry.Terminal) -> None:
        self._pid_looked_at = options.pid
        self._stopped_before = _is_stopped(options.pid)
        self._program = bool(options.program)
        self._live = registry.find(options.command).live
        self._has_changed_it = self._program or registry.find(options.command).live
        self._chatter = os.memfd_create("gdb", os.MFD_CLOEXEC)
        self._pipe, theirs = os.pipe()
        os.set_inheritable(theirs, True)
        output = _live_output(options)
        job = _describe(options, terminal, theirs, output)
        code = f"import sys; sys.path.append({_ROOT!a}); from gdbext.debuggers.gdb import batch_job as j; j.run({job})"
        words = [gdb, "-nx", "-q", "-batch", *QUIET, *self._symbols(), "-ex", f"python {code}"]
        if options.core is not None:
            words[1:1] = ["-c", os.path.abspath(options.core)]  # noqa: PTH100
        self._gdb = self._spawn(gdb, words, options)
        os.close(theirs)
        if output is not None:
            os.close(output)
        self._status: int | None = None

    def _spawn(self, gdb: str, words: list[str], options: Options) -> int:
        try:
            if self._program:
                words = [*words, "--args", *options.program]
                return os.posix_spawn(gdb, words, os.environ, file_actions=self._files())
            # not in our process group: Ctrl+C is for us, and we pass it on
            return os.posix_spawn(gdb, words, environment(), file_actions=self._files(), setpgroup=0)
        except OSError as error:
            raise TargetError(
                f"gdb cannot be started ({gdb}): {error.strerror}",
                why="the file is no program of this machine, or the command line is too long",
                help="name another gdb in $GDB, or use --debugger none, which needs no debugger at all",
            ) from error

    def _symbols(self) -> tuple[str, ...]:
        """A live command needs no symbols of gdb's; for one that stops in a program gdb may read what it likes."""
        if not self._program:
            return NO_SYMBOLS
        return LIVE_PROGRAM if self._live else ()

    def _files(self) -> list[Any]:
        """A started program gets our terminal, with standard error in place of standard output."""
        if self._program:
            return [(os.POSIX_SPAWN_DUP2, 2, 1)]
        return [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._chatter, 1),
            (os.POSIX_SPAWN_DUP2, self._chatter, 2),
        ]

    def result(self, timeout: float | None) -> bytes:
        """All that came through the pipe until gdb ended. Raises TargetError when the time is up."""
        from gdbext.cli.launcher import timeout_error

        deadline = None if timeout is None else time.monotonic() + timeout
        parts = []
        interrupted = False
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ready = select.select([self._pipe], [], [], left)[0]
            except KeyboardInterrupt:
                if not self._live or interrupted:
                    raise
                interrupted = True  # that ends what the live command does; its report follows
                os.kill(self._gdb, SIGINT)
                continue
            if not ready:
                if self._has_changed_it and deadline is not None:
                    deadline = None
                    os.kill(self._gdb, SIGINT)
                    continue
                raise timeout_error(timeout or 0)
            part = os.read(self._pipe, 1 << 20)
            if not part:
                break
            parts.append(part)
        self._reap(GRACE_SECONDS)
        return b"".join(parts)

    def end(self) -> None:
        """End gdb, so that the process goes on; with it the helper that gdb forks while it attaches.

        SIGKILL is the gentle way here: the kernel lets all threads go and nothing was changed in the process. Asked
        to end (SIGTERM, SIGINT) in the middle of attaching, gdb 13 kills the process. Only commands that set
        breakpoints need gdb's own way out. A second Ctrl+C must not end us before the process goes on.
        """
        import signal

        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        for number in (SIGTERM, SIGKILL) if self._has_changed_it else (SIGKILL,):
            if self._status is None:
                os.kill(self._gdb if self._program else -self._gdb, number)
                self._reap(GRACE_SECONDS)
        self._resume()

    def chatter(self) -> str:
        """What gdb printed, without its notes on every thread."""
        size = os.lseek(self._chatter, 0, os.SEEK_END)
        text = os.pread(self._chatter, min(size, 1 << 16), 0).decode(errors="replace")
        return "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("[New LWP"))

    def how_it_ended(self) -> str:
        """gdb's exit in words."""
        if self._status is None:
            return "does not end"
        if os.WIFSIGNALED(self._status):
            return f"was killed by signal {os.WTERMSIG(self._status)}"
        return f"ended with status {os.WEXITSTATUS(self._status)}"

    def _reap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while self._status is None:
            found, status = os.waitpid(self._gdb, os.WNOHANG)
            if found:
                self._status = status
            elif time.monotonic() > deadline:
                return
            else:
                time.sleep(pause)
                pause = min(pause * 2, 0.05)

    def _resume(self) -> None:
        """A gdb that ended while it attached leaves a SIGSTOP behind. Undo that, and only that."""
        pid = self._pid_looked_at
        if pid is None or self._stopped_before:
            return
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if _is_stopped(pid):
                try:
                    os.kill(pid, SIGCONT)
                except OSError:  # it has just ended
                    return
                return
            time.sleep(0.01)


def _live_output(options: Options) -> int | None:
    """A descriptor of our standard output for what a live command tells while the process runs; None for others."""
    if not registry.find(options.command).live:
        return None
    descriptor = os.dup(1)
    os.set_inheritable(descriptor, True)
    return descriptor


def _describe(options: Options, terminal: registry.Terminal, result: int, output: int | None) -> str:
    """The job as a Python expression in ASCII, for gdb's command line."""
    job: dict[str, Any] = {
        "command": options.command,
        "argv": options.argv,
        "color": terminal.color,
        "width": terminal.width,
        "result": result,
    }
    if output is not None:
        job["output"] = output
    if options.pid is not None:
        job["pid"] = options.pid
    elif options.core is not None:
        job["core"] = os.path.abspath(options.core)  # noqa: PTH100
        job["sysroot"] = options.sysroot
    return ascii(job)


def _is_stopped(pid: int | None) -> bool:
    """Some thread is stopped by a signal (state T)."""
    if pid is None:
        return False
    try:
        return "T" in thread_states(pid).values()
    except OSError:
        return False


def _no_result(job: _Job, options: Options) -> GdbextError:
    from gdbext.targets.proc_checks import check_process

    if options.pid is not None:
        check_process(options.pid)
    said = job.chatter()
    return TargetError(
        f"gdb gave no result: it {job.how_it_ended()}",
        why=f"gdb said: {said[-2000:]}" if said else "it printed nothing; it may lack Python (gdb -ex 'python 1')",
        help="use --debugger none, which needs no debugger at all",
    )
