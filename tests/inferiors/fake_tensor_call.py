"""fake-tensor-call: a custom operator under FakeTensorMode, as make_fx and torch.compile call it, on one thread also
with the Python dispatcher, as for symbolic sizes; its fake blocks. On a third thread its kernel blocks, given zeros
that are not there."""

import threading

import torch
import truth
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

library = torch.library.Library("gdbext_fake", "DEF")
library.define("custom(Tensor x) -> Tensor")
there = threading.Barrier(3)


def wait(role):
    truth.thread(role, waits="any")
    if there.wait() == 0:
        truth.note(verdict="blocked")
        truth.ready()
    threading.Event().wait()


library.impl("custom", lambda x: wait("zeros"), "CPU")


@torch.library.register_fake("gdbext_fake::custom")
def fake(x):
    wait(threading.current_thread().name)


def under_python_dispatcher():
    with FakeTensorMode(), enable_python_dispatcher():
        torch.ops.gdbext_fake.custom(torch.empty(3, requires_grad=True))


def with_zeros():
    torch.ops.gdbext_fake.custom(torch._efficientzerotensor(3))


threading.Thread(target=under_python_dispatcher, name="dispatcher", daemon=True).start()
threading.Thread(target=with_zeros, daemon=True).start()
threading.current_thread().name = "main"
with FakeTensorMode():
    torch.ops.gdbext_fake.custom(torch.empty(3, requires_grad=True))
