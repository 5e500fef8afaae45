"""dispatch-tensors: tensors of every kind, their addresses and what PyTorch says of them; waits."""

from __future__ import annotations

import threading
import warnings

import torch
import truth

warnings.simplefilter("ignore")


def describe(tensor):
    """Sizes and strides only where they are stored in the tensor itself."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return {
        "address": truth.hexadecimal(tensor._cdata),
        "bits": truth.hexadecimal(torch._C._dispatch_keys(tensor).raw_repr()),
        "sizes": None if tensor.is_nested else list(tensor.shape),
        "strides": list(tensor.stride()) if strided else None,
        "dtype": str(tensor.dtype)[len("torch.") :],
        "device": str(tensor.device),
    }


TENSORS = {
    "plain": torch.zeros(4, 4),
    "scalar": torch.tensor(3),
    "grad": torch.zeros(2, 3, requires_grad=True),
    "transposed": torch.zeros(2, 3, dtype=torch.float64).t(),
    "many-dimensions": torch.zeros(1, 2, 1, 3, 1, 2, 1, dtype=torch.bfloat16),
    "meta": torch.empty(2, 4, 16, device="meta", requires_grad=True),
    "bool": torch.zeros(0, dtype=torch.bool),
    "complex": torch.zeros(2, dtype=torch.complex64).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "sparse-csr": torch.eye(3).to_sparse_csr(),
    "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "eight-bit": torch.zeros(3).to(torch.float8_e4m3fn),
    "view": torch.zeros(6, dtype=torch.int16)[1:3],
}
SHORT = {
    "plain": "f32[4, 4] cpu", "scalar": "i64[] cpu", "meta": "f32[2, 4, 16] meta", "bool": "b8[0] cpu",
    "sparse": "f32[3, 3] SparseCPU", "complex": "c64[2] cpu", "many-dimensions": "bf16[1, 2, 1, 3, 1, 2, 1] cpu",
    "eight-bit": "f8e4m3fn[3] cpu",
}
truth.note(tensors={name: describe(tensor) for name, tensor in TENSORS.items()}, short=SHORT)
truth.thread("main")
truth.ready()
threading.Event().wait()
