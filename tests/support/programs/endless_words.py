"""A process that makes its own command line and environment as long as it likes: PR_SET_MM_MAP needs no privilege."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.programs.harness import ready

SIZE = 64 << 30

_PROGRAM = r"""
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size, private, no_reserve = SIZE, 2, 0x4000
words = libc.mmap(None, size, mmap.PROT_READ, private | mmap.MAP_ANONYMOUS | no_reserve, -1, 0)
for path in sys.argv[1:]:  # a library as code, and room around it
    file = os.open(path, os.O_RDONLY)
    libc.mmap(None, os.fstat(file).st_size, mmap.PROT_READ | mmap.PROT_EXEC, private, file, 0)
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
field = lambda number: int(stat[number - 3])
numbers = [field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28)]
made = struct.pack("<12QII", *numbers, words, words + size, words, words + size, 0, 0, 0xFFFFFFFF)
if libc.prctl(35, 14, ctypes.c_char_p(made), ctypes.c_ulong(len(made)), 0):
    raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def endless(files: Sequence[Path] = (), user: int | None = None) -> Iterator[int]:
    """The pid of a process whose ``cmdline`` and ``environ`` have 64 GB each, with these files mapped as code."""
    python = sys.executable if user is None else "/usr/bin/python3"  # ours may lie in a folder of root alone
    command = [python, "-c", _PROGRAM.replace("SIZE", str(SIZE)), *map(str, files)]
    with ready(command, user=user) as process:
        yield process.pid
