"""Facts that calls of torch.distributed keep in the variables of their Python functions.

The arguments of ``init_process_group``, the group of a collective, the workers that ``rpc.shutdown`` waits for, the
nodes that have come to torchrun's rendezvous, the store at which ranks meet, and the exception that a thread handles
while it waits for others.

Sources: torch/distributed/distributed_c10d.py, torch/distributed/rendezvous.py, torch/distributed/rpc/api.py,
torch/distributed/launcher/api.py and torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, 2.0 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.torch.torch_symbol import DISTRIBUTED_FILE, RPC_FILE

if TYPE_CHECKING:
    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.cpython.threads.py_stack import PyStack

_RENDEZVOUS = "elastic/rendezvous/dynamic_rendezvous.py"
_LAUNCHER = "torch/distributed/launcher/api.py"
_STORE_FILE, _MAKES_STORE = "torch/distributed/rendezvous.py", "_create_c10d_store"
_LONGEST = 200


class GivenRank(NamedTuple):
    """The arguments of init_process_group or init_rpc; None where they are not given as numbers."""

    rank: int
    size: int | None
    method: str
    """``init_method``, "" where it is not given."""


def given_rank(stack: PyStack) -> GivenRank | None:
    """The rank that a call of init_process_group on the stack was given; None without one."""
    given = stack.locals_of("init_process_group", DISTRIBUTED_FILE)
    rank, size = given["rank"].int(), given["world_size"].int()
    if rank is None or rank < 0:
        return None
    return GivenRank(rank, size if size is not None and size > 0 else None, given["init_method"].str(_LONGEST))


def group_argument(stack: PyStack) -> PyRef | None:
    """The group (None's, for the whole job) that the collective on the stack was called with."""
    groups = (stack.locals(frame)["group"] for frame in stack if frame.file.endswith(DISTRIBUTED_FILE))
    return next(filter(None, groups), None)


def absent_workers(stack: PyStack) -> tuple[str, ...]:
    """The names of the workers that the leader of rpc.shutdown waits for, or of the leader; empty for any other
    call."""
    own = stack.locals_of("_all_gather", RPC_FILE)
    workers, come = own["worker_names"].elements(), own["states"]["gathered_objects"].keys()
    if not workers or come.fault:
        return ()
    leader = own["leader_name"].str(_LONGEST)
    if leader != own["self_name"].str(_LONGEST):
        return (leader,)
    absent = {each.str(_LONGEST) for each in workers} - {each.str(_LONGEST) for each in come}
    return tuple(sorted(filter(None, absent)))


class Meeting(NamedTuple):
    """A rendezvous of torchrun's agents."""

    come: int
    least: int
    most: int
    name: str
    endpoint: str

    @property
    def phrase(self) -> str:
        """``the rendezvous 'job7' at node0:29400, which 1 of 2 nodes have joined``."""
        most = f" to {self.most}" if self.most > self.least else ""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"the rendezvous {self.name!r}{at}, which {self.come} of {self.least}{most} nodes have joined"


def meeting(stack: PyStack) -> Meeting | None:
    """The rendezvous that is not complete and in which an agent waits; None for any other wait."""
    run = next((each for each in stack if _RENDEZVOUS in each.file and each.function.endswith("run")), None)
    if not run:
        return None
    own = stack.locals(run)["self"]
    settings, come = own["_settings"].variables(), own["_state"]["participants"].keys()
    least, most = settings["min_nodes"].int(), settings["max_nodes"].int()
    if come.fault or least is None or most is None:
        return None
    outer = next((each for each in stack if each.file.endswith(_LAUNCHER)), None)
    launched = stack.locals(outer)["rdzv_parameters"]["endpoint"] if outer else None
    endpoint = launched.str(_LONGEST) if launched else ""
    return Meeting(len(come), least, most, settings["run_id"].str(_LONGEST), endpoint)


class StoreMeeting(NamedTuple):
    """The arguments of a call that makes the store through which the ranks of a job meet, or that connects to it."""

    rank: int
    size: int
    server: str
    """The address of the store: ``node0:29500``."""


def store_meeting(stack: PyStack) -> StoreMeeting | None:
    """The store that the innermost Python function makes or connects to; None for any other function."""
    given = stack.innermost(1).locals_of(_MAKES_STORE, _STORE_FILE)
    rank, size, port = (given[name].int() for name in ("rank", "world_size", "port"))
    host = given["hostname"].str(_LONGEST)
    return None if rank is None or size is None or not host else StoreMeeting(rank, size, f"{host}:{port}")
