"""nccl-late RANK [BACKEND]: one of two ranks of NCCL without a device; rank 0 is in its fourth operation, rank 1 never
comes to it.

Needs a wheel of PyTorch for CUDA, and native/made_up_device.cpp for what such a wheel calls. The other rank is a child.
"""

import json
import os
import subprocess
import sys
import time

DEVICE = "LD_PRELOAD"


def with_device():
    """Start again with the library that stands for the device loaded, as one of two ranks, beside the other one."""
    import socket

    import native_library

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GDBEXT_HANGS_AFTER": "3",
           "TORCHELASTIC_RUN_ID": "nccl-late", DEVICE: native_library.path("made_up_device"),
           "PYTHONWARNINGS": "ignore", "GDBEXT_BACKEND": (sys.argv[2:] or ["nccl"])[0]}
    other = str(1 - int(sys.argv[1]))
    words = [sys.executable, __file__]  # a recording does not show further words of a child
    unseen = {name: value for name, value in os.environ.items() if name != "GDBEXT_READY"}
    subprocess.Popen(words, env={**unseen, **job, "RANK": other})
    os.execve(sys.executable, words, {**os.environ, **job, "RANK": sys.argv[1]})


def recorded(recorder):
    """What the flight recorder of this process has, by its own account; None before torch had one for all backends."""
    dump = getattr(recorder, "_dump_fr_trace_json", None)
    own = recorder._dump_nccl_trace_json()
    hooked = dump(backend="nccl2") if dump is not None and "backend" in (dump.__doc__ or "") else b"{}"
    return max(json.loads(own), json.loads(hooked), key=lambda each: len(each.get("entries", ())))


def main():
    import torch
    import torch.distributed as dist
    import truth

    truth._die_with_parent()
    rank = int(os.environ["RANK"])
    dist.init_process_group(os.environ["GDBEXT_BACKEND"])
    for _ in range(3):
        dist.all_reduce(torch.empty(8, 2, device="cuda"))
    if rank == 0:
        dist.all_reduce(torch.empty(4, device="cuda"))
        dist.broadcast(torch.empty(3, device="cuda"), src=0, async_op=True)
    time.sleep(2)  # the watchdog looks at what has ended now and then
    truth.thread("main", waits="poll" if rank == 0 else "sleep")
    truth.note(verdict="waiting-external" if rank == 0 else "idle", recorded=recorded(torch._C._distributed_c10d))
    truth.ready()
    if rank == 0:
        torch.cuda.synchronize()
    time.sleep(truth.FOREVER)


main() if DEVICE in os.environ else with_device()
