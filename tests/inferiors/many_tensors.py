"""250 tensors of all dtypes, strides and sizes, and what PyTorch itself says of each.

Every tensor is in the list ``kept`` and in the truth, by the address of its TensorImpl.
"""

import collections
import math
import random
import time

import torch
import torch.distributed
import truth
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SMALL = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
SHAPES = [(), (1,), (7,), (0,), (3, 0, 2), (65,), (4, 4), (2, 3, 5), (33, 17), (2, 2, 2, 2, 2, 2), (4, 3, 8, 8)]


def source(shape, dtype, rng):
    """A contiguous tensor with all that its dtype can hold: every code of a small one, NaNs, infinities, zeros."""
    count = math.prod(shape)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    if dtype in SMALL:
        return torch.tensor([rng.randrange(256) for _ in range(count)], dtype=torch.uint8).reshape(shape).view(dtype)
    if dtype in INTEGERS:
        shift = 64 - 8 * dtype.itemsize
        words = torch.tensor([rng.randrange(-(1 << 63), 1 << 63) >> shift for _ in range(count)])
        return words.reshape(shape).to(dtype)
    if dtype in COMPLEX:
        return torch.view_as_complex(source((*shape, 2), COMPLEX[dtype], rng).contiguous())
    values = torch.randn(shape, dtype=torch.float64) * 10 ** rng.randint(-3, 3)
    flat = values.view(-1)
    for special in (math.nan, math.inf, -math.inf, 0.0):
        if count and rng.random() < 0.3:
            flat[rng.randrange(count)] = special
    return values.to(dtype)


def strided(tensor, rng):
    kind = rng.randrange(8)
    if kind == 1 and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if kind == 2 and tensor.dim() and tensor.shape[-1] > 2:
        return tensor[..., ::2]
    if kind == 3 and tensor.dim() and tensor.shape[0] > 1:
        return tensor[1:]
    if kind == 4:
        return tensor.expand(3, *tensor.shape)
    if kind == 5 and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if kind == 6 and tensor.dim() == 1 and tensor.shape[0] > 5:
        return tensor.as_strided((tensor.shape[0] - 3, 3), (1, 1), 1)
    if kind == 7 and tensor.is_complex():
        return tensor.conj() if rng.random() < 0.5 or tensor.dtype is torch.complex32 else tensor.conj().imag
    return tensor


def number(value):
    """As the report writes numbers that JSON lacks."""
    if isinstance(value, list):
        return [number(each) for each in value]
    if isinstance(value, complex):
        return [number(value.real), number(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def wide(tensor):
    if tensor.is_complex():
        return tensor.resolve_conj().to(torch.complex128)
    if tensor.is_floating_point() or tensor.is_quantized:
        return (tensor.dequantize() if tensor.is_quantized else tensor.resolve_neg()).double()
    return tensor


def expected(tensor):
    """PyTorch's own statistics, of all elements that are not NaN."""
    values = wide(tensor).reshape(-1)
    inexact = values.is_floating_point() or values.is_complex()
    nan = torch.isnan(values) if inexact else torch.zeros(values.shape).bool()
    facts = {"nan": int(nan.sum()), "first_nan": None, "min": None, "max": None, "mean": None, "std": None, "inf": 0}
    facts["zeros"] = sum(1 for each in values.tolist() if each == 0)
    if facts["nan"]:
        where = torch.tensor(int(nan.nonzero()[0]))
        facts["first_nan"] = [int(each) for each in torch.unravel_index(where, tensor.shape)]
        values = values[~nan]
    if inexact:
        facts["inf"] = int(torch.isinf(values).sum())
    if len(values) == 0:
        return facts
    if not values.is_complex():
        numbers = values.tolist()
        facts.update(min=number(min(numbers)), max=number(max(numbers)))
    exact = values if values.is_complex() else values.double()
    facts["mean"] = number(exact.mean().item())
    if values.is_complex():  # the division in a complex mean makes NaNs of infinities
        facts["mean"] = [number(part.mean().item()) for part in torch.view_as_real(exact).T]
    if len(values) > 1:
        facts["std"] = number(exact.std().item())
    return facts


def record(tensor, label):
    shown = tensor.dequantize() if tensor.is_quantized else tensor
    return dict(
        label=label, address=tensor._cdata, sizes=list(tensor.shape), strides=list(tensor.stride()),
        dtype=str(tensor.dtype)[6:], storage_offset=tensor.storage_offset(), numel=tensor.numel(),
        contiguous=tensor.is_contiguous(), values=number(shown.tolist()) if tensor.numel() <= 64 else None,
        **expected(tensor),
    )


def quantized(rng, number):
    values = torch.randn(4, 6) * 5
    dtype = (torch.qint8, torch.quint8, torch.qint32)[number % 3]
    if number % 2:
        return torch.quantize_per_tensor(values, 0.07 + rng.random(), rng.randrange(20), dtype)
    scales, zeros = torch.rand(6, dtype=torch.float64) + 0.01, torch.arange(6)
    return torch.quantize_per_channel(values, scales, zeros, 1, dtype)


class Wrapper(torch.Tensor):
    """A subclass that holds another tensor, as DTensor and FunctionalTensor do."""

    @staticmethod
    def __new__(cls, inner):
        found = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def distributed():
    """A DTensor: the rows of this rank, of two that are not there."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1))
    return DTensor.from_local(torch.full((2, 3), 5.0), mesh, [Shard(0), Replicate()], run_check=False)


def odd_ones():
    dense = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 0.0]])
    with FakeTensorMode():
        fake = torch.empty(2, 3)
    symbolic = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(7, 5)[2:, 1:4], static_shapes=False)
    return {
        "coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((1, 2)), "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
        "meta": torch.empty(3, 4, device="meta"), "fake": fake,
        "symbolic": symbolic, "lazy": torch.nn.UninitializedParameter(), "wrapper": Wrapper(torch.ones(2, 2)),
        "distributed": distributed(),
        "mkldnn": torch.ones(4, 4).to_mkldnn(), "zero": torch._efficientzerotensor(3),
        "four_bits": torch.arange(16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "huge": torch.zeros(1).expand(1 << 40),
    }


Pair = collections.namedtuple("Pair", "first second")


class Model(torch.nn.Module):
    """Where variables may be: parameters, buffers, slots, items."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.arange(4.0)
        self.weight = torch.nn.Parameter(torch.ones(3, 5))
        self.register_buffer("scale", torch.arange(6.0))
        self.pair = Pair(numbers, [numbers + 1])
        self.top = torch.max(numbers.reshape(2, 2), 1)
        self.inside = numbers + 2
        self.queue = collections.deque([numbers, numbers + 3])
        self.net = torch.nn.ModuleDict({"enc": torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(2, 1)])})
        for parameter in self.net.parameters():
            torch.nn.init.constant_(parameter, 2.0)
        self.net["enc"][1].weight.grad = torch.full((1, 2), 0.5)


def wait(self, batch, product, freed):
    """The frame in which variables are looked for; nothing uses the freed tensor's memory again."""
    freed.clear()
    truth.main_ready("sleep")
    time.sleep(truth.FOREVER)


torch.manual_seed(11)
rng = random.Random(11)
dtypes = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *SMALL]
kept = [strided(source(shape, dtype, rng), rng) for shape in SHAPES for dtype in dtypes]
kept += [quantized(rng, each) for each in range(12)]
odd = odd_ones()
freed = [torch.ones(5)]
facts = [record(each, f"{at}: {tuple(each.shape)} {each.stride()} {each.dtype}") for at, each in enumerate(kept)]
truth.note(tensors=facts, odd={name: each._cdata for name, each in odd.items()}, freed=freed[0]._cdata)
model = Model()
batch = [torch.arange(6.0).reshape(2, 3), {"label": torch.tensor([1, 2])}]
wait(model, batch, batch[0] @ model.weight, freed)
