"""Ranks on other machines: by ClusterShell, by Slurm's srun, by kubectl. Each machine merges its own ranks.

The package as one archive that travels to another machine, and the shell script that runs it there.

Nothing is installed there and nothing stays: the archive comes through standard input, is unpacked into a temporary
folder, which also takes the place of the user's cache, and goes with it, however the script ends.

Runs a program that speaks with other machines, and takes only so much of what it says.
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

from gdbext.cache import located
from gdbext.engine.formats import MAX_BYTES, argument
from gdbext.errors import TargetError, UsageError
from gdbext.tools.ranks import slurm
from gdbext.tools.ranks.fair_shares import FairShares
from gdbext.tools.ranks.job_report import RankReports, Unreached, merge, rows
from gdbext.tools.ranks.slurm import MOST_OF_ALL, SAID, answer

_PIECE = 1 << 16
_SAID = 1 << 16
"""Bytes of standard error that are kept, the last ones."""


class ProgramOutput(NamedTuple):
    """The output of a program, and how it ended; ``problem`` says why there is not more of it, "" where it is whole."""

    output: bytes
    errors: bytes
    status: int
    problem: str = ""


def run(
    words: Sequence[str], given: bytes, seconds: float, take: Callable[[bytes], None] | None = None
) -> ProgramOutput:
    """The answer of the program, which gets ``given`` as standard input. ``take`` gets its pieces instead, without a
    limit. Raises OSError where it cannot be started."""
    process = subprocess.Popen(located(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            return _Conversation(process, given, take).until(time.monotonic() + seconds, seconds)
        finally:
            process.kill()


class _Conversation:
    """All three pipes at once: a program that waits for us while we wait for it would never end."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes, take: Callable[[bytes], None] | None) -> None:
        self._process = process
        self._given = memoryview(given)
        self._output, self._errors = bytearray(), bytearray()
        self._take = take or self._output.extend

    def until(self, deadline: float, seconds: float) -> ProgramOutput:
        """The output that came until then."""
        with selectors.DefaultSelector() as pipes:
            for stream, event in (
                (self._process.stdin, selectors.EVENT_WRITE),
                (self._process.stdout, selectors.EVENT_READ),
                (self._process.stderr, selectors.EVENT_READ),
            ):
                assert stream
                pipes.register(stream, event)
            while pipes.get_map():
                left = deadline - time.monotonic()
                ready = pipes.select(left) if left > 0 else []
                if not ready:
                    return self._answer(f"no answer within {seconds:g} s")
                for key, _ in ready:
                    if not self._move(key.fileobj):  # type: ignore[arg-type]
                        pipes.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                if len(self._output) > MAX_BYTES:
                    return self._answer(f"its answer has more than {MAX_BYTES} bytes")
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self._answer(f"no answer within {seconds:g} s")
        return self._answer()

    def _move(self, stream: IO[bytes]) -> bool:
        """A piece through that pipe; False where nothing more comes."""
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
            self._errors = (self._errors + piece)[-_SAID:]
        return bool(piece)

    def _answer(self, problem: str = "") -> ProgramOutput:
        return ProgramOutput(bytes(self._output), bytes(self._errors), self._process.poll() or 0, problem)


_PACKAGE = Path(__file__).resolve().parents[2]
_KINDS = (".py", ".json", ".cpp", ".h", ".hpp")

_SCRIPT = """\
export GDBEXT_LOOKS=1; d=$(mktemp -d) || exit 1; trap 'rm -rf "$d"' EXIT; trap 'exit 1' HUP INT TERM
cat >"$d/gdbext.zip" && {python} -I -m zipfile -e "$d/gdbext.zip" "$d" || exit 1
XDG_CACHE_HOME="$d" {python} -I -S -B -c {code} "$d" gdbext {words}"""
_FRAMED = ' | {python} -I -S -B -c {code} "$d" gdbext.tools.ranks.slurm'
_CODE = """\
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
"""Isolated: what is imported is Python's own or ours, whatever lies in the folder where a scheduler starts it."""


def archive() -> bytes:
    """A ZIP file of the package: modules and data, nothing that was compiled or left behind."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix in _KINDS and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(_PACKAGE.parent).as_posix())
    return stream.getvalue()


def script(words: Sequence[str], python: str, framed: bool = False) -> str:
    """The script for a shell on the other machine; the archive is its standard input. ``framed``: its output can be
    told from that of others in one stream (collector.py)."""
    python, code = shlex.quote(python), shlex.quote(_CODE)
    text = _SCRIPT.format(python=python, code=code, words=shlex.join(words))
    return text + _FRAMED.format(python=python, code=code) if framed else text


_MORE_SECONDS = 30.0
"""Seconds that a machine gets besides the time of its processes, to unpack the archive and to answer."""


def commands(options: argparse.Namespace) -> list[list[str]]:
    """The commands that are run, for people to see. Raises TargetError."""
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


def remote_rows(options: argparse.Namespace) -> RankReports:
    """The rows of all machines; those that do not answer are named. Raises TargetError."""
    if options.hosts:
        return _by_clustershell(options)
    found = rows()
    for words in commands(options):
        found = merge(found, _run(words, options))
    return found


def _by_clustershell(options: argparse.Namespace) -> RankReports:
    task, nodes = _clustershell(options)
    limit = options.timeout + _MORE_SECONDS
    task.set_info("fanout", options.fanout)
    if options.ssh_options:
        task.set_info("ssh_options", options.ssh_options)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    heard = _Heard(MAX_BYTES, MOST_OF_ALL)
    worker = task.shell(remote_script(options), nodes=nodes, handler=heard, timeout=limit, stderr=True)
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
        if node in heard.too_large:
            found = merge(found, rows(unreached=[Unreached(node, "its answer is larger than all that is taken")]))
            continue
        output = heard.lines_of(node, "stdout") or heard.lines_of(node, "stderr")
        found = merge(found, answer(node, output, statuses.get(node, 0)))
    return found


class _Heard(FairShares):
    """The lines that machines write, as ClusterShell tells a handler: by the machine that its connection leads to."""

    def ev_read(self, _worker: Any, node: Any, stream: str, line: Any) -> None:
        """A line of one machine."""
        self.add(str(node), bytes(line), stream)

    def lines_of(self, node: str, stream: str) -> bytes:
        """All lines of a machine's standard output or standard error."""
        return b"\n".join(self.lines(node, stream))

    def __getattr__(self, name: str) -> Any:
        """ClusterShell calls a handler for much else."""
        if name.startswith("ev_"):
            return lambda *_: None
        raise AttributeError(name)


def _clustershell(options: argparse.Namespace) -> tuple[Any, Any]:
    """Its task and the set of nodes. Raises TargetError, UsageError."""
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


def _pods_command(options: argparse.Namespace) -> list[str]:
    return ["kubectl", *_namespace(options), "get", "pods", "-l", options.kubernetes, "-o", "name"]


def _pods(options: argparse.Namespace) -> list[str]:
    """The names of the pods. Raises TargetError."""
    words = _pods_command(options)
    try:
        done = subprocess.run(located(words), capture_output=True, text=True, timeout=options.timeout, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise _no_tool(words[0]) from error
    found = [argument(name) for name in done.stdout.split()]
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


def _run(words: Sequence[str], options: argparse.Namespace) -> RankReports:
    limit = options.timeout + _MORE_SECONDS
    labelled = slurm.LabelledAnswers() if options.slurm else None
    try:
        done = run(words, archive(), limit, labelled.feed if labelled else None)
    except FileNotFoundError:
        raise _no_tool(words[0]) from None
    if labelled:
        said = done.errors.decode("utf-8", "replace").strip()[-SAID:]
        why = done.problem or f"no report (status {done.status})" + (f": {said}" if said else "")
        return slurm.answers(labelled, options.slurm, why)
    if done.problem:
        return rows(unreached=[Unreached(_pod(words), done.problem)])
    return answer(_pod(words), done.output or done.errors, done.status)


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
