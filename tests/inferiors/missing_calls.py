"""missing-calls: operators without a kernel for their arguments; each is told on standard output before it is called.

The keyset is that of the redispatch by which autograd's kernel leaves it: without the keys that this kernel excludes.
"""

import json

import torch

autograd = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.ADInplaceOrView)


def call(operator, x, passes_autograd=True):
    keyset = torch._C._dispatch_keys(x)
    keyset = keyset & autograd if passes_autograd else keyset
    print("TRUTH", json.dumps([operator.name(), str(keyset), call.__code__.co_firstlineno + 5]), flush=True)
    try:
        operator(x)
    except NotImplementedError as error:
        print("ERROR", error.args[0].partition(".")[0], flush=True)


sparse = torch.ones(3, 2).to_sparse()
call(torch.ops.aten.special_airy_ai.default, sparse)
call(torch.ops.aten.special_airy_ai.default, torch.ones(3, 2))  # it has a kernel
with torch.inference_mode():
    inferred = torch.ones(3, 2).to_sparse()
    call(torch.ops.aten.special_bessel_j0.default, inferred, passes_autograd=False)
