"""kernel-crash: SIGSEGV inside a custom C++ kernel. Argument: the address that it writes to (default 0x10), or
"throw": the kernel starts a thread that throws a c10::Error, which nobody catches there; "missing": that calls an
operator without a kernel."""

import sys

import native_library
import torch
import truth

MESSAGE = "expected a batch of 32, but the worker got 31"

how = sys.argv[1] if len(sys.argv) > 1 else "0x10"
native_library.load_operators("operators")
x = torch.ones(2)
truth.thread("main", waits=None)
if how == "throw":
    truth.note(verdict="crash", signal="SIGABRT", names=["c10::Error", MESSAGE])
    truth.ends("SIGABRT")
    truth.ready()
    torch.ops.gdbext_test.crash_in_thread(x, MESSAGE)
if how == "missing":
    truth.note(verdict="crash", signal="SIGABRT", names=["Could not run 'gdbext_test::cpu_only'"])
    truth.ends("SIGABRT")
    truth.ready()
    torch.ops.gdbext_test.miss_kernel_in_thread(x.to_sparse())
truth.note(verdict="crash", op="gdbext_test::crash", key="CPU", stage="in-kernel")
truth.note(signal="SIGSEGV", fault_address=truth.hexadecimal(int(how, 0)))
truth.ends("SIGSEGV")
truth.ready()
torch.ops.gdbext_test.crash.default(x, int(how, 0))
