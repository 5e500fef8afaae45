"""Ranks on other machines: by ClusterShell, by Slurm's srun, by kubectl. Each machine merges its own ranks."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from gdbext.cli.ranks import slurm
from gdbext.cli.ranks.archive import archive, script
from gdbext.cli.ranks.remote_answer import SAID, answer
from gdbext.errors import TargetError, UsageError
from gdbext.jobs.merge import Rows, merge, rows
from gdbext.model.job.rank_report import Unreached

_MORE_SECONDS = 30.0
"""What a machine gets besides the time of its processes, to unpack the archive and to answer."""


def commands(options: argparse.Namespace) -> list[list[str]]:
    """What is run, for people to see. Raises TargetError."""
    if options.kubernetes:
        if options.show_commands:
            return [_pods_command(options), _kubectl_exec(options, "POD")]
        return [_kubectl_exec(options, pod) for pod in _pods(options)]
    if options.slurm:
        return [slurm.command(options.slurm, remote_script(options, framed=True))]
    how = ["-o", options.ssh_options] if options.ssh_options else []
    return [["clush", "--worker", options.worker, *how, "-w", options.hosts, remote_script(options)]]


def remote_script(options: argparse.Namespace, framed: bool = False) -> str:
    """The shell script for each machine."""
    words = ["ranks", "--node", "--json", "--timeout", f"{options.timeout:g}"]
    job = options.job or (f"slurm {options.slurm}" if options.slurm else None)
    if job:
        words += ["--job", job]
    return script(words, options.python, framed)


def remote_rows(options: argparse.Namespace) -> Rows:
    """The rows of all machines; those that do not answer are named. Raises TargetError."""
    if options.hosts:
        return _by_clustershell(options)
    found = rows()
    for words in commands(options):
        found = merge(found, _run(words, options))
    return found


def _by_clustershell(options: argparse.Namespace) -> Rows:
    task, nodes = _clustershell(options)
    limit = options.timeout + _MORE_SECONDS
    task.set_info("fanout", options.fanout)
    if options.ssh_options:
        task.set_info("ssh_options", options.ssh_options)
    task.set_default("stdout_msgtree", True)
    worker = task.shell(remote_script(options), nodes=nodes, timeout=limit, stderr=True)
    worker.write(archive())
    worker.set_write_eof()
    task.resume()
    found = rows()
    silent = {str(node) for node in task.iter_keys_timeout()}
    statuses = {str(node): status for status, group in task.iter_retcodes() for node in group}
    for node in map(str, nodes):
        if node in silent:
            found = merge(found, rows(unreached=[Unreached(node, f"no answer within {limit:g} s")]))
            continue
        output = bytes(worker.node_buffer(node) or b"") or bytes(worker.node_error(node) or b"")
        found = merge(found, answer(node, output, statuses.get(node, 0)))
    return found


def _clustershell(options: argparse.Namespace) -> tuple[Any, Any]:
    """Its task and the set of nodes. Raises TargetError, UsageError."""
    import site
    import sys
    from importlib import import_module

    if sys.flags.no_site:
        site.main()  # scripts/dispatch starts without site-packages, where ClusterShell is
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException
        from ClusterShell.Task import task_self
    except ImportError as error:
        raise TargetError(
            "ClusterShell is missing: it runs commands on many machines",
            why=f"{sys.executable} has no module ClusterShell",
            help="pip install ClusterShell (or apt-get install python3-clustershell); GDBEXT_PYTHON names the Python "
            "that has it. Without: dispatch ranks --node --json on each machine, then ranks --reports on the files",
        ) from error
    try:
        nodes = NodeSet(options.hosts)
    except NodeSetException as error:
        what = f"--hosts: {options.hosts!r} is not a set of nodes: {error}"
        raise UsageError(what, help="node[1-16], @group") from error
    task = task_self()
    try:
        kind = import_module(f"ClusterShell.Worker.{options.worker.capitalize()}")
        task.set_default("distant_worker", kind.WORKER_CLASS)
    except (ImportError, AttributeError) as error:
        what = f"--worker: ClusterShell has no worker {options.worker!r}"
        raise UsageError(what, help="ssh, exec, rsh, pdsh") from error
    return task, nodes


def _pods_command(options: argparse.Namespace) -> list[str]:
    return ["kubectl", *_namespace(options), "get", "pods", "-l", options.kubernetes, "-o", "name"]


def _pods(options: argparse.Namespace) -> list[str]:
    """The names of the pods. Raises TargetError."""
    words = _pods_command(options)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=options.timeout, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise _no_tool(words[0]) from error
    found = done.stdout.split()
    if not found:
        raise TargetError(
            f"no pod has the labels {options.kubernetes}",
            why=(done.stderr.strip().splitlines() or ["kubectl found none"])[-1][:SAID],
            help=f"try it by hand: {shlex.join(words)}",
        )
    return found


def _kubectl_exec(options: argparse.Namespace, pod: str) -> list[str]:
    container = ["-c", options.container] if options.container else []
    return ["kubectl", *_namespace(options), "exec", "-i", pod, *container, "--", "sh", "-c", remote_script(options)]


def _namespace(options: argparse.Namespace) -> list[str]:
    return ["-n", options.namespace] if options.namespace else []


def _run(words: Sequence[str], options: argparse.Namespace) -> Rows:
    limit = options.timeout + _MORE_SECONDS
    try:
        done = subprocess.run(words, input=archive(), capture_output=True, timeout=limit, check=False)
    except FileNotFoundError:
        raise _no_tool(words[0]) from None
    except subprocess.TimeoutExpired as error:
        silent = f"no answer within {limit:g} s"
        if options.slurm:
            return slurm.answers(error.stdout or b"", silent)
        return rows(unreached=[Unreached(_pod(words), silent)])
    if options.slurm:
        said = done.stderr.decode("utf-8", "replace").strip()[-SAID:]
        return slurm.answers(done.stdout, f"no report (status {done.returncode})" + (f": {said}" if said else ""))
    return answer(_pod(words), done.stdout or done.stderr, done.returncode)


def _no_tool(name: str) -> TargetError:
    return TargetError(
        f"{name} is not on this machine, or does not answer",
        why="ranks of that scheduler are reached through its own tool",
        help=f"run it where {name} is, or see what it would run: --show-commands",
    )


def _pod(words: Sequence[str]) -> str:
    """The name of the pod in the command line of its kubectl exec."""
    return words[words.index("-i") + 1]


def shown(options: argparse.Namespace) -> Iterator[str]:
    """The command lines as a shell would take them, and how large the archive is that they get as input."""
    yield from (shlex.join(words) for words in commands(options))
    yield f"# standard input of each: the package as one archive, {len(archive())} bytes"
