"""Runs one command in a debugger of our own and brings back its result, whatever happens to that debugger."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from gdbext import log
from gdbext.cache import cache_folder, find_program, may_fill
from gdbext.engine.formats import elf_core
from gdbext.engine.targets.budget import time_error
from gdbext.engine.targets.live.proc_checks import check_process
from gdbext.engine.targets.live.supervision import check_can_stop
from gdbext.engine.targets.live.thread_motion import is_stopped, undo_stop
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_handled
from gdbext.errors import GdbextError, TargetError
from gdbext.hosts.debugger import base_debugger
from gdbext.log import logger
from gdbext.tools import table
from gdbext.tools.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gdbext.hosts.cli.options import Options
    from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

_log = logger(__name__)

SIGINT, SIGKILL, SIGTERM = 2, 9, 15

GRACE_SECONDS = 3.0
"""Seconds in which a debugger that has nothing more to do may exit, before it is killed."""

DETACH_SECONDS = 60.0
"""Seconds in which the debugger may end a live command, remove its breakpoints and detach. To kill it earlier would
leave the breakpoints in the process."""

_LOOK_SECONDS = 0.5
"""Seconds after which is looked whether the process can be stopped at all."""


class DebuggerProcess:
    """Its standard output is kept apart from ours; the result comes through a pipe."""

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
        """Start it. ``result`` is the pipe that the outcome comes through, ``end_request`` the pipe that is closed to
        end a live command (EndRequests; the kernel closes it, too, when we exit), ``pid`` the process to attach to.

        A debugger that starts a program gets our environment and terminal, any other one ``environment``. With ``live``
        the command resumes the process. Raises TargetError.
        """
        self._name = name
        self._attached_to = pid
        self._stopped_before = is_stopped(pid)
        self._program = starts_program
        self.is_live = live
        """The command resumes the process."""
        self._may_change_it = starts_program or live
        self._printed = os.memfd_create(name, os.MFD_CLOEXEC)
        self._result = result
        self._end_request = [end_request] if end_request >= 0 else []
        self._pid = self._spawn(words, environment)
        self._exit = _descriptor_of(self._pid)
        self._status: int | None = None

    def _spawn(self, words: list[str], environment: Callable[[], dict[str, str]]) -> int:
        _log.debug("start %s", words)
        try:
            if self._program:
                return os.posix_spawn(words[0], words, os.environ, file_actions=self._files())
            # not in our process group: Ctrl+C is for us, and we pass it on
            return os.posix_spawn(words[0], words, environment(), file_actions=self._files(), setpgroup=0)
        except OSError as error:
            raise TargetError(
                f"{self._name} cannot be started ({words[0]}): {error.strerror}",
                why="the file is not a program of this machine, or the command line is too long",
                help=f"name another {self._name} in ${self._name.upper()}, or use --debugger none, which needs no "
                "debugger at all",
            ) from error

    def _files(self) -> list[Any]:
        """A started program gets our terminal, with standard error in place of standard output."""
        if self._program:
            return [(os.POSIX_SPAWN_DUP2, 2, 1)]
        return [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._printed, 1),
            (os.POSIX_SPAWN_DUP2, self._printed, 2),
        ]

    def result(self, timeout: float | None) -> bytes:
        """All that came through the pipe until the debugger ended. Raises TargetError when the time is up.

        The child that gdb forks to try the kernel's ptrace has the pipe, too, and outlives a gdb that is killed then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        parts, ending = [], False
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            interrupted = False
            try:
                ready = self._wait(left)
            except KeyboardInterrupt:
                if not self.is_live:
                    raise
                ready, interrupted = [], True
            if interrupted and ending:
                continue  # the debugger detaches already
            if not ready:
                if ending or not self._may_change_it:
                    raise time_error(timeout or 0)
                self._ask_to_end()  # the report of the live command follows
                ending, deadline = True, time.monotonic() + DETACH_SECONDS
                continue
            if self._result not in ready:
                self._end_children()
                break
            part = os.read(self._result, 1 << 20)
            if not part:
                break
            parts.append(part)
        self._reap(GRACE_SECONDS)
        _log.debug("%s %s", self._name, self.how_it_ended())
        return b"".join(parts)

    def _wait(self, left: float | None) -> list[int]:
        """The descriptors that can be read within so many seconds. Raises TargetError: the process cannot be stopped;
        the debugger would wait for it, and stay its tracer, without end."""
        descriptors = [self._result, *self._exit]
        while self._attached_to and not self.is_live and (left is None or left > _LOOK_SECONDS):
            ready = select.select(descriptors, [], [], _LOOK_SECONDS)[0]
            if ready:
                return ready
            with suppress(OSError):  # it has ended: so will the debugger
                check_can_stop(self._attached_to)
            left = None if left is None else left - _LOOK_SECONDS
        return select.select(descriptors, [], [], left)[0]

    def end(self) -> None:
        """End the debugger, so that the process is resumed; with it the helper that gdb forks while it attaches.

        SIGKILL does no harm to a process that is only read: the kernel resumes all threads and nothing was changed.
        Asked to end (SIGTERM, SIGINT) in the middle of attaching, gdb 13 kills the process. A debugger with breakpoints
        in the process has to remove them first. A second Ctrl+C must not end us before the process is resumed.
        """
        with _undisturbed():
            if self.is_live and self._status is None:
                self._ask_to_end()
                self._drain(DETACH_SECONDS)
            for number in (SIGTERM, SIGKILL) if self._program else (SIGKILL,):
                if self._status is None:
                    _log.info("%s gets signal %d", self._name, number)
                    os.kill(self._pid if self._program else -self._pid, number)
                    self._reap(GRACE_SECONDS)
            self._resume()

    def _ask_to_end(self) -> None:
        """Have the debugger end the command as Ctrl+C does, once it has attached."""
        if self.is_live:
            _close_all(self._end_request)
        else:
            os.kill(self._pid, SIGINT)

    def _drain(self, seconds: float) -> None:
        """Wait for the debugger to exit, reading what it has to say: a full pipe would hold it up."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._status is None:
            if self._result in select.select([self._result, *self._exit], [], [], left)[0] and os.read(
                self._result, 1 << 20
            ):
                continue
            self._reap(max(0.0, deadline - time.monotonic()))

    def _end_children(self) -> None:
        """End what the debugger has left behind, which is not reaped yet: its process group is still its own."""
        if not self._program:
            with suppress(ProcessLookupError):
                os.kill(-self._pid, SIGKILL)

    def printed(self) -> str:
        """The text that the debugger printed."""
        size = os.lseek(self._printed, 0, os.SEEK_END)
        return os.pread(self._printed, min(size, 1 << 16), 0).decode(errors="replace")

    def how_it_ended(self) -> str:
        """The debugger's exit status or signal, in words."""
        if self._status is None:
            return "does not end"
        if os.WIFSIGNALED(self._status):
            return f"was killed by signal {os.WTERMSIG(self._status)}"
        return f"ended with status {os.WEXITSTATUS(self._status)}"

    def _reap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while self._status is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            if found:
                self._status = status
                _close_all(self._exit)
                _close_all(self._end_request)
            elif time.monotonic() > deadline:
                return
            else:
                time.sleep(pause)
                pause = min(pause * 2, 0.05)

    def _resume(self) -> None:
        if self._attached_to and not self._stopped_before:
            undo_stop(self._attached_to)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _descriptor_of(pid: int) -> list[int]:
    """A descriptor that can be read when the process has ended; none before Linux 5.3."""
    try:
        return [os.pidfd_open(pid)]
    except OSError:
        return []


_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120


def check_core(path: str) -> None:
    """Raises BadCore: a debugger would wait for the writer of a pipe."""
    elf_core.check_regular(path)


def run(options: Options, debugger: str, color: bool) -> Outcome:
    """The command's outcome, in the debugger of that name. Raises TargetError (no debugger, no result, time is up),
    KeyboardInterrupt."""
    launch = base_debugger.launch(debugger)
    process = _start(launch, options, color)
    try:
        _end_by_exception(KeyboardInterrupt() if process.is_live else None)
        data = process.result(options.time_limit)
    except BaseException:
        process.end()
        raise
    outcome = Outcome.decode(data)
    if not outcome:
        process.end()
        raise _no_result(launch, process, options)
    if log.is_wanted():
        outcome.error = f"{outcome.error}\n{launch.name} said:\n{launch.relevant_output(process.printed())}".lstrip()
    return outcome


def _start(launch: DebuggerLaunch, options: Options, color: bool) -> DebuggerProcess:
    executable = launch.find()
    program = runnable(options.program)
    live = table.find(options.command).resumes and not options.core
    if not options.program:  # that gets what the caller left open, as from a shell
        _keep_descriptors()
    result, theirs = os.pipe()
    launcher, end_request = os.pipe() if live or options.pid else (-1, -1)
    for lent in (theirs, launcher):
        if lent >= 0:
            os.set_inheritable(lent, True)
    output = _inheritable(1) if live else None
    terminal_of_ours = _inheritable(2) if options.pid and os.isatty(2) else None
    job = base_debugger.Job(
        options.command,
        options.argv,
        result=theirs,
        output=output,
        terminal=terminal_of_ours,
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
        for each in (theirs, launcher, output, terminal_of_ours):
            if each is not None and each >= 0:
                os.close(each)


def runnable(program: Sequence[str]) -> list[str]:
    """The program as a debugger can start it: a script by its interpreter, as the kernel would (execve(2)). Raises
    TargetError: there is none."""
    words = list(program)
    for _ in range(_INTERPRETERS if words else 0):
        path = words[0] if "/" in words[0] else find_program(words[0])
        if path is None or not os.path.isfile(path):  # noqa: PTH113
            raise TargetError(
                f"there is no program {words[0]}",
                why="no such file" if "/" in words[0] else "no folder of $PATH has it",
                help="give its path, as after ./ in a shell",
            )
        if not os.access(path, os.X_OK):
            raise TargetError(
                f"{words[0]} is not a program",
                why="nobody may execute that file",
                help=f"python3 {words[0]}",
            )
        try:
            with open(path, "rb") as file:
                first = file.readline(_LINE)
        except OSError:
            return words
        if not first.startswith(b"#!"):
            return words
        words = [*os.fsdecode(first[2:]).strip().split(None, 1), path, *words[1:]]
    return words


_INTERPRETERS = 4
"""Scripts whose interpreters are scripts that the kernel follows (fs/exec.c: BINPRM_MAX_RECURSION)."""
_LINE = 256
"""BINPRM_BUF_SIZE: the part of a script's first line that counts."""


def _keep_descriptors() -> None:
    """Keep descriptors that our caller left open away from the debugger."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2:
            with suppress(OSError):  # that of the folder itself, which is closed again
                os.set_inheritable(int(name), False)


def _inheritable(descriptor: int) -> int:
    """A copy of our standard output or error for the debugger, for what is shown before the report."""
    copy = os.dup(descriptor)
    os.set_inheritable(copy, True)
    return copy


def _undisturbed() -> AbstractContextManager[None]:
    """Ignore requests to end this process meanwhile."""
    return signals_handled((signal.SIGINT, *ENDING_SIGNALS), signal.SIG_IGN)


def _end_by_exception(error: BaseException | None) -> None:
    """Make the ending signals raise this, SystemExit for None, so that the debugger detaches before we end."""

    def leave(number: int, _: object) -> None:
        raise error or SystemExit(128 + number)

    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def environment() -> dict[str, str]:
    """The environment of a debugger that runs nothing but our job.

    Its messages in English, the user's Python settings out of the way, and a place for compiled Python files: few
    installations have those of the debugger's own modules, and PYTHONDONTWRITEBYTECODE would keep ours from being made.
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


def _no_result(launch: DebuggerLaunch, process: DebuggerProcess, options: Options) -> GdbextError:
    if options.pid:
        check_process(options.pid)
    known = launch.known_failure(process.printed())
    if known:
        return known
    said = launch.relevant_output(process.printed())
    why = f"{launch.name} said: {said[-2000:]}" if said else f"it printed nothing; {launch.no_result_reason}"
    return TargetError(
        f"{launch.name} gave no result: it {process.how_it_ended()}",
        why=why,
        help="use --debugger none, which needs no debugger at all",
    )
