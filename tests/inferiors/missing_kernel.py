"""missing-kernel: an operator without a kernel for the key, stopped where the error is raised (__cxa_throw)."""

import os
import sys

import native_library

blocker = native_library.load("block_throw")
if "LD_PRELOAD" not in os.environ:
    os.environ["LD_PRELOAD"] = blocker._name
    os.execv(sys.executable, [sys.executable, *sys.argv])

import torch  # noqa: E402
import truth  # noqa: E402

native_library.load_operators("operators")
operator = torch.ops.gdbext_test.cpu_only.default
x = torch.ones(2, device="meta")
truth.thread("main", waits="any")
truth.note(op="gdbext_test::cpu_only", key="Meta", registered=["CPU"])
truth.stage()
blocker.arm_block_throw()
operator(x)
