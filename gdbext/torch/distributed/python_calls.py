"""Facts that calls of torch.distributed keep in the variables of their Python functions.

Sources: torch/distributed/distributed_c10d.py, torch/distributed/rendezvous.py, torch/distributed/rpc/api.py,
torch/distributed/launcher/api.py and torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, 2.0 to 2.15.
"""

from __future__ import annotations

from typing import NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.torch.torch_symbol import DISTRIBUTED_FILE, RPC_FILE

_LONGEST = 200
"""Most characters of a name."""


class GivenRank(NamedTuple):
    """The arguments of init_process_group or init_rpc."""

    rank: int
    size: int | None
    """``world_size``; None if it is not given as a number."""
    method: str
    """``init_method``, "" if it is not given."""


def given_rank(stack: PyStack) -> GivenRank | None:
    """The arguments of the call of init_process_group on the stack; None without a call or a rank."""
    arguments = stack.locals_of("init_process_group", DISTRIBUTED_FILE)
    rank, size = arguments["rank"].int(), arguments["world_size"].int()
    if rank is None or rank < 0:
        return None
    return GivenRank(rank, size if size is not None and size > 0 else None, arguments["init_method"].str(_LONGEST))


def group_argument(stack: PyStack) -> PyRef | None:
    """The argument ``group`` of the collective on the stack (Python's None: the whole job); None without one."""
    groups = (stack.locals(frame)["group"] for frame in stack if frame.file.endswith(DISTRIBUTED_FILE))
    return next(filter(None, groups), None)


def absent_workers(stack: PyStack) -> tuple[str, ...]:
    """Names of the workers that rpc.shutdown on this stack still waits for: a leader for those that have not called it,
    a follower for its leader; () for any other call."""
    variables = stack.locals_of("_all_gather", RPC_FILE)
    workers, joined = variables["worker_names"].elements(), variables["states"]["gathered_objects"].keys()
    if not workers or joined.fault:
        return ()
    leader = variables["leader_name"].str(_LONGEST)
    if leader != variables["self_name"].str(_LONGEST):
        return (leader,)
    absent = {worker.str(_LONGEST) for worker in workers} - {worker.str(_LONGEST) for worker in joined}
    return tuple(sorted(filter(None, absent)))


class Rendezvous(NamedTuple):
    """A rendezvous of torchrun's agents that is not complete."""

    joined: int
    """Number of nodes that have joined."""
    least: int
    most: int
    """Least and most numbers of nodes that it is complete with (``min_nodes``, ``max_nodes``)."""
    name: str
    """``run_id``."""
    endpoint: str

    @property
    def phrase(self) -> str:
        """``the rendezvous 'job7' at node0:29400, which 1 of 2 nodes have joined``."""
        most = f" to {self.most}" if self.most > self.least else ""
        location = f" at {self.endpoint}" if self.endpoint else ""
        return f"the rendezvous {self.name!r}{location}, which {self.joined} of {self.least}{most} nodes have joined"


def awaited_rendezvous(stack: PyStack) -> Rendezvous | None:
    """The rendezvous in which the agent with this stack waits; None for any other stack."""
    file = "elastic/rendezvous/dynamic_rendezvous.py"
    run = next((frame for frame in stack if file in frame.file and frame.function.endswith("run")), None)
    if not run:
        return None
    handler = stack.locals(run)["self"]
    settings, joined = handler["_settings"].variables(), handler["_state"]["participants"].keys()
    least, most = settings["min_nodes"].int(), settings["max_nodes"].int()
    if joined.fault or least is None or most is None:
        return None
    launch = next((frame for frame in stack if frame.file.endswith("torch/distributed/launcher/api.py")), None)
    endpoint = stack.locals(launch)["rdzv_parameters"]["endpoint"].str(_LONGEST) if launch else ""
    return Rendezvous(len(joined), least, most, settings["run_id"].str(_LONGEST), endpoint)


class StoreMeeting(NamedTuple):
    """The arguments of a call that makes the store through which the ranks of a job meet, or that connects to it."""

    rank: int
    size: int
    server: str
    """The address of the store: ``node0:29500``."""


def store_meeting(stack: PyStack) -> StoreMeeting | None:
    """The store that the innermost Python function makes or connects to; None for any other function."""
    arguments = stack.innermost(1).locals_of("_create_c10d_store", "torch/distributed/rendezvous.py")
    rank, size, port = (arguments[name].int() for name in ("rank", "world_size", "port"))
    host = arguments["hostname"].str(_LONGEST)
    return None if rank is None or size is None or not host else StoreMeeting(rank, size, f"{host}:{port}")
