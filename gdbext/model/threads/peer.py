"""Peer: what is at the other end of a wait: a socket, a pipe, a lock of a file, a store."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.threads.child_process import ChildProcess


class PeerKind(Enum):
    """The value is the word of the JSON report."""

    SOCKET = "socket"
    PIPE = "pipe"
    FILE_LOCK = "file-lock"
    FILE = "file"
    PROCESS = "process"
    STORE = "store"
    RANK = "rank"


class Peer(Record):
    """The other end, as far as it is known."""

    kind: PeerKind
    text: str = ""
    """It in a sentence, behind the descriptor: ``whose other end is held by 77 (python)``; for people."""
    processes: tuple[ChildProcess, ...] = ()
    """Local processes there, the examined one not among them."""
    address: str = ""
    """Of a socket: ``127.0.0.1:29500``."""
    state: str = ""
    """Of a connection: ``ESTABLISHED``."""
    name: str = ""
    """The path of a file, the key of a store."""
    own: bool = False
    """Nobody has that end but the examined process itself."""
