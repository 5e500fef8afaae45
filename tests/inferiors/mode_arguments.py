"""Threads inside ``__torch_dispatch__`` of modes and subclasses; each writes down what it was given.

The truth has for each thread the operator, and by argument its text and the addresses of its tensors.
"""

import functools
import threading

import torch
import torch.nn.functional as F
import truth
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
never = threading.Event()
arrived = []
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.int64: "i64"}


def text(value, kind=""):
    if kind == "Tensor" and isinstance(value, int):  # the operator was given a tensor made of the number
        return "i64[] cpu"
    if isinstance(value, torch.Tensor):
        return f"{SHORT[value.dtype]}{list(value.shape)} cpu"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value._cdata]
    return [address for each in value for address in tensors_of(each)] if isinstance(value, (list, tuple)) else []


def hold(func, args, kwargs):
    """Tell what was given, and stay here, if it is the operator for which the thread was started."""
    wanted = threading.current_thread().wanted
    if func._name != wanted:
        return
    declared = func._schema.arguments
    given = [
        args[at] if at < len(args) else kwargs.get(each.name, each.default_value) for at, each in enumerate(declared)
    ]
    truth.thread(
        f"{len(arrived)}: {wanted}",
        waits=None,
        op=wanted,
        arguments={each.name: text(value, str(each.type)) for each, value in zip(declared, given)},
        tensors={each.name: tensors_of(value) for each, value in zip(declared, given)},
    )
    arrived.append(wanted)
    never.wait()


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        hold(func, args, kwargs)
        return func(*args, **kwargs)


def passing(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class ReplacingMode(TorchDispatchMode):
    """Other tensors are in its variables when it stops."""

    @passing
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kept, args = args, tree_map(lambda each: each.new_zeros(9) if isinstance(each, torch.Tensor) else each, args)
        kept, kwargs = (kept, kwargs), {}
        hold(func, *kept)
        return func(*kept[0], **kept[1])


class Wrapper(torch.Tensor):
    """A float32 tensor around one of float16."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = (args, kwargs or {})
        args = tree_map(lambda each: each.inner if isinstance(each, Wrapper) else each, args)
        hold(func, *given)
        return func(*args, **given[1])


X, Y, BIAS = torch.ones(3, 4), torch.ones(4, 5), torch.ones(5)
P = torch.ones(3, 4, requires_grad=True)
IMAGE, FILTER = torch.ones(1, 2, 8, 8), torch.ones(3, 2, 3, 3)
W = Wrapper(torch.ones(3, 4, dtype=torch.float16))
CALLS = [
    ("aten::mm", lambda: torch.mm(X, Y)),
    ("aten::mm", lambda: aten.mm.default(X, Y)),
    ("aten::add.Tensor", lambda: torch.add(X, P, alpha=3)),
    ("aten::add.Tensor", lambda: aten.add(X, P)),
    ("aten::cat", lambda: torch.cat([X, X], 1)),
    ("aten::sum.dim_IntList", lambda: torch.sum(P, (0, 1), keepdim=True, dtype=torch.float64)),
    ("aten::convolution", lambda: F.conv2d(IMAGE, FILTER, stride=(2, 1))),
    ("aten::empty.memory_format", lambda: torch.empty(3, 2, dtype=torch.float16, device="cpu")),
    ("aten::clamp", lambda: aten.clamp(X, min=0.5)),
    ("aten::addmm", lambda: aten.addmm.default(BIAS, X, Y, beta=2)),
    ("aten::native_layer_norm", lambda: F.layer_norm(P, (4,))),
    ("aten::gelu", lambda: F.gelu(X, approximate="tanh")),
    ("aten::add_.Tensor", lambda: X.add_(1)),
    ("aten::index.Tensor", lambda: X[torch.tensor([0, 1])]),
    ("aten::_to_copy", lambda: X.to(torch.float16)),
]
WRAPPED = [
    ("aten::add.Tensor", lambda: W + 1),
    ("aten::mm", lambda: torch.mm(W, Y)),
    ("aten::mul.Tensor", lambda: aten.mul.Tensor(W, W)),
    ("aten::stack", lambda: torch.stack([W, X])),
]


def start(wanted, call, mode=None):
    def run():
        if mode is None:
            call()
            return
        with mode():
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.wanted = wanted
    before = len(arrived)
    thread.start()
    truth.until(lambda: len(arrived) > before)


with Mode():
    threading.current_thread().wanted = ""
    torch.ones(1) + 1  # what is imported on the way is imported once, before the threads
for name, call in CALLS:
    start(name, call, Mode)
for name, call in CALLS:
    start(name, call, ReplacingMode)
for name, call in WRAPPED:
    start(name, call)
truth.ready()
never.wait()
