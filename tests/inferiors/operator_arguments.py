"""Threads inside operators with arguments of every kind, called by C++ (unboxed) and through torch.ops (boxed).

The kernels for the Meta key are replaced by a Python function that never returns. The truth has for each thread the
operator and its arguments as text, by name.
"""

from __future__ import annotations

import threading

import torch
import truth

X = torch.empty(3, 4, device="meta")
Y = torch.empty(3, 4, device="meta")
Z = torch.empty(4, 5, device="meta")
IMAGE, FILTER = torch.empty(1, 2, 8, 8, device="meta"), torch.empty(3, 2, 3, 3, device="meta")
XT, YT, ZT = "f32[3, 4] meta", "f32[3, 4] meta", "f32[4, 5] meta"
aten = torch.ops.aten

CALLS = [
    ("aten::add.Tensor", lambda: torch.add(X, Y, alpha=3), {"self": XT, "other": YT, "alpha": "3"}),
    ("aten::mm", lambda: torch.mm(X, Z), {"self": XT, "mat2": ZT}),
    ("aten::cat", lambda: torch.cat([X, Y], 1), {"tensors": f"[{XT}, {YT}]", "dim": "1"}),
    ("aten::clamp", lambda: torch.clamp(X, min=0.5), {"self": XT, "min": "0.5", "max": "None"}),
    ("aten::sum.dim_IntList", lambda: torch.sum(X, (0, 1), keepdim=True, dtype=torch.float64),
     {"self": XT, "dim": "[0, 1]", "keepdim": "True", "dtype": "torch.float64"}),
    ("aten::gather", lambda: torch.gather(X, -1, torch.zeros(3, 1, dtype=torch.int64, device="meta")),
     {"self": XT, "dim": "-1", "index": "i64[3, 1] meta", "sparse_grad": "False"}),
    ("aten::native_layer_norm", lambda: torch.native_layer_norm(X, (4,), None, None, 1e-5),
     {"input": XT, "normalized_shape": "[4]", "weight": "None", "bias": "None"}),
    ("aten::native_batch_norm", lambda: torch.native_batch_norm(IMAGE, None, None, None, None, True, 0.1, 1e-5),
     {"input": "f32[1, 2, 8, 8] meta", "weight": "None", "training": "True"}),
    ("aten::convolution",
     lambda: torch.convolution(IMAGE, FILTER, None, (2, 1), (1, 0), (1, 1), False, (0, 0), 1),
     {"input": "f32[1, 2, 8, 8] meta", "weight": "f32[3, 2, 3, 3] meta", "bias": "None"}),
    ("aten::index.Tensor", lambda: X[:, torch.zeros(2, dtype=torch.int64, device="meta")],
     {"self": XT, "indices": "[undefined, i64[2] meta]"}),
    ("aten::roll", lambda: torch.roll(X, (1, 2), (0, 1)), {"self": XT, "shifts": "[1, 2]", "dims": "[0, 1]"}),
    ("aten::where.self", lambda: torch.where(torch.empty(3, 4, dtype=torch.bool, device="meta"), X, Y),
     {"condition": "b8[3, 4] meta", "self": XT, "other": YT}),
    ("aten::addmm", lambda: aten.addmm.default(torch.empty(5, device="meta"), X, Z, beta=2, alpha=0.5),
     {"self": "f32[5] meta", "mat1": XT, "mat2": ZT, "beta": "2", "alpha": "0.5"}),
    ("aten::mul.Tensor", lambda: aten.mul.Tensor(X, Y), {"self": XT, "other": YT}),
    ("aten::bmm", lambda: aten.bmm.default(torch.empty(2, 3, 4, device="meta"), torch.empty(2, 4, 5, device="meta")),
     {"self": "f32[2, 3, 4] meta", "mat2": "f32[2, 4, 5] meta"}),
    ("aten::cumsum", lambda: aten.cumsum.default(X, 1, dtype=torch.float16),
     {"self": XT, "dim": "1", "dtype": "torch.float16"}),
]  # fmt: skip

inside = []
lock = threading.Lock()
lock.acquire()


def parked(*_args, **_kwargs):
    """The kernel of all of them."""
    inside.append(1)
    lock.acquire()


library = torch.library.Library("aten", "IMPL")
for name in dict.fromkeys(name for name, _, _ in CALLS):
    library.impl(name.removeprefix("aten::"), parked, "Meta")


def work(number):
    """One thread: writes down what it is about to call."""
    name, call, arguments = CALLS[number]
    truth.thread(f"{number}: {name}", waits=None, op=name, arguments=arguments)
    with torch.no_grad():
        call()


for number in range(len(CALLS)):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while len(inside) < len(CALLS):
    threading.Event().wait(0.01)
truth.ready()
lock.acquire()
