"""dispatch-tensors: tensors, their addresses and the keysets that PyTorch says they have; waits."""

import threading
import warnings

import torch
import truth

warnings.simplefilter("ignore")
TENSORS = {
    "plain": torch.zeros(4, 4),
    "grad": torch.zeros(2, 3, requires_grad=True),
    "meta": torch.empty(2, 4, 16, device="meta", requires_grad=True),
    "complex": torch.zeros(2, dtype=torch.complex64).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
}


def describe(tensor):
    bits = torch._C._dispatch_keys(tensor).raw_repr()
    return {"address": truth.hexadecimal(tensor._cdata), "bits": truth.hexadecimal(bits)}


truth.note(tensors={name: describe(tensor) for name, tensor in TENSORS.items()})
truth.thread("main")
truth.ready()
threading.Event().wait()
