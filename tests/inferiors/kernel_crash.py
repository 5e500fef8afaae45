"""kernel-crash: SIGSEGV inside a custom C++ kernel. Argument: the address that it writes to (default 0x10)."""

from __future__ import annotations

import sys

import native_library
import torch
import truth

address = int(sys.argv[1], 0) if len(sys.argv) > 1 else 0x10
native_library.load_operators("operators")
operator = torch.ops.gdbext_test.crash.default
x = torch.ones(2)
truth.thread("main", waits=None)
truth.note(verdict="crash", op="gdbext_test::crash", key="CPU", stage="in-kernel")
truth.note(signal="SIGSEGV", fault_address=truth.hexadecimal(address))
truth.ends("SIGSEGV")
truth.ready()
operator(x, address)
