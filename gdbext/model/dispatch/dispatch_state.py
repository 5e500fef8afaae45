"""DispatchState: the thread-local state that takes part in dispatch."""

from __future__ import annotations

from dataclasses import dataclass

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet


@dataclass(frozen=True)
class AutogradFlags:
    """``c10::AutogradState``; the defaults are those of a thread that never changed it (AutogradState.cpp).

    None is a flag that this version of PyTorch does not have.
    """

    grad_mode: bool | None = True
    inference_mode: bool | None = False
    forward_ad: bool | None = True
    multithreading: bool | None = True
    view_replay: bool | None = False


@dataclass(frozen=True)
class Autocast:
    """Autocast of one device: on when its key is not excluded; ``dtype`` as in torch.float16, None where unknown."""

    device: str
    enabled: bool
    dtype: str | None


@dataclass(frozen=True)
class FunctorchLayer:
    """One interpreter of functorch's stack; ``transform`` is "Vmap", "Grad", "Jvp" or "Functionalize"."""

    transform: str
    level: int


@dataclass(frozen=True)
class PythonMode:
    """A mode on a Python mode stack: its class, and for an infrastructure mode its kind ("FAKE", "PROXY", …)."""

    name: str
    infra: str | None = None


@dataclass(frozen=True)
class DispatchState:
    """Everything; a member that could not be read is None and ``problems`` says why."""

    included: DispatchKeySet | None
    excluded: DispatchKeySet | None
    autograd: AutogradFlags | None
    autocast: tuple[Autocast, ...] | None
    autocast_cache: bool | None
    autocast_nesting: int | None
    functorch: tuple[FunctorchLayer, ...] | None
    """Outermost first."""
    python_dispatcher: bool | None
    python_modes: tuple[PythonMode, ...] | None
    """Infrastructure modes, then the user's from the outermost to the innermost."""
    torch_function: str | None
    """What ``__torch_function__`` is limited to: "enabled", "subclasses disabled" or "all disabled"."""
    torch_function_modes: tuple[str, ...] | None
    sequence_number: int | None
    """The next number of autograd's nodes in this thread."""
    problems: tuple[str, ...]
