"""An extension built -O0 -g: Dispatcher::call, redispatch, callBoxed and the rest are frames of their own.

Arguments: which operators of gdbext_debug to be inside of, one thread each (default: all four).
"""

import sys
import threading

import native_library
import torch
import torch_truth
import truth

names = sys.argv[1:] or ["mm_typed", "mm_boxed", "layered", "layered_boxed"]
native_library.load_operators("debug_dispatch")
library = torch.library.Library("aten", "IMPL")
inside = threading.Barrier(len(names) + 1)
for_ever = threading.Event()
a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4, requires_grad=True)


def cpu_mm(keyset, left, right):
    role = threading.current_thread().name
    truth.thread(role, waits="any", op="aten::mm", kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
    inside.wait()
    for_ever.wait()


library.impl("mm", cpu_mm, "CPU", with_keyset=True)
truth.note(
    calls={name: torch_truth.call(f"gdbext_debug::{name}", a, b) for name in names},
    mm=torch_truth.call("aten::mm", a, b),
)
for name in names:
    operator = getattr(torch.ops.gdbext_debug, name).default
    threading.Thread(target=operator, args=(a, b), name=name, daemon=True).start()
inside.wait()
truth.ready()
for_ever.wait()
