"""One command in a gdb of our own, started by cli/gdb_runner: attach or load, run, hand the result over, let go.

The gdb was told to read no symbols at all, so that attaching takes milliseconds (docs: facts). The result travels
through a file descriptor of its own: nothing that gdb or the program prints can get into it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.commands import registry
from gdbext.errors import GdbextError, NotPermitted, TargetError, TargetGone
from gdbext.targets import proc_checks

if TYPE_CHECKING:
    from gdbext.inspection.session import Session


def run(job: Mapping[str, Any]) -> None:
    """Do the job and write its result to the descriptor ``job["result"]``.

    ``job`` also has "command", "argv", "color", "width", for a live command "output" (the descriptor of the launcher's
    standard output), and what to look at: "pid", "core" with "sysroot", or
    "program" (given to gdb by --args already).
    """
    terminal = registry.Terminal(job["color"], job["width"])
    if "output" in job:
        from gdbext.live.hooks import control

        control.output = job["output"]
        control.alone = True
    try:
        outcome = registry.execute(job["command"], job["argv"], lambda: _open(job), terminal)
    finally:
        _let_go(job)
    with open(job["result"], "wb") as file:
        file.write(outcome.encode())


def _open(job: Mapping[str, Any]) -> Session:
    from gdbext.debuggers.gdb.target import GdbCoreTarget, connection_type, current_target
    from gdbext.inspection.session import Session
    from gdbext.targets.core_target import open_core

    if "core" in job:
        open_core(job["core"]).close()  # our errors tell more than gdb's
        if connection_type(gdb.selected_inferior()) != "core":
            raise TargetError(f"gdb cannot load the core {job['core']}", help="--debugger none reads cores by itself")
        return Session(GdbCoreTarget(job["core"], gdb.selected_inferior(), job["sysroot"]))
    states = None
    if "pid" in job:
        states = _attach(job["pid"])
    elif registry.find(job["command"]).live:
        _start_program()
    else:
        _run_program()
    return Session(current_target(states))


def _attach(pid: int) -> dict[int, str]:
    """Attach, and tell in what state each thread was just before."""
    try:
        states = proc_checks.thread_states(pid)
        gdb.execute(f"attach {pid}", False, True)
    except OSError as error:
        raise TargetGone(f"process {pid} ended before it could be stopped") from error
    except gdb.error as error:
        proc_checks.check_process(pid)
        raise NotPermitted(f"gdb could not attach to process {pid}: {error}") from error
    return states


def _start_program() -> None:
    """Stop the program before its first instruction: the live commands run it. Raises TargetError."""
    try:
        gdb.execute("starti", False, True)
    except gdb.error as error:
        raise TargetError(f"gdb cannot run the program: {error}") from error


def _run_program() -> None:
    """Run the program until it stops: a crash, or Ctrl+C (or --timeout) in a hang. Raises TargetGone: it ended."""
    try:
        gdb.execute("run", False, False)
    except KeyboardInterrupt:
        pass
    except gdb.error as error:
        raise TargetError(f"gdb cannot run the program: {error}") from error
    if gdb.selected_inferior().pid == 0:
        status = gdb.convenience_variable("_exitcode")
        how = "" if status is None else f" with exit status {int(status)}"
        raise TargetGone(
            f"the program ended by itself{how}",
            why="it neither crashed nor was interrupted",
            help="press Ctrl+C when it hangs, or use --timeout SECONDS",
        )


def _let_go(job: Mapping[str, Any]) -> None:
    """Detach from what we attached to; a program that we started runs on to its end, or ends with us."""
    if "core" in job:
        return
    try:
        if "pid" not in job and gdb.selected_inferior().pid and _runs_on():
            gdb.execute("continue", False, False)
        if gdb.selected_inferior().pid:
            gdb.execute("detach" if "pid" in job else "kill", False, True)
    except KeyboardInterrupt:
        gdb.execute("kill", False, True)
    except (gdb.error, GdbextError):
        return  # it is gone


def _runs_on() -> bool:
    """A live command is done with the program that we started, and nobody asked to end it."""
    control = sys.modules.get("gdbext.live.hooks.control")  # imported only where a live command ran
    return control is not None and bool(control.finish_program)


def leave() -> None:
    """End gdb at once: everything is detached, and taking gdb apart orderly takes 20 ms more."""
    os._exit(0)
