"""What PyTorch itself says about keysets, for the inferiors to write down."""

import re

import torch
import truth
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def tensor_keyset(tensor):
    return truth.hexadecimal(torch._C._dispatch_keys(tensor).raw_repr())


def key_names(keyset):
    """ "DispatchKeySet(CPU, AutogradCPU)" as a list of names, in PyTorch's order."""
    return [name for name in re.split(r"[(), ]+", str(keyset))[1:] if name]


def keyset_at_call(operator, *tensors):
    """The keyset that the dispatcher computes for a call of ``aten::mm`` with these tensors on this thread.

    DispatchKeyExtractor (aten/src/ATen/core/dispatch/DispatchKeyExtractor.h): the union of the tensors' keys and the
    thread's included ones, without the excluded ones and without the keys whose kernel is a fallthrough.
    """
    keyset = torch._C._dispatch_tls_local_include_set()
    for tensor in tensors:
        keyset = keyset | torch._C._dispatch_keys(tensor)
    keyset = keyset - torch._C._dispatch_tls_local_exclude_set()
    table = dict(line.split(": ", 1) for line in torch._C._dispatch_dump_table(operator).splitlines())
    for name in key_names(keyset):
        if table.get(name, "").startswith("fallthrough"):
            keyset = keyset - torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return keyset


def call(operator, *tensors):
    """One expected call as JSON: operator, bits, key names."""
    keyset = keyset_at_call(operator, *tensors)
    bits = truth.hexadecimal(keyset.raw_repr()) if hasattr(keyset, "raw_repr") else None  # PyTorch 2.5
    return {"op": operator, "bits": bits, "keys": key_names(keyset)}
