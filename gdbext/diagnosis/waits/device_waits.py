"""Calls of CUDA's runtime and driver: what each function waits for, and what a stack shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.device_wait import DeviceWait, DeviceWork
from gdbext.diagnosis.waits.function_tag import DEVICE_CALLS, VARIANTS, DeviceCalls, FunctionTag
from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch import assumed_symbols
from gdbext.torch.layout_choice import torch_version
from gdbext.torch.state.cuda_state import CudaGraph, CudaStream, CudaStreams, cuda_graph
from gdbext.torch.state.thread_variable import ThreadVariables

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.torch.stack.call_arguments import CallSites

_DEPTH = 40
"""Frames outside of such a call that are searched for its purpose."""
_SPECIAL = (0, 1, 2)
"""Handles of streams that have names: the default one, cudaStreamLegacy and cudaStreamPerThread (driver_types.h)."""


_CALLS = {name: row for row in DEVICE_CALLS if row.work for name in row.functions}
"""Function of CUDA, without the endings of VARIANTS → its row."""


def plain_name(function: str) -> str:
    """The name without the ending that says which default stream the function is for."""
    return next((function[: -len(ending)] for ending in VARIANTS if function.endswith(ending)), function)


def outermost_call(thread: ThreadSnapshot, level: int) -> int:
    """The level of the CUDA call that the program made, in which frame ``level`` is: the runtime's function is further
    out than the driver's. If none of them has a name, the outermost frame of their libraries."""
    named, last = None, level
    for outer in range(level, min(level + _DEPTH, len(thread.frames))):
        if thread.tags(outer) & {FunctionTag.DEVICE, FunctionTag.DEVICE_QUEUE}:
            named = outer
        elif not thread.module_name(outer).startswith(("libcuda.so", "libcudart")):
            break
        last = outer
    return last if named is None else named


def device_wait(thread: ThreadSnapshot, level: int, polls: bool = False) -> DeviceWait:
    """Facts that the stack shows of the CUDA call in which frame ``level`` is; ``polls``: the thread runs."""
    outer = outermost_call(thread, level)
    name, inner = thread.function_name(outer), thread.function_name(level)
    row = _CALLS.get(plain_name(name))
    return DeviceWait(
        name,
        DeviceWork[row.work] if row else DeviceWork.UNKNOWN,
        driver_call=inner if outer != level and inner.startswith("cu") and not inner.startswith("cuda") else "",
        caller=thread.module_name(outer + 1),
        purpose=_purpose(thread, outer),
        nccl_call=nccl_call(thread, outer),
        polls=polls,
        holds_gil=any(gil.holder_tid == thread.tid and gil.locked for gil in thread.process.gils),
    )


def nccl_call(thread: ThreadSnapshot, level: int = 0) -> str:
    """The function of NCCL that the program entered and that has not returned; "" if there is none."""
    levels = range(level, min(level + _DEPTH, len(thread.frames)))
    outermost = next((at for at in reversed(levels) if FunctionTag.NCCL in thread.tags(at)), None)
    return thread.function_name(outermost) if outermost is not None else ""


def _purpose(thread: ThreadSnapshot, level: int) -> str:
    """Why PyTorch makes the call of frame ``level``, by its innermost function with a purpose; "" if unknown."""
    purposes = (
        assumed_symbols.ALLOCATOR_EVENTS,
        assumed_symbols.ALLOCATOR_RELEASE,
        assumed_symbols.ALLOCATOR_BLOCK,
        assumed_symbols.GRAPH_REPLAY,
        assumed_symbols.GRAPH_CAPTURE,
    )
    for outer in range(level + 1, min(level + _DEPTH, len(thread.frames))):
        for row in purposes:
            if any(name.startswith(row.beginnings) for name in _names(thread, outer)):
                return row.purpose
    return ""


def _names(thread: ThreadSnapshot, level: int) -> Sequence[str]:
    """All (mangled) names of the function of frame ``level``; () if it has none."""
    function = thread.stack.function(level)
    return function.names if function else ()


class StreamsOfWaits:
    """Reads the streams for one inspection: the pools once, the current streams of each thread on request."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, sites: CallSites | None) -> None:
        """``sites``: the calls of the process; None without torch."""
        self._memory = memory
        self._sites = sites
        self._streams = CudaStreams(symbolizer, ThreadVariables(memory, symbolizer))
        self.problems: list[str] = []
        self._pool: Mapping[int, CudaStream] = {}
        self.devices: int | None = None
        try:
            build = torch_version(symbolizer.modules)
            # 2.6 is the first release whose numbers of streams were checked.
            if not build or store.release(build) < (2, 6):
                raise BadData(f"how torch {build or 'of this release'} numbers them is not known")
            self.devices = self._streams.device_count() or None
            self._pool = self._streams.pool()
        except GdbextError as error:
            self.problems.append(f"PyTorch's streams: {error.what}")

    def current(self, thread: ThreadSnapshot) -> tuple[CudaStream, ...]:
        """The thread's current streams; () if they are not known."""
        if not self.devices:
            return ()
        try:
            streams = self._streams.current(thread.thread_pointer)
            for stream in streams:
                if not _is_pointer(stream.handle) and (stream.number & 1 or stream.handle not in _SPECIAL):
                    raise BadData(f"stream {stream.number:#x} of cuda:{stream.device} cannot be at {stream.handle:#x}")
            return streams
        except GdbextError as error:
            self.problems.append(f"current streams of thread {thread.tid}: {error.what}")
            return ()

    def completed(self, thread: ThreadSnapshot, wait: DeviceWait, callbacks: tuple[int, ...]) -> DeviceWait:
        """The wait with the stream or event, as the caller's code passed it, and the device that this proves;
        ``callbacks``: tids of the driver's threads that run functions of the program."""
        level = _call_level(thread)
        call, work, passed = self._called(thread, wait, level)
        only = 0 if self.devices == 1 else None
        wait = wait._replace(call=call, work=work, device=only, host_functions=callbacks)
        row = _CALLS.get(plain_name(call))
        if not row or level is None or not passed:
            return wait
        return self._with_passed(thread, level, row, wait) or self._with_current(thread, wait)

    def _with_passed(self, thread: ThreadSnapshot, level: int, row: DeviceCalls, wait: DeviceWait) -> DeviceWait | None:
        """The wait with the event or stream that the caller of frame ``level`` passed; None if neither is known."""
        event = self._argument(thread, level, row.event)
        if event is not None and _is_pointer(event):
            return wait._replace(event=event, certainty=Certainty.EXACT)
        handle = self._argument(thread, level, row.stream)
        if handle is None or not (handle in _SPECIAL or _is_pointer(handle)):
            return None
        stream = self._pool.get(handle)
        number, device = (stream.number, stream.device) if stream else (None, wait.device)
        return wait._replace(stream=handle, stream_id=number, device=device, certainty=Certainty.EXACT)

    def graph(self, thread: ThreadSnapshot) -> CudaGraph | None:
        """The graph that the thread's call replays; None if there is none, or it is not known."""
        level = _call_level(thread)
        if level is None or not self._sites or level + 1 >= len(thread.frames):
            return None
        if not any(name.startswith(assumed_symbols.GRAPH_REPLAY.beginnings) for name in _names(thread, level + 1)):
            return None
        problem = "its address is unknown"
        for place in self._sites.places(thread.stack, level + 1, 0):  # graph_exec_, the second member, is passed
            try:
                return cuda_graph(self._memory, place - 8 if isinstance(place, int) else 0)
            except GdbextError as error:
                problem = error.what
        self.problems.append(f"the CUDA graph that thread {thread.tid} replays: {problem}")
        return None

    def _with_current(self, thread: ThreadSnapshot, wait: DeviceWait) -> DeviceWait:
        """The wait with the stream into which PyTorch replays a graph: the thread's current one (CUDAGraph.cpp)."""
        if wait.purpose != assumed_symbols.GRAPH_REPLAY.purpose or plain_name(wait.call) != "cudaGraphLaunch":
            return wait
        graph = self.graph(thread)
        device = graph.device if graph else wait.device
        stream = next((stream for stream in self.current(thread) if stream.device == device), None)
        if not stream:
            return wait
        number = stream.number if stream.handle in self._pool else None
        inferred = Certainty.INFERRED
        return wait._replace(stream=stream.handle, stream_id=number, device=device, certainty=inferred)

    def _called(self, thread: ThreadSnapshot, wait: DeviceWait, level: int | None) -> tuple[str, DeviceWork, bool]:
        """(the called function, its work, whether the arguments are those of a CUDA function). The function that the
        program called may have jumped to that of frame ``level``: then the arguments are the called one's, and are
        not CUDA's if it is PyTorch's."""
        if level is None or not self._sites or level + 1 >= len(thread.frames):
            return wait.call, wait.work, False
        target, inner = self._sites.direct_target(thread.stack, level + 1), thread.stack.function(level)
        if not target or not inner or inner.start == target:
            return wait.call, wait.work, True
        function = self._sites.function_at(target)
        name = function.demangled[0].split("(")[0] if function and function.start == target else ""
        row = _CALLS.get(plain_name(name))
        return (name, DeviceWork[row.work], True) if row else (wait.call, wait.work, False)

    def _argument(self, thread: ThreadSnapshot, level: int, number: int | None) -> int | None:
        """Argument ``number`` that the caller of frame ``level`` passed, None if unknown."""
        if number is not None and self._sites and level + 1 < len(thread.frames):
            with suppress(GdbextError):
                return self._sites.argument(thread.stack, level + 1, number)
        return None


def _call_level(thread: ThreadSnapshot) -> int | None:
    """The frame of the CUDA call that the program made, None if there is none."""
    inner = thread.level_of(FunctionTag.DEVICE, FunctionTag.DEVICE_QUEUE)
    return outermost_call(thread, inner) if inner is not None else None


def _is_pointer(value: int) -> bool:
    """True if ``value`` may be a pointer; a handle that is neither a pointer nor in _SPECIAL was misread."""
    return 0x1000 <= value < 1 << 57
