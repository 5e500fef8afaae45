"""DeviceWait: the call of CUDA's runtime or driver in which a thread waits for a device."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal


class DeviceWork(Enum):
    """The work of the device that ends a call; the value is the word of the JSON report."""

    STREAM = "stream"
    EVENT = "event"
    DEVICE = "device"
    """Everything that was launched on the device."""
    COPY = "copy"
    MEMORY = "memory"
    """The driver gives or takes memory, which may wait for all that runs."""
    LAUNCH = "launch"
    """Work is put into a stream, which waits where the stream's queue is full."""
    GRAPH = "graph"
    SETUP = "setup"
    """The driver, a context or a module is loaded."""
    UNKNOWN = "unknown"


class DeviceWait(NamedTuple):
    """The call in which a thread waits for a device. Work is said to be launched: whether it runs is unknown."""

    call: str
    """``cudaStreamSynchronize``; "" where the driver's function has no name."""
    work: DeviceWork
    driver_call: str = ""
    """The driver's function below the runtime's, ``cuStreamSynchronize``, where it is on the stack."""
    caller: str = ""
    """The library whose code made the call: ``libtorch_cuda.so``."""
    purpose: str = ""
    """The reason why PyTorch makes the call, by its functions on the stack; "" if unknown."""
    nccl_call: str = ""
    """The function of NCCL that makes the call."""
    polls: bool = False
    """The thread runs: it asks the device again and again, as the driver does by default."""
    stream: Hexadecimal | None = None
    """The cudaStream_t, 0 for the default stream; None if unknown."""
    stream_id: int | None = None
    """PyTorch's number of the stream (torch.cuda.Stream.stream_id)."""
    event: Hexadecimal | None = None
    """The awaited cudaEvent_t; None if unknown."""
    device: int | None = None
    certainty: Certainty = Certainty.UNKNOWN
    """The certainty of the stream or event."""
    holds_gil: bool = False
    """The thread has the GIL during the call, as the interpreter records it."""
    host_functions: tuple[int, ...] = ()
    """Driver threads that run host functions (cudaLaunchHostFunc): work launched after such a function waits for it."""

    @property
    def object(self) -> str:
        """The stream or event in words: ``the default stream``, ``stream 35 of cuda:0``, ``event 0x7f00``."""
        if self.event is not None:
            return f"event {self.event:#x}"
        if self.stream is None:
            return ""
        of_device = f" of cuda:{self.device}" if self.device is not None else ""
        if self.stream in _SPECIAL_STREAMS:
            return _SPECIAL_STREAMS[self.stream] + of_device
        number = f"{self.stream_id}" if self.stream_id is not None else f"{self.stream:#x}"
        return f"stream {number}{of_device}"

    @property
    def phrase(self) -> str:
        """``waits for the device (cudaStreamSynchronize of stream 35 of cuda:0, in ncclAllReduce)``."""
        call = self.call or "an unnamed driver call"
        of_object = f" of {self.object}" if self.object else ""
        on_device = f" on cuda:{self.device}" if self.device is not None and self.stream is None else ""
        text = call + of_object + on_device
        inside = f", in {self.nccl_call}" if self.nccl_call else ""
        purpose = f"; {self.purpose}" if self.purpose else ""
        return f"waits for the device ({text}{inside}{purpose})"


_SPECIAL_STREAMS = {0: "the default stream", 1: "the legacy default stream", 2: "the per-thread default stream"}
"""Values of a cudaStream_t that are no pointers: 0, cudaStreamLegacy, cudaStreamPerThread (cuda_runtime_api.h)."""
