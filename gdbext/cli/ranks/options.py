"""The options of ``scripts/dispatch ranks``. Parsed by argparse: its 8 ms are nothing beside many processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from gdbext.commands.options import HelpRequested
from gdbext.errors import UsageError

SUMMARY = """\
Look at all ranks of a job and say which one the others wait for, and why. Running processes stand still as long as one
look takes; nothing has to be switched on before."""
TIMEOUT = 60.0


class RanksParser(argparse.ArgumentParser):
    """Raises UsageError and HelpRequested instead of ending the process."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Called by argparse for every mistake."""
        raise UsageError(f"ranks: {message}", why=" ".join(self.format_usage().split()), help="dispatch ranks --help")


def parser() -> RanksParser:
    """One source of ranks is required."""
    found = RanksParser(
        prog="dispatch ranks", description=SUMMARY, add_help=False, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = found.add_argument_group("whose reports (one of these)").add_mutually_exclusive_group(required=True)
    what.add_argument("-p", "--pid", type=_pid, metavar="PID",
                      help="the job of that process on this machine: a rank, or the launcher of the ranks")  # fmt: skip
    what.add_argument("--node", action="store_true", help="every rank on this machine")
    what.add_argument("--cores", nargs="+", metavar="DIR|FILE", help="core dumps, or folders of them")
    what.add_argument("--recordings", nargs="+", metavar="FILE", help="recordings, or folders of them (*.rec)")
    what.add_argument("--reports", nargs="+", metavar="FILE",
                      help="JSON reports that were made elsewhere, of one process or of many, or folders of them",
                      )  # fmt: skip
    _add_other_machines(found, what)
    found.add_argument("--job", metavar="ID",
                       help="with --node and other machines: only ranks of that job (its run id, or HOST:PORT)",
                       )  # fmt: skip
    found.add_argument("--sysroot", default="", metavar="DIR", help="with --cores: where their files are")
    found.add_argument("--jobs", type=_positive, default=max(2, os.cpu_count() or 1), metavar="N",
                       help="so many processes are looked at at once (default: %(default)s)")  # fmt: skip
    found.add_argument("--timeout", type=_seconds, default=TIMEOUT, metavar="S",
                       help="for each process and each node (default: %(default)g)")  # fmt: skip
    out = found.add_argument_group("output")
    out.add_argument("--json", action="store_true",
                     help="one JSON document (schema gdbext-ranks/1), which --reports takes as well")  # fmt: skip
    out.add_argument("--dot", metavar="FILE", help="also write the tree of paths in graphviz' language")
    out.add_argument("--html", metavar="FILE", help="also write a page with everything, which needs nothing else")
    found.add_argument("--help", "-h", action="store_true", help="show this text")
    return found


def _add_other_machines(found: RanksParser, what: argparse._MutuallyExclusiveGroup) -> None:
    what.add_argument("--hosts", metavar="NODESET",
                      help="the ranks on these machines, by ClusterShell: node[1-16], @group; all they need is Python",
                      )  # fmt: skip
    what.add_argument("--slurm", metavar="JOBID[.STEP]", help="the ranks of that job, by srun --overlap")
    what.add_argument("--kubernetes", metavar="SELECTOR", help="the ranks in pods with these labels, by kubectl exec")
    how = found.add_argument_group("other machines")
    how.add_argument("--worker", default="ssh", metavar="NAME",
                     help="ClusterShell's worker: ssh (default), exec, rsh, pdsh")  # fmt: skip
    how.add_argument("--ssh-options", default="", metavar="OPTIONS",
                     help="for ClusterShell's ssh: '-p 2222 -i KEY'; else those of its configuration")  # fmt: skip
    how.add_argument("--fanout", type=_positive, default=64, metavar="N", help="machines at once (default: 64)")
    how.add_argument("--namespace", default="", metavar="NAME", help="of the pods")
    how.add_argument("--container", default="", metavar="NAME", help="in each pod")
    how.add_argument("--python", default="python3", metavar="PROGRAM", help="the Python on the other machines")
    how.add_argument("--show-commands", action="store_true", help="show what would be run there, and end")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError, HelpRequested."""
    found = parser()
    if {"-h", "--help"} & set(argv):
        raise HelpRequested(found.format_help())
    return found.parse_args(list(argv))


def _pid(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 65536")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
