"""A thread and its process."""

from __future__ import annotations

import struct

from gdbext.diagnosis.report.wait import OwnerThread
from support.programs.wait_processes import DATA, MUTEX_STACK, PRIVATE, TLS, Process, mutex, pages, wait_of


def test_tids_of_another_pid_namespace_are_translated():
    """The process calls its threads 7 and 8, the debugger calls them 1007 and 1008."""
    process = Process({DATA: mutex(owner=8)}).thread(1007, MUTEX_STACK, args=(DATA, PRIVATE, 2)).thread(1008, [])
    for outer, inner in ((1007, 7), (1008, 8)):
        process.target.regions[TLS + outer * 0x1000] = pages(bytes(0x2D0) + struct.pack("<I", inner))
    assert wait_of(process).owner == OwnerThread(1008)
