"""The ranks that have to set the key of a store for which a thread waits.

A program has keys of its own, so a key means something only below the function that makes such keys. A prefix store
joins its prefix and a key by "/" (PrefixStore.cpp of torch, prefix_store.cc of gloo); torch's prefixes are
``default_pg``, then ``GROUP/`` and ``DEVICE/`` of each group (_new_process_group_helper), so that gloo's key of the
rank 1 of group 2 is ``default_pg/0//2//cpu//0/1``, where the last 0 is the number of gloo's context.

Sources: torch/distributed/distributed_c10d.py, elastic/utils/store.py, elastic/agent/server/api.py,
elastic/rendezvous/api.py, rpc/_utils.py; torch/csrc/distributed/c10d/ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp,
torch/csrc/distributed/rpc/tensorpipe_agent.cpp and agent_utils.cpp (2.0 to 2.13); gloo/transport/context.cc and
gloo/transport/tcp/context.cc (70dc360).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job.callers import library_call
from gdbext.engine.numbers import number
from gdbext.engine.rank_sets import MOST_RANKS, fold
from gdbext.torch.torch_symbol import DISTRIBUTED_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.diagnosis.job.collectives_section import CollectivesSection
    from gdbext.diagnosis.report.collective_wait import CollectiveWait
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

STORE_UTILITIES = "torch/distributed/elastic/utils/store.py"
RPC_BACKEND = "torch/distributed/rpc/backend_registry.py"
_AGENT = ("torch/distributed/elastic/agent/", "torch/distributed/elastic/rendezvous/")
_GROUP = r"(?P<group>[^/]+)//(?:[a-z]\w*//)?"
"""The name of a group and its device, at the end of torch's prefixes."""
_DEPTH = 24
"""Innermost frames that are searched for the function that makes the key."""


class Setter(Enum):
    """The ones who set a key."""

    MEMBER = "member"
    """The member of the group whose rank in it the key has."""
    LAST_MEMBER = "last member"
    """The last of all members to come."""
    AGENT = "agent"
    """An agent of torchrun, which is no rank."""
    WORKER = "worker"
    """A worker of torch.distributed.rpc, by name."""


class KeyForm(NamedTuple):
    """Keys of one purpose. ``function``: the beginning of a native function below which they are made, or (end of a
    Python file, function)."""

    function: str | tuple[str, str]
    pattern: re.Pattern[str]
    """Its groups: ``group``, ``member`` (a number), ``name``."""
    setter: Setter
    part: str
    """What the setter gives, with the groups of the pattern."""


KEY_FORMS = (
    KeyForm(
        "gloo::", re.compile(rf"(?:{_GROUP})?(?:pg_wrapper:[^/]*/)?\d+/(?:rank_)?(?P<member>\d+)$"), Setter.MEMBER,
        "address for gloo",
    ),
    KeyForm(
        "c10d::ProcessGroupNCCL::", re.compile(rf"{_GROUP}(?P<member>\d+):\d+$"), Setter.MEMBER,
        "id for NCCL's communicator",
    ),  # of two ranks that send to each other the lower one makes it
    KeyForm(
        "c10d::ProcessGroupNCCL::", re.compile(rf"{_GROUP}\d+$"), Setter.MEMBER, "id for NCCL's communicator",
    ),  # rank 0 of the group makes it
    KeyForm(
        "torch::distributed::rpc::", re.compile(r"names/(?P<member>\d+)$"), Setter.MEMBER,
        "name as a worker of torch.distributed.rpc",
    ),
    KeyForm(
        "torch::distributed::rpc::", re.compile(r"addrs/(?P<name>.+)$"), Setter.WORKER,
        "the address of the worker {name!r} of torch.distributed.rpc",
    ),
    KeyForm(
        "torch::distributed::rpc::", re.compile(r"shutdown/READY_ID_\d+$"), Setter.LAST_MEMBER,
        "in rpc.shutdown",
    ),
    KeyForm(
        ("torch/distributed/rpc/_utils.py", "_group_membership_management"),
        re.compile(r"Token_for_(?P<name>.+)_(?:join|leave)$"), Setter.WORKER,
        "the worker {name!r} of torch.distributed.rpc, which joins or leaves the group",
    ),
    KeyForm(
        (DISTRIBUTED_FILE, "_store_based_barrier"),
        re.compile(r"store_based_barrier_key:(?P<group>.+):last_worker$"), Setter.LAST_MEMBER, "in the store's barrier",
    ),
    KeyForm(
        (STORE_UTILITIES, "barrier"), re.compile(r"torchelastic/agent/terminal_state/last_member$"), Setter.LAST_MEMBER,
        "at their exit, to which each comes when its own workers have ended",
    ),
    KeyForm(
        (STORE_UTILITIES, "barrier"), re.compile(r"(?:.*/)?(?P<name>[^/]*)/last_member$"), Setter.LAST_MEMBER,
        "in the barrier {name!r} of torchelastic",
    ),
    KeyForm(
        (STORE_UTILITIES, "synchronize"), re.compile(r"(?:.*/)?(?P<name>[^/]*)/finished/last_member$"),
        Setter.LAST_MEMBER, "in synchronize {name!r} of torchelastic",
    ),
    KeyForm(
        (STORE_UTILITIES, "synchronize"), re.compile(r".*\d$"), Setter.LAST_MEMBER, "in synchronize of torchelastic",
    ),
    KeyForm(
        ("elastic/agent/server/api.py", "_assign_worker_ranks"), re.compile(r"role_info/(?P<name>\d+)$"), Setter.AGENT,
        "the role of torchrun's agent {name}",
    ),
    KeyForm(
        ("elastic/agent/server/api.py", "_assign_worker_ranks"), re.compile(r"assigned_ranks/\d+$"), Setter.AGENT,
        "the ranks that torchrun's agent 0 assigns",
    ),
    KeyForm(
        ("elastic/rendezvous/api.py", "build"), re.compile(r"MASTER_(?:ADDR|PORT)$"), Setter.AGENT,
        "the address that torchrun's agent 0 chooses for the job",
    ),
)  # fmt: skip
"""The first one that fits counts."""


class KeyMembers(NamedTuple):
    """The members that may set a key. ``ranks``: their ranks in the job, by their ranks in the group; empty if
    unknown."""

    ranks: tuple[int, ...] = ()
    words: str = ""
    """``group tp (ranks 0-1)``, "" where they are the whole job."""


def with_setters(
    thread: ThreadSnapshot, stack: PyStack, store: CollectiveWait, section: CollectivesSection
) -> CollectiveWait:
    """The wait at the store with the part that is missing and the ranks that owe it; unchanged where the key, or the
    function that makes it, is not one of KEY_FORMS."""
    native = [thread.function_name(level) for level in range(min(_DEPTH, len(thread.frames)))]
    for form in KEY_FORMS:
        found = form.pattern.search(store.key)
        if found and _is_below(form.function, native, stack):
            break
    else:
        return store
    names = {"member": None, "name": "", "group": "", **found.groupdict()}
    call = library_call(thread.python).text()
    where = f", in {call}" if call and not (isinstance(form.function, tuple) and call in form.part) else ""
    if form.setter in (Setter.AGENT, Setter.WORKER):
        is_agent = form.setter is Setter.AGENT
        return store._replace(part=form.part.format(**names) + ("" if is_agent else where), for_agents=is_agent)
    agents = form.setter is Setter.LAST_MEMBER and _agents(stack)
    if agents:
        part = f"all {agents} agents of torchrun {form.part.format(**names)}"
        return store._replace(part=part, for_agents=True)
    members = _members(form, names["group"] or "", stack, section)
    of_group = f" of {members.words}" if members.words else ""
    if form.setter is Setter.LAST_MEMBER:
        everyone = f"all of ranks {fold(members.ranks)}" if members.ranks else "all ranks"
        return store._replace(
            part=f"{everyone} {form.part.format(**names)}{where}{of_group}", owed_by=fold(members.ranks)
        )
    rank_in_group = number(names["member"] or "0") or 0
    if not members.ranks:
        return store._replace(part=f"the {form.part} of rank {rank_in_group} in its group{where}{of_group}")
    if rank_in_group >= len(members.ranks):
        return store
    if store.last_key:
        last = number(store.last_key.rpartition("/")[2]) or 0
        ranks = fold(members.ranks[rank_in_group : last + 1])
        return store._replace(part=f"the {form.part} of each of ranks {ranks}{where}{of_group}", owed_by=ranks)
    rank = members.ranks[rank_in_group]
    return store._replace(part=f"rank {rank}'s {form.part}{where}{of_group}", owed_by=str(rank))


def _is_below(function: str | tuple[str, str], native: Sequence[str], stack: PyStack) -> bool:
    """True if one of the innermost frames runs the function."""
    if isinstance(function, str):
        return any(name.startswith(function) for name in native)
    file, name = function
    return any(frame.name == name and frame.file.endswith(file) for frame in stack[:_DEPTH])


def _agents(stack: PyStack) -> int:
    """The number of torchrun's agents, if the barrier on the stack is one of theirs; 0 for any other."""
    if not any(part in frame.file for frame in stack[:_DEPTH] for part in _AGENT):
        return 0
    sizes = (stack.locals_of(function, STORE_UTILITIES)["world_size"].int() for function in ("barrier", "synchronize"))
    return next(filter(None, sizes), 0)


def _members(form: KeyForm, group: str, stack: PyStack, section: CollectivesSection) -> KeyMembers:
    """The members of the group in whose key of that form the thread waits. ``group``: its name, "" if the key has
    none."""
    size = section.identity.size
    if isinstance(form.function, tuple):  # a barrier or exchange of so many ranks
        name = form.function[1]
        variables = stack.locals_of(name, form.function[0])
        count = variables["rendezvous_count" if name == "_store_based_barrier" else "world_size"].int()
        is_job = count is not None and count == size and count <= MOST_RANKS
        if is_job or name != "_store_based_barrier":
            return KeyMembers(tuple(range(count or 0))) if is_job else KeyMembers()
    elif form.function.startswith("torch::distributed::rpc"):
        return _rpc_members(stack, section)
    helper = stack.locals_of("_new_process_group_helper", DISTRIBUTED_FILE)
    count, name = helper["group_size"].int(), helper["group_name"].str(200)
    if count and (not group or group == name):
        ranks = tuple(rank for member in helper["global_ranks_in_group"].elements(MOST_RANKS)
                      if (rank := member.int()) is not None)  # fmt: skip
        if not ranks and count == (size or count) and count <= MOST_RANKS:
            return KeyMembers(tuple(range(count)))
        return KeyMembers(ranks, f"group {name} (ranks {fold(ranks)})") if len(ranks) == count else KeyMembers()
    state = next((state for state in section.groups if state.name == group and state.ranks), None)
    if state:
        is_job = len(state.ranks) == size
        return KeyMembers(state.ranks, "" if is_job else f"group {state.label} (ranks {fold(state.ranks)})")
    return KeyMembers() if group else _rpc_members(stack, section)


def _rpc_members(stack: PyStack, section: CollectivesSection) -> KeyMembers:
    """The workers of torch.distributed.rpc, if they have the ranks of the job."""
    identity = section.identity
    variables = stack.locals_of("_tensorpipe_init_backend_handler", RPC_BACKEND)
    given = variables["rank"].int(), variables["world_size"].int()
    if variables and given != (identity.rank, identity.size):
        return KeyMembers()
    size = identity.size or 0
    return KeyMembers(tuple(range(size))) if size <= MOST_RANKS else KeyMembers()
