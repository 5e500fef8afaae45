"""Memory that only the kernel has changed, by moving a thread to another processor, is the same memory."""

from __future__ import annotations

import os
import struct

import pytest

from gdbext.engine.targets.live.thread_motion import same_but_for_rseq

PROCESSORS = os.sysconf("SC_NPROCESSORS_CONF")
LAST = PROCESSORS - 1


def memory(cpu_start: int = 0, cpu: int = 0, critical: int = 0, flags: int = 0, node: int = 0, concurrency: int = 0):
    """A struct rseq, 32 bytes after the beginning."""
    return b"s" * 32 + struct.pack("<2IQ4I", cpu_start, cpu, critical, flags, node, concurrency, 0) + b"t" * 32


@pytest.mark.parametrize("later", [memory(), memory(concurrency=LAST), memory(LAST, LAST, node=LAST, concurrency=LAST)])
def test_a_thread_on_another_processor(later: bytes):
    assert same_but_for_rseq(memory(), later)
    assert same_but_for_rseq(memory()[8:], later[8:], 0x1008)


@pytest.mark.parametrize(
    "later",
    [
        memory(PROCESSORS, PROCESSORS),
        memory(1, 0),
        memory(critical=0x7000),
        memory(flags=1),
        memory()[:-1],
        b"r" + memory(LAST, LAST)[1:],
        memory(LAST, LAST)[:-1] + b"u",
    ],
)
def test_what_the_thread_itself_has_changed(later: bytes):
    assert not same_but_for_rseq(memory(), later)
    assert not LAST or not same_but_for_rseq(memory(), memory(LAST, LAST), 0x1010), "it stands at a multiple of 32"
