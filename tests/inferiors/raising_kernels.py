"""Operators whose kernels raise or only warn; what a redispatch to each really does is noted."""

import warnings

import torch
import truth

library = torch.library.Library("raising", "DEF")
library.define("no_fake(Tensor x) -> Tensor")
library.impl("no_fake", lambda x: x + 1, "CPU")
library.define("no_tensor(int n) -> Tensor")
library.impl("no_tensor", torch.zeros, "CPU")
library.define("nothing(Tensor x) -> Tensor")

CALLS = {
    "raising::no_fake Meta": (torch.ops.raising.no_fake.default, torch.ones(2, device="meta")),
    "raising::no_fake SparseCPU": (torch.ops.raising.no_fake.default, torch.ones(2)),
    "raising::no_fake CPU": (torch.ops.raising.no_fake.default, torch.ones(2)),
    "aten::int_repr CPU": (torch.ops.aten.int_repr.default, torch.ones(2)),
    "aten::nonzero FuncTorchBatched": (torch.ops.aten.nonzero.default, torch.ones(2)),
    "raising::no_fake AutogradCPU": (torch.ops.raising.no_fake.default, torch.ones(2, requires_grad=True)),
    "aten::mm Meta": (torch.ops.aten.mm.default, torch.ones(2, 2, device="meta"), torch.ones(2, 2, device="meta")),
}


def outcome(operator, key, arguments):
    """"raises", "no gradient" or "computes"."""
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    if key.startswith("Autograd"):
        keyset = keyset | torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    try:
        result = operator.redispatch(keyset, *arguments)
    except (NotImplementedError, RuntimeError):
        return "raises"
    if not key.startswith("Autograd"):
        return "computes"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result.sum().backward()
    return "warns" if caught else "computes"


def no_tensor_outcome():
    try:
        torch.ops.raising.no_tensor(2)
    except NotImplementedError:
        return "raises"
    return "computes"


outcomes = {words: outcome(operator, words.split()[1], arguments) for words, (operator, *arguments) in CALLS.items()}
truth.note(outcomes=outcomes, no_tensor=no_tensor_outcome())
truth.main_ready()
while True:
    truth.time.sleep(truth.FOREVER)
