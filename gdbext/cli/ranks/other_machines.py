"""Ranks on other machines: by ClusterShell, by Slurm's srun, by kubectl. Each machine merges its own ranks."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from gdbext.cli.ranks.archive import archive, script
from gdbext.errors import BadData, TargetError, UsageError
from gdbext.jobs.merge import Rows, merge, rows
from gdbext.model.job.rank_report import Unreached
from gdbext.render.json.documents import ranks_document

_MORE_SECONDS = 30.0
"""What a machine gets besides the time of its processes, to unpack the archive and to answer."""
_SAID = 300


def commands(options: argparse.Namespace) -> list[list[str]]:
    """What is run, for people to see. Raises TargetError."""
    if options.kubernetes:
        if options.show_commands:
            return [_pods_command(options), _kubectl_exec(options, "POD")]
        return [_kubectl_exec(options, pod) for pod in _pods(options)]
    if options.slurm:
        return [_srun(options)]
    how = ["-o", options.ssh_options] if options.ssh_options else []
    return [["clush", "--worker", options.worker, *how, "-w", options.hosts, remote_script(options)]]


def remote_script(options: argparse.Namespace) -> str:
    """The shell script for each machine."""
    words = ["ranks", "--node", "--json", "--timeout", f"{options.timeout:g}"]
    if options.job:
        words += ["--job", options.job]
    return script(words, options.python)


def remote_rows(options: argparse.Namespace) -> Rows:
    """The rows of all machines; those that do not answer are named. Raises TargetError."""
    if options.hosts:
        return _by_clustershell(options)
    found = rows()
    for words in commands(options):
        found = merge(found, _run(words, options))
    return found


def answer(where: str, output: bytes, status: int) -> Rows:
    """The rows in what one machine, or all of srun's, wrote: one document a line."""
    found, documents = rows(), 0
    for line in output.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found = merge(found, rows(*_read(json.loads(line), where)))
            documents += 1
        except (ValueError, BadData) as error:
            return rows(unreached=[Unreached(where, f"its answer cannot be read: {error}")])
    if documents:
        return found
    said = output.decode("utf-8", "replace").strip()[-_SAID:]
    return rows(unreached=[Unreached(where, f"no report (status {status})" + (f": {said}" if said else ""))])


def _read(document: Any, where: str) -> tuple[list[Any], list[Unreached]]:
    """A document of ranks, or that of a failure: there is no rank on that machine."""
    if isinstance(document, dict) and document.get("errors"):
        error = document["errors"][0]
        return [], [Unreached(where, str(error["what"]), str(error.get("help") or ""))]
    reports, unreached = ranks_document.read_rows(document, where)
    return reports, [each._replace(where=f"{where}: {each.where}") for each in unreached]


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


def _srun(options: argparse.Namespace) -> list[str]:
    """One task on each node of the job, beside what runs there; standard input goes to all of them."""
    job, _, step = options.slurm.partition(".")
    words = ["srun", "--overlap", f"--jobid={job}", "--ntasks-per-node=1", "--input=all", "--unbuffered"]
    options.job = options.job or (f"slurm {job}.{step}" if step else None)
    return [*words, "sh", "-c", remote_script(options)]


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
            why=(done.stderr.strip().splitlines() or ["kubectl found none"])[-1][:_SAID],
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
    except subprocess.TimeoutExpired:
        return rows(unreached=[Unreached(_where(words), f"no answer within {limit:g} s")])
    return answer(_where(words), done.stdout or done.stderr, done.returncode)


def _no_tool(name: str) -> TargetError:
    return TargetError(
        f"{name} is not on this machine, or does not answer",
        why="ranks of that scheduler are reached through its own tool",
        help=f"run it where {name} is, or see what it would run: --show-commands",
    )


def _where(words: Sequence[str]) -> str:
    """The pod, or srun."""
    return words[words.index("-i") + 1] if "-i" in words else words[0]


def shown(options: argparse.Namespace) -> Iterator[str]:
    """The command lines as a shell would take them, and how large the archive is that they get as input."""
    yield from (shlex.join(words) for words in commands(options))
    yield f"# standard input of each: the package as one archive, {len(archive())} bytes"
