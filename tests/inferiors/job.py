"""job SCENARIO…: whole jobs that hang, each of two to eight ranks over gloo on the loopback.

One process imports torch and forks all ranks of all scenarios, as a launcher does. Each rank that hangs by itself first
writes down what PyTorch's own flight recorder has of it (SCENARIO.RANK.json in the current folder), from a thread of
its own where the main thread is in a collective. GDBEXT_ROOM in the environment is where ranks find room for what a
launcher would have set (see ``_start_with``). The truth has the pids by scenario and rank, and who is at fault.
"""

import datetime
import importlib
import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import truth

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
IMPATIENT = datetime.timedelta(seconds=5)
SETTLED = 0.3  # seconds without a change in the flight recorder: the rank is where it will stay
_ready = threading.Event()


def recorded():
    return torch._C._distributed_c10d._dump_fr_trace_json()


def write_down(place):
    """What the recorder has, from another thread, when nothing changes any more."""
    _ready.wait()
    before, since = recorded(), time.monotonic()
    while time.monotonic() - since < SETTLED:
        time.sleep(0.05)
        now = recorded()
        if now != before:
            before, since = now, time.monotonic()
    with open(place + ".tmp", "w") as out:
        out.write(json.dumps({"pid": os.getpid(), "dump": json.loads(before)}))
    os.rename(place + ".tmp", place)


def three_steps():
    """What a job does before it hangs: #1 to #3 of the group."""
    for step in range(3):
        dist.all_reduce(torch.full((4,), float(step)))


def join():
    dist.all_reduce(torch.ones(8, 2))


def hang():
    time.sleep(truth.FOREVER)


def late_sleep(rank):
    three_steps()
    hang() if rank == 1 else join()


def eight(rank):
    late_sleep(rank)


def dead(rank):
    """Rank 1 dies; rank 0 gets gloo's error and waits for its return at the store; rank 2 waits for rank 0."""
    three_steps()
    if rank == 1:
        truth.until(lambda: os.path.exists("dead.1.json"))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.recv(torch.ones(4), src=1) if rank == 0 else dist.recv(torch.ones(4), src=0)
    except RuntimeError:
        dist.distributed_c10d._get_default_store().get("rank-1-is-back")


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


def new_group_of_two(rank):
    """Rank 2 is no member and passes new_group; rank 1, a member, does not come."""
    three_steps()
    if rank != 1:
        dist.new_group([1, 0])


def barrier_of_new_group(rank):
    """The store's barrier after new_group, which all ranks of the job must reach: rank 1 does not come."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    three_steps()
    if rank != 1:
        dist.new_group([0, 2])


def lazy_pair(rank):
    """Pairs that are connected at their first use: rank 0 waits for the address of rank 2 in the group of both."""
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    three_steps()
    if rank == 0:
        group = dist.new_group([0, 2])
        dist.all_reduce(torch.ones(2), group=group)
    elif rank == 1:
        dist.new_group([0, 2])


def rpc_names(rank):
    """Rank 0 initializes torch.distributed.rpc, rank 1 does not."""
    import torch.distributed.rpc as rpc

    three_steps()
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    if rank == 0:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/rpc_names")
        rpc.init_rpc("trainer0", rank=0, world_size=2, rpc_backend_options=options)


def own_key(rank):
    """Rank 0 waits for a key of the program's own, which looks like one of gloo's; rank 1 knows nothing of it."""
    three_steps()
    if rank == 0:
        dist.PrefixStore("phase/0", dist.distributed_c10d._get_default_store()).get("1")


def elastic_barrier(rank):
    """Ranks 0 and 1 are in a barrier of torchelastic's, which rank 2 does not reach."""
    from torch.distributed.elastic.utils import store

    three_steps()
    if rank != 2:
        store.barrier(dist.distributed_c10d._get_default_store(), 3, "save", barrier_timeout=10_000)


def elastic_data(rank):
    """Rank 0 collects data of each rank by torchelastic's store functions; rank 1 does not give any."""
    from torch.distributed.elastic.utils import store

    three_steps()
    if rank == 0:
        store.synchronize(dist.distributed_c10d._get_default_store(), b"0", 0, 2, "data/", timeout=10_000)


def crossed_groups(rank):
    """Rank 0 makes a group, rank 1 is in a collective of the whole job."""
    three_steps()
    dist.new_group([0, 1]) if rank == 0 else join()


def full_tensor(rank):
    """Only rank 0 prints a weight that is spread over both ranks."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
    three_steps()
    hang() if rank == 1 else log_weight(weight)


def log_weight(weight):
    print(weight.full_tensor())


def ddp_buffers(rank):
    """Only rank 1 validates, where DDP waits for rank 0's buffers."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
    hang() if rank == 0 else validate(model)


def fsdp_unshard(rank):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    hang() if rank == 0 else validate(model)


def validate(model):
    model.train()
    model(torch.ones(2, 4))


def optimizer_step(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    hang() if rank == 0 else optimizer.step()


def dcp_save(rank):
    import torch.distributed.checkpoint as dcp

    if rank == 1:
        hang()
    dcp.save({"weight": torch.ones(4)}, checkpoint_id=os.path.abspath("dcp_save"))


def moving(rank):
    """A job that runs: its second rank always comes a little later than the first. It gives up after ``IMPATIENT``, and
    writes down how many steps it has made."""
    with open(f"moving.{rank}.steps", "wb", buffering=0) as steps:
        for step in range(1 << 40):
            time.sleep(0.01 if rank == 1 else 0)
            dist.all_reduce(torch.ones(4))
            os.pwrite(steps.fileno(), b"%d" % step, 0)


SIZES = {
    late_sleep: 4, eight: 8, dead: 3, moving: 2, awaited_transfers: 3, saving_thread: 2, nested_calls: 2,
    new_group_of_two: 3, barrier_of_new_group: 3, lazy_pair: 3, rpc_names: 2, own_key: 2, elastic_barrier: 3,
    elastic_data: 2, crossed_groups: 2, full_tensor: 2, ddp_buffers: 2, fsdp_unshard: 2, optimizer_step: 2, dcp_save: 2,
}
IMPORTS = {
    full_tensor: "torch.distributed.tensor", ddp_buffers: "torch._dynamo", fsdp_unshard: "torch.distributed.fsdp",
    optimizer_step: "torch.distributed.optim", dcp_save: "torch.distributed.checkpoint",
}
"""What a scenario needs, imported before the ranks are forked: it takes seconds."""
SCENARIOS = {function.__name__: function for function in SIZES}


def _rank(name, rank, port):
    scenario = SCENARIOS[name]
    truth._die_with_parent()
    own = {"RANK": str(rank), "WORLD_SIZE": str(SIZES[scenario]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    _start_with(own)
    os.environ.update(own)
    if scenario is not moving:
        truth.start(write_down, args=(f"{name}.{rank}.json",))
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
        if SCENARIOS[name] in IMPORTS:
            importlib.import_module(IMPORTS[SCENARIOS[name]])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pids[name] = _launch(name, port)
    truth.thread("main", waits=None)
    truth.note(pid=os.getpid(), pids=pids)
    for name, ranks in pids.items():
        files = [f"{name}.{rank}.json" for rank in range(len(ranks)) if SCENARIOS[name] is not moving]
        truth.until(lambda files=files: all(map(os.path.exists, files)))
    time.sleep(0.5)
    truth.ready()
    hang()


main()
