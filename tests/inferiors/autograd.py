"""autograd: a model of 200 nodes, and twenty threads that each stop at another place of its backward pass.

Each thread has a graph of its own, made by the main thread. It stops in a hook before its node, or inside of the first
operator that the node calls. What PyTorch itself says of nodes and forward operators is the truth: grad_fn.name(),
grad_fn._sequence_nr(), and the profiler's sequence numbers of the operators.
"""

import gc
import sys
import threading

import torch
import truth
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

THREADS = 20
stopped = threading.Barrier(THREADS + 2)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Again(torch.autograd.Function):
    """Its backward starts a backward pass of its own, which stops."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            inner = gradient.detach().requires_grad_().sin()
            truth.thread("reentrant", waits="futex", **describe(inner.grad_fn), outer=outer)
            inner.register_hook(stay)
            inner.sum().backward()
        return gradient


def again():
    result = Again.apply(weight)
    outer.append(describe(result.grad_fn))
    result.sum().backward()


outer: list = []


class Stop(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        stay()
        return func(*args, **(kwargs or {}))


def stay(*_ignored):
    stopped.wait()
    threading.Event().wait(truth.FOREVER)


selected: list = []
weight = torch.nn.Parameter(torch.rand(6, 6))
bias = torch.nn.Parameter(torch.rand(6))
image = torch.nn.Parameter(torch.rand(1, 2, 6, 6))
ROWS = torch.tensor([0, 1, 2])


def model():
    x = functional.linear(torch.rand(3, 6), weight, bias)
    x = functional.layer_norm(torch.relu(x), (6,))
    x = Twice.apply(x).softmax(-1).exp()
    x = torch.cat([x, x.sin()], 1).view(6, 6).index_select(0, ROWS)
    selected.append(x)
    picture = functional.max_pool2d(functional.conv2d(image, image, padding=1).tanh(), 2)
    return functional.gelu(x @ weight).pow(2).mean() + picture.clamp(min=0).log_softmax(-1).sum()


def nodes_of(loss):
    found, waiting = [], [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.append(node)
            waiting += [following for following, _ in node.next_functions]
    return found


def describe(node):
    return {"node": node.name(), "sequence_nr": node._sequence_nr()}


def saved_by(node):
    values = {name[7:]: getattr(node, name) for name in dir(node) if name.startswith("_saved_")}
    values.update({f"saved_tensors[{at}]": value for at, value in enumerate(getattr(node, "saved_tensors", ()))})
    return {
        name: value if value is None else [str(list(value.shape)), value._version]
        for name, value in values.items()
        if value is None or isinstance(value, torch.Tensor)
    }


def backward(loss, node, position):
    facts = {"forward_op": operators[node._sequence_nr()], "retained": position == RETAINED}
    facts["saved"] = saved_by(node)
    truth.thread(f"backward-{position}", waits="futex", **describe(node), **facts)
    if position == MODIFIED:
        with torch.no_grad():
            selected[position].add_(1)  # what MmBackward0 has saved of itself
    if position % 2 or node.name() == "AddBackward0":  # which calls no operator
        node.register_prehook(stay)
    else:
        node.register_prehook(lambda gradients: Stop().__enter__() and None)
    loss.backward(retain_graph=position == RETAINED)


ANOMALOUS, RETAINED, MODIFIED = 19, 4, 7
losses = []
with torch.autograd.profiler.profile() as profile:
    for position in range(THREADS):
        with torch.autograd.set_detect_anomaly(position == ANOMALOUS):
            losses.append(model())
operators: dict = {}
for event in sorted(profile.function_events, key=lambda event: event.time_range.start):
    if event.sequence_nr >= 0 and "Backward" not in event.name:
        operators[event.sequence_nr] = event.name  # the innermost that was called with it takes it

total = torch.stack(losses).sum()
kept = nodes_of(total)
for position, loss in enumerate(losses):
    ordered = sorted(nodes_of(loss), key=lambda node: -node._sequence_nr())
    ordered = [node for node in ordered if node.name() != "torch::autograd::AccumulateGrad"]
    threading.Thread(target=backward, args=(loss, ordered[position % len(ordered)], position)).start()
threading.Thread(target=again).start()
stopped.wait()


def held():
    """Number of tensors that Python knows, and storages and bytes by dtype, of the storages' first tensors."""
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    storages, found = {each.untyped_storage()._cdata: each for each in reversed(tensors)}, {}
    for each in storages.values():
        count, size = found.get(str(each.dtype)[6:], (0, 0))
        found[str(each.dtype)[6:]] = [count + 1, size + each.untyped_storage().nbytes()]
    return [len(tensors), found]


module = torch.nn.Linear(400, 300)
truth.main_ready(
    held=held(),
    nodes=[[node.name(), node._sequence_nr()] for node in kept],
    next_sequence_nr=total.grad_fn._sequence_nr() + 1,
    function_line=Twice.forward.__code__.co_firstlineno,
    anomalous_line=model.__code__.co_firstlineno + 2,
)
sys.stdin.read()
