"""Many children, forked with torch loaded, each hanging in aten::mm's Meta kernel; killed one by one by a test.

Argument: how many (default 20).
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
import truth


def meta_mm(a, b):
    os.write(into, b".")
    threading.Event().wait()


library = torch.library.Library("aten", "IMPL")
library.impl("mm", meta_mm, "Meta")
x = torch.randn(4, 16, device="meta", requires_grad=True)
w = torch.randn(16, 8, device="meta", requires_grad=True)
output, into = os.pipe()
children = []
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    child = os.fork()
    if child == 0:
        torch.mm(x, w)
        os._exit(1)
    children.append(child)
for _ in children:
    os.read(output, 1)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody collects them
truth.thread("main")
truth.note(children=children, op="aten::mm")
truth.ready()
threading.Event().wait()
