"""dispatch-modes: a thread in each mode that changes dispatch; each writes what PyTorch says of it and waits."""

import contextlib
import threading
import warnings

import torch
import truth
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_truth import FunctionMode, Mode, key_names

warnings.simplefilter("ignore")
C = torch._C
never = threading.Event()
DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "ipu", "mtia", "maia")


class OtherMode(Mode):
    """A second class, to tell the order."""


def last_word(kind):
    return str(kind).rpartition(".")[2]


def modes():
    """The infrastructure modes, which PyTorch counts as the bottom of the stack, and those above them."""
    kinds = (getattr(C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
    infra = [(C._get_dispatch_mode(kind), last_word(kind)) for kind in kinds if C._get_dispatch_mode(kind) is not None]
    others = [(C._get_dispatch_stack_at(at), None) for at in range(len(infra), C._len_torch_dispatch_stack())]
    return [{"name": type(mode).__name__, "infra": kind} for mode, kind in infra + others]


def facts():
    """What PyTorch says of the calling thread, in the words of dispatch-tls."""
    included, excluded = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
    return {
        "included": key_names(included),
        "excluded": key_names(excluded),
        "included_bits": truth.hexadecimal(included.raw_repr()),
        "excluded_bits": truth.hexadecimal(excluded.raw_repr()),
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "forward_ad": C._is_fwd_grad_enabled(),
        "multithreading": C._is_multithreading_enabled(),
        "view_replay": C._is_view_replay_enabled(),
        "autocast": {
            device: {"enabled": torch.is_autocast_enabled(device), "dtype": last_word(torch.get_autocast_dtype(device))}
            for device in DEVICES
        },
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "functorch": [
            {"transform": last_word(each.key()), "level": each.level()}
            for each in C._functorch.get_interpreter_stack() or []
        ],
        "python_modes": modes(),
        "torch_function_modes": [
            type(C._get_function_stack_at(index)).__name__ for index in range(C._len_torch_function_stack())
        ],
        "sequence_number": C._autograd._get_sequence_nr(),
    }


def hang(role, **more):
    truth.thread(role, tls={**facts(), **more})
    arrived.append(role)
    never.wait()


def within(role, *contexts, **more):
    def run():
        with contextlib.ExitStack() as stack:
            for make in contexts:
                stack.enter_context(make())
            hang(role, **more)

    return run


def untouched():
    truth.thread("untouched")
    arrived.append("untouched")
    never.wait()


def forward_ad_off():
    C._set_fwd_grad_enabled(False)
    hang("forward-ad-off")


def settings():
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    hang("autocast-settings", autocast_nesting=1)


def recorded():
    x = torch.ones(2, requires_grad=True)
    for _ in range(5):
        x = x * 2
    hang("sequence")


RUNS = (
    within("default", torch_function="enabled", python_dispatcher=False, autocast_nesting=0),
    within("no-grad", torch.no_grad),
    within("inference", torch.inference_mode),
    within("autocast-cpu", lambda: torch.autocast("cpu", dtype=torch.bfloat16), autocast_nesting=1),
    settings,
    lambda: torch.func.vmap(lambda x: hang("vmap"))(torch.randn(3)),
    lambda: torch.func.vmap(torch.func.grad(lambda y: hang("vmap-of-grad")))(torch.randn(3, 2)),
    lambda: torch.func.jvp(lambda x: hang("jvp"), (torch.ones(2),), (torch.ones(2),)),
    lambda: torch.func.functionalize(lambda x: hang("functionalize"))(torch.randn(3)),
    within("dispatch-mode", Mode),
    within("two-modes", Mode, OtherMode, torch.no_grad),
    within("fake-and-mode", FakeTensorMode, Mode),
    within("function-mode", FunctionMode),
    within("no-torch-function", C.DisableTorchFunction, torch_function="all disabled"),
    within("no-subclass-function", C.DisableTorchFunctionSubclass, torch_function="subclasses disabled"),
    within("python-dispatcher", enable_python_dispatcher, python_dispatcher=True),
    within("below-autograd", C._AutoDispatchBelowAutograd),
    within("excluded", lambda: C._ExcludeDispatchKeyGuard(C.DispatchKeySet(C.DispatchKey.AutogradCPU))),
    within("included", lambda: C._IncludeDispatchKeyGuard(C.DispatchKey.Conjugate)),
    within("single-threaded", lambda: torch.autograd.set_multithreading_enabled(False)),
    within("view-replay", lambda: torch.autograd._force_original_view_tracking(True)),
    forward_ad_off,
    recorded,
    untouched,
)
arrived: list = []
for run in RUNS:
    threading.Thread(target=run, daemon=True).start()
truth.until(lambda: len(arrived) >= len(RUNS))
truth.thread("main", tls=facts())
truth.ready()
never.wait()
