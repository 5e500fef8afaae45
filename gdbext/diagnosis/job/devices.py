"""The devices as the host sees them: awaited streams and events, threads' current streams, and cores of the device.
Read only if a thread is in a call of CUDA. CUDA_… variables: cuda.h (CUcoredumpSettings), cuda-gdb's manual."""

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
    from gdbext.engine.targets.system.procfs import ProcFs
    from gdbext.engine.vocabulary import Hexadecimal


class CurrentStream(NamedTuple):
    """The stream into which a thread launches, on one device, by PyTorch's bookkeeping."""

    tid: int
    device: int
    stream_id: int
    stream: Hexadecimal


class LaunchedKernel(NamedTuple):
    """A kernel that torch.compile's code launched, by the lines before the current one; it may not have run yet."""

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
    """The number of devices that PyTorch uses; None if unknown."""
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
                f"thread {tid} launched {kernel} ({file}:{line}); whether it runs is not known"
                for tid, kernel, file, line in self.launched
            ),
            *(
                f"thread {tid} replays a CUDA graph that was captured on stream {graph.stream_id} of "
                f"cuda:{graph.device}, with memory of the private pool {graph.pool}"
                for tid, graph in self.replayed
            ),
            *(line for memory in self.memory for line in _memory_lines(memory)),
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """Steps by which a user can find out what the device runs."""
        core = self.core
        if not core.user_triggered:
            variable = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1"
            return (f"To find out what runs on the device, start the process with {variable}; this one was not.",)
        if not core.trigger:
            return (
                f"The live process could write a core of its device on request (pipe {core.pipe}, file {core.file}).",
            )
        end = "continues" if core.keeps_running else "may be aborted afterwards"
        return (
            f"A core dump of the device shows what runs on it (the process {end}): {core.trigger}",
            f"Then examine the file {core.file} (%p is the PID, %t the time): cuda-gdb -ex 'target cudacore FILE'",
        )


def _memory_lines(memory: PendingMemory) -> Iterator[str]:
    """``cuda:0: 2 freed blocks (33 MiB) of the allocator wait for events of stream 35, …``, with up to 4 events."""
    streams: dict[int, list[PendingEvent]] = {}
    for event in memory.events:
        streams.setdefault(event.stream_id, []).append(event)
    for number, events in streams.items():
        blocks = {event.block: event.bytes for event in events}
        size = byte_size(sum(blocks.values()))
        wait, were = ("waits", "it was") if len(blocks) == 1 else ("wait", "they were")
        taken = "an event that a thread has taken to wait for it,"
        first = ", ".join(
            f"{taken if event.event is None else f'event {event.event:#x}'} for {event.block:#x}"
            for event in events[:4]
        )
        more = f", … {len(events) - 4} more" if len(events) > 4 else ""
        yield (
            f"cuda:{memory.device}: {counted(len(blocks), 'freed block')} ({size}) of the allocator {wait} for "
            f"events of stream {number}, on which {were} used: {first}{more}"
        )
    for graph in memory.graphs:
        pool = f"the private pool {graph.pool}"
        yield f"cuda:{memory.device}: a CUDA graph is being captured on stream {graph.stream_id}, into {pool}"
    others = (memory.captures or 0) - len(memory.graphs)
    if others > 0:
        yield f"cuda:{memory.device}: a CUDA graph is being captured or a private pool is in use ({others} at once)"
    if memory.retries or memory.ooms:
        yield (
            f"cuda:{memory.device}: cudaMalloc failed and was retried {counted(memory.retries, 'time')}; "
            f"out of memory {counted(memory.ooms, 'time')}"
        )


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
    """The shell command that asks the driver for a core by the pipe that it made in the process's folder; "" if it
    cannot be asked. Host name and PID in the pipe's name are those inside the process's container."""
    if not core.user_triggered or target.origin.is_core:
        return ""
    own = target.pid if target.origin.recorded else own_tid(target.pid, target.pid)
    name = core.pipe.replace("%h", "*").replace("%p", str(own)).replace("%t", "*")
    place = f"/proc/{target.pid}/root" if name.startswith("/") else f"/proc/{target.pid}/cwd/"
    return f"echo 1 | tee {place}{name}"


@dataclass(frozen=True)
class DeviceSystemSection(Section):
    """What the driver and the kernel say of the NVIDIA devices of a live process (--device)."""

    name: ClassVar[str] = "device_system"
    facts: NvidiaFacts

    @property
    def lines(self) -> tuple[str, ...]:
        """The figures, the errors of the kernel's log, the open files, and what could not be read, for people."""
        facts = self.facts
        files = ", ".join(facts.files[:8]) + (", …" if len(facts.files) > 8 else "")
        lines = []
        for figures in facts.figures:
            power = f"{figures.milliwatts / 1000:.0f}" if figures.milliwatts is not None else ""
            limit = f" of {figures.limit_milliwatts / 1000:.0f}" if figures.limit_milliwatts else ""
            used, total = figures.memory_used, figures.memory_total
            parts = (
                "MIG is on: its instances are not examined" if figures.mig else "",
                f"busy {figures.busy_percent}% of the time" if figures.busy_percent is not None else "",
                f"{power}{limit} W" if power else "",
                f"{figures.sm_mhz} MHz (memory {figures.memory_mhz})" if figures.sm_mhz is not None else "",
                f"{byte_size(used)} of {byte_size(total)} used" if used is not None and total is not None else "",
                f"{counted(figures.uncorrected_errors, 'uncorrected ECC error')}" if figures.uncorrected_errors else "",
                "a spinning kernel, like a collective that waits for others (inferred from busy time and power)"
                if figures.spins
                else "",
            )
            place = f", /dev/nvidia{figures.minor}" if figures.minor is not None else ""
            text = ", ".join(filter(None, parts)) or "reports nothing"
            lines.append(f"NVML's device {figures.number} ({figures.name}{place}): {text}")
        return (
            *lines,
            *(f"kernel log: {line}" for line in facts.xids),
            f"open device files: {files}" if files else "the process has no file of an NVIDIA device open",
            *(f"unknown: {problem}" for problem in facts.problems),
        )


def system_section(target: Target, procfs: ProcFs) -> DeviceSystemSection:
    """What the driver and the kernel report, within a time limit; a problem for a core or a recording."""
    if target.origin.recorded or not procfs:
        problem = "the driver can be queried only about a live process"
        return DeviceSystemSection(NvidiaFacts("", (), (), (), (problem,)))
    return DeviceSystemSection(read_nvidia(procfs.open_files(target.pid)))


def name_devices(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> tuple[Sequence[ThreadReport], DeviceSection]:
    """(the reports, in the snapshots' order, with streams named in waits for a device; the section)."""
    sites = session.dispatch_stacks.sites if session.has_torch else None
    reader = StreamsOfWaits(session.memory, session.symbolizer, sites)
    callbacks = []  # threads of the driver in whose frames a function of the program runs
    for snapshot in process.threads:
        levels = (level for level in range(len(snapshot.frames)) if not snapshot.in_libc(level))
        modules = [snapshot.module_name(level) for level in levels]
        if modules and modules[-1].startswith(DRIVER_LIBRARY) and modules[0] != modules[-1]:
            callbacks.append(snapshot.tid)
    replayed: list[ReplayedGraph] = []
    waiting: list[ThreadSnapshot] = []
    named: list[ThreadReport] = []
    for snapshot, thread in zip(process.threads, threads):
        if thread.wait and thread.wait.detail.device:
            waiting.append(snapshot)
            call = reader.completed(snapshot, thread.wait.detail.device, tuple(callbacks))
            graph = reader.graph(snapshot)
            replayed += [ReplayedGraph(thread.tid, graph)] if graph else []
            detail = thread.wait.detail.with_device(call)
            thread = thread._replace(wait=thread.wait.with_detail(detail, *_reasons(call)))
        named.append(thread)
    current = tuple(
        CurrentStream(thread.tid, stream.device, stream.number, stream.handle)
        for thread in waiting
        for stream in reader.current(thread)
    )
    core = core_settings(session.target.origin.environ())
    core = core._replace(trigger=_trigger(core, session.target))
    memory: tuple[PendingMemory, ...] = ()
    if reader.devices:  # CUDA was initialized
        try:
            pending = CudaAllocator(session.memory, session.symbolizer, session.layout).pending()
            if any(not 0 <= count < 1 << 32 for device in pending for count in (device.retries, device.ooms)):
                raise BadData("its failure counts are implausible")
            memory = pending
        except GdbextError as error:
            reader.problems.append(f"the caching allocator: {error.what}")
    launched: list[LaunchedKernel] = []
    for snapshot in waiting:
        # The kernels of the innermost function in which Inductor launches kernels.
        launchers = (frame for frame in snapshot.python[:24] if frame.function.rpartition(".")[2] == LAUNCHER)
        frame = next((frame for frame in launchers if frame.line and frame.file), None)
        if frame and frame.line:
            lines = SourceReader(session.target).stripped_lines(frame.file)
            before = launched_before(lines, frame.line)
            launched += (LaunchedKernel(snapshot.tid, kernel, frame.file, line) for kernel, line in before)
    problems = tuple(dict.fromkeys(reader.problems))
    return named, DeviceSection(reader.devices, current, core, memory, problems, tuple(launched), tuple(replayed))


def _reasons(wait: DeviceWait) -> Iterator[str]:
    """The evidence for the stream or event, and for the device."""
    if wait.event is not None:
        yield f"the calling code passed the event {wait.event:#x} to {wait.call}"
    if wait.stream is not None and wait.certainty is Certainty.INFERRED:
        yield f"inferred: PyTorch replays a graph on the thread's current stream, {wait.stream:#x}"
    elif wait.stream is not None:
        yield f"the calling code passed the stream {wait.stream:#x} to {wait.call}"
    if wait.stream_id is not None:
        yield f"in PyTorch's stream pool it is number {wait.stream_id} of cuda:{wait.device}"
    elif wait.device is not None:
        yield f"cuda:{wait.device} is the only device that PyTorch sees"
