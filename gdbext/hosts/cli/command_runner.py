"""Runs a command on the process, the core or the recording that the command line of ``scripts/dispatch`` names."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import Alone
from gdbext.engine.formats import elf_core
from gdbext.engine.layouts import store
from gdbext.engine.targets import budget
from gdbext.engine.targets.live import proc_checks, supervision
from gdbext.engine.targets.live.unstopped import SleepingProcess, UnreadableProcess
from gdbext.errors import GdbextError, UsageError
from gdbext.hosts import opening
from gdbext.hosts.cli.options import wants_color
from gdbext.hosts.opening import Standstill, open_core, open_live, open_recording, open_running
from gdbext.tools import running, table
from gdbext.tools.outcome import Outcome, failure, interruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.cli.options import Options
    from gdbext.hosts.debugger.recorded_command import RecordedCommand


def run(options: Options) -> Outcome:
    """Run the command; with --quiet its outcome keeps errors only. Raises GdbextError, also for Ctrl+C, with the state
    that the process is left in."""
    try:
        with _silence() if options.quiet and not options.program else nullcontext():
            outcome = _run_supervised(options)
    except (KeyboardInterrupt, SystemExit) as end:
        from gdbext.engine.targets.live.debugger_guard import state_after_detach  # for Ctrl+C alone

        state = state_after_detach(options.pid) if options.pid else ""
        raise interruption(end, state) from end
    if options.quiet and not outcome.status:
        outcome.error = ""
    if options.executable and (warning := _other_executable(options)):  # gdb's -q keeps it, too
        outcome.error = f"{warning}\n{outcome.error}".rstrip()
    return outcome


def _other_executable(options: Options) -> str:
    """The warning that the program named on the command line is not the one that the process runs, or that wrote the
    core; "" if it is, or that is unknown."""
    named = find_program(options.executable) or options.executable
    if options.pid:
        actual, what = opening.other_program(options.pid, named), f"process {options.pid} runs"
    else:
        actual, what = options.other_writer, f"{options.core} was written by"
    if actual and not os.path.exists(named):  # noqa: PTH110
        return f"warning: there is no file {options.executable}; {what} {actual}"
    return f"warning: {what} {actual}, not {options.executable}" if actual else ""


@contextmanager
def _silence() -> Iterator[None]:
    """Discard what is written to standard error meanwhile."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _run_supervised(options: Options) -> Outcome:
    """The outcome of the command; in a child process if the kernel may block us when we read the process."""
    pid = options.pid
    if not pid or _asks_for_help(options) or _watches(options):
        return _run(options)
    if not options.no_stop and options.chosen_debugger != "none":
        supervision.check_can_stop(pid)
        return _run(options)
    if not supervision.may_block_readers(pid):
        return _run(options)

    def run_unreadable() -> Outcome:  # without reading the memory of the process
        return running.execute(options.command, options.argv, lambda: Session(UnreadableProcess(pid)), wants_color())

    def guarded(run_command: Callable[[], Outcome]) -> Outcome:
        """The outcome of a command, also if that raises an error: the child process returns nothing else."""
        try:
            return run_command()
        except GdbextError as error:
            return failure(options.command, options.argv, error)

    return opening.supervised(pid, lambda: guarded(lambda: _run(options)), lambda: guarded(run_unreadable))


def _asks_for_help(options: Options) -> bool:
    return bool({"--help", "-h"} & set(options.argv))


def _run(options: Options) -> Outcome:
    """The outcome of the command, in this process or in a debugger of ours. Raises GdbextError."""
    if _asks_for_help(options):
        return Outcome(0, table.help_text(table.find(options.command)))
    if not options.called.source and not options.program:
        return running.execute(options.command, options.argv, None, wants_color(options.color))
    if options.measure_as_me:
        os.environ[store.PERMISSION] = store.AS_ME  # which is there in a debugger of ours, too
    recorded = None
    if options.record:
        from gdbext.hosts.debugger.recorded_command import RecordedCommand  # 6 ms, for --record

        # raises an error, if it must, before anything is stopped
        recorded = RecordedCommand(options.command, options.argv, options.record)
    if options.pid:
        needs_tracer = options.chosen_debugger != "none" or _watches(options)
        traced = not needs_tracer and proc_checks.foreign_tracer(options.pid)
        (proc_checks.check_readable if traced else proc_checks.check_process)(options.pid)
    alone = options.no_stop or options.recording or _watches(options)
    debugger = "none" if alone else options.chosen_debugger
    if debugger == "none":
        return _run_alone(options, recorded)
    from gdbext.hosts.cli import debugger_runner  # 3 ms, for --debugger

    if options.core:
        elf_core.check_regular(options.core)  # a debugger would wait for the writer of a pipe
        if options.executable:
            with suppress(GdbextError), closing(_target(options)) as target:  # the debugger's own error is shown
                _compare_writer(target, options)
    return debugger_runner.run(options, debugger, wants_color(options.color))


def _run_alone(options: Options, recorded: RecordedCommand | None) -> Outcome:
    """The outcome of the command without a debugger. Raises TargetError."""
    opened: list[Target] = []

    def open_target() -> Target:
        opened.append(_target(options, again=bool(opened)))
        return opened[-1]

    host, color = Alone(called=options.called), wants_color(options.color)
    watches = _watches(options)
    if not watches and table.needs_running(options.command, options.argv):
        raise UsageError(f"{options.command} needs a debugger", help="use --debugger gdb, or --debugger lldb")
    limit = budget.TimeLimit(options.time_limit, KeyboardInterrupt if watches else budget.TimeLimitExceeded)
    try:
        with budget.MemoryLimit(options.memory), limit:
            if recorded:
                outcome = recorded.run(open_target, color, host)
                # A process that was recorded as it slept may have woken meanwhile, or a proof needs its registers.
                if opened and isinstance(opened[0], SleepingProcess) and not opened[0].is_consistent():
                    opened[0].close()
                    outcome = recorded.run(open_target, color, host)
            else:
                outcome = running.execute(options.command, options.argv, lambda: Session(open_target()), color, host)
    except budget.TimeLimitExceeded:
        return failure(options.command, options.argv, budget.time_error(options.time_limit or 0, options.source))
    finally:
        try:
            if opened:
                _compare_writer(opened[0], options)
        finally:
            for target in opened:
                target.close()
    if recorded:
        recorded.save(outcome)
    return outcome


def _compare_writer(target: Target, options: Options) -> None:
    """Note in ``options`` which program wrote the core, if that is not the one named on the command line."""
    if options.executable and options.core:
        from gdbext.engine.targets import core_sources  # 8 ms, for cores

        named = find_program(options.executable) or options.executable
        options.other_writer = core_sources.other_writer(target, named)


def _target(options: Options, again: bool = False) -> Target:
    """Open the target of the command line. ``again``: for a second time, as a process that was recorded as it slept has
    run meanwhile; now it is stopped."""
    if options.recording:
        return open_recording(options.recording)
    if options.core:
        return open_core(options.core, options.sysroot)
    if _watches(options):
        return open_running(options.pid)
    if options.no_stop:
        return open_live(options.pid, Standstill.NONE)
    recorded = Standstill.HELD if again else Standstill.ASLEEP
    return open_live(options.pid, recorded if options.record else Standstill.BRIEF)


def _watches(options: Options) -> bool:
    """True if the command reads a running process, without a debugger."""
    return table.needs_no_stop(options.command, options.argv, bool(options.pid))
