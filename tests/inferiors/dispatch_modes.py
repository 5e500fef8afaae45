"""dispatch-modes: a thread in each mode that changes dispatch; each writes what PyTorch says of it and waits."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings

import torch
import truth
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("ignore")
C = torch._C
never = threading.Event()
DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "ipu", "mtia", "maia")


class Mode(TorchDispatchMode):
    """Lets everything through."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class OtherMode(Mode):
    """A second class, to tell the order."""


class FunctionMode(TorchFunctionMode):
    """Lets everything through."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def infra_modes():
    kinds = C._TorchDispatchModeKey
    found = []
    for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL):
        mode = C._get_dispatch_mode(kind)
        if mode is not None:
            found.append({"name": type(mode).__name__, "infra": str(kind).rpartition(".")[2]})
    return found


def user_modes():
    """The modes above the infrastructure modes, which PyTorch counts as the bottom of the stack."""
    return [
        {"name": type(C._get_dispatch_stack_at(index)).__name__, "infra": None}
        for index in range(len(infra_modes()), C._len_torch_dispatch_stack())
    ]


def autocast(device):
    dtype = str(torch.get_autocast_dtype(device))
    return {"enabled": torch.is_autocast_enabled(device), "dtype": dtype[len("torch.") :]}


def facts():
    """What PyTorch says of the calling thread, in the words of dispatch-tls."""
    stack = C._functorch.get_interpreter_stack() or []
    return {
        "included": names(C._dispatch_tls_local_include_set()),
        "excluded": names(C._dispatch_tls_local_exclude_set()),
        "included_bits": truth.hexadecimal(C._dispatch_tls_local_include_set().raw_repr()),
        "excluded_bits": truth.hexadecimal(C._dispatch_tls_local_exclude_set().raw_repr()),
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "forward_ad": C._is_fwd_grad_enabled(),
        "multithreading": C._is_multithreading_enabled(),
        "view_replay": C._is_view_replay_enabled(),
        "autocast": {device: autocast(device) for device in DEVICES},
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "functorch": [{"transform": str(one.key()).rpartition(".")[2], "level": one.level()} for one in stack],
        "python_modes": infra_modes() + user_modes(),
        "torch_function_modes": [
            type(C._get_function_stack_at(index)).__name__ for index in range(C._len_torch_function_stack())
        ],
        "sequence_number": C._autograd._get_sequence_nr(),
    }


def names(keyset):
    text = str(keyset)[len("DispatchKeySet(") : -1]
    return text.split(", ") if text else []


def hang(role, **more):
    """Write the facts and stay, in whatever mode the caller has set."""
    truth.thread(role, tls={**facts(), **more})
    arrived.append(role)
    never.wait()


def transform(kind, role):
    def run():
        kind(lambda x: hang(role))(torch.randn(3))

    return run


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


def nested(x):
    return torch.func.vmap(torch.func.grad(lambda y: hang("vmap-of-grad")))(x)


def forward():
    torch.func.jvp(lambda x: hang("jvp"), (torch.ones(2),), (torch.ones(2),))


def excluded_key():
    return C._ExcludeDispatchKeyGuard(C.DispatchKeySet(C.DispatchKey.AutogradCPU))


def included_key():
    return C._IncludeDispatchKeyGuard(C.DispatchKey.Conjugate)


RUNS = (
    within("default", torch_function="enabled", python_dispatcher=False, autocast_nesting=0),
    within("no-grad", torch.no_grad),
    within("inference", torch.inference_mode),
    within("autocast-cpu", lambda: torch.autocast("cpu", dtype=torch.bfloat16), autocast_nesting=1),
    settings,
    transform(torch.func.vmap, "vmap"),
    transform(torch.func.grad, "grad"),
    lambda: nested(torch.randn(3, 2)),
    forward,
    transform(torch.func.functionalize, "functionalize"),
    within("dispatch-mode", Mode),
    within("two-modes", Mode, OtherMode, torch.no_grad),
    within("fake-tensors", FakeTensorMode),
    within("fake-and-mode", FakeTensorMode, Mode),
    within("function-mode", FunctionMode),
    within("no-torch-function", C.DisableTorchFunction, torch_function="all disabled"),
    within("no-subclass-function", C.DisableTorchFunctionSubclass, torch_function="subclasses disabled"),
    within("python-dispatcher", enable_python_dispatcher, python_dispatcher=True),
    within("below-autograd", C._AutoDispatchBelowAutograd),
    within("excluded", excluded_key),
    within("included", included_key),
    within("single-threaded", lambda: torch.autograd.set_multithreading_enabled(False)),
    within("view-replay", lambda: torch.autograd._force_original_view_tracking(True)),
    forward_ad_off,
    recorded,
    untouched,
)
arrived = []
for run in RUNS:
    threading.Thread(target=run, daemon=True).start()
deadline = time.monotonic() + 60
while len(arrived) < len(RUNS) and time.monotonic() < deadline:
    time.sleep(0.01)
truth.note(expected_threads=len(RUNS), arrived=sorted(arrived))
hang_main = facts()
truth.thread("main", tls=hang_main)
truth.ready()
never.wait()
