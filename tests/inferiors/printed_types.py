"""A thread inside a function, built -O0 -g, that has a local variable of each type that debuggers get summaries for."""

import ctypes
import threading

import native_library
import torch
import truth

library = ctypes.CDLL(native_library.load_operators("debug_dispatch"))
there = ctypes.c_int.in_dll(library, "types_are_there")
tensor = torch.tensor([[0.5, -1.0], [2.0, 3.25]], requires_grad=True)
threading.Thread(target=torch.ops.gdbext_debug.types, args=(tensor,), name="types", daemon=True).start()
truth.until(lambda: there.value)
truth.note(
    keyset=str(torch._C._dispatch_keys(tensor)),
    schema=str(torch.ops.aten.add.Tensor._schema),
)
truth.ready()
threading.Event().wait()
