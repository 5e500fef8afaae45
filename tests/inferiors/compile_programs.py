"""compile-programs: small programs that torch.compile compiles, each of which says of itself what torch recorded.

Argument: the program, one of the functions. The environment variable TORCHDYNAMO_DISABLE is the harness's to set.
"""

import os
import platform
import sys
import threading

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(os.getcwd(), "inductor"))  # empty: g++ has work
import torch
import truth
from config_truth import changed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # or torch._dynamo takes functorch.py there for its own


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))).softmax(-1)


def bad_backend(graph, inputs):
    raise RuntimeError("no backend today")


def with_breaks(x, n):
    y = x.sin()
    print("a graph break", file=sys.stderr)
    y = y * n
    torch._dynamo.graph_break()
    return y + 1 if y.sum().item() > 0 else y - 1


def again(x, n=1):
    return x.cos() * n


def calls_another(x):
    return again(x) + with_breaks(x, 2)


def training():
    compiled = torch.compile(Model())
    for _ in range(2):
        compiled(torch.rand(2, 8)).pow(2).sum().backward()


def breaks():
    compiled = torch.compile(calls_another, backend="eager")
    for n in range(3):
        compiled(torch.rand(3 + n))
    torch.compile(Model(), backend="aot_eager")(torch.rand(2, 8)).sum().backward()


def recompiles():
    """More often than the limit allows."""
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, 3)
    compiled = torch.compile(again, backend="eager", dynamic=False)
    for size in range(2, 8):
        compiled(torch.rand(size))
    for kind in (torch.float64, torch.float16):
        torch.compile(with_breaks, backend="aot_eager")(torch.rand(3).to(kind), 3)


def failed():
    """The error reaches the program, or it is suppressed."""
    for function in (again, with_breaks):
        try:
            torch.compile(function, backend=bad_backend)(torch.rand(2), 3)
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)
    torch._dynamo.config.suppress_errors = True
    torch.compile(calls_another, backend=bad_backend)(torch.rand(2))


def disabled():
    torch._dynamo.config.disable = True
    torch.compile(again, backend="eager")(torch.rand(3))


def by_environment():
    torch.compile(again, backend="eager")(torch.rand(3))


def options():
    import contextvars

    import torch._inductor.config as inductor_config

    config = torch._dynamo.config
    config.verbose, config.suppress_errors, config.error_on_recompile = True, False, True
    inductor_config.max_autotune = inductor_config.fallback_random = True
    inductor_config.cpp.threads = 1
    inductor_config.post_grad_fusion_options = {"normalization_pass": {"level": 2}}
    inductor_config.post_grad_custom_post_pass = bad_backend
    torch.compile(again, backend="eager")(torch.rand(3))
    with config.patch(guard_nn_modules=False):
        torch.compile(with_breaks, backend="eager")(torch.rand(3), 2)
    contextvars.copy_context().run(int)  # caches of context variables are of no use any more


# --- threads in compiled code and in compilers ---------------------------------------------------

stopped = threading.Semaphore(0)


def stay():
    stopped.release()
    threading.Event().wait(truth.FOREVER)


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


def runs(x):
    y = x + 1
    y = y.tan()
    return y * 2


class HasFunction:
    """As Triton's ASTSource and JITFunction have one."""

    def __init__(self, fn):
        self.fn = fn


def compiles_for_triton():
    """Triton needs a device to be used: a stand-in for its compiler, with its names (triton/compiler/compiler.py)."""
    names = {"stay": stay}
    text = "def compile(src, target=None):\n    stay()\n"
    exec(compile(text, "/nowhere/site-packages/triton/compiler/compiler.py", "exec"), names)
    names["compile"](HasFunction(HasFunction(again)))


def inside(role, target):
    truth.thread(role, waits="futex")
    target()


def threads():
    for role, target in (
        ("runner", lambda: torch.compile(runs, backend=waiting_backend)(torch.rand(2))),
        ("compiler", lambda: torch.compile(again, backend=slow_backend)(torch.rand(2))),
        ("triton", compiles_for_triton),
    ):
        threading.Thread(target=inside, args=(role, target), name=role).start()
        stopped.acquire()
    truth.note(runs_line=runs.__code__.co_firstlineno)


# --- what torch recorded -------------------------------------------------------------------------


def name_of(code):
    return getattr(code, "co_qualname", code.co_name)  # since 3.11


def say():
    from torch._dynamo import utils

    metrics = list(utils._compilation_metrics)
    options, others = changed(torch._dynamo.config)
    inductor_options, more = {}, []
    if "torch._inductor.config" in sys.modules:
        inductor_options, more = changed(sys.modules["torch._inductor.config"])
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "counters": {key: dict(counter) for key, counter in utils.counters.items()},
        "graph_breaks": dict(utils.counters["graph_break"]) if "graph_break" in utils.counters else {},
        "recompile_reasons": [each.recompile_reason for each in metrics if getattr(each, "recompile_reason", None)],
        "recompiled": [each.compile_id for each in metrics if not (each.compile_id or "/0").endswith("/0")],
        "failures": [[each.co_name, each.fail_type, each.fail_reason] for each in metrics if each.fail_type],
        "compilations": [[each.compile_id, each.co_name, each.co_firstlineno] for each in metrics],
        "codes": sorted([name_of(code), code.co_firstlineno] for code in set(utils.orig_code_map.values.values())),
        "guard_failures": sorted(
            [name_of(code), code.co_firstlineno, reasons] for code, reasons in utils.guard_failures.items()
        ),
        "settings": options,
        "inductor_settings": inductor_options,
        "unshown_settings": others + more,
        "kernels": sorted(kernels()),
    }


def kernels():
    cache = sys.modules.get("torch._inductor.codecache")
    for module in cache.PyCodeCache.modules if cache is not None else ():
        for name, value in vars(module).items():
            if name.startswith("cpp_fused"):
                yield [name, value.__self__.__file__]


globals()[sys.argv[1].replace("-", "_")]()
import torch._dynamo  # noqa: E402 - one that is disabled does not import it

truth.main_ready(verdict="idle", said=say())
sys.stdin.read()
