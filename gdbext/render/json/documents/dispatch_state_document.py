"""``tls`` of a thread as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.dispatch.dispatch_state import AutogradFlags, DispatchState
from gdbext.render.json.values import plain

_FLAGS = ("grad_mode", "inference_mode", "forward_ad", "multithreading", "view_replay")


def document(state: DispatchState) -> dict[str, Any]:
    """The state; null for what could not be read."""
    included, excluded, autocast = state.included, state.excluded, state.autocast
    return {
        "included": None if included is None else list(included.keys),
        "excluded": None if excluded is None else list(excluded.keys),
        "included_bits": None if included is None else f"{included.bits:#x}",
        "excluded_bits": None if excluded is None else f"{excluded.bits:#x}",
        **_flags(state.autograd),
        "autocast": None
        if autocast is None
        else {one.device: {"enabled": one.enabled, "dtype": one.dtype} for one in autocast},
        "autocast_cache": state.autocast_cache,
        "autocast_nesting": state.autocast_nesting,
        "functorch": plain(state.functorch),
        "python_dispatcher": state.python_dispatcher,
        "python_modes": plain(state.python_modes),
        "torch_function": state.torch_function,
        "torch_function_modes": plain(state.torch_function_modes),
        "sequence_number": state.sequence_number,
    }


def _flags(autograd: AutogradFlags | None) -> dict[str, Any]:
    return dict.fromkeys(_FLAGS) if autograd is None else plain(autograd)
