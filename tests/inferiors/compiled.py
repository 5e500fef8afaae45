"""compiled: a program that torch.compile has compiled, and what it says of itself.

It has breaks, recompilations, an error that is suppressed, a thread in compiled code and one in the compiler. Other
programs are in compile_programs.py.
"""

from __future__ import annotations

import os
import sys
import threading

import torch
import truth
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # or torch._dynamo takes functorch.py there for its own
stopped = threading.Semaphore(0)


def stay():
    stopped.release()
    threading.Event().wait(truth.FOREVER)


def bad_backend(graph, inputs):
    raise RuntimeError("no backend today")


class Stop(TorchDispatchMode):
    """Stops where the tangent is called while it is on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "tan" in str(func):
            stay()
        return func(*args, **(kwargs or {}))


def waiting_backend(graph, inputs):
    """Returns a function that waits in the graph's function when it is called."""

    def run(*arguments):
        with Stop():
            return graph(*arguments)

    return run


def slow_backend(graph, inputs):
    stay()
    return graph


def with_break(x, n):
    y = x.sin()
    print("a graph break", file=sys.stderr)
    return y * n


def again(x):
    return x.cos()


def fails(x):
    return x + 1


def runs(x):
    y = x + 1
    y = y.tan()
    return y * 2


def is_compiled(x):
    return x.exp()


def settled(x):
    return x.sigmoid()


def kinds():
    broken, cosine = torch.compile(with_break, backend="eager"), torch.compile(again, backend="aot_eager")
    for n in (1, 2, 3):
        broken(torch.rand(3), n)
    for x in (torch.rand(3), torch.rand(3, 3), torch.rand(3, dtype=torch.float64)):
        cosine(x)
    torch._dynamo.config.suppress_errors = True
    torch.compile(fails, backend=bad_backend)(torch.rand(2))
    torch.compile(settled, backend="eager", fullgraph=True)(torch.rand(2))
    inside(runs, waiting_backend, "runner")
    inside(is_compiled, slow_backend, "compiler")
    threading.Thread(target=compiles_for_triton, name="triton").start()
    stopped.acquire()


class HasFunction:
    """As Triton's ASTSource and JITFunction have one."""

    def __init__(self, fn):
        self.fn = fn


def compiles_for_triton():
    """Triton needs a device to be used: a stand-in for its compiler, with its names (triton/compiler/compiler.py)."""
    names = {"stay": stay}
    text = "def compile(src, target=None):\n    stay()\n"
    exec(compile(text, "/nowhere/site-packages/triton/compiler/compiler.py", "exec"), names)
    truth.thread("triton", waits="futex")
    names["compile"](HasFunction(HasFunction(settled)))


def inside(function, backend, role):
    compiled = torch.compile(function, backend=backend)

    def target():
        truth.thread(role, waits="futex")
        compiled(torch.rand(2))

    threading.Thread(target=target, name=role).start()
    stopped.acquire()


def say():
    from torch._dynamo import utils

    metrics = list(utils._compilation_metrics)
    return {
        "counters": {key: dict(counter) for key, counter in utils.counters.items()},
        "recompiles": [each.recompile_reason for each in metrics if each.recompile_reason],
        "failures": [[each.co_name, each.fail_type, each.fail_reason] for each in metrics if each.fail_type],
        "compilations": [[each.compile_id, each.co_name, each.co_firstlineno] for each in metrics],
        "codes": sorted([code.co_name, code.co_firstlineno] for code in set(utils.orig_code_map.values.values())),
        "breaks": utils.counters["graph_break"].total(),
    }


kinds()
truth.thread("main", waits="any")
truth.note(verdict="idle", said=say(), runs_line=runs.__code__.co_firstlineno)
truth.ready()
sys.stdin.read()
