"""Examines ranks on other machines, by ClusterShell, Slurm's srun or kubectl: each machine merges its own ranks.

Nothing is installed there: the package is sent as one archive through standard input and unpacked into a temporary
folder, which also serves as the user's cache and is removed however the script ends.
"""

from __future__ import annotations

import argparse
import io
import os
import selectors
import shlex
import site
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

from gdbext.cache import program_command
from gdbext.engine.formats import MAX_BYTES, argument
from gdbext.errors import TargetError, UsageError
from gdbext.tools.ranks import slurm
from gdbext.tools.ranks.job_report import RankReports, Unreached, merge, rows
from gdbext.tools.ranks.slurm import MOST_OF_ALL, SAID, FairShares, answer

_PIECE = 1 << 16
_MORE_SECONDS = 30.0
"""Seconds that a machine gets in addition to --timeout, to unpack the archive and to answer."""
_SCRIPT = """\
export GDBEXT_LOOKS=1; d=$(mktemp -d) || exit 1; trap 'rm -rf "$d"' EXIT; trap 'exit 1' HUP INT TERM
cat >"$d/gdbext.zip" && {python} -I -m zipfile -e "$d/gdbext.zip" "$d" || exit 1
XDG_CACHE_HOME="$d" {python} -I -S -B -c {code} "$d" gdbext {words}"""
_FRAMED = ' | {python} -I -S -B -c {code} "$d" gdbext.tools.ranks.slurm'
_CODE = """\
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
"""Isolated: only modules of Python's and ours are imported, whatever lies in the folder where a scheduler starts it."""


class ProgramOutput(NamedTuple):
    """Standard output and the end of standard error; ``problem`` says why they are incomplete, "" if not."""

    output: bytes
    errors: bytes
    status: int
    problem: str = ""


def run(
    words: Sequence[str], given: bytes, seconds: float, take: Callable[[bytes], None] | None = None
) -> ProgramOutput:
    """Run a program that gets ``given`` as standard input. ``take``, if given, receives the pieces of standard output,
    which are then unlimited and not in the result. Raises OSError if the program cannot be started."""
    process = subprocess.Popen(
        program_command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + seconds
    pipes = _Pipes(process, given, take)
    with process:
        try:
            problem = pipes.serve(deadline)
            if not problem:
                process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            problem = f"no answer within {seconds:g} s"
        finally:
            status = process.poll() or 0
            process.kill()
    return ProgramOutput(bytes(pipes.output), bytes(pipes.errors), status, problem)


class _Pipes:
    """Serves the three pipes of a program at once: with one after the other, both sides could block."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes, take: Callable[[bytes], None] | None) -> None:
        """``given`` and ``take`` as of run()."""
        self._process = process
        self._given = memoryview(given)
        self.output, self.errors = bytearray(), bytearray()
        self._take = take or self.output.extend

    def serve(self, deadline: float) -> str:
        """Move data until all pipes are closed, which returns "", or there is too much, which returns the reason.
        Raises TimeoutError at ``deadline`` (monotonic)."""
        process = self._process
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with selectors.DefaultSelector() as pipes:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
            pipes.register(process.stdout, selectors.EVENT_READ)
            pipes.register(process.stderr, selectors.EVENT_READ)
            while pipes.get_map():
                left = deadline - time.monotonic()
                ready = pipes.select(left) if left > 0 else []
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if not self._move(key.fileobj):  # type: ignore[arg-type]
                        pipes.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                if len(self.output) > MAX_BYTES:
                    return f"its answer has more than {MAX_BYTES} bytes"
        return ""

    def _move(self, stream: IO[bytes]) -> bool:
        """Move a piece of data through one pipe; False if it was the last one."""
        if stream is self._process.stdin:
            try:
                self._given = self._given[os.write(stream.fileno(), self._given[:_PIECE]) :]
            except BrokenPipeError:
                return False
            return bool(self._given)
        piece = os.read(stream.fileno(), _PIECE)
        if stream is self._process.stdout:
            self._take(piece)
        else:
            self.errors = (self.errors + piece)[-_PIECE:]
        return bool(piece)


def archive() -> bytes:
    """A ZIP file of this package: Python modules and JSON data, without __pycache__."""
    package = Path(__file__).resolve().parents[2]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(package.rglob("*")):
            if path.suffix in (".py", ".json") and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(package.parent).as_posix())
    return stream.getvalue()


def script(words: Sequence[str], python: str, framed: bool = False) -> str:
    """The shell script that runs gdbext with ``words`` on another machine; its standard input is the archive.
    ``framed``: its output is lines that can be told apart from other machines' in one stream (slurm.py)."""
    python, code = shlex.quote(python), shlex.quote(_CODE)
    text = _SCRIPT.format(python=python, code=code, words=shlex.join(words))
    return text + _FRAMED.format(python=python, code=code) if framed else text


def remote_script(options: argparse.Namespace, framed: bool = False) -> str:
    """The script that examines the ranks of one machine."""
    words = ["ranks", "--node", "--json", "--timeout", f"{options.timeout:g}"]
    job = options.job or (f"slurm {options.slurm}" if options.slurm else None)
    return script([*words, "--job", job] if job else words, options.python, framed)


def shown(options: argparse.Namespace) -> Iterator[str]:
    """The lines of --show-commands: each command for a shell, and the size of the archive, its standard input."""
    yield from (shlex.join(words) for words in _commands(options))
    yield f"# standard input of each: the package as one archive, {len(archive())} bytes"


def _commands(options: argparse.Namespace) -> list[list[str]]:
    """The commands to run; with --show-commands, examples of them for people. Raises TargetError."""
    if options.kubernetes:
        if options.show_commands:
            return [_pods_command(options), _kubectl_exec(options, "POD")]
        return [_kubectl_exec(options, pod) for pod in _pods(options)]
    if options.slurm:
        return [slurm.command(options.slurm, remote_script(options, framed=True))]
    ssh_options = ["-o", options.ssh_options] if options.ssh_options else []
    return [["clush", "--worker", options.worker, *ssh_options, "-w", options.hosts, remote_script(options)]]


def remote_rows(options: argparse.Namespace) -> RankReports:
    """The rows of all machines, with the machines that do not answer. Raises TargetError."""
    if options.hosts:
        return _by_clustershell(options)
    if options.kubernetes:
        return merge(*(_run(_kubectl_exec(options, pod), options, pod) for pod in _pods(options)))
    return merge(*(_run(words, options) for words in _commands(options)))


def _by_clustershell(options: argparse.Namespace) -> RankReports:
    """The rows of the machines in --hosts. Raises TargetError, UsageError."""
    task, nodes = _clustershell(options)
    limit = options.timeout + _MORE_SECONDS
    task.set_info("fanout", options.fanout)
    if options.ssh_options:
        task.set_info("ssh_options", options.ssh_options)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    handler = _LineHandler(MAX_BYTES, MOST_OF_ALL)
    worker = task.shell(remote_script(options), nodes=nodes, handler=handler, timeout=limit, stderr=True)
    worker.write(archive())
    worker.set_write_eof()
    task.resume()
    silent = {str(node) for node in task.iter_keys_timeout()}
    statuses = {str(node): status for status, group in task.iter_retcodes() for node in group}

    def rows_of(node: str) -> RankReports:
        """The rows of one machine, or why it gave none."""
        if node in silent:
            return rows(unreached=[Unreached(node, f"no answer within {limit:g} s")])
        if node in handler.too_large:
            return rows(unreached=[Unreached(node, "its answer is too large")])
        lines = handler.lines(node, "stdout") or handler.lines(node, "stderr")
        return answer(node, b"\n".join(lines), statuses.get(node, 0))

    return merge(*map(rows_of, map(str, nodes)))


class _LineHandler(FairShares):
    """Keeps the lines of each machine. ClusterShell calls the method ``ev_NAME`` for each of its events."""

    def ev_read(self, _worker: Any, node: Any, stream: str, line: Any) -> None:
        """A machine wrote a line to ``stream``: "stdout" or "stderr"."""
        self.add(str(node), bytes(line), stream)

    def __getattr__(self, name: str) -> Any:
        """Ignore the other events that ClusterShell reports."""
        if name.startswith("ev_"):
            return lambda *_: None
        raise AttributeError(name)


def _clustershell(options: argparse.Namespace) -> tuple[Any, Any]:
    """(ClusterShell's task, its set of nodes). Raises TargetError, UsageError."""
    if sys.flags.no_site:
        site.main()  # scripts/dispatch starts without site-packages, where ClusterShell is
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException  # it may be missing
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


def _kubectl(options: argparse.Namespace) -> list[str]:
    return ["kubectl", *(["-n", options.namespace] if options.namespace else [])]


def _pods_command(options: argparse.Namespace) -> list[str]:
    return [*_kubectl(options), "get", "pods", "-l", options.kubernetes, "-o", "name"]


def _pods(options: argparse.Namespace) -> list[str]:
    """The pods with the labels of --kubernetes, as ``pod/NAME``. Raises TargetError."""
    words = _pods_command(options)
    try:
        done = subprocess.run(
            program_command(words), capture_output=True, text=True, timeout=options.timeout, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise _missing_tool(words[0]) from error
    pods = [argument(name) for name in done.stdout.split()]
    if not pods:
        raise TargetError(
            f"no pod has the labels {options.kubernetes}",
            why=(done.stderr.strip().splitlines() or ["kubectl found none"])[-1][:SAID],
            help=f"try it by hand: {shlex.join(words)}",
        )
    return pods


def _kubectl_exec(options: argparse.Namespace, pod: str) -> list[str]:
    container = ["-c", options.container] if options.container else []
    return [*_kubectl(options), "exec", "-i", pod, *container, "--", "sh", "-c", remote_script(options)]


def _run(words: Sequence[str], options: argparse.Namespace, pod: str = "") -> RankReports:
    """Run srun, or kubectl exec for one ``pod``, and read the rows in its output. Raises TargetError."""
    labelled = None if pod else slurm.LabelledAnswers()
    try:
        program = run(words, archive(), options.timeout + _MORE_SECONDS, labelled.feed if labelled else None)
    except FileNotFoundError:
        raise _missing_tool(words[0]) from None
    if labelled:
        error = program.errors.decode("utf-8", "replace").strip()[-SAID:]
        why = program.problem or f"no report (status {program.status})" + (f": {error}" if error else "")
        return slurm.answers(labelled, options.slurm, why)
    if program.problem:
        return rows(unreached=[Unreached(pod, program.problem)])
    return answer(pod, program.output or program.errors, program.status)


def _missing_tool(name: str) -> TargetError:
    """The error for a scheduler's client that cannot be run."""
    return TargetError(
        f"{name} is not installed on this machine, or does not answer",
        why="ranks of that scheduler are reached through its own tool",
        help=f"run this where {name} is, or see what would be run: --show-commands",
    )
