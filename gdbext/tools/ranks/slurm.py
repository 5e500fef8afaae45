"""Ranks of a job of Slurm's: one more step of that job, with a task on each of its machines.

What another machine wrote, as rows: the document of its ranks, or why there is none.

The answers of many machines in one stream, as srun hands them on: each in short lines.

srun passes on whole lines of up to 1024 bytes (src/slurmd/slurmstepd/io.c of Slurm 22.05: MAX_MSG_LEN), and mixes
the pieces of longer ones. So an answer is compressed and cut into lines, ``gdbext NUMBER/COUNT BASE64``. The sender is
never read in the text: ``srun --label`` puts the number of the task before each line (write_labelled_message.c), by the
connection that it came through, and Slurm's controller names the machines, of which each has one task, in their order.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from gdbext.cache import located
from gdbext.diagnosis.report import json_report
from gdbext.engine.formats import MAX_BYTES, argument, parse_json
from gdbext.engine.numbers import integer
from gdbext.errors import BadData
from gdbext.tools.ranks import rank_report_reader, ranks_document
from gdbext.tools.ranks.fair_shares import FairShares
from gdbext.tools.ranks.job_report import RankReports, Unreached, merge, rows

SAID = 300
"""Characters that are shown of what a program said instead of an answer."""


def answer(where: str, output: bytes, status: int) -> RankReports:
    """The rows in what one machine wrote: a document on a line, among whatever its shell says. They are of that
    machine, whatever they call it: else one could replace another's."""
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
        return [], [rank_report_reader.failure(json_report.read(document, where), where)]
    found = ranks_document.read_rows(document, where)
    host = where.rpartition("/")[2]  # pod/NAME
    reports = [each._replace(host=host) for each in found.reports]
    return reports, [each._replace(where=f"{where}: {each.where}") for each in found.unreached]


_PIECE = 600
"""Bytes of a piece: 800 characters."""
_LARGEST = 64 << 20
"""Bytes of an answer, at most."""
MOST_OF_ALL = 256 << 20
"""Bytes of all answers together."""
_LINE = re.compile(rb" *([0-9]{1,7}): gdbext ([0-9]{1,7}/[0-9]{1,7} [A-Za-z0-9+/=]*)\r?")
_LONGEST = 4096
"""Bytes of a line, at most; longer ones are none of ours."""


def framed(answer: bytes) -> Iterator[bytes]:
    """The lines of this machine's answer."""
    packed = zlib.compress(answer, 9)
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    for number, piece in enumerate(pieces):
        yield b"gdbext %d/%d %s\n" % (number, len(pieces), base64.b64encode(piece))


class LabelledAnswers:
    """The answers in the output of ``srun --label``, which comes in pieces. Lines that are no part of one are left
    out."""

    def __init__(self) -> None:
        self._begun = b""
        self._is_long = False
        self._lines = FairShares(_LARGEST, MOST_OF_ALL)

    def feed(self, piece: bytes) -> None:
        """The next piece of the output."""
        *lines, self._begun = (self._begun + piece).split(b"\n")
        for line in lines:
            match = _LINE.fullmatch(line) if not self._is_long else None
            self._is_long = False
            if match:
                self._lines.add(str(integer(match[1])), match[2])
        if len(self._begun) > _LONGEST:
            self._begun, self._is_long = b"", True

    def by_task(self) -> dict[int, bytes | None]:
        """The answers by the number of the task, None for one that is not whole or too large."""
        whole = FairShares(_LARGEST, MOST_OF_ALL)
        for task in self._lines.senders():
            answer = _together(self._lines.lines(task))
            if answer is not None:
                whole.add(task, answer)
        return {integer(task): next(iter(whole.lines(task)), None) for task in self._lines.senders()}


def _together(lines: Sequence[bytes]) -> bytes | None:
    pieces: dict[int, bytes] = {}
    count = 0
    for line in lines:
        place, _, piece = line.partition(b" ")
        number, _, of = place.partition(b"/")
        pieces[integer(number)], count = piece, integer(of)
    if not pieces or len(pieces) != count or max(pieces) >= count:
        return None
    try:
        packed = b"".join(base64.b64decode(pieces[number]) for number in range(count))
        inflater = zlib.decompressobj()
        answer = inflater.decompress(packed, _LARGEST)
    except (binascii.Error, zlib.error):
        return None
    return answer if inflater.eof else None


if __name__ == "__main__":
    sys.stdout.buffer.writelines(framed(sys.stdin.buffer.read()))


_PATIENCE = 10.0
"""Seconds for squeue, which asks the controller, and for scontrol, which asks nobody."""


def command(job: str, script: str) -> list[str]:
    """The command that runs beside what runs there, whatever it has reserved; standard input goes to all tasks. Without
    a terminal for the tasks, as ``--unbuffered`` would make one. No task ends the others by its own end."""
    how = ["--overlap", f"--jobid={_number(job)}", "--ntasks-per-node=1", "--distribution=block", "--label"]
    if names := _machines(job):  # a batch script's own SLURM_NTASKS, its number of ranks, would count otherwise
        how.append(f"--ntasks={len(names)}")
    return ["srun", *how, "--kill-on-bad-exit=0", "--wait=0", "--input=all", "sh", "-c", script]


def _number(job: str) -> str:
    return job.partition(".")[0]


def answers(said: LabelledAnswers, job: str, silent: str) -> RankReports:
    """The rows of all machines in what srun wrote. ``silent`` is why there is no answer of the others."""
    answered = said.by_task()
    if not answered:
        return rows(unreached=[Unreached("srun", silent)])
    names = _machines(job)
    if max(answered) >= len(names):  # not the machines of that step: each is called by its channel then
        names = []
    found = rows()
    for task, text in sorted(answered.items()):
        where = names[task] if names else f"task {task}"
        here = rows(unreached=[Unreached(where, f"its answer was cut short; {silent}")]) if text is None else None
        found = merge(found, here or answer(where, text or b"", 0))
    missing = [Unreached(name, silent) for task, name in enumerate(names) if task not in answered]
    if not names:
        missing = [Unreached("squeue", f"it does not name the machines of job {_number(job)}: some may be missing")]
    return merge(found, rows(unreached=missing))


def _machines(job: str) -> Sequence[str]:
    """The machines of the job in the order of its tasks, as Slurm's controller has them; none where it does not say."""
    nodes = _output(["squeue", "--noheader", f"--jobs={_number(job)}", "--format=%N"]).split()
    try:
        return _output(["scontrol", "--", "show", "hostnames", argument(nodes[0])]).split() if len(nodes) == 1 else []
    except BadData:
        return []


def _output(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(located(words), capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
