"""``scripts/dispatch shell``: a Python prompt in which ``p`` is the process, as docs/library.md describes it."""

from __future__ import annotations

import code
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import gdbext
from gdbext.cache import is_ours
from gdbext.engine.numbers import integer
from gdbext.engine.terminal import shown, write
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from gdbext.tools.program import Dispatch


class ShellProgram(Program):
    """The program ``scripts/dispatch shell`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "If standard input is not a terminal, it is run as a script: dispatch shell -p PID < look.py\n"
        add = parser.add_argument
        add("-p", "--pid", type=integer, metavar="PID", help="a running process")
        add("-c", "--core", metavar="FILE", help="a core dump")
        add("-r", "--recording", metavar="FILE", help="a recording")
        add("--sysroot", metavar="DIR", default="", help="root of the files that the core came from")
        stop = parser.add_mutually_exclusive_group()
        stop.add_argument(
            "--no-stop", action="store_true", help="do not stop the process (default: stop it for a few milliseconds)"
        )
        stop.add_argument("--hold", action="store_true", help="keep the process stopped until the prompt ends")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Open the prompt. Raises GdbextError."""
        args = self.parse(argv)
        options = {"pid": args.pid, "core": args.core, "recording": args.recording, "sysroot": args.sysroot}
        with gdbext.open(**options, stop=not args.no_stop, hold=args.hold) as process:
            return _run(process, f"p is {process!r}; {process.standstill_text}")


def _run(process: gdbext.Process, banner: str) -> Outcome:
    """Run standard input as a script if it is no terminal, else open IPython's prompt or Python's own."""
    names: dict[str, object] = {"p": process, "__name__": "__main__"}
    if not sys.stdin.isatty():
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), names)
        return Outcome(0)
    # IPython runs files of its folder when it starts, which must be ours; with ``sudo -E`` it is the caller's.
    folder = os.environ.get("IPYTHONDIR") or f"{os.environ.get('HOME', '')}/.ipython"
    while folder != "/" and not os.path.lexists(folder):
        folder = os.path.dirname(os.path.abspath(folder))  # noqa: PTH100, PTH120 - as everywhere with cache.is_ours
    try:
        if not is_ours(folder):
            raise ImportError
        from IPython import start_ipython  # it may be missing
        from traitlets.config import Config
    except ImportError:
        with suppress(ImportError):  # Python may be built without readline
            import readline
            import rlcompleter

            readline.set_completer(rlcompleter.Completer(names).complete)
            readline.parse_and_bind("tab: complete")
        code.InteractiveConsole(names).interact(banner=shown(banner), exitmsg="")
        return Outcome(0)
    write(2, f"{banner}\n")
    config = Config()
    config.InteractiveShellApp.ignore_cwd = True  # it would import modules of the current folder
    start_ipython(argv=["--no-banner"], user_ns=names, config=config)
    return Outcome(0)
