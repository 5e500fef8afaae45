"""Calls operators of every kind of argument and result, and writes down what each was given and returned.

Started by dispatch-values; the truth goes to the file that is named: calls in order, each with its tensors as lists.
"""

from __future__ import annotations

import json
import sys

import brisk
import torch

torch.manual_seed(3)
calls = []


def call(op, function, *arguments, names, results=("result0",)):
    """Call it, with copies of what goes in and comes out."""
    given = {name: each.tolist() for name, each in zip(names, arguments)}
    returned = function(*arguments)
    found = returned if isinstance(returned, (tuple, list)) else (returned,)
    calls.append({"op": op, "before": given, "after": {name: each.tolist() for name, each in zip(results, found)}})
    return returned


a, b, c = torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 4)
call("aten::mm", torch.mm, a, b, names=("self", "mat2"))
call("aten::mm", torch.ops.aten.mm.default, a, b, names=("self", "mat2"))
call("aten::add_", lambda x, y: x.add_(y, alpha=2), c.clone(), a, names=("self", "other"))
call("aten::max", lambda x: torch.max(x, 1), a, names=("self",), results=("values", "indices"))
call("aten::cat", lambda x, y: torch.cat([x, y], 0), a, c, names=("tensors.0", "tensors.1"))
call("aten::split", lambda x: torch.split(x, 2, 1), a, names=("self",), results=("result0.0", "result0.1"))
call("aten::layer_norm", lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), a, torch.ones(4),
     names=("input", "weight"))
torch.nan_to_num(a, nan=0.5, neginf=-2.5)
torch.nn.functional.batch_norm(a, None, None, training=True, momentum=0.125, eps=1e-4)
with open(sys.argv[1], "w") as stream:
    json.dump(calls, stream)
brisk.leave()
