"""condvar-lost: a kernel waits on a condition variable that nobody will signal. Argument: ``unboxed`` or ``boxed``."""

from __future__ import annotations

import ctypes
import sys

import native_library
import torch
import truth

kind = sys.argv[1] if len(sys.argv) > 1 else "unboxed"
native_library.load_operators("operators")
native = native_library.load("operators")
native.lost_condvar_address.restype = native.lost_mutex_address.restype = ctypes.c_void_p
operator = getattr(torch.ops.gdbext_test, f"wait_{kind}").default
x = torch.ones(2)
truth.thread("main", waits="futex")
truth.note(
    verdict="blocked",
    op=f"gdbext_test::wait_{kind}",
    key="CPU",
    condvar=truth.hexadecimal(native.lost_condvar_address()),
    mutex=truth.hexadecimal(native.lost_mutex_address()),
)
truth.stage()
operator(x, True)
