"""job SCENARIO…: whole jobs that hang, each of two to eight ranks over gloo on the loopback.

One process imports torch and forks all ranks of all scenarios, as a launcher does. Each rank that hangs by itself first
writes down what PyTorch's own flight recorder has of it (SCENARIO.RANK.json in the current folder), from a thread of
its own where the main thread is in a collective. GDBEXT_ROOM in the environment is where ranks find room for what a
launcher would have set (see ``_start_with``). The truth has the pids by scenario and rank, and who is at fault.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import truth
from torch.utils.data import DataLoader, Dataset

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
IMPATIENT = datetime.timedelta(seconds=5)
SETTLED = 0.3  # seconds without a change in the flight recorder: the rank is where it will stay


def recorded():
    """What the flight recorder of this process has, by its own account."""
    return torch._C._distributed_c10d._dump_fr_trace_json()


def write_down(name, rank):
    """Publish the recorder's own account."""
    place = f"{name}.{rank}.json"
    with open(place + ".tmp", "w") as out:
        out.write(json.dumps({"pid": os.getpid(), "dump": json.loads(recorded())}))
    os.rename(place + ".tmp", place)


def write_down_later(name, rank):
    """The same from another thread, when nothing changes any more."""
    before, since = recorded(), time.monotonic()
    while time.monotonic() - since < SETTLED:
        time.sleep(0.05)
        now = recorded()
        if now != before:
            before, since = now, time.monotonic()
    write_down(name, rank)


def three_steps(group=None):
    """What a job does before it hangs: #1 to #3 of the group."""
    for step in range(3):
        dist.all_reduce(torch.full((4,), float(step)), group=group)


def join():
    dist.all_reduce(torch.ones(8, 2))


def hang():
    time.sleep(truth.FOREVER)


def late_sleep(rank):
    three_steps()
    hang() if rank == 1 else join()


def eight(rank):
    """A node's worth of ranks."""
    late_sleep(rank)


def late_lock(rank):
    three_steps()
    if rank == 1:
        lock = threading.RLock()
        threading.Thread(target=lambda: (lock.acquire(), hang()), name="keeper", daemon=True).start()
        time.sleep(0.2)
        with lock:
            pass
    join()


def late_gil(rank):
    three_steps()
    if rank == 1:
        write_down_later("late_gil", 1)  # while other threads still have the GIL
        keeps_gil = ctypes.PyDLL(None).sleep
        threading.Thread(target=keeps_gil, args=(1 << 30,), name="gil-keeper", daemon=True).start()
        while True:
            time.sleep(0.01)
    join()


def late_import(rank):
    three_steps()
    if rank == 1:
        with open("imports_for_ever.py", "w") as module:
            module.write("import time\ntime.sleep(10_000_000)\n")
        sys.path.insert(0, os.getcwd())
        threading.Thread(target=__import__, args=("imports_for_ever",), name="importer", daemon=True).start()
        time.sleep(0.2)
        import imports_for_ever  # noqa: F401
    join()


class Stuck(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        hang()


def late_loader(rank):
    three_steps()
    if rank == 1:
        next(iter(DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork")))
    join()


def swallowed(rank):
    """Rank 2 raises before its third all_reduce, swallows that, and goes on to the next collective."""
    for step in range(4):
        try:
            if rank == 2 and step == 2:
                raise ValueError("a bad batch")
            dist.all_reduce(torch.ones(4))
        except ValueError:
            pass
    dist.broadcast(torch.ones(3), src=0)


def other_order(rank):
    three_steps()
    if rank == 1:
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
        join()
    else:
        join()
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))


def other_type(rank):
    three_steps()
    if rank == 1:
        dist.reduce(torch.ones(8, 2), dst=1)
        hang()
    join()


def other_size(rank):
    """The root sends less than the others expect, which gloo lets pass; what follows is no longer the same program."""
    three_steps()
    dist.broadcast(torch.ones(8 if rank == 0 else 16), src=0)
    hang() if rank == 1 else join()


def other_dtype(rank):
    """As many bytes of another type."""
    three_steps()
    dist.all_reduce(torch.ones(8, dtype=torch.int32 if rank == 1 else torch.float32))
    hang() if rank == 1 else join()


def dead(rank):
    """Rank 1 dies; rank 0 gets gloo's error and waits for its return at the store; rank 2 waits for rank 0."""
    three_steps()
    if rank == 1:
        write_down("dead", 1)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.recv(torch.ones(4), src=1) if rank == 0 else dist.recv(torch.ones(4), src=0)
    except RuntimeError:
        dist.distributed_c10d._get_default_store().get("rank-1-is-back")


def stopped(rank):
    three_steps()
    if rank == 1:
        write_down("stopped", 1)
        os.kill(os.getpid(), signal.SIGSTOP)
    join()


def long_save(rank):
    three_steps()
    if rank == 1:
        write_down("long_save", 1)  # a storage is written with the GIL in hand
        os.mkfifo("slow-disk")
        os.open("slow-disk", os.O_RDWR)  # keeps it open: what is written stays in it until it is full
        with open("slow-disk", "wb") as disk:
            torch.save({"weights": torch.ones(1 << 20)}, disk, _use_new_zipfile_serialization=False)
    join()


def crossing(rank):
    """Ranks 0 and 1 enter the collectives of their two groups in opposite order."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    three_steps()
    for group in (first, second) if rank == 0 else (second, first):
        dist.all_reduce(torch.ones(4), group=group)


def pipeline(rank):
    """Rank 1 waits for a second batch instead of handing on the first."""
    three_steps()
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
        join()
    elif rank == 1:
        dist.recv(torch.ones(4), src=0)
        dist.recv(torch.ones(4), src=0, tag=7)
    else:
        dist.recv(torch.ones(4), src=1)


def crossed_stages(rank):
    """Two stages of a pipeline wait for each other's tensors; the third waits for the second."""
    three_steps()
    dist.recv(torch.ones(4), src={0: 1, 1: 0, 2: 1}[rank])


def forgotten_send(rank):
    """A ring of isend and irecv, in which rank 1 sends nothing on and goes to the barrier."""
    three_steps()
    transfers = [dist.P2POp(dist.irecv, torch.ones(4), (rank - 1) % 3)]
    if rank != 1:
        transfers.insert(0, dist.P2POp(dist.isend, torch.ones(4), (rank + 1) % 3))
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    dist.barrier()


def awaited_transfers(rank):
    """A ring of transfers of which each waits for the next; rank 2 sends in a group of its own."""
    pair = dist.new_group([0, 2])
    three_steps()
    if rank == 2:
        dist.isend(torch.ones(4), 0, group=pair, tag=3).wait()
    dist.irecv(torch.ones(4), rank + 1, tag=7 + rank).wait()


def saving_thread(rank):
    """Rank 0 waits for a thread that saves a checkpoint, as DCP's async_save has one; rank 1 does not save."""
    from concurrent.futures import ThreadPoolExecutor

    three_steps()
    if rank == 1:
        hang()
    ThreadPoolExecutor(1, "saver").submit(dist.all_gather, [torch.ones(2) for _ in range(2)], torch.ones(2)).result()


def _answer(_asker):
    return 1


def _ask_back(asker):
    import torch.distributed.rpc as rpc

    time.sleep(0.5)  # until both have asked
    return rpc.rpc_sync(asker, _answer, args=("nobody",))


def nested_calls(rank):
    """Each rank calls the other, whose only server calls back, where no server is left to answer."""
    import torch.distributed.rpc as rpc

    three_steps()
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1, init_method=f"file://{os.getcwd()}/nested_calls")
    rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    dist.barrier()
    call = (f"trainer{1 - rank}", _ask_back, (f"trainer{rank}",))
    if rank == 0:
        rpc.rpc_async(*call).wait()
    else:
        rpc.rpc_sync(*call)


def monitored(rank):
    three_steps()
    if rank == 1:
        hang()
    dist.monitored_barrier(timeout=datetime.timedelta(days=1))


def save_on_one(rank):
    """Rank 0 saves a checkpoint, for which it gathers; the others have passed on to the barrier."""
    three_steps()
    if rank == 0:
        dist.all_gather([torch.ones(2) for _ in range(3)], torch.ones(2))
    dist.barrier()


def no_pickle(rank):
    """What rank 0 should broadcast cannot be pickled; it handles that for ever."""
    three_steps()
    try:
        dist.broadcast_object_list([threading.Lock() if rank == 0 else None], src=0)
    except TypeError:
        hang()


def objects(rank):
    """Rank 1 reduces a metric that the others do not have, before all gather their objects."""
    three_steps()
    if rank == 1:
        dist.all_reduce(torch.ones(1))
    dist.all_gather_object([None] * 3, {"rank": rank, "text": "x" * rank * 100})


def splits(rank):
    """The ranks send more elements than they expect: gloo refuses that on rank 1, and the others wait for it."""
    three_steps()
    given, taken = {0: ([1, 2, 3], [1, 1, 1]), 1: ([1, 1, 1], [2, 2, 2]), 2: ([1, 2, 3], [3, 3, 3])}[rank]
    try:
        dist.all_to_all_single(torch.ones(sum(taken)), torch.ones(sum(given)), taken, given)
    except RuntimeError:
        hang()


def destroyed(rank):
    """Ranks 0 and 2 take their groups down while an operation is under way that rank 1 never comes to."""
    three_steps()
    if rank == 1:
        hang()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.destroy_process_group()
    work.wait()


def in_a_thread(rank):
    """Evaluation in a thread of its own: its collective is the first on rank 1, the second elsewhere."""
    three_steps()
    evaluation = threading.Thread(target=lambda: dist.broadcast(torch.ones(7), src=0), name="evaluation")
    if rank == 1:
        evaluation.start()
        time.sleep(0.5)
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))
        evaluation.start()
    evaluation.join()


def uneven(rank):
    """Rank 2 has one batch less, and comes to the barrier while the others still reduce gradients."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3 if rank == 2 else 4):
        model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


def moving(rank):
    """A job that runs: its second rank always comes a little later than the first. It gives up after ``IMPATIENT``, and
    writes down how many steps it has made."""
    with open(f"moving.{rank}.steps", "wb", buffering=0) as steps:
        for step in range(1 << 40):
            time.sleep(0.01 if rank == 1 else 0)
            dist.all_reduce(torch.ones(4))
            os.pwrite(steps.fileno(), b"%d" % step, 0)


def alone(_rank):
    """A job of one rank, which waits for a lock."""
    late_lock(1)


def store_wait(_rank):
    """Rank 2 does not come to the rendezvous: see ``_rank``."""


SIZES = {late_sleep: 4, eight: 8, late_lock: 2, late_gil: 2, late_import: 2, late_loader: 2, swallowed: 3,
         other_order: 2, other_type: 2, other_size: 3, other_dtype: 3, dead: 3, stopped: 3, long_save: 2, crossing: 2,
         pipeline: 3, store_wait: 3, crossed_stages: 3, forgotten_send: 3, monitored: 3, save_on_one: 3, no_pickle: 3,
         objects: 3, splits: 3, destroyed: 3, in_a_thread: 3, uneven: 3, moving: 2, alone: 1,
         awaited_transfers: 3, saving_thread: 2, nested_calls: 2}
SCENARIOS = {function.__name__: function for function in SIZES}


def _rank(name, rank, port):
    scenario = SCENARIOS[name]
    truth._die_with_parent()
    own = {
        "RANK": str(rank),
        "WORLD_SIZE": str(SIZES[scenario]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    _start_with(own)
    os.environ.update(own)
    if scenario is store_wait and rank == 2:
        hang()
    if scenario not in (store_wait, moving):
        threading.Thread(target=_watch, args=(name, rank), daemon=True).start()
    patience = IMPATIENT if scenario is moving else datetime.timedelta(days=30)
    dist.init_process_group("gloo", timeout=patience)
    _ready.set()
    scenario(rank)
    hang()


def _start_with(variables):
    """Put them into the initial environment, as a launcher that starts each rank anew has it; GDBEXT_ROOM is there."""
    room = f"GDBEXT_ROOM={os.environ['GDBEXT_ROOM']}".encode()
    text = b"\0".join(f"{name}={value}".encode() for name, value in variables.items())
    with open("/proc/self/stat") as stat:
        start, end = map(int, stat.read().rpartition(")")[2].split()[47:49])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        place = memory.read(end - start).index(room)
        memory.seek(start + place)
        memory.write(text.ljust(len(room), b"\0"))


_ready = threading.Event()


def _watch(name, rank):
    _ready.wait()
    if SCENARIOS[name] not in (late_gil, stopped, dead, long_save) or rank != 1:
        write_down_later(name, rank)


def _launch(name, port):
    """A launcher of its own for each job: forks its ranks, and tells their pids."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        truth._die_with_parent()
        pids = []
        for rank in range(SIZES[SCENARIOS[name]]):
            pid = os.fork()
            if pid == 0:
                os.close(writer)
                _rank(name, rank, port)
            pids.append(pid)
        os.write(writer, json.dumps(pids).encode())
        os.close(writer)
        hang()
    os.close(writer)
    with os.fdopen(reader) as told:
        return json.loads(told.read())


def main():
    import socket

    pids = {}
    for name in sys.argv[1:] or SCENARIOS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pids[name] = _launch(name, port)
    truth.thread("main", waits=None)
    truth.note(pid=os.getpid(), pids=pids)
    for name, ranks in pids.items():
        expected = range(len(ranks)) if SCENARIOS[name] not in (store_wait, moving) else ()
        while not all(os.path.exists(f"{name}.{rank}.json") for rank in expected):
            time.sleep(0.05)
    time.sleep(0.5)
    truth.ready()
    hang()


main()
