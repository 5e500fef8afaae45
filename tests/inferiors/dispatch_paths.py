"""dispatch-paths: one thread per way to a CPU kernel of aten::sin that blocks: autograd, transforms, modes, fallbacks.

The kernel writes down its keyset; ``call`` is what PyTorch computes for the thread's own call of the operator.
"""

import threading
import warnings

import torch
import torch_truth
import truth

warnings.simplefilter("ignore")
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


definitions = torch.library.Library("gdbext_paths", "DEF")
definitions.define("many(Tensor a, Tensor? b, int c, float d, SymInt e, str f, Tensor[] g, Scalar h) -> Tensor")
definitions.impl("many", lambda *arguments: torch.sin(arguments[0]), "CPU")


def within(*contexts, tensor=leaf, function=sin):
    def run():
        with contexts[0](), contexts[-1]():
            function(tensor)

    return run


@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.sin(x)


def redispatched():
    torch.ops.aten.sin.default.redispatch(C.DispatchKeySet(C.DispatchKey.CPU), plain)


JOBS = {
    "function-forward": lambda: Forward.apply(leaf),
    "function-backward": lambda: Backward.apply(leaf).sum().backward(),
    "script": lambda: scripted(leaf),
    "conj": lambda: sin(torch.ones(3, dtype=torch.cfloat).conj()),
    "inference": within(torch.inference_mode, function=lambda _: sin(torch.ones(3))),
    "no-grad": within(torch.no_grad),
    "autocast": within(lambda: torch.autocast("cpu"), lambda: torch.autocast("cpu", enabled=False)),
    "functionalize": lambda: torch.func.functionalize(torch.sin)(plain),
    "vmap-vmap": lambda: torch.vmap(torch.vmap(torch.sin))(plain),
    "hessian": lambda: torch.func.hessian(lambda x: torch.cos(x).sum())(plain),
    "modes": within(torch_truth.Mode, torch_truth.Mode, function=torch.sin),
    "inplace": lambda: (leaf * 1).sin_(),
    "out": lambda: torch.sin(plain, out=torch.empty(3, 2)),
    "redispatch": redispatched,
    "overload": lambda: torch.ops.aten.sin.default(leaf),
    "profiler": within(torch.autograd.profiler.profile),
    "profiler-boxed": within(torch.autograd.profiler.profile, function=torch.ops.aten.sin.default),
    "many": lambda: torch.ops.gdbext_paths.many(leaf, None, 1, 2.0, 3, "s", [plain], 2),
    "sparse-csr": lambda: torch.sin(torch.eye(3).to_sparse_csr()),
    "nested": lambda: torch.sin(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
}


def run(name):
    role_of_thread.name = name
    JOBS[name]()
    arrived[name] = False


library = torch.library.Library("aten", "IMPL")
library.impl("sin", blocked, "CPU", with_keyset=True)
library.impl("sin_", blocked, "CPU", with_keyset=True)
library.impl("sin.out", blocked, "CPU", with_keyset=True)
for name in JOBS:  # one after the other: profilers and tracers are there once in a process
    threading.Thread(target=run, args=(name,), daemon=True).start()
    truth.until(lambda name=name: name in arrived)
assert all(arrived.get(name) for name in JOBS), arrived
truth.ready()
for_ever.wait()
