"""Threads inside operators with arguments of every kind, called by C++ (unboxed) and through torch.ops (boxed).

The kernels for the Meta key are replaced by a Python function that never returns. The truth has for each thread the
operator and its arguments as text, by name.
"""

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
    ("aten::cat", lambda: torch.cat([X, Y], 1), {"tensors": f"[{XT}, {YT}]", "dim": "1"}),
    ("aten::clamp", lambda: torch.clamp(X, min=0.5), {"self": XT, "min": "0.5", "max": "None"}),
    ("aten::sum.dim_IntList", lambda: torch.sum(X, (0, 1), keepdim=True, dtype=torch.float64),
     {"self": XT, "dim": "[0, 1]", "keepdim": "True", "dtype": "torch.float64"}),
    ("aten::native_layer_norm", lambda: torch.native_layer_norm(X, (4,), None, None, 1e-5),
     {"input": XT, "normalized_shape": "[4]", "weight": "None", "bias": "None", "eps": "1e-05"}),
    ("aten::convolution",
     lambda: torch.convolution(IMAGE, FILTER, None, (2, 1), (1, 0), (1, 1), False, (0, 0), 1),
     {"input": "f32[1, 2, 8, 8] meta", "weight": "f32[3, 2, 3, 3] meta", "bias": "None"}),
    ("aten::index.Tensor", lambda: X[:, torch.zeros(2, dtype=torch.int64, device="meta")],
     {"self": XT, "indices": "[undefined, i64[2] meta]"}),
    ("aten::addmm", lambda: aten.addmm.default(torch.empty(5, device="meta"), X, Z, beta=2, alpha=0.5),
     {"self": "f32[5] meta", "mat1": XT, "mat2": ZT, "beta": "2", "alpha": "0.5"}),
    ("aten::pow.Tensor_Scalar", lambda: torch.pow(X, 3), {"self": XT, "exponent": "3"}),
    ("aten::lt.Scalar", lambda: torch.lt(X, 1.5), {"self": XT, "other": "1.5"}),
    ("aten::topk", lambda: torch.topk(X, 2, 1, False, True),
     {"self": XT, "k": "2", "dim": "1", "largest": "False", "sorted": "True"}),
    ("aten::nll_loss_forward",
     lambda: aten.nll_loss_forward.default(X, torch.zeros(3, dtype=torch.int64, device="meta"), None, 1, -100),
     {"self": XT, "target": "i64[3] meta", "weight": "None", "reduction": "1", "ignore_index": "-100"}),
    ("aten::nan_to_num", lambda: torch.nan_to_num(X, nan=0.5, neginf=-2.5),
     {"self": XT, "nan": "0.5", "posinf": "None", "neginf": "-2.5"}),
    ("aten::normal_", lambda: X.normal_(-1.0, 0.125),
     {"self": XT, "mean": "-1.0", "std": "0.125", "generator": "None"}),
    ("aten::upsample_bilinear2d",
     lambda: aten.upsample_bilinear2d.default(IMAGE, [16, 24], False, 2.0, 3.0),
     {"self": "f32[1, 2, 8, 8] meta", "output_size": "[16, 24]", "align_corners": "False", "scales_h": "2.0",
      "scales_w": "3.0"}),
]

inside = []
lock = threading.Lock()
lock.acquire()


def parked(*_args, **_kwargs):
    inside.append(1)
    lock.acquire()


own = torch.library.Library("own", "DEF")
own.define("rewritten(Tensor _args, Tensor b) -> Tensor")
own.impl("rewritten", parked, "CPU")


def rewritten(number, a, b):
    """Call it, and write down the address of the first argument: a fallback puts another tensor in its place."""
    truth.thread(f"rewritten {number}", waits=None, op="own::rewritten", arguments={}, address=a._cdata)
    return torch.ops.own.rewritten(a, b)


COMPLEX = torch.ones(3, dtype=torch.complex64)
REWRITTEN = [
    lambda: rewritten("conjugate", COMPLEX.conj(), COMPLEX),
    lambda: rewritten("negative", torch._neg_view(torch.ones(3)), torch.ones(3)),
    lambda: torch.vmap(lambda a: rewritten("vmap", a, torch.ones(2)))(torch.ones(3, 2)),
    lambda: torch.func.grad(lambda a: rewritten("grad", a, torch.ones(2)).sum())(torch.ones(2)),
]
library = torch.library.Library("aten", "IMPL")
for name in dict.fromkeys(name for name, _, _ in CALLS):
    library.impl(name.removeprefix("aten::"), parked, "Meta")


def work(number):
    name, call, arguments = CALLS[number]
    truth.thread(f"{number}: {name}", waits=None, op=name, arguments=arguments)
    with torch.no_grad():
        call()


for number in range(len(CALLS)):
    threading.Thread(target=work, args=(number,), daemon=True).start()
for body in REWRITTEN:
    threading.Thread(target=body, daemon=True).start()
truth.until(lambda: len(inside) >= len(CALLS) + len(REWRITTEN))
truth.ready()
lock.acquire()
