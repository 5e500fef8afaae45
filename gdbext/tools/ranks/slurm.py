"""Ranks of a job of Slurm's: one more step of that job, with a task on each of its machines.

What another machine wrote, as rows: the document of its ranks, or why there is none.

The answers of many machines in one stream, as srun hands them on: each in short lines that say whose they are.

srun passes on whole lines of up to 1024 bytes (src/slurmd/slurmstepd/io.c of Slurm 22.05: MAX_MSG_LEN), and mixes the
pieces of longer ones. So an answer is compressed and cut into lines, ``gdbext NODE NUMBER/COUNT BASE64``, after a line
``gdbext-of NODES`` with all machines that were asked, as far as the environment says.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from gdbext.cache import located
from gdbext.engine.formats import MAX_BYTES, parse_json
from gdbext.engine.numbers import integer
from gdbext.errors import BadData
from gdbext.tools.ranks import ranks_document
from gdbext.tools.ranks.job_report import RankReports, Unreached, merge, rows
from gdbext.tools.ranks.report_shapes import FAILURE

SAID = 300
"""Characters that are shown of what a program said instead of an answer."""


def answer(where: str, output: bytes, status: int) -> RankReports:
    """The rows in what one machine wrote: a document on a line, among whatever its shell says."""
    if len(output) > MAX_BYTES:
        return rows(unreached=[Unreached(where, f"its answer has more than {MAX_BYTES} bytes")])
    found, documents = rows(), 0
    for line in output.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found = merge(found, rows(*_read(parse_json(line), where)))
            documents += 1
        except BadData as error:
            return rows(unreached=[Unreached(where, f"its answer cannot be read: {error.what}")])
    if documents:
        return found
    said = output.decode("utf-8", "replace").strip()[-SAID:]
    return rows(unreached=[Unreached(where, f"no report (status {status})" + (f": {said}" if said else ""))])


def _read(document: Any, where: str) -> tuple[list[Any], list[Unreached]]:
    """A document of ranks, or that of a failure: there is no rank on that machine."""
    if isinstance(document, dict) and document.get("errors"):
        FAILURE(document, where)
        error = document["errors"][0]
        return [], [Unreached(where, error["what"], error.get("help") or "")]
    reports, unreached = ranks_document.read_rows(document, where)
    return reports, [each._replace(where=f"{where}: {each.where}") for each in unreached]


_PIECE = 600
"""Bytes of a piece: 800 characters."""
_LARGEST = 64 << 20
"""Bytes of an answer, at most."""
MOST_OF_ALL = 256 << 20
"""Bytes of all answers together."""
_MACHINES = re.compile(rb"^gdbext-of (\S{1,500})\r?$", re.MULTILINE)
_LINE = re.compile(rb"gdbext (\S{1,100}) ([0-9]{1,7})/([0-9]{1,7}) ([A-Za-z0-9+/=]*)\r?")


def framed(node: str, answer: bytes) -> Iterator[bytes]:
    """The lines of one machine's answer."""
    packed = zlib.compress(answer, 9)
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    for number, piece in enumerate(pieces):
        yield b"gdbext %s %d/%d %s\n" % (node.encode(), number, len(pieces), base64.b64encode(piece))


def framed_answers(stream: bytes) -> dict[str, bytes | None]:
    """The answers by machine, None for one that is not whole. Other lines are left out."""
    pieces: dict[str, dict[int, bytes]] = {}
    counts: dict[str, int] = {}
    for match in filter(None, map(_LINE.fullmatch, stream.split(b"\n"))):
        node = match[1].decode("ascii", "replace")
        pieces.setdefault(node, {})[integer(match[2])] = match[4]
        counts[node] = integer(match[3])
    left = MOST_OF_ALL
    found: dict[str, bytes | None] = {}
    for node in sorted(pieces):
        answer = _together(pieces[node], counts[node], min(_LARGEST, left))
        left -= len(answer or b"")
        found[node] = answer
    return found


def machines_of(stream: bytes) -> str:
    """All machines that were asked, in Slurm's notation; "" where no answer says it."""
    match = _MACHINES.search(stream)
    return match[1].decode("ascii", "replace") if match else ""


def _together(pieces: dict[int, bytes], count: int, limit: int) -> bytes | None:
    if len(pieces) != count or max(pieces) >= count:
        return None
    try:
        packed = b"".join(base64.b64decode(pieces[number]) for number in range(count))
        inflater = zlib.decompressobj()
        answer = inflater.decompress(packed, max(limit, 1))
    except (binascii.Error, zlib.error):
        return None
    return answer if inflater.eof else None


def _node() -> str:
    """The name of this machine in Slurm, else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname() or "?"


if __name__ == "__main__":
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    if nodes:
        print("gdbext-of", nodes, flush=True)
    sys.stdout.buffer.writelines(framed(_node(), sys.stdin.buffer.read()))


_PATIENCE = 10.0
"""Seconds for scontrol, which asks nobody."""


def command(job: str, script: str) -> list[str]:
    """The command that runs beside what runs there, whatever it has reserved; standard input goes to all tasks. Without
    a terminal for the tasks, as ``--unbuffered`` would make one."""
    number = job.partition(".")[0]
    return ["srun", "--overlap", f"--jobid={number}", "--ntasks-per-node=1", "--input=all", "sh", "-c", script]


def answers(output: bytes, silent: str) -> RankReports:
    """The rows of all machines in what srun wrote. ``silent`` is why there is no answer of the others."""
    found = rows()
    answered = framed_answers(output)
    for node, text in sorted(answered.items()):
        here = rows(unreached=[Unreached(node, f"its answer was cut short; {silent}")]) if text is None else None
        found = merge(found, here or answer(node, text or b"", 0))
    if not answered:
        return rows(unreached=[Unreached("srun", silent)])
    missing = [node for node in _names(machines_of(output)) if node not in answered]
    return merge(found, rows(unreached=[Unreached(node, silent) for node in missing]))


def _names(nodes: str) -> Sequence[str]:
    """The machines in Slurm's notation (``node[1-3,7]``), each by its name."""
    if not nodes:
        return []
    try:
        words = ["scontrol", "show", "hostnames", nodes]
        done = subprocess.run(located(words), capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()
