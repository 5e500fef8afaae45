"""extension-paths: threads blocked inside kernels of a C++ extension, whose compiler inlined the dispatcher.

Argument: the library's name. Each kernel writes down its keyset before it waits.
"""

import ctypes
import sys
import threading

import native_library
import torch
import truth

if sys.argv[1] == "dispatch_paths":
    native_library.load_operators("dispatch_paths")
    native = native_library.load("dispatch_paths")
else:
    native_library.load_operators("dispatch_paths_o3")
    native = native_library.load("dispatch_paths_o3")
native.record_path.restype = ctypes.c_char_p
native.record_tid.restype, native.record_keyset.restype = ctypes.c_long, ctypes.c_ulong
operators = getattr(torch.ops, f"gdbext_{sys.argv[1]}")
x, leaf = torch.ones(3), torch.ones(3, requires_grad=True)
NAMES = "leaf tail boxed boxed_tail lambda boxed_leaf functor nothing number pair thrower composite composite_boxed"
CALLS = {name: lambda name=name: getattr(operators, name)(leaf) for name in NAMES.split()}
CALLS["many"] = lambda: operators.many(leaf, None, 1, 2.0, 3, "s", [x], 2, [1], True, 7, 8)
CALLS["list"] = lambda: operators.list([x, x])
CALLS["factory"] = lambda: operators.factory(3)


def run(name):
    native.set_path(name.encode())
    CALLS[name]()


for number, name in enumerate(CALLS, 1):
    threading.Thread(target=run, args=(name,), daemon=True).start()
    truth.until(lambda number=number: native.records() >= number)
operators.begin(x)
truth.until(lambda: native.records() >= len(CALLS) + 3)
paths = [
    {
        "name": native.record_path(index).decode(),
        "tid": native.record_tid(index),
        "keyset": truth.hexadecimal(native.record_keyset(index)),
    }
    for index in range(native.records())
]
truth.main_ready(verdict="blocked", paths=paths)
threading.Event().wait()
