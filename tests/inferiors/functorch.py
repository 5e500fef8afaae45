"""functorch: transforms with a Python kernel that blocks inside, one kind per thread."""

from __future__ import annotations

import threading
import warnings

import torch
import truth

warnings.simplefilter("ignore")
for_ever = threading.Event()
inside = threading.Barrier(5)


def wait_here(keyset, *args):
    role = threading.current_thread().name
    truth.thread(role, waits="any", op="aten::sin", kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
    inside.wait()
    for_ever.wait()


library = torch.library.Library("aten", "IMPL")
library.impl("sin", wait_here, "CPU", with_keyset=True)
ones = torch.ones(3, 2)
JOBS = {
    "vmap": lambda: torch.func.vmap(torch.sin)(ones),
    "grad": lambda: torch.func.grad(lambda value: torch.sin(value).sum())(ones),
    "vmap-grad": lambda: torch.func.vmap(torch.func.grad(lambda value: torch.sin(value).sum()))(ones),
    "jvp": lambda: torch.func.jvp(torch.sin, (ones,), (ones,)),
}
truth.note(verdict="blocked", op="aten::sin")
for name, job in JOBS.items():
    threading.Thread(target=job, name=name, daemon=True).start()
inside.wait()
truth.ready()
for_ever.wait()
