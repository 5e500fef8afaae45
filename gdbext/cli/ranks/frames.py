"""The answers of many machines in one stream, as srun hands them on: each in short lines that say whose they are.

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
import sys
import zlib
from collections.abc import Iterator

_PIECE = 600
"""Bytes of a piece: 800 characters."""
_LARGEST = 64 << 20
"""Bytes of an answer, at most."""
_MACHINES = re.compile(rb"^gdbext-of (\S{1,500})\r?$", re.MULTILINE)
_LINE = re.compile(rb"gdbext (\S{1,100}) ([0-9]{1,7})/([0-9]{1,7}) ([A-Za-z0-9+/=]*)\r?")


def framed(node: str, answer: bytes) -> Iterator[bytes]:
    """The lines of one machine's answer."""
    packed = zlib.compress(answer, 9)
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    for number, piece in enumerate(pieces):
        yield b"gdbext %s %d/%d %s\n" % (node.encode(), number, len(pieces), base64.b64encode(piece))


def answers(stream: bytes) -> dict[str, bytes | None]:
    """By machine its answer, None for one that is not whole. Other lines are left out."""
    pieces: dict[str, dict[int, bytes]] = {}
    counts: dict[str, int] = {}
    for match in filter(None, map(_LINE.fullmatch, stream.split(b"\n"))):
        node = match[1].decode("ascii", "replace")
        pieces.setdefault(node, {})[int(match[2])] = match[4]
        counts[node] = int(match[3])
    return {node: _together(found, counts[node]) for node, found in pieces.items()}


def machines_of(stream: bytes) -> str:
    """All machines that were asked, in Slurm's notation; "" where no answer says it."""
    match = _MACHINES.search(stream)
    return match[1].decode("ascii", "replace") if match else ""


def _together(pieces: dict[int, bytes], count: int) -> bytes | None:
    if len(pieces) != count or max(pieces) >= count:
        return None
    try:
        packed = b"".join(base64.b64decode(pieces[number]) for number in range(count))
        inflater = zlib.decompressobj()
        answer = inflater.decompress(packed, _LARGEST)
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
