"""Facts that calls of torch.distributed keep in the variables of their Python functions.

The arguments of ``init_process_group``, the group of a collective, the workers that ``rpc.shutdown`` waits for, the
nodes that have come to torchrun's rendezvous, the store at which ranks meet, and the exception that a thread handles
while it waits for others.

Sources: torch/distributed/distributed_c10d.py, torch/distributed/rendezvous.py, torch/distributed/rpc/api.py,
torch/distributed/launcher/api.py and torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, 2.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_variables import attributes, locals_of
from gdbext.engine.record import Record
from gdbext.errors import GdbextError
from gdbext.torch.torch_symbol import DISTRIBUTED_FILE, RPC_FILE

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_RENDEZVOUS = "elastic/rendezvous/dynamic_rendezvous.py"
_LAUNCHER = "torch/distributed/launcher/api.py"
_STORE_FILE, _MAKES_STORE = "torch/distributed/rendezvous.py", "_create_c10d_store"
_LONGEST = 200


class GivenRank(Record):
    """The arguments of init_process_group or init_rpc; None where they are not given as numbers."""

    rank: int
    size: int | None
    method: str
    """``init_method``, "" where it is not given."""


def given_rank(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> GivenRank | None:
    """The rank that a call of init_process_group on the stack was given; None without one."""
    for frame in frames:
        if frame.function != "init_process_group" or not frame.file.endswith(DISTRIBUTED_FILE):
            continue
        found = _locals(runtime, frame)
        rank, size = _integer(runtime, found.get("rank", 0)), _integer(runtime, found.get("world_size", 0))
        if rank is not None and rank >= 0:
            known_size = size if size is not None and size > 0 else None
            return GivenRank(rank, known_size, _text(runtime, found.get("init_method", 0)))
    return None


def group_argument(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> int | None:
    """The address of the group (None's, for the whole job) that the collective on the stack was called with."""
    for frame in frames:
        if frame.file.endswith(DISTRIBUTED_FILE):
            group = _locals(runtime, frame).get("group")
            if group is not None:
                return group
    return None


def absent_workers(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> tuple[str, ...]:
    """The names of the workers that the leader of rpc.shutdown waits for, or of the leader; empty for any other
    call."""
    from gdbext.cpython.objects.object_items import set_items

    for frame in frames:
        if frame.function != "_all_gather" or not frame.file.endswith(RPC_FILE):
            continue
        found = _locals(runtime, frame)
        try:
            names = {runtime.objects.text(each, _LONGEST) for each in set_items(runtime, found.get("worker_names", 0))}
            states = attributes(runtime, found.get("states", 0))
            gathered = runtime.dicts.items(states["gathered_objects"])
            come = {runtime.objects.text(name, _LONGEST) for name, _ in gathered}
        except (GdbextError, KeyError):
            return ()
        leader, own = _text(runtime, found.get("leader_name", 0)), _text(runtime, found.get("self_name", 0))
        return tuple(sorted(names - come)) if leader == own else (leader,)
    return ()


class Meeting(Record):
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


def meeting(runtime: PythonRuntime, frames: Sequence[PythonFrame]) -> Meeting | None:
    """The rendezvous that is not complete and in which an agent waits; None for any other wait."""
    run = next((each for each in frames if _RENDEZVOUS in each.file and each.function.endswith("run")), None)
    own = attributes(runtime, _locals(runtime, run).get("self", 0)) if run is not None else {}
    state, settings = attributes(runtime, own.get("_state", 0)), attributes(runtime, own.get("_settings", 0))
    least, most = _integer(runtime, settings.get("min_nodes", 0)), _integer(runtime, settings.get("max_nodes", 0))
    if "participants" not in state or least is None or most is None:
        return None
    try:
        come = sum(1 for _ in runtime.dicts.items(state["participants"]))
    except GdbextError:
        return None
    return Meeting(come, least, most, _text(runtime, settings.get("run_id", 0)), _endpoint(runtime, frames))


class StoreMeeting(Record):
    """The arguments of a call that makes the store through which the ranks of a job meet, or that connects to it."""

    rank: int
    size: int
    server: str
    """The address of the store: ``node0:29500``."""


def store_meeting(runtime: PythonRuntime, frames: Sequence[PythonFrame]) -> StoreMeeting | None:
    """The store that the innermost Python function makes or connects to; None for any other function."""
    frame = frames[0] if frames else None
    if frame is None or frame.function != _MAKES_STORE or not frame.file.endswith(_STORE_FILE):
        return None
    found = _locals(runtime, frame)
    rank, size, port = (_integer(runtime, found.get(name, 0)) for name in ("rank", "world_size", "port"))
    host = _text(runtime, found.get("hostname", 0))
    return None if rank is None or size is None or not host else StoreMeeting(rank, size, f"{host}:{port}")


def _endpoint(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> str:
    for frame in frames:
        if frame.file.endswith(_LAUNCHER):
            parameters = attributes(runtime, _locals(runtime, frame).get("rdzv_parameters", 0))
            if "endpoint" in parameters:
                return _text(runtime, parameters["endpoint"])
    return ""


def _locals(runtime: PythonRuntime, frame: PythonFrame) -> dict[str, int]:
    try:
        return locals_of(runtime, frame)
    except GdbextError:
        return {}


def _integer(runtime: PythonRuntime, address: int) -> int | None:
    try:
        return runtime.objects.integer(address) if address else None
    except GdbextError:
        return None


def _text(runtime: PythonRuntime, address: int) -> str:
    try:
        return runtime.objects.text(address, _LONGEST) if address else ""
    except GdbextError:
        return ""
