"""The device as the host knows it: which stream or event each thread waits for, the threads' current streams, and
whether the process was started so that it can write a core of its device.

What the device does is not known here: work is said to be launched, never to run. Reads nothing where no thread is in
a call of CUDA. CUDA_… variables: cuda.h (CUcoredumpSettings) and the documentation of cuda-gdb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.diagnosis.report.device_wait import DeviceWait
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.diagnosis.waits.device_waits import StreamsOfWaits
from gdbext.diagnosis.waits.pool_table import DRIVER_LIBRARY
from gdbext.engine.targets.live.local_process import own_tid
from gdbext.engine.targets.system.nvidia import NvidiaFacts, read_nvidia
from gdbext.engine.vocabulary import Certainty, Section, byte_size, counted
from gdbext.errors import BadData, GdbextError
from gdbext.torch.compile.generated_kernels import LAUNCHER, launched_before
from gdbext.torch.state.cuda_state import CudaAllocator, CudaGraph, PendingEvent, PendingMemory

if TYPE_CHECKING:
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.targets.system.nvidia import NvidiaFigures
    from gdbext.engine.targets.system.procfs import ProcFs
    from gdbext.engine.vocabulary import Hexadecimal

_SHOWN = 4
"""Events of one stream that the text names."""
_FILES = 8
_MOST_FAILURES = 1 << 32
_DEPTH = 24
"""Python frames of a thread among which generated code is looked for."""


class CurrentStream(NamedTuple):
    """The stream into which a thread launches, on one device, by PyTorch's bookkeeping."""

    tid: int
    device: int
    stream_id: int
    stream: Hexadecimal


class LaunchedKernel(NamedTuple):
    """A kernel that code of torch.compile has launched, by its text before the line at which it stands: inferred.
    Whether it runs, or has run, is not known."""

    tid: int
    kernel: str
    file: str
    line: int


class ReplayedGraph(NamedTuple):
    """A CUDA graph that a thread is replaying: it is in the call that launches it."""

    tid: int
    graph: CudaGraph


class DeviceCore(NamedTuple):
    """Settings of cores of the device, as the process was started; ``pipe`` and ``file`` may have %h, %p and %t."""

    user_triggered: bool
    on_exception: bool
    pipe: str
    file: str
    keeps_running: bool = False
    """The process is not aborted after such a core (CUDA_COREDUMP_GENERATION_FLAGS has skip_abort)."""
    trigger: str = ""
    """The command that asks the running process for one; "" where it cannot be asked."""


@dataclass(frozen=True)
class DeviceSection(Section):
    """The host's knowledge of the devices that threads wait for."""

    name: ClassVar[str] = "device"
    devices: int | None
    """The number of devices that PyTorch uses; None where it is not known."""
    current_streams: tuple[CurrentStream, ...]
    """Those of the threads that wait for a device."""
    core: DeviceCore
    memory: tuple[PendingMemory, ...] = ()
    """Blocks of PyTorch's caching allocator that wait for events, and captures of CUDA graphs that it knows."""
    problems: tuple[str, ...] = ()
    launched: tuple[LaunchedKernel, ...] = ()
    """The last kernels that threads launched in code of torch.compile which they are still in, the latest first."""
    replayed: tuple[ReplayedGraph, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """PyTorch's bookkeeping of the devices, for people."""
        return (
            *(
                f"thread {each.tid} launched {each.kernel} ({each.file}:{each.line}); whether it runs is not known"
                for each in self.launched
            ),
            *(
                f"thread {each.tid} replays a CUDA graph that was captured on stream {each.graph.stream_id} of "
                f"cuda:{each.graph.device}, with memory of {_pool(each.graph)}"
                for each in self.replayed
            ),
            *(line for each in self.memory for line in _memory_lines(each)),
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """Steps by which the device can be asked what it runs."""
        if not self.core.user_triggered:
            return (
                "The device can be asked what runs on it only if the process is started with "
                "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1, which this one was not.",
            )
        if not self.core.trigger:
            pipe, file = self.core.pipe, self.core.file
            return (f"The process could be asked for a core of its device (by its pipe {pipe}): {file} would be one.",)
        end = "goes on after it" if self.core.keeps_running else "may be aborted after it"
        return (
            f"What runs on the device, in a core of it (the process {end}): {self.core.trigger}",
            f"Then look at the file {self.core.file} (%p is the PID, %t the time): cuda-gdb -ex 'target cudacore FILE'",
        )


def _memory_lines(memory: PendingMemory) -> Iterator[str]:
    """``cuda:0: 2 freed blocks (33 MB) wait for events of stream 35: …``"""
    streams: dict[int, list[PendingEvent]] = {}
    for event in memory.events:
        streams.setdefault(event.stream_id, []).append(event)
    for number, events in streams.items():
        blocks = {each.block: each.bytes for each in events}
        size, wait = byte_size(sum(blocks.values())), "waits" if len(blocks) == 1 else "wait"
        first = ", ".join(map(_event_text, events[:_SHOWN]))
        more = f", … {len(events) - _SHOWN} more" if len(events) > _SHOWN else ""
        yield (
            f"cuda:{memory.device}: {counted(len(blocks), 'freed block')} ({size}) of the allocator {wait} for "
            f"events of stream {number}, on which they were used: {first}{more}"
        )
    for graph in memory.graphs:
        yield f"cuda:{memory.device}: a CUDA graph is being captured on stream {graph.stream_id}, into {_pool(graph)}"
    others = (memory.captures or 0) - len(memory.graphs)
    if others > 0:
        yield f"cuda:{memory.device}: a CUDA graph is captured, or a private pool is used ({others} at once)"
    if memory.retries or memory.ooms:
        yield (
            f"cuda:{memory.device}: cudaMalloc failed and was tried again {counted(memory.retries, 'time')}, "
            f"out of memory {counted(memory.ooms, 'time')}"
        )


def _pool(graph: CudaGraph) -> str:
    return f"the private pool {graph.pool}"


def _event_text(event: PendingEvent) -> str:
    what = f"event {event.event:#x}" if event.event is not None else "an event that a thread has taken to wait for it,"
    return f"{what} for {event.block:#x}"


def core_settings(environ: Mapping[str, str]) -> DeviceCore:
    """The settings in an initial environment, with CUDA's defaults; a call of the driver may have changed them."""
    return DeviceCore(
        environ.get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "0") not in ("", "0"),
        environ.get("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "0") not in ("", "0"),
        environ.get("CUDA_COREDUMP_PIPE") or "corepipe.cuda.%h.%p",
        environ.get("CUDA_COREDUMP_FILE") or "core_%t_%h_%p.nvcudmp",
        "skip_abort" in environ.get("CUDA_COREDUMP_GENERATION_FLAGS", ""),
    )


def _trigger(core: DeviceCore, target: Target) -> str:
    """The command that writes into the pipe, which the driver has made by that name in the process's folder. The host's
    name is the process's own, in its container, and so is its PID."""
    if not core.user_triggered or target.origin.is_core:
        return ""
    own = target.pid
    if not target.origin.recorded:
        own = own_tid(target.pid, target.pid)
    name = core.pipe.replace("%h", "*").replace("%p", str(own)).replace("%t", "*")
    place = f"/proc/{target.pid}/root" if name.startswith("/") else f"/proc/{target.pid}/cwd/"
    return f"echo 1 | tee {place}{name}"


@dataclass(frozen=True)
class DeviceSystemSection(Section):
    """The system's words on the NVIDIA devices of a live process (--device)."""

    name: ClassVar[str] = "device_system"
    facts: NvidiaFacts

    @property
    def lines(self) -> tuple[str, ...]:
        """The figures, the errors of the kernel's log, the open files, and what could not be had, for people."""
        facts = self.facts
        files = ", ".join(facts.files[:_FILES]) + (", …" if len(facts.files) > _FILES else "")
        return (
            *map(_figures_line, facts.figures),
            *(f"kernel log: {each}" for each in facts.xids),
            f"open device files: {files}" if files else "the process has no file of an NVIDIA device open",
            *(f"unknown: {each}" for each in facts.problems),
        )


def system_section(target: Target, procfs: ProcFs) -> DeviceSystemSection:
    """Ask the driver and the kernel, within a time limit; of a core or a recording nobody can tell."""
    if target.origin.recorded or not procfs:
        problem = "the driver is asked of a live process only"
        return DeviceSystemSection(NvidiaFacts("", (), (), (), (problem,)))
    return DeviceSystemSection(read_nvidia(procfs.open_files(target.pid)))


def _figures_line(found: NvidiaFigures) -> str:
    """``NVML's device 0 (H100, /dev/nvidia3): busy 100 % of the time, 118 of 700 W``; what is not told is left out."""
    power = f"{found.milliwatts / 1000:.0f}" if found.milliwatts is not None else ""
    limit = f" of {found.limit_milliwatts / 1000:.0f}" if found.limit_milliwatts else ""
    used, total = found.memory_used, found.memory_total
    parts = (
        "MIG is on: what its parts do is not told" if found.mig else "",
        f"busy {found.busy_percent} % of the time" if found.busy_percent is not None else "",
        f"{power}{limit} W" if power else "",
        f"{found.sm_mhz} MHz (memory {found.memory_mhz})" if found.sm_mhz is not None else "",
        f"{byte_size(used)} of {byte_size(total)} used" if used is not None and total is not None else "",
        f"{counted(found.uncorrected_errors, 'uncorrected ECC error')}" if found.uncorrected_errors else "",
        "a kernel that spins, as a collective does that waits for others (inferred from busy time and power)"
        if found.spins
        else "",
    )
    place = f", /dev/nvidia{found.minor}" if found.minor is not None else ""
    return f"NVML's device {found.number} ({found.name}{place}): {', '.join(filter(None, parts)) or 'tells nothing'}"


def name_devices(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> tuple[Sequence[ThreadReport], DeviceSection]:
    """The reports, in the snapshots' order, whose waits for a device name its stream; and what is known of it."""
    sites = session.dispatch_stacks.sites if session.has_torch else None
    reader = StreamsOfWaits(session.memory, session.symbolizer, sites)
    callbacks = tuple(each.tid for each in process.threads if runs_host_function(each))
    replayed: list[ReplayedGraph] = []
    waiting: list[ThreadSnapshot] = []
    named: list[ThreadReport] = []
    for snapshot, thread in zip(process.threads, threads):
        if thread.wait and thread.wait.detail.device:
            waiting.append(snapshot)
            found = reader.completed(snapshot, thread.wait.detail.device, callbacks)
            graph = reader.graph(snapshot)
            replayed += [ReplayedGraph(thread.tid, graph)] if graph else []
            detail = thread.wait.detail.with_device(found)
            thread = thread.with_wait(thread.wait.with_detail(detail, *_reasons(found)))
        named.append(thread)
    current = tuple(
        CurrentStream(thread.tid, each.device, each.number, each.handle)
        for thread in waiting
        for each in reader.current(thread)
    )
    core = core_settings(session.target.origin.environ())
    core = core._replace(trigger=_trigger(core, session.target))
    memory = _pending_memory(session, reader)
    launched = tuple(each for thread in waiting for each in _launched(session, thread))
    problems = tuple(dict.fromkeys(reader.problems))
    return named, DeviceSection(reader.devices, current, core, memory, problems, launched, tuple(replayed))


def _pending_memory(session: Session, reader: StreamsOfWaits) -> tuple[PendingMemory, ...]:
    """The memory of each device that waits; empty where it is not known, or where CUDA was not initialised."""
    if not reader.devices:
        return ()
    try:
        found = CudaAllocator(session.memory, session.symbolizer, session.layout).pending()
        if any(not 0 <= count < _MOST_FAILURES for each in found for count in (each.retries, each.ooms)):
            raise BadData("its counts of failures make no sense")
        return found
    except GdbextError as error:
        reader.problems.append(f"the caching allocator: {error.what}")
        return ()


def _launched(session: Session, thread: ThreadSnapshot) -> Iterator[LaunchedKernel]:
    """The kernels of the innermost function of the thread in which Inductor launches kernels."""
    for frame in thread.python[:_DEPTH]:
        if frame.line and frame.file and frame.function.rpartition(".")[2] == LAUNCHER:
            lines = SourceReader(session.target).texts(frame.file)
            for kernel, line in launched_before(lines, frame.line):
                yield LaunchedKernel(thread.tid, kernel, frame.file, line)
            return


def _reasons(wait: DeviceWait) -> Iterator[str]:
    """The evidence for the stream or event, and for the device."""
    if wait.event is not None:
        yield f"the event {wait.event:#x} is what the calling code passed to {wait.call}"
    if wait.stream is not None and wait.certainty is Certainty.INFERRED:
        yield f"PyTorch replays a graph into the thread's current stream, which is {wait.stream:#x}: inferred"
    elif wait.stream is not None:
        yield f"the stream {wait.stream:#x} is what the calling code passed to {wait.call}"
    if wait.stream_id is not None:
        yield f"PyTorch's pool of streams has it: number {wait.stream_id} of cuda:{wait.device}"
    elif wait.device is not None:
        yield f"cuda:{wait.device} is the only device that PyTorch sees"


def runs_host_function(thread: ThreadSnapshot) -> bool:
    """A thread of the driver in whose frames a function of the program runs."""
    modules = [thread.module_name(level) for level in range(len(thread.frames)) if not thread.in_libc(level)]
    return bool(modules) and modules[-1].startswith(DRIVER_LIBRARY) and modules[0] != modules[-1]
