"""ops40: runs one stock operator for each line on standard input, "NAME grad" or "NAME nograd".

For tests that set breakpoints on kernels. Prints "done NAME" (or "failed NAME: why") after each; the truth lists for
every operator what the dispatcher is called with, so that a test can compare what it finds at the stop.
"""

import functools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_truth
import truth

torch.set_num_threads(1)
torch.manual_seed(0)


def matrix(*shape):
    return torch.rand(*shape or (4, 4)) + 0.1


UNARY = "sin cos exp log sqrt tanh sigmoid relu abs neg erf floor rsqrt reciprocal log1p sinh atan"
BINARY = "mm mul add sub div maximum minimum atan2 pow bmm"
REDUCING = "sum mean amax logsumexp cumsum softmax"

OPERATORS = {}
"""Name to (qualified name with overload, tensors, call)."""


def define(name, qualified, tensors, call=None):
    function = call or getattr(torch, name)
    OPERATORS[name] = (qualified, tensors, function)


for name in UNARY.split():
    define(name, f"aten::{name}", [matrix()])
for name in BINARY.split():
    tensors = [matrix(2, 4, 4), matrix(2, 4, 4)] if name == "bmm" else [matrix(), matrix()]
    overload = {"mul": ".Tensor", "add": ".Tensor", "sub": ".Tensor", "div": ".Tensor", "pow": ".Tensor_Tensor"}
    define(name, f"aten::{name}{overload.get(name, '')}", tensors)
for name in REDUCING.split():
    overload = {"sum": ".dim_IntList", "mean": ".dim", "softmax": ".int"}.get(name, "")
    define(name, f"aten::{name}{overload}", [matrix()], functools.partial(getattr(torch, name), dim=1))
define("addmm", "aten::addmm", [matrix(), matrix(), matrix()])
define("where", "aten::where.self", [matrix(), matrix()], lambda a, b: torch.where(a > 0.5, a, b))
define("cat", "aten::cat", [matrix(), matrix()], lambda a, b: torch.cat([a, b]))
define("embedding", "aten::embedding", [matrix()], lambda weight: F.embedding(torch.tensor([0, 1]), weight))
define("layer_norm", "aten::layer_norm", [matrix(), matrix(4)], lambda a, weight: F.layer_norm(a, (4,), weight))
define("conv2d", "aten::conv2d", [matrix(1, 1, 8, 8), matrix(1, 1, 3, 3)])
define("max_pool2d", "aten::max_pool2d", [matrix(1, 1, 8, 8)], lambda a: F.max_pool2d(a, 2))
define("linear", "aten::linear", [matrix(), matrix()], F.linear)


def tensors_of(name, grad):
    return [tensor.clone().requires_grad_(grad) for tensor in OPERATORS[name][1]]


def expectations():
    for name, (qualified, _, _) in OPERATORS.items():
        for grad in (False, True):
            tensors = tensors_of(name, grad)
            yield {"name": name, "grad": grad, "call": torch_truth.call(qualified, *tensors)}


def run(line):
    name, how = line.split()
    try:
        OPERATORS[name][2](*tensors_of(name, how == "grad"))
    except (RuntimeError, TypeError) as error:
        return f"failed {name}: {error}"
    return f"done {name}"


said = [run(f"{name} {how}") for name in OPERATORS for how in ("grad", "nograd")]
assert all(line.startswith("done") for line in said), said
truth.note(package=str(Path(torch.__file__).parent), registered=torch._C._dispatch_get_all_op_names())
truth.main_ready("read", operators=list(expectations()))
for line in sys.stdin:
    print(run(line), flush=True)
