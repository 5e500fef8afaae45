"""Turns the answers of other machines into rows; those of a Slurm job come through srun in one stream of lines.

srun passes on whole lines of up to 1024 bytes (src/slurmd/slurmstepd/io.c of Slurm 22.05: MAX_MSG_LEN), and mixes the
pieces of longer ones. So each machine runs this module as a program, which compresses its answer and cuts it into lines
``gdbext NUMBER/COUNT BASE64``. The sender is known by its connection: ``srun --label`` puts the task's number before
each line (write_labelled_message.c), and Slurm's controller names the machines, which have one task each, in order.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence

from gdbext.cache import program_command
from gdbext.diagnosis.report import json_report
from gdbext.engine.formats import MAX_BYTES, argument, parse_json
from gdbext.engine.numbers import integer
from gdbext.errors import BadData
from gdbext.tools.ranks import rank_report_reader
from gdbext.tools.ranks.job_report import RankReports, Unreached, merge, read_rows, rows

SAID = 300
"""Characters that are shown of what a program printed instead of an answer."""
_PIECE = 600
"""Compressed bytes in a line, which are 800 characters of it."""
_LARGEST = 64 << 20
"""Bytes of an answer, at most."""
MOST_OF_ALL = 256 << 20
"""Bytes of all answers together, at most."""
_LINE = re.compile(rb" *([0-9]{1,7}): gdbext ([0-9]{1,7}/[0-9]{1,7} [A-Za-z0-9+/=]*)\r?")
_LONGEST = 4096
"""Bytes of a line, at most; longer ones are not gdbext's."""


class FairShares:
    """Keeps lines of many senders in limited memory. If there are too many bytes, the sender with most of them loses
    all of its lines; so a sender that writes little keeps them, whatever others write."""

    def __init__(self, of_one: int, of_all: int) -> None:
        """``of_one``, ``of_all``: bytes of one sender and of all together, at most."""
        self._of_one, self._left = of_one, of_all
        self._lines: dict[str, list[tuple[str, bytes]]] = {}
        self._sizes: dict[str, int] = {}
        self.too_large: set[str] = set()

    def add(self, sender: str, line: bytes, stream: str = "") -> None:
        """Add a line of that sender, on one of its streams."""
        if sender in self.too_large:
            return
        size = len(line) + 64  # about what a stored line costs besides its own bytes
        self._lines.setdefault(sender, []).append((stream, line))
        self._sizes[sender] = self._sizes.get(sender, 0) + size
        self._left -= size
        if self._sizes[sender] > self._of_one:
            self._drop(sender)
        while self._left < 0:
            self._drop(max(self._sizes, key=lambda name: self._sizes[name]))

    def _drop(self, sender: str) -> None:
        self._left += self._sizes.pop(sender)
        del self._lines[sender]
        self.too_large.add(sender)

    def senders(self) -> list[str]:
        """All senders, including those that wrote too much."""
        return [*self._lines, *self.too_large]

    def lines(self, sender: str, stream: str = "") -> list[bytes]:
        """The sender's lines on that stream; [] for one that wrote too much."""
        return [line for name, line in self._lines.get(sender, ()) if name == stream]


def answer(where: str, output: bytes, status: int) -> RankReports:
    """The rows in the output of the machine ``where``: documents on a line each, among whatever its shell prints. Their
    host is that machine, whatever they say: else one could replace another's. ``status``: its program's exit status."""
    if len(output) > MAX_BYTES:
        return rows(unreached=[Unreached(where, f"its answer has more than {MAX_BYTES} bytes")])
    parts = []
    for line in output.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            document = parse_json(line)
            if isinstance(document, dict) and document.get("errors"):  # there is no rank on that machine
                row = rank_report_reader.failure(json_report.read(document, where), where)
                parts.append(rows(unreached=[row]))
            else:
                reports, unreached = read_rows(document, where)
                host = where.rpartition("/")[2]  # pod/NAME
                own = (report._replace(host=host) for report in reports)
                parts.append(rows(own, (row._replace(where=f"{where}: {row.where}") for row in unreached)))
        except BadData as error:
            return rows(unreached=[Unreached(where, f"its answer cannot be read: {error.what}")])
    said = output.decode("utf-8", "replace").strip()[-SAID:]
    silent = Unreached(where, f"no report (status {status})" + (f": {said}" if said else ""))
    return merge(*parts) if parts else rows(unreached=[silent])


def framed(answer: bytes) -> Iterator[bytes]:
    """This machine's answer, compressed and cut into lines ``gdbext NUMBER/COUNT BASE64``."""
    packed = zlib.compress(answer, 9)
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    for number, piece in enumerate(pieces):
        yield b"gdbext %d/%d %s\n" % (number, len(pieces), base64.b64encode(piece))


class LabelledAnswers:
    """Collects the answers in the output of ``srun --label``, which arrives in pieces; other lines are left out."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line that has not arrived whole
        self._is_long = False
        self._lines = FairShares(_LARGEST, MOST_OF_ALL)

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the output. A line that is longer than gdbext's is skipped, not stored."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            match = _LINE.fullmatch(line) if not self._is_long else None
            self._is_long = False
            if match:
                self._lines.add(str(integer(match[1])), match[2])
        if len(self._rest) > _LONGEST:
            self._rest, self._is_long = b"", True

    def by_task(self) -> dict[int, bytes | None]:
        """Number of a task → its answer, None if that is incomplete or too large."""
        whole = FairShares(_LARGEST, MOST_OF_ALL)
        for task in self._lines.senders():
            answer = _join_pieces(self._lines.lines(task))
            if answer is not None:
                whole.add(task, answer)
        return {integer(task): next(iter(whole.lines(task)), None) for task in self._lines.senders()}


def _join_pieces(lines: Sequence[bytes]) -> bytes | None:
    """The answer in lines ``NUMBER/COUNT BASE64``; None if it is incomplete, too large or damaged."""
    pieces: dict[int, bytes] = {}
    count = 0
    for line in lines:
        position, _, piece = line.partition(b" ")
        number, _, total = position.partition(b"/")
        pieces[integer(number)], count = piece, integer(total)
    if not pieces or len(pieces) != count or max(pieces) >= count:
        return None
    try:
        packed = b"".join(base64.b64decode(pieces[number]) for number in range(count))
        inflater = zlib.decompressobj()
        answer = inflater.decompress(packed, _LARGEST)
    except (binascii.Error, zlib.error):
        return None
    return answer if inflater.eof else None


def command(job: str, script: str) -> list[str]:
    """The srun command that runs ``script`` once on each machine of the job (``77``, or a step ``77.0``), whatever runs
    there and the job has reserved. Standard input goes to all tasks. The tasks have no terminal (``--unbuffered`` would
    make one). The exit of a task does not end the others."""
    number, _, _ = job.partition(".")
    options = ["--overlap", f"--jobid={number}", "--ntasks-per-node=1", "--distribution=block", "--label"]
    if names := _machines(number):  # a batch script's own SLURM_NTASKS, its number of ranks, would count otherwise
        options.append(f"--ntasks={len(names)}")
    return ["srun", *options, "--kill-on-bad-exit=0", "--wait=0", "--input=all", "sh", "-c", script]


def answers(output: LabelledAnswers, job: str, silent: str) -> RankReports:
    """The rows of all machines in srun's output. ``silent``: the reason why other machines did not answer."""
    answered = output.by_task()
    if not answered:
        return rows(unreached=[Unreached("srun", silent)])
    number, _, _ = job.partition(".")
    names = _machines(number)
    if max(answered) >= len(names):  # not the machines of that step: each is named by its task
        names = []
    unreached = [Unreached(name, silent) for task, name in enumerate(names) if task not in answered]
    if not names:
        unreached = [Unreached("squeue", f"it does not name the machines of job {number}: some may be missing")]
    parts = []
    for task, text in sorted(answered.items()):
        where = names[task] if names else f"task {task}"
        if text is None:
            unreached.append(Unreached(where, f"its answer was cut short; {silent}"))
        else:
            parts.append(answer(where, text, 0))
    return merge(*parts, rows(unreached=unreached))


def _machines(number: str) -> Sequence[str]:
    """The machines of that job in the order of its tasks, by Slurm's controller; [] if it does not say."""
    nodes = _output(["squeue", "--noheader", f"--jobs={number}", "--format=%N"]).split()
    try:
        return _output(["scontrol", "--", "show", "hostnames", argument(nodes[0])]).split() if len(nodes) == 1 else []
    except BadData:
        return []


def _output(words: Sequence[str]) -> str:
    """The output of a Slurm client; "" if it fails or does not answer within 10 s (squeue asks the controller)."""
    try:
        done = subprocess.run(program_command(words), capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.stdout.buffer.writelines(framed(sys.stdin.buffer.read()))
