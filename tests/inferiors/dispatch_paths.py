"""dispatch-paths: one thread per way to a CPU kernel of aten::sin that blocks: autograd, transforms, modes, fallbacks.

The kernel writes down its keyset; ``call`` is what PyTorch computes for the thread's own call of the operator.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings

import torch
import torch_truth
import truth
from torch._dispatch.python import enable_python_dispatcher
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("ignore")
sys.path.append(sys.path.pop(0))  # torch.compile imports the package functorch, not our inferior of that name
C = torch._C
for_ever = threading.Event()
calls, arrived = {}, {}
plain, leaf = torch.ones(3, 2), torch.ones(3, 2, requires_grad=True)
role_of_thread = threading.local()


def blocked(keyset, *args, **kwargs):
    """The kernel. The backward engine runs it on the thread that called backward: there is only the CPU."""
    role = role_of_thread.name
    truth.thread(role, waits="any", kernel_keyset=truth.hexadecimal(keyset.raw_repr()), call=calls.get(role))
    arrived[role] = True
    for_ever.wait()


def sin(tensor):
    """A direct call, whose keyset is written down first."""
    calls[role_of_thread.name] = torch_truth.call("aten::sin", tensor)
    return torch.sin(tensor)


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return sin(x)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return sin(grad)


class Reentrant(Backward):
    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            torch.cos(torch.ones(3, requires_grad=True)).sum().backward()
        return grad


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@torch.library.custom_op("gdbext_paths::custom", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


custom.register_autograd(lambda ctx, grad: grad)
definitions = torch.library.Library("gdbext_paths", "DEF")
definitions.define("implicit(Tensor x) -> Tensor")
definitions.define("explicit(int n) -> Tensor")
definitions.define("layered(Tensor x) -> Tensor")
definitions.define("many(Tensor a, Tensor? b, int c, float d, SymInt e, str f, Tensor[] g, Scalar h) -> Tensor")


def layered(keyset, x):
    with C._AutoDispatchBelowAutograd():
        return torch.ops.gdbext_paths.layered.default.redispatch(keyset & C._after_autograd_keyset, x)


definitions.impl("implicit", lambda x: torch.sin(x), "CompositeImplicitAutograd")
definitions.impl("explicit", lambda n: torch.sin(torch.ones(n)), "CompositeExplicitAutograd")
definitions.impl("layered", layered, "Autograd", with_keyset=True)
definitions.impl("layered", lambda x: torch.sin(x), "CPU")
definitions.impl("many", lambda *arguments: torch.sin(arguments[0]), "CPU")


def within(*contexts, tensor=leaf, function=sin):
    def run():
        with contexts[0](), contexts[-1]():
            function(tensor)

    return run


@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.sin(x)


def with_hook():
    product = leaf * 2
    product.register_hook(torch.sin)
    product.sum().backward()


def cos_sum(x):
    return torch.cos(x).sum()


def cos_backward(create_graph=False):
    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(cos_sum(x), x, create_graph=create_graph)


def redispatched():
    torch.ops.aten.sin.default.redispatch(C.DispatchKeySet(C.DispatchKey.CPU), plain)


def complex_leaf():
    return torch.ones(3, dtype=torch.cfloat)


JOBS = {
    "function-forward": lambda: Forward.apply(leaf),
    "function-backward": lambda: Backward.apply(leaf).sum().backward(),
    "node-apply": cos_backward,
    "node-apply-graph": lambda: cos_backward(True),
    "reentrant": lambda: Reentrant.apply(leaf).sum().backward(),
    "checkpoint": lambda: checkpoint.checkpoint(torch.sin, leaf, use_reentrant=True),
    "hook": with_hook,
    "script": lambda: scripted(leaf),
    "trace": lambda: torch.jit.trace(torch.sin, (leaf,), check_trace=False),
    "compile": lambda: torch.compile(lambda x: torch.sin(x) + 1, backend="eager")(plain),
    "conj": lambda: sin(complex_leaf().conj()),
    "neg": lambda: sin(complex_leaf().conj().imag),
    "inference": within(torch.inference_mode, function=lambda _: sin(torch.ones(3))),
    "no-grad": within(torch.no_grad),
    "autocast": within(lambda: torch.autocast("cpu"), lambda: torch.autocast("cpu", enabled=False)),
    "functionalize": lambda: torch.func.functionalize(torch.sin)(plain),
    "vmap-vmap": lambda: torch.vmap(torch.vmap(torch.sin))(plain),
    "jacrev": lambda: torch.func.jacrev(torch.cos)(plain),
    "hessian": lambda: torch.func.hessian(cos_sum)(plain),
    "modes": within(Mode, Mode, function=torch.sin),
    "function-mode": within(FunctionMode),
    "inplace": lambda: (leaf * 1).sin_(),
    "out": lambda: torch.sin(plain, out=torch.empty(3, 2)),
    "redispatch": redispatched,
    "overload": lambda: torch.ops.aten.sin.default(leaf),
    "profiler": within(torch.autograd.profiler.profile),
    "profiler-boxed": within(torch.autograd.profiler.profile, function=torch.ops.aten.sin.default),
    "custom": lambda: custom(leaf),
    "implicit": lambda: torch.ops.gdbext_paths.implicit(leaf),
    "explicit": lambda: torch.ops.gdbext_paths.explicit(3),
    "layered": lambda: torch.ops.gdbext_paths.layered(leaf),
    "many": lambda: torch.ops.gdbext_paths.many(leaf, None, 1, 2.0, 3, "s", [plain], 2),
    "sparse-csr": lambda: torch.sin(torch.eye(3).to_sparse_csr()),
    "nested": lambda: torch.sin(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "zero-tensor": lambda: torch.sin(torch._efficientzerotensor(3)),
    "python-dispatcher": within(enable_python_dispatcher),
}


def run(name):
    role_of_thread.name = name
    JOBS[name]()
    arrived[name] = False


library = torch.library.Library("aten", "IMPL")
library.impl("sin", blocked, "CPU", with_keyset=True)
library.impl("sin_", blocked, "CPU", with_keyset=True)
library.impl("sin.out", blocked, "CPU", with_keyset=True)
truth.note(verdict="blocked")
deadline = time.monotonic() + 60
for name in JOBS:  # one after the other: profilers and tracers are there once in a process
    threading.Thread(target=run, args=(name,), daemon=True).start()
    while name not in arrived and time.monotonic() < deadline:
        time.sleep(0.002)
assert all(arrived.get(name) for name in JOBS), arrived
truth.ready()
for_ever.wait()
