"""Runs one command in a debugger of our own and brings back its result, whatever happens to that debugger."""

from __future__ import annotations

import os

from gdbext import log
from gdbext.cache import cache_folder, may_fill
from gdbext.cli.debugger_process import DebuggerProcess
from gdbext.commands import registry
from gdbext.debuggers import batch_job, table
from gdbext.errors import GdbextError, TargetError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.cli.options import Options
    from gdbext.debuggers.base import Launch

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def run(options: Options, color: bool) -> registry.Outcome:
    """The command's outcome. Raises TargetError (no debugger, no result, time is up), KeyboardInterrupt."""
    launch = table.launch(options.debugger)
    process = _start(launch, options, color)
    try:
        _end_by_exception()
        data = process.result(options.timeout)
    except BaseException:
        process.end()
        raise
    outcome = registry.Outcome.decode(data)
    if outcome is None:
        process.end()
        raise _no_result(launch, process, options)
    if log.is_wanted():
        outcome.error = f"{outcome.error}\n{launch.name} said:\n{launch.said(process.printed())}".lstrip()
    return outcome


def _start(launch: Launch, options: Options, color: bool) -> DebuggerProcess:
    executable = launch.find()
    live = registry.find(options.command).live and options.core is None
    result, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    output = _inheritable(1) if live else None
    terminal_of_ours = _inheritable(2) if options.pid is not None and os.isatty(2) else None
    job = batch_job.Job(
        options.command, options.argv, result=theirs, output=output, terminal=terminal_of_ours, pid=options.pid,
        core=None if options.core is None else os.path.abspath(options.core),  # noqa: PTH100
        sysroot=options.sysroot, record=options.record, color=color,
    )  # fmt: skip
    code = batch_job.code(launch.name, job, _ROOT)
    words = [executable, *launch.arguments(code, options.core, options.program, live)]
    try:
        return DebuggerProcess(launch.name, words, environment, result, options.pid, bool(options.program), live)
    finally:
        os.close(theirs)
        for descriptor in (output, terminal_of_ours):
            if descriptor is not None:
                os.close(descriptor)


def _inheritable(descriptor: int) -> int:
    """A copy of our standard output or error for the debugger, for what is shown before the report."""
    copy = os.dup(descriptor)
    os.set_inheritable(copy, True)
    return copy


def _end_by_exception() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that the debugger lets the process go before we end."""
    import signal  # 3 ms, while the debugger starts

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
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


def _no_result(launch: Launch, process: DebuggerProcess, options: Options) -> GdbextError:
    from gdbext.targets.live.proc_checks import check_process

    if options.pid is not None:
        check_process(options.pid)
    known = launch.known_failure(process.printed())
    if known is not None:
        return known
    said = launch.said(process.printed())
    why = f"{launch.name} said: {said[-2000:]}" if said else f"it printed nothing; {launch.when_silent}"
    return TargetError(
        f"{launch.name} gave no result: it {process.how_it_ended()}",
        why=why,
        help="use --debugger none, which needs no debugger at all",
    )
