"""dispatch-tables: writes PyTorch's own dump of every operator to a file, and waits.

Argument ``registered``: registers kernels, fallbacks and operators of its own first, overrides some and removes some.
"""

import json
import os
import sys
import threading
import warnings

import torch
import truth

C = torch._C
keep = []  # a registration ends with its library


def library(namespace, kind):
    keep.append(torch.library.Library(namespace, kind))
    return keep[-1]


def cpu_sin(a):
    return a


def other_sin(a):
    return a


class Callable:
    def __call__(self, *args):
        return args


def register():
    warnings.simplefilter("ignore")
    own = library("gdbext_test", "DEF")
    own.define("composite(Tensor a, int[2] b=1, *, str c='x\\'y', ScalarType? d=None, float e=1e-5) -> Tensor")
    own.define("inplace(Tensor(a!) self, Tensor[] others, int[2]? n=None) -> (Tensor(a!), Tensor[])")
    own.define("fresh(Dict(str, Tensor) a, (int, Tensor)[] b, Device? dev=None, bool[] f=[True, False]) -> ()")
    own.define("ambiguous(Tensor a) -> Tensor")
    # PyTorch forgets to refresh AutogradOther in the one order, not in the other
    kinds = ["CompositeImplicitAutograd", "SparseCPU"]
    for name, order in (("composite", kinds), ("ambiguous", kinds[::-1])):
        for kind in order:
            own.impl(name, lambda *args, **kwargs: args[0], kind)
    own.impl("inplace", Callable(), "CompositeExplicitAutograd")
    own.impl("inplace", torch.library.fallthrough_kernel, "AutogradCPU")
    keep.append(C._dispatch_library("FRAGMENT", "gdbext_test", ""))
    keep[-1].impl("never_defined", "Meta", other_sin)
    aten = library("aten", "IMPL")
    aten.impl("sin", cpu_sin, "CPU")
    library("aten", "IMPL").impl("sin", other_sin, "CPU", allow_override=True)
    aten.impl("cos", torch.library.fallthrough_kernel, "AutogradMeta")
    aten.impl("mm", cpu_sin, "Autograd", allow_override=True)
    removed = torch.library.Library("aten", "IMPL")
    removed.impl("tan", cpu_sin, "CPU")
    removed._destroy()
    everything = library("_", "IMPL")
    everything.fallback(other_sin, "PrivateUse2")
    everything.fallback(torch.library.fallthrough_kernel, "AutogradPrivateUse3")


def stale(name):
    """Whether PyTorch itself says that this operator's table is not what its registrations lead to."""
    try:
        C._dispatch_check_invariants(name)
    except RuntimeError:
        return True
    return False


if "registered" in sys.argv[1:]:
    register()
names = sorted(set(C._dispatch_get_all_op_names()))
with open("dumps.json", "w") as out:
    json.dump({name: [C._dispatch_dump(name), C._dispatch_dump_table(name)] for name in names}, out)
truth.main_ready(
    stale=[name for name in names if stale(name)],
    dumps=os.path.abspath("dumps.json"),
    lines={"cpu_sin": cpu_sin.__code__.co_firstlineno, "other_sin": other_sin.__code__.co_firstlineno},
    file=os.path.abspath(__file__),
)
threading.Event().wait()
