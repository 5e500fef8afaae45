"""The tool ranks: merges the reports of many ranks, matches their collectives and finds the rank that others wait for.

It can ask NCCL's RAS, a service that each process of a job has by default from 2.24 on. Its protocol is text (NCCL:
src/ras/client.cc): a line for each command, an answer to each; after the status it closes the connection.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.tool_arguments import CommandParser
from gdbext.engine.formats.whole_file import write
from gdbext.engine.numbers import integer, number
from gdbext.engine.targets import budget
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.system.linux import parse_environ
from gdbext.engine.targets.system.socket_table import peer_user
from gdbext.engine.terminal import quoted
from gdbext.errors import HelpRequested, UsageError
from gdbext.render.page import origin_now
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program
from gdbext.tools.ranks import job_report, other_machines, rank_sources, ranks_views
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import RankReport, RasAnswer

if TYPE_CHECKING:
    from gdbext.tools.program import Dispatch

TIMEOUT = 60.0


class RanksProgram(Program):
    """The program ``scripts/dispatch ranks`` as a tool."""

    def parser(self) -> CommandParser:
        parser = super().parser()
        parser.usage = "dispatch ranks SOURCE [OPTIONS]"
        parser.description = (
            f"{self.summary} Running processes are stopped while\n"
            "they are examined; nothing has to be enabled beforehand."
        )
        return parser

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        sources = parser.add_argument_group("which processes (one of these)")
        add = sources.add_mutually_exclusive_group(required=True).add_argument
        pid_help = "the job of that process on this machine: a rank, or the launcher of the ranks"
        add("-p", "--pid", type=_pid, metavar="PID", help=pid_help)
        add("--node", action="store_true", help="every rank on this machine")
        add("--cores", nargs="+", metavar="DIR|FILE", help="core dumps, or folders of them")
        add("--recordings", nargs="+", metavar="FILE", help="recordings, or folders of them (*.rec)")
        add("--reports", nargs="+", metavar="FILE", help="JSON reports of one or many processes, or folders of them")
        hosts_help = "the ranks on these machines, by ClusterShell: node[1-16], @group; they need only Python"
        add("--hosts", metavar="NODESET", help=hosts_help)
        add("--slurm", metavar="JOBID[.STEP]", help="the ranks of that job, by srun --overlap")
        add("--kubernetes", metavar="SELECTOR", help="the ranks in pods with these labels, by kubectl exec")
        add = parser.add_argument_group("other machines").add_argument
        add("--worker", default="ssh", metavar="NAME", help="ClusterShell's worker: ssh (default), exec, rsh, pdsh")
        ssh_help = "for ClusterShell's ssh: '-p 2222 -i KEY' (default: its configuration)"
        add("--ssh-options", default="", metavar="OPTIONS", help=ssh_help)
        add("--fanout", type=_positive, default=64, metavar="N", help="machines at once (default: 64)")
        add("--namespace", default="", metavar="NAME", help="the namespace of the pods")
        add("--container", default="", metavar="NAME", help="the container in each pod")
        add("--python", default="python3", metavar="PROGRAM", help="the Python on the other machines")
        add("--show-commands", action="store_true", help="print the commands that would be run there, and exit")
        add = parser.add_argument
        job_help = "with --node and other machines: only ranks of that job (its run id, or HOST:PORT)"
        add("--job", metavar="ID", help=job_help)
        root_help = "with --cores: the root of the files the cores came from; / = this machine"
        add("--sysroot", default="", metavar="DIR", help=root_help)
        jobs_help = "processes to examine in parallel (default: %(default)s)"
        add("--jobs", type=_positive, default=max(2, os.cpu_count() or 1), metavar="N", help=jobs_help)
        ras_help = f"with -p and --node: also ask NCCL's RAS (default: the process's NCCL_RAS_ADDR, else {RAS})"
        add("--ras", nargs="?", const="", metavar="HOST:PORT", help=ras_help)
        time_help = "time limit for each process, each machine and the final analysis (default: %(default)g)"
        add(
            "--timeout", type=partial(budget.duration, option="--timeout"), default=TIMEOUT, metavar="S", help=time_help
        )
        memory_help = "memory gdbext may use for each process, and for all reports together (default: 1)"
        add("--memory-limit", type=_memory, default=budget.MEMORY, metavar="GB", dest="memory", help=memory_help)
        add("--help", "-h", action="store_true", help="show this text")
        add = parser.add_argument_group("output").add_argument
        json_help = "one JSON document (schema gdbext-ranks/1), which --reports also accepts"
        add("--json", action="store_true", help=json_help)
        add("--dot", metavar="FILE", help="also write the tree of stacks in graphviz's language")
        add("--html", metavar="FILE", help="also write a self-contained HTML page with everything")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Collect and judge. Raises UsageError, TargetError."""
        try:
            options = self.parse(argv)
        except HelpRequested as request:
            return Outcome(0, str(request))
        if options.ras is not None and options.pid is None and not options.node:
            raise UsageError("--ras asks a job that runs on this machine", help="use it with -p PID, or with --node")
        if options.show_commands:
            return Outcome(0, "".join(f"{line}\n" for line in other_machines.shown(options)))
        with budget.MemoryLimit(options.memory):
            examined = None  # each examination has a limit of its own
            if options.hosts or options.slurm or options.kubernetes:
                examined = other_machines.remote_rows(options)
            elif not options.reports:
                examined = rank_sources.local_rows(options)
            limit = max(options.timeout, TIMEOUT) if examined else options.timeout
            try:
                with budget.TimeLimit(limit):
                    report = judge(examined or rank_sources.report_rows(options.reports), options.pid)
                    report = report._replace(ras=_ras(options, report.reports))
                    if options.dot:
                        write(options.dot, ranks_views.render_dot(report).encode())
                    if options.html:
                        origin = origin_now("", os.uname().nodename, f"dispatch ranks {' '.join(map(quoted, argv))}")
                        write(options.html, ranks_views.render_page(report, origin).encode())
                    render = job_report.render_json if options.json else ranks_views.render
                    return Outcome(0 if report.reports else 1, render(report, color))
            except budget.TimeLimitExceeded:
                raise budget.time_error(
                    limit, "job", "give more time with --timeout SECONDS, or fewer reports"
                ) from None


def _pid(text: str) -> int:
    """Parse a pid for argparse, which shows an ArgumentTypeError to the user."""
    pid = number(text)
    if pid is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return pid


def _positive(text: str) -> int:
    """Parse a number from 1 to 65536, as _pid."""
    value = number(text) or 0
    if not 0 < value <= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 65536")
    return value


def _memory(text: str) -> int:
    """Parse gigabytes to bytes, as _pid."""
    try:
        return budget.memory_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.what) from error


RAS = "localhost:28028"
"""The address of RAS by default (NCCL_RAS_CLIENT_PORT)."""
_RAS_SECONDS, _RAS_BYTES, _RAS_LINES = 8, 1 << 20, 2000
"""Seconds, bytes and lines of an answer, at most: RAS itself waits five seconds for other processes."""


def ask_ras(address: str, users: Collection[int], seconds: float = _RAS_SECONDS) -> RasAnswer:
    """Ask the RAS that listens at HOST:PORT for the status of the job, within ``seconds``. On this machine any process
    can listen there: it is believed only if it belongs to one of ``users`` (uids), or to root."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((host.strip("[]"), integer(port)), timeout=1) as connection:
            greeting = _exchange(connection, b"CLIENT PROTOCOL 2\n", deadline, b"\n")
            if not greeting.startswith(b"SERVER PROTOCOL "):
                return RasAnswer(address, problem="the process that listens there is not NCCL's RAS")
            user = peer_user(connection)
            ends = (connection.getsockname(), connection.getpeername())
            own, other = (str(end[0]).rpartition("::ffff:")[2] for end in ends)
            if user is None and (other == own or other.startswith("127.")):  # both ends are on this machine
                return RasAnswer(
                    address, problem="the user of the process that answers there is unknown, so it is not trusted"
                )
            if user is not None and user not in (0, *users):
                problem = "a process of another user answers there, which can report anything about this job"
                return RasAnswer(address, problem=problem, user=user)
            _exchange(connection, b"TIMEOUT 5\n", deadline, b"\n")
            status = _exchange(connection, b"VERBOSE STATUS\n", deadline)
    except (OSError, ValueError, OverflowError) as error:
        return RasAnswer(address, problem=str(error))
    lines = status.decode("utf-8", "replace").split("\n")
    return RasAnswer(address, tuple(line.rstrip() for line in lines[:_RAS_LINES] if line.strip()), user=user)


def _exchange(connection: socket.socket, command: bytes, deadline: float, until: bytes = b"") -> bytes:
    """Send a command and read the answer up to ``until``, or to the end of the connection for b"". Raises OSError at
    ``deadline`` (monotonic), or if the answer is too long."""
    connection.sendall(command)
    data = b""
    while not until or until not in data:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _RAS_BYTES:
            raise TimeoutError("it did not finish in time")
        connection.settimeout(left)
        part = connection.recv(1 << 16)
        if not part:
            break
        data += part
    return data


def _ras(options: argparse.Namespace, reports: Collection[RankReport]) -> RasAnswer | None:
    """The answer of RAS if --ras is given. The address in a process's environment, which the process may have written,
    is used only for this machine."""
    if options.ras is None:
        return None
    ranks_users = {report.user for report in reports if report.user is not None}
    users = {os.geteuid(), *(ranks_users if len(ranks_users) == 1 else ())}
    if options.ras:
        return ask_ras(options.ras, users)
    environment: Mapping[str, str] = {}
    if options.pid is not None:
        with suppress(OSError):
            environment = parse_environ(supervision.read_proc_file(options.pid, "environ"))
    address = environment.get("NCCL_RAS_ADDR", "")
    if address and address.rpartition(":")[0].strip("[]") not in ("localhost", "127.0.0.1", "::1"):
        return RasAnswer(address, problem=f"NCCL_RAS_ADDR names another machine: confirm with --ras {quoted(address)}")
    return ask_ras(address or RAS, users)
