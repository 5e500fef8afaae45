"""Runs one command in a debugger that we start, and returns its result, whatever happens to that debugger."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext import log
from gdbext.cache import cache_folder, find_program, may_fill
from gdbext.engine.targets.budget import time_error
from gdbext.engine.targets.live.proc_checks import check_process
from gdbext.engine.targets.live.supervision import check_can_stop
from gdbext.engine.targets.live.thread_motion import is_stopped, undo_stop
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_handled
from gdbext.errors import TargetError
from gdbext.hosts.debugger import base_debugger
from gdbext.log import logger
from gdbext.tools import table
from gdbext.tools.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from gdbext.hosts.cli.options import Options
    from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

_log = logger(__name__)

GRACE_SECONDS = 3.0  # seconds that a debugger has to exit after its result, before it is killed
DETACH_SECONDS = 60.0
"""Seconds that the debugger has to end a live command, remove its breakpoints and detach, before it is killed, which
would leave the breakpoints in the process."""
_CHECK_SECONDS = 0.5  # seconds between two checks whether the process can be stopped at all


class DebuggerProcess:
    """A debugger that we started; its result comes through a pipe, and its standard output goes to a file."""

    def __init__(
        self,
        name: str,
        words: list[str],
        environment: Callable[[], dict[str, str]],
        result: int,
        end_request: int,
        pid: int,
        starts_program: bool,
        live: bool,
    ) -> None:
        """Start it with the command line ``words``. ``result``: fd of the pipe that the outcome comes through;
        ``end_request``: fd of the pipe that is closed to end a live command (EndRequests), also by the kernel when we
        exit; ``pid``: the process to attach to, 0 for none. A debugger that starts a program gets our environment and
        terminal, any other one ``environment()``. ``live``: the command resumes the process. Raises TargetError.
        """
        self._name = name
        self._attached_to = pid
        self._stopped_before = is_stopped(pid)
        self._program = starts_program
        self.is_live = live
        self._may_change_it = starts_program or live
        self._printed = os.memfd_create(name, os.MFD_CLOEXEC)
        self._result = result
        self._end_request = [end_request] if end_request >= 0 else []
        _log.debug("start %s", words)
        try:
            if starts_program:  # it gets our terminal, with standard error in place of standard output
                actions: list[Any] = [(os.POSIX_SPAWN_DUP2, 2, 1)]
                self._pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
            else:
                actions = [
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._printed, 1),
                    (os.POSIX_SPAWN_DUP2, self._printed, 2),
                ]
                # not in our process group: Ctrl+C is for us, and we pass it on
                self._pid = os.posix_spawn(words[0], words, environment(), file_actions=actions, setpgroup=0)
        except OSError as error:
            raise TargetError(
                f"{self._name} cannot be started ({words[0]}): {error.strerror}",
                why="the file is not an executable for this machine, or the command line is too long",
                help=f"name another {self._name} in ${self._name.upper()}, or use --debugger none, which needs no "
                "debugger at all",
            ) from error
        self._exit: list[int] = []  # an fd that can be read when the process has ended; none before Linux 5.3
        with suppress(OSError):
            self._exit = [os.pidfd_open(self._pid)]
        self._status: int | None = None

    def result(self, timeout: float | None, source: str) -> bytes:
        """All bytes that came through the pipe until the debugger exited. Raises TargetError after ``timeout`` seconds,
        with ``source`` as of time_error(), unless it then ends a live command, whose report follows.

        The exit counts, not the end of the pipe: the child that gdb forks to test ptrace has the pipe, too, and
        outlives a gdb that is killed meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        parts, is_ending = [], False
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ready = self._wait(left)
            except KeyboardInterrupt:
                if not self.is_live:
                    raise
                if is_ending:
                    continue
                ready = []
            if not ready:
                if is_ending or not self._may_change_it:
                    raise time_error(timeout or 0, source)
                self._ask_to_end()
                is_ending, deadline = True, time.monotonic() + DETACH_SECONDS
                continue
            part = os.read(self._result, 1 << 20) if self._result in ready else b""
            if not part:
                break
            parts.append(part)
        if self._result not in ready and not self._program:
            with suppress(ProcessLookupError):  # the processes that it has left in its process group
                os.kill(-self._pid, signal.SIGKILL)
        self._reap(GRACE_SECONDS)
        _log.debug("%s %s", self._name, self.how_it_ended())
        return b"".join(parts)

    def _wait(self, left: float | None) -> list[int]:
        """The fds that can be read within ``left`` seconds (None: no limit). Raises TargetError if the process cannot
        be stopped: the debugger would wait for it forever, and stay its tracer."""
        descriptors = [self._result, *self._exit]
        while self._attached_to and not self.is_live and (left is None or left > _CHECK_SECONDS):
            ready = select.select(descriptors, [], [], _CHECK_SECONDS)[0]
            if ready:
                return ready
            with suppress(OSError):  # the process has exited: so will the debugger
                check_can_stop(self._attached_to)
            left = None if left is None else left - _CHECK_SECONDS
        return select.select(descriptors, [], [], left)[0]

    def end(self) -> None:
        """End the debugger, and the helper that gdb forks while it attaches, so that the process is resumed.

        SIGKILL does no harm to a process that is only read: the kernel resumes its threads. By SIGTERM or SIGINT in the
        middle of attaching, gdb 13 kills the process. A live command must remove its breakpoints first. A second Ctrl+C
        must not end us before the process is resumed.
        """
        with signals_handled((signal.SIGINT, *ENDING_SIGNALS), signal.SIG_IGN):
            if self.is_live and self._status is None:
                self._ask_to_end()
                self._drain(DETACH_SECONDS)
            for number in (signal.SIGTERM, signal.SIGKILL) if self._program else (signal.SIGKILL,):
                if self._status is None:
                    _log.info("%s gets signal %d", self._name, number)
                    os.kill(self._pid if self._program else -self._pid, number)
                    self._reap(GRACE_SECONDS)
            if self._attached_to and not self._stopped_before:
                undo_stop(self._attached_to)

    def _ask_to_end(self) -> None:
        """Have the debugger end the command as Ctrl+C does, once it has attached."""
        if self.is_live:
            _close_all(self._end_request)
        else:
            os.kill(self._pid, signal.SIGINT)

    def _drain(self, seconds: float) -> None:
        """Wait for the debugger to exit, and read what it writes: a full pipe would block it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._status is None:
            ready = select.select([self._result, *self._exit], [], [], left)[0]
            if self._result not in ready or not os.read(self._result, 1 << 20):
                self._reap(max(0.0, deadline - time.monotonic()))

    def printed(self) -> str:
        """The text that the debugger printed."""
        size = os.lseek(self._printed, 0, os.SEEK_END)
        return os.pread(self._printed, min(size, 1 << 16), 0).decode(errors="replace")

    def how_it_ended(self) -> str:
        """The debugger's exit status or signal, in words."""
        if self._status is None:
            return "has not exited"
        if os.WIFSIGNALED(self._status):
            return f"was killed by signal {os.WTERMSIG(self._status)}"
        return f"exited with status {os.WEXITSTATUS(self._status)}"

    def _reap(self, seconds: float) -> None:
        """Wait for the debugger to exit, for at most so many seconds, and close its fds."""
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while self._status is None:
            exited, status = os.waitpid(self._pid, os.WNOHANG)
            if exited:
                self._status = status
                _close_all(self._exit)
                _close_all(self._end_request)
            elif time.monotonic() > deadline:
                return
            else:
                time.sleep(pause)
                pause = min(pause * 2, 0.05)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120


def run(options: Options, debugger: str, color: bool) -> Outcome:
    """The command's outcome in that debugger. Raises TargetError (no debugger, result or time), KeyboardInterrupt."""
    launch = base_debugger.launch(debugger)
    process = _start(launch, options, color)
    try:
        for number in ENDING_SIGNALS:  # raise an exception, so that the debugger detaches before we end
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _raise_interrupt if process.is_live else _raise_exit)
        data = process.result(options.time_limit, options.source)
    except BaseException:
        process.end()
        raise
    outcome = Outcome.decode(data)
    if outcome:
        if log.is_wanted():
            said = f"{launch.name} said:\n{launch.relevant_output(process.printed())}"
            outcome.error = f"{outcome.error}\n{said}".lstrip()
        return outcome
    process.end()
    if options.pid:
        check_process(options.pid)
    failure = launch.known_failure(process.printed())
    if failure:
        raise failure
    said = launch.relevant_output(process.printed())
    raise TargetError(
        f"{launch.name} gave no result: it {process.how_it_ended()}",
        why=f"{launch.name} said: {said[-2000:]}" if said else f"it printed nothing; {launch.no_result_reason}",
        help="use --debugger none, which needs no debugger at all",
    )


def _raise_interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _raise_exit(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _start(launch: DebuggerLaunch, options: Options, color: bool) -> DebuggerProcess:
    """Start the debugger with the command as its job. Raises TargetError."""
    executable = launch.find()
    program = runnable(options.program)
    live = table.find(options.command).resumes and not options.core
    if not options.program:  # a program gets what the caller left open, as from a shell
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) > 2:
                with suppress(OSError):  # the folder's own fd, which is closed again
                    os.set_inheritable(int(name), False)
    result, debugger_end = os.pipe()
    launcher, end_request = os.pipe() if live or options.pid else (-1, -1)
    output = os.dup(1) if live else None  # for what is shown before the report
    terminal = os.dup(2) if options.pid and os.isatty(2) else None
    inherited = [fd for fd in (debugger_end, launcher, output, terminal) if fd is not None and fd >= 0]
    for fd in inherited:
        os.set_inheritable(fd, True)
    job = base_debugger.Job(
        options.command,
        options.argv,
        result=debugger_end,
        output=output,
        terminal=terminal,
        launcher=launcher,
        pid=options.pid,
        core=os.path.abspath(options.core) if options.core else "",  # noqa: PTH100
        sysroot=options.sysroot,
        record=options.record,
        color=color,
        memory=options.memory,
        program=options.called.program,
        source=options.called.source,
    )
    code = base_debugger.job_code(launch.name, job, _ROOT)
    words = [executable, *launch.arguments(code, options.core, program, live)]
    try:
        return DebuggerProcess(
            launch.name, words, environment, result, end_request, options.pid, bool(options.program), live
        )
    finally:
        for fd in inherited:
            os.close(fd)


def runnable(program: Sequence[str]) -> list[str]:
    """The command line by which a debugger can start a program: a script by its interpreter, as execve(2) does. Raises
    TargetError if there is no such program."""
    words = list(program)
    for _ in range(4 if words else 0):  # scripts may be interpreters of scripts (fs/exec.c: BINPRM_MAX_RECURSION)
        path = words[0] if "/" in words[0] else find_program(words[0])
        if path is None or not os.path.isfile(path):  # noqa: PTH113
            raise TargetError(
                f"there is no program {words[0]}",
                why="no such file" if "/" in words[0] else "it is not in $PATH",
                help="give its path, such as ./PROGRAM",
            )
        if not os.access(path, os.X_OK):
            raise TargetError(
                f"{words[0]} is not executable", why="it lacks execute permission", help=f"python3 {words[0]}"
            )
        try:
            with open(path, "rb") as file:
                first = file.readline(256)  # BINPRM_BUF_SIZE: the part of the line that counts
        except OSError:
            return words
        if not first.startswith(b"#!"):
            return words
        words = [*os.fsdecode(first[2:]).strip().split(None, 1), path, *words[1:]]
    return words


def environment() -> dict[str, str]:
    """The environment of a debugger that runs only our job: English messages, no Python settings of the user, and a
    folder for .pyc files, as few installations have those of the debugger's own modules."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1"}
    folder = f"{cache_folder()}/pycache"
    if may_fill(folder):
        with suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
            variables["PYTHONPYCACHEPREFIX"] = folder
    return variables
