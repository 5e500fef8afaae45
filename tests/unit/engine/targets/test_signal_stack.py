"""The stack on which a debugger's Python handles signals has room for all of them at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.programs.harness import ROOT
from support.programs.signal_burst import BURST

SMALL_STACK = """
import ctypes, resource, struct
from gdbext.engine.targets.system.linux import enlarge_signal_stack
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
small = ctypes.create_string_buffer(16384)
stack = struct.pack("PiN", ctypes.addressof(small), 0, len(small))
assert ctypes.CDLL(None).sigaltstack(stack, None) == 0
"""
"""A process with an alternate signal stack as a debugger makes it: SIGSTKSZ of aarch64, twice that of x86_64."""


@pytest.mark.parametrize(
    ("then", "ended"), [("", -signal.SIGSEGV), ("enlarge_signal_stack(); enlarge_signal_stack()", 0)]
)
def test_signals_that_come_at_once(then: str, ended: int) -> None:
    words = [sys.executable, "-c", "\n".join((SMALL_STACK, then, BURST))]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == ended, done.stderr


def test_without_such_a_stack_there_is_none() -> None:
    """Handlers then run on the ordinary stack."""
    code = (
        "import ctypes, struct\nfrom gdbext.engine.targets.system.linux import enlarge_signal_stack\n"
        "off, now = struct.pack('PiN', 0, 2, 0), ctypes.create_string_buffer(24)\n"
        "sigaltstack = ctypes.CDLL(None).sigaltstack\n"
        "assert sigaltstack(off, None) == 0\nenlarge_signal_stack()\nassert sigaltstack(None, now) == 0\n"
        "assert struct.unpack('PiN', now.raw)[1] == 2\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
