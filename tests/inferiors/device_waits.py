"""device-waits: threads that wait for a device in different calls of CUDA, while the main thread holds the GIL in one.

Needs a wheel of PyTorch for CUDA; the device is native/made_up_device.cpp, of which one stream never ends.
"""

import ctypes
import os
import sys
import threading
import time

DEVICE = "LD_PRELOAD"
MEMORY = 64 << 20


def with_device():
    """Start again with the library that stands for the device loaded."""
    import shutil
    import tempfile

    import native_library

    driver = os.path.join(tempfile.mkdtemp(), "libcuda.so.1")
    shutil.copy(native_library.path("made_up_device"), driver)
    device = {DEVICE: driver, "GDBEXT_DEVICE_MEMORY": str(MEMORY)}
    os.execve(sys.executable, [sys.executable, "-W", "ignore", *sys.argv], {**os.environ, **device})


def main():
    import torch
    import truth

    library = ctypes.PyDLL(os.environ[DEVICE])
    first, hung, event = torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.Event()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=first):
        torch.empty(1, device="cuda")
    library.hang_stream(ctypes.c_void_p(hung.cuda_stream))
    number, crossing = torch.ones(1, device="cuda"), torch.empty(24 << 20, dtype=torch.uint8, device="cuda")
    pending = {"stream_id": hung.stream_id, "block": crossing.data_ptr(), "bytes": crossing.nbytes}
    crossing.record_stream(hung)
    del crossing
    event.record(hung)

    def streams(**facts):
        truth.thread(threading.current_thread().name, **facts)

    def stream():
        streams(waits="poll", call="cudaStreamSynchronize", stream=hung.cuda_stream)
        hung.synchronize()

    def spinning():
        streams(waits="running", call="cudaEventSynchronize", event=event.cuda_event)
        event.synchronize()

    def item():
        with torch.cuda.stream(hung):
            streams(waits="poll", call="cudaStreamSynchronize", stream=hung.cuda_stream)
            number.item()

    def allocator():
        with torch.cuda.stream(first):
            streams(waits="running", call="cudaEventSynchronize", allocator=True)
            torch.empty(48 << 20, dtype=torch.uint8, device="cuda")

    def graph():
        with torch.cuda.stream(hung):
            streams(waits="poll", call="cudaGraphLaunch", stream=hung.cuda_stream)
            captured.replay()

    def waiter():
        truth.thread("waiter", waits="futex")
        while True:
            time.sleep(0.01)

    for role in (stream, spinning, item, allocator, graph, waiter):
        threading.Thread(target=role, name=role.__name__, daemon=True).start()
    time.sleep(1)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    truth.thread("main", waits="poll", call="cudaStreamSynchronize", stream=hung.cuda_stream)
    truth.note(
        verdict="gil-in-device-call",
        pending=pending,
        replayed=[first.stream_id, list(captured.pool())],
        streams={each.cuda_stream: {"id": each.stream_id, "device": each.device_index} for each in (first, hung)},
    )
    truth.stage()
    sys.setswitchinterval(100)
    library.cudaLaunchHostFunc(ctypes.c_void_p(hung.cuda_stream), callback, None)
    truth.ready()
    library.cudaStreamSynchronize(ctypes.c_void_p(hung.cuda_stream))


main() if DEVICE in os.environ else with_device()
