"""guard-entry: first call of an operator from two threads.

One runs the initialiser of the handle's static and wants the GIL; the other has the GIL and waits for the guard.
"""

from __future__ import annotations

import threading

import native_library
import torch
import truth

native_library.load_operators("operators")
under_gil = native_library.load("operators", keep_gil=True)
library = torch.library.Library("gdbext_test", "IMPL")
library.impl("gil_guard", lambda x: under_gil.call_handle_with_gil(), "CPU")
guarded = torch.ops.gdbext_test.guarded.default
gil_guard = torch.ops.gdbext_test.gil_guard.default
x = torch.ones(2)
named = threading.Event()


def initialise():
    truth.thread("initialiser", waits="futex", waits_for="gil", holds="static-init", op="gdbext_test::guarded")
    named.set()
    guarded(x)


threading.Thread(target=initialise, daemon=True).start()
named.wait()
truth.thread("gil-holder", waits="futex", waits_for="static-init", holds="gil", op="gdbext_test::gil_guard")
truth.note(verdict="deadlock", cycle=["initialiser", "gil-holder"])
truth.stage()
gil_guard(x)
