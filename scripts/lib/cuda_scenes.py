"""Programs that wait for a CUDA device, each in one way, for scripts/measure_cuda.py: ``cuda_scenes.py SCENE FILE``.

A scene writes into FILE what is true of it, waits, and ends by itself: what it launches spins for a bounded time, and
an alarm ends the rest. Nothing but torch is needed. With GDBEXT_MADE_UP (a made-up driver, tests/inferiors/native) a
stream never ends instead of spinning.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

cuda: Any = torch.cuda
"""Its functions have no types."""
SECONDS = 20
"""For so long the device spins."""
_CYCLES_A_SECOND = 2_000_000_000
MADE_UP = "GDBEXT_MADE_UP"
_PRESERVED: list[Any] = []
"""What C code calls or writes to."""


def tell(file: str, **facts: Any) -> None:
    """Publish what is true of this program; it waits from the next line on."""
    facts.setdefault("line", sys._getframe(1).f_lineno + 1)
    new = Path(f"{file}.new")
    new.write_text(json.dumps({"pid": os.getpid(), **facts}))
    new.rename(file)


def spin(stream: Any) -> None:
    """Launch a kernel into the stream that spins for SECONDS."""
    if MADE_UP in os.environ:
        ctypes.CDLL(os.environ[MADE_UP]).hang_stream(ctypes.c_void_p(stream.cuda_stream))
        return
    with cuda.stream(stream):
        cuda._sleep(SECONDS * _CYCLES_A_SECOND)


def of_stream(stream: Any) -> dict[str, Any]:
    """What is true of a thread that waits for the stream."""
    return {"call": "cudaStreamSynchronize", "stream": f"{stream.cuda_stream:#x}", "stream_id": stream.stream_id}


def stream(file: str) -> None:
    """A kernel that spins, waited for by its stream."""
    busy = cuda.Stream()
    spin(busy)
    tell(file, **of_stream(busy))
    busy.synchronize()


def two_streams(file: str) -> None:
    """A stream that waits for an event of another one, in which a kernel spins."""
    busy, waiting, event = cuda.Stream(), cuda.Stream(), cuda.Event()
    spin(busy)
    event.record(busy)
    waiting.wait_event(event)
    tell(file, **of_stream(waiting))
    waiting.synchronize()


def event(file: str) -> None:
    """An event behind a kernel that spins."""
    busy, behind = cuda.Stream(), cuda.Event()
    spin(busy)
    behind.record(busy)
    tell(file, call="cudaEventSynchronize", event=f"{behind.cuda_event:#x}")
    behind.synchronize()


def device(file: str) -> None:
    """All that was launched on the device."""
    spin(cuda.Stream())
    tell(file, call="cudaDeviceSynchronize")
    cuda.synchronize()


def second_device(file: str) -> None:
    """A stream of the second device, with a block of its allocator that waits for it."""
    if cuda.device_count() < 2:
        raise SystemExit("there is one device only")
    with cuda.device(1):
        torch.ones(1, device="cuda:0")
        busy, block = cuda.Stream(), torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        spin(busy)
        block.record_stream(busy)
        pending = [[busy.stream_id, f"{block.data_ptr():#x}", block.nbytes]]
        del block
        tell(file, **of_stream(busy), device=1, pending=pending)
        busy.synchronize()


def item(file: str) -> None:
    """One number of a tensor, copied behind a kernel that spins."""
    busy, number = cuda.Stream(), torch.ones(1, device="cuda")
    cuda.synchronize()
    spin(busy)
    with cuda.stream(busy):
        tell(file, **of_stream(busy), op="aten::_local_scalar_dense")
        number.item()


def allocator(file: str) -> None:
    """The caching allocator at its limit, with the event of a block that another stream used."""
    busy = cuda.Stream()
    limit = int(os.environ.get("GDBEXT_DEVICE_MEMORY", 0)) or 1 << 30
    if MADE_UP not in os.environ:
        cuda.set_per_process_memory_fraction(limit / cuda.get_device_properties(0).total_memory)
    block = torch.empty(limit * 3 // 8, dtype=torch.uint8, device="cuda")
    spin(busy)
    block.record_stream(busy)
    pending = [[busy.stream_id, f"{block.data_ptr():#x}", block.nbytes]]
    del block
    tell(file, call="cudaEventSynchronize", op="aten::empty", pending=pending)
    torch.empty(limit * 3 // 4, dtype=torch.uint8, device="cuda")


def host_function(file: str) -> None:
    """A function of Python in a stream (cudaLaunchHostFunc), and the GIL held in the call that waits for the stream."""
    runtime = ctypes.PyDLL(os.environ.get(MADE_UP) or _runtime())
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    _PRESERVED.append(function)
    threading.Thread(target=signal.pause, daemon=True).start()
    busy = cuda.Stream()
    if MADE_UP in os.environ:
        spin(busy)
    handle = ctypes.c_void_p(busy.cuda_stream)
    sys.setswitchinterval(SECONDS)
    tell(file, call="cudaStreamSynchronize", verdict="gil-in-device-call")
    runtime.cudaLaunchHostFunc(handle, function, None), runtime.cudaStreamSynchronize(handle)


def graph(file: str) -> None:
    """A CUDA graph whose kernel spins, replayed into another stream than that on which it was captured. On a made-up
    device the launch itself does not return."""
    busy, other, captured = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(captured, stream=other):
        cuda._sleep(SECONDS * _CYCLES_A_SECOND)
    if MADE_UP in os.environ:
        _PRESERVED.append(torch.empty(1, device="cuda"))
        spin(busy)
        replayed = [[other.stream_id, list(captured.pool())]]
        with cuda.stream(busy):
            tell(file, **{**of_stream(busy), "call": "cudaGraphLaunch"}, captures=0, replayed=replayed)
            captured.replay()
    with cuda.stream(busy):
        captured.replay()
    tell(file, **of_stream(busy), captures=0)
    busy.synchronize()


def capture(file: str) -> None:
    """A kernel that spins, waited for while another thread captures a graph."""
    busy, other, begun, pool = cuda.Stream(), cuda.Stream(), threading.Event(), cuda.graph_pool_handle()
    _PRESERVED.append(torch.empty(1, device="cuda"))

    def captures() -> None:
        with cuda.graph(cuda.CUDAGraph(), pool, stream=other, capture_error_mode="thread_local"):
            begun.set()
            time.sleep(2 * SECONDS)

    threading.Thread(target=captures, daemon=True).start()
    begun.wait()
    spin(busy)
    tell(file, **of_stream(busy), captures=1, graphs=[[other.stream_id, list(pool)]])
    busy.synchronize()


def uninitialised(file: str) -> None:
    """CUDA is loaded and not initialised: no thread waits for a device."""
    never = threading.Event()
    tell(file, call=None, section=False)
    never.wait(2 * SECONDS)


def silent(file: str) -> None:
    """A driver that does not answer the first question; a real one cannot be made to."""
    if MADE_UP not in os.environ:
        raise SystemExit("only a driver that is made up can be told not to answer")
    os.environ["GDBEXT_SILENT"] = "1"
    tell(file, call="cudaGetDeviceCount", work="setup", devices=None)
    cuda.init()


def assertion(file: str) -> None:
    """A device-side assert: the error is handled when the thread waits, and the driver has written a core."""
    numbers, facts = torch.zeros(4, device="cuda"), {}
    try:
        if MADE_UP in os.environ:
            ctypes.CDLL(os.environ[MADE_UP]).fail_device(710)
        else:
            facts["core"] = "an assertion"
            numbers[torch.tensor([1 << 20], device="cuda")].sum().item()
        cuda.synchronize()
    except RuntimeError:
        tell(file, call=None, section=False, handling="device-side assert triggered", **facts)
        time.sleep(2 * SECONDS)


def core(file: str) -> None:
    """A kernel that spins, and a core of the device that is asked for by the command of the report."""
    busy, asked = cuda.Stream(), "spin_kernel"
    if MADE_UP in os.environ:
        asked = "asked"
        pipe, written = (
            os.environ[f"CUDA_COREDUMP_{each}"].replace("%p", str(os.getpid())) for each in ("PIPE", "FILE")
        )
        os.mkfifo(pipe)
        threading.Thread(target=lambda: Path(pipe).read_text() and Path(written).write_text(asked)).start()
    spin(busy)
    tell(file, **of_stream(busy), core=asked)
    busy.synchronize()


def system(file: str) -> None:
    """A kernel that spins, and the driver's own words on the devices."""
    busy, names = cuda.Stream(), [cuda.get_device_name(each) for each in range(cuda.device_count())]
    spin(busy)
    time.sleep(2)  # what the driver measures is of a second
    facts = {"names": ["made up", "made up"], "mig": [False, True]} if MADE_UP in os.environ else {"names": names}
    tell(file, **of_stream(busy), busy=True, **facts)
    busy.synchronize()


def triton(file: str) -> None:
    """A kernel of Triton that spins."""
    compiler, language = import_module("triton"), import_module("triton.language")

    def spins(out: Any, steps: Any) -> None:
        value = 0
        for step in range(steps):
            value = (value * 3 + step) % 65521
        language.store(out, value)

    globals()["language"] = language  # Triton looks names up in the module
    busy, out = cuda.Stream(), torch.zeros(1, dtype=torch.int32, device="cuda")
    with cuda.stream(busy):
        compiler.jit(spins)[(1,)](out, 1 << 30)
    tell(file, **of_stream(busy))
    busy.synchronize()


def compiled(file: str) -> None:
    """A kernel that torch.compile wrote, launched behind one that spins, and its result copied."""
    busy, numbers = cuda.Stream(), torch.ones(1 << 20, device="cuda")
    work = torch.compile(lambda x: (x * 2 + 1).sum())
    work(numbers)
    cuda.synchronize()
    spin(busy)
    with cuda.stream(busy):
        result = work(numbers)
        tell(file, **of_stream(busy), op="aten::_local_scalar_dense")
        result.item()


def nccl(file: str) -> None:
    """An all_reduce of one rank, behind a kernel that spins."""
    dist: Any = import_module("torch.distributed")

    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))
    numbers = torch.ones(8, device="cuda")
    dist.all_reduce(numbers)
    cuda.synchronize()
    if MADE_UP in os.environ:
        os.environ["GDBEXT_HANGS_AFTER"] = "1"
    else:
        spin(cuda.current_stream())
    dist.all_reduce(numbers, async_op=True)
    tell(file, call="cudaDeviceSynchronize", collective="all_reduce")
    cuda.synchronize()


def ranks(file: str) -> None:
    """As many ranks of NCCL as there are devices, of which the last one does not come to the second all_reduce."""
    dist: Any = import_module("torch.distributed")
    size = cuda.device_count()
    if size < 2:
        raise SystemExit("there is one device only")
    if "RANK" not in os.environ:
        words = [sys.executable, "-W", "ignore", __file__, "ranks", file]
        job = {"WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "cuda-scenes"}
        for other in range(1, size):
            subprocess.Popen(words, env={**os.environ, **job, "RANK": str(other)})
        os.execve(sys.executable, words, {**os.environ, **job, "RANK": "0"})
    rank, store = int(os.environ["RANK"]), dist.FileStore(f"{file}.store", size)
    cuda.set_device(rank)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size)
    numbers = torch.ones(8, device="cuda")
    dist.all_reduce(numbers)
    cuda.synchronize()
    store.set(f"ready {rank}", "")
    store.wait([f"ready {each}" for each in range(size)])
    if MADE_UP in os.environ:
        os.environ["GDBEXT_HANGS_AFTER"] = "1"
    if rank == size - 1:
        time.sleep(2 * SECONDS)
    dist.all_reduce(numbers, async_op=True)
    if rank == 0:
        tell(file, verdict="late-rank", at_fault=str(size - 1), line=None)
    cuda.synchronize()


SCENES: dict[str, Callable[[str], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        stream,
        two_streams,
        event,
        device,
        second_device,
        item,
        allocator,
        host_function,
        graph,
        capture,
        uninitialised,
        silent,
        assertion,
        core,
        system,
        triton,
        compiled,
        nccl,
        ranks,
    )
}


def _runtime() -> str:
    """The file of CUDA's runtime that torch has loaded."""
    with open("/proc/self/maps") as maps:
        return next(line.split(maxsplit=5)[5].strip() for line in maps if "libcudart" in line)


if __name__ == "__main__":
    signal.alarm(3 * SECONDS)
    SCENES[sys.argv[1]](sys.argv[2])
