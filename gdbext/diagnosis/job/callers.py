"""The call of a program that leads into a library's collective: its line, and the library's function that it called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.diagnosis.report.thread_report import Frame

_WRAPPERS = frozenset(
    (
        "wrapper",
        "inner",
        "_fn",
        "decorate_context",
        "_wrapped_call_impl",
        "_call_impl",
        "__call__",
        "compile_wrapper",
        "decorate_fwd",
        "autocast_decorator",
        "inner_func",
        "pre_forward",
        "post_forward",
        "pre_backward",
        "post_backward",
    )
)
"""Functions of decorators, of torch.nn.Module.__call__ and of FSDP's hooks, which only pass a call on."""
_REDISTRIBUTES = ("full_tensor", "redistribute", "distribute_tensor")
"""Functions that say themselves that a DTensor is redistributed."""
_COMMON = frozenset({"forward", "backward", "step", "save", "load", "__init__", "fit", "run"})
"""Names that say little without their class."""
EXCHANGED = (
    ("nn/parallel/distributed.py", "_sync_buffers", "DDP's buffers"),
    ("nn/parallel/distributed.py", "_sync_module_states", "DDP's parameters and buffers"),
    ("distributed/utils.py", "_sync_module_states", "DDP's parameters and buffers"),
    ("distributed/utils.py", "_verify_param_shape_across_processes", "DDP's check of parameter shapes"),
    ("nn/modules/_functions.py", "forward", "SyncBatchNorm's statistics"),
    ("_fsdp_param_group.py", "unshard", "FSDP's unshard"),
    ("_fsdp_param_group.py", "wait_for_unshard", "FSDP's unshard"),
    ("_fsdp_param_group.py", "post_backward", "FSDP's reduction of gradients"),
    ("fsdp/_runtime_utils.py", "_unshard", "FSDP's unshard"),
    ("fsdp/_runtime_utils.py", "_reduce_grad", "FSDP's reduction of gradients"),
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor", "DTensor's redistribution"),
    ("checkpoint/state_dict_saver.py", "save", "torch.distributed.checkpoint"),
    ("checkpoint/state_dict_saver.py", "async_save", "torch.distributed.checkpoint"),
    ("checkpoint/state_dict_saver.py", "save_state_dict", "torch.distributed.checkpoint"),
    ("checkpoint/state_dict_loader.py", "load", "torch.distributed.checkpoint"),
    ("checkpoint/state_dict_loader.py", "load_state_dict", "torch.distributed.checkpoint"),
    ("optim/zero_redundancy_optimizer.py", "step", "ZeroRedundancyOptimizer"),
)
"""(end of the file, function, what it exchanges with other ranks). Of torch 2.0 to 2.13, below torch/."""


class LibraryCall(NamedTuple):
    """A program's call of a library. ``own``: the index of the program's innermost frame, None without one."""

    own: int | None
    function: str
    """The library's function that the program called, without wrappers; "" where it called none."""
    exchanged: str
    """What it exchanges, of EXCHANGED; "" if unknown."""

    def text(self, op: str = "") -> str:
        """``full_tensor``, ``DistributedDataParallel.forward (DDP's buffers)``; "" if the program called the operation
        ``op`` itself."""
        if not self.function or (self.function == op and not self.exchanged):
            return ""
        if not self.exchanged or self.exchanged in self.function or self.function in _REDISTRIBUTES:
            return self.function
        return self.exchanged if self.function in self.exchanged else f"{self.function} ({self.exchanged})"


NO_CALL = LibraryCall(None, "", "")


def library_call(frames: Sequence[Frame]) -> LibraryCall:
    """The innermost call of a library in a program's code. ``frames``: Python's, innermost first."""
    own = next((index for index, frame in enumerate(frames) if frame.is_users), None)
    inside = frames[:own]
    named = [frame for frame in reversed(inside) if _last_name(frame) not in _WRAPPERS]
    called = next((frame for frame in named if not _last_name(frame).startswith("_")), named[0] if named else None)
    rows = (_exchanged(frame) for frame in inside)
    return LibraryCall(own, _shown_name(called) if called else "", next(filter(None, rows), ""))


def _last_name(frame: Frame) -> str:
    return frame.function.rpartition(".")[2]


def _shown_name(frame: Frame) -> str:
    name = _last_name(frame)
    return frame.function if name in _COMMON else name


def _exchanged(frame: Frame) -> str:
    """What the function exchanges with other ranks; the innermost such function tells most."""
    name = _last_name(frame)
    return next((words for file, function, words in EXCHANGED if name == function and frame.file.endswith(file)), "")
