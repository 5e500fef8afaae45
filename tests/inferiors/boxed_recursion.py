"""boxed-recursion and recursion-core: redispatch with a keyset that does not shrink.

Arguments: KIND DEPTH. KIND: ``fallback`` (a boxed fallback for every operator), ``kernel`` (a boxed kernel of one
operator). DEPTH: after so many turns the innermost one waits for ever; 0 recurses until the stack overflows (SIGSEGV).
"""

import ctypes
import os
import sys
import threading

import native_library
import torch
import truth

kind = sys.argv[1] if len(sys.argv) > 1 else "fallback"
limit = int(sys.argv[2]) if len(sys.argv) > 2 else 200
STACK = (8 << 20) if limit == 0 else (64 << 20) + limit * 4096
native_library.load_operators("operators")
native = native_library.load("operators")
x = torch.ones(2)
CALLS = {
    "fallback": ("aten::neg", torch.neg),
    "kernel": ("gdbext_test::never_shrinks", torch.ops.gdbext_test.never_shrinks.default),
}
operator, function = CALLS[kind]


def recurse():
    if kind == "fallback":
        native.include_generic_mode()
    function(x)


def keyset_of_a_short_run():
    """A child process goes three turns deep and tells the keyset that came back each time."""
    output, into = os.pipe()
    if os.fork() == 0:
        native.set_depth_limit(3)
        threading.Thread(target=recurse, daemon=True).start()
        truth.until(lambda: native.reached_depth() >= 3)
        os.write(into, b"%d" % native.recorded_keyset())
        os._exit(0)
    os.close(into)
    keyset = int(os.read(output, 64))
    os.wait()
    return keyset


native.recorded_keyset.restype = native.reached_depth.restype = ctypes.c_ulong
truth.note(
    verdict="runaway-recursion",
    op=operator,
    ops=[operator],
    keyset=truth.hexadecimal(keyset_of_a_short_run()),
    depth=limit,
)
native.set_depth_limit(limit)
threading.stack_size(STACK)


def announced():
    truth.thread("recursive", waits=None if limit == 0 else "futex")
    recurse()


worker = threading.Thread(target=announced, daemon=True)
if limit == 0:
    truth.ends("SIGSEGV")
    truth.ready()
worker.start()
if limit:
    truth.until(lambda: native.reached_depth() >= limit)
    truth.ready()
worker.join()
