"""Finds the processes of this machine that belong to a job: by their initial environment, else by the process tree."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gdbext.diagnosis.job import RankVariable, job_names, rank_of
from gdbext.engine.numbers import number
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.proc_checks import check_exists
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_environ, split_stat
from gdbext.engine.vocabulary import counted
from gdbext.errors import TargetError, or_root

_RANK = "RANK"
"""The variable that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
LOOKS = "GDBEXT_LOOKS"
"""The variable that marks gdbext's own processes on the machines of a job (other_machines.py): they are no ranks."""
_PYTHONS = ("python", "pt_main_thread")
"""Beginnings of a Python process's name in /proc; some releases of torch set the second one."""


class RankProcess(NamedTuple):
    """A process by /proc: its parent, and the job and rank in its initial environment."""

    pid: int
    parent: int
    is_zombie: bool
    jobs: tuple[str, ...]
    """All names of its job."""
    rank: RankVariable | None
    is_closed: bool = False
    """It is a Python whose environment may not be read."""
    local_rank: str = ""
    """LOCAL_RANK: its number on this machine."""
    is_endless: bool = False
    """Its environment is longer than execve(2) allows (the process wrote over it): it may belong to any job."""
    tasks: int = 0
    """The number of tasks of its Slurm step; 0 for a process that is no task, and for gdbext's own."""


def local_processes() -> dict[int, RankProcess]:
    """Pid → process, for all processes that can be seen."""
    names = os.listdir("/proc")  # noqa: PTH208 - strings are all that is needed
    readable = (read_process(int(name)) for name in names if name.isdecimal())
    return {process.pid: process for process in readable if process}


def read_process(pid: int) -> RankProcess | None:
    """Read a process's files in /proc; None if it is gone. An unreadable environment counts as empty."""
    try:
        name, rest = split_stat(proc_files.read(f"/proc/{pid}/stat"))
    except OSError:
        return None
    state, parent = rest.split()[:2]
    environ: Mapping[str, str] = {}
    is_closed = is_endless = False
    try:
        environ = parse_environ(supervision.read_proc_file(pid, "environ"))
    except PermissionError:
        is_closed = name.startswith(_PYTHONS)
    except OSError as error:
        is_endless = error.errno == errno.EFBIG
    is_task = "SLURM_STEP_ID" in environ and LOOKS not in environ
    return RankProcess(
        pid,
        int(parent),
        is_zombie=state in ("Z", "X"),
        jobs=tuple(job_names(environ)),
        rank=rank_of(environ),
        is_closed=is_closed,
        local_rank=environ.get("LOCAL_RANK", ""),
        is_endless=is_endless,
        tasks=number(environ.get("SLURM_NTASKS", "")) or 1 if is_task else 0,
    )


def job_of_process(pid: int, processes: Mapping[int, RankProcess]) -> list[int]:
    """The pids of the ranks of the job that process ``pid`` belongs to or launched, including dead ones; ``processes``
    is local_processes(). Raises TargetError."""
    check_exists(pid)
    own = processes.get(pid)
    if not own:
        raise TargetError(f"process {pid} exited while its job was being determined")
    if own.rank and own.jobs and pid not in _launchers(processes):
        return _started_ranks(processes, own.jobs[0])
    children = _launched_by(processes, pid)
    if children:
        return children
    siblings = _launched_by(processes, own.parent)
    return siblings if pid in siblings else [pid]


def ranks_of_node(job: str | None, processes: Mapping[int, RankProcess]) -> list[int]:
    """The pids of this machine's ranks that a launcher started (None: of any job). Raises TargetError if none."""
    ranks = _started_ranks(processes, job)
    if ranks:
        return ranks
    closed = sum(process.is_closed for process in processes.values())
    what = "there is no rank on this machine" + (f" of job {job}" if job else "")
    if closed:
        raise TargetError(
            f"{what} that may be examined",
            why=f"a rank is known by its environment, and that of {counted(closed, 'Python process')}, another user's, "
            "cannot be read",
            help=or_root("run it as the user of the job"),
        )
    raise TargetError(
        what,
        why="a rank is a process that uses torch and has RANK, set by its launcher, in its environment",
        help="name one of the processes: dispatch ranks -p PID",
    )


def endless_environments(processes: Mapping[int, RankProcess], ranks: Collection[int]) -> list[int]:
    """The pids of processes whose environment is too long to be read, and so may belong to the job of ``ranks`` (pids):
    those of the same users."""
    endless = [process.pid for process in processes.values() if process.is_endless]
    users = {user_of(pid) for pid in ranks} if endless else set()
    return [pid for pid in endless if user_of(pid) in users]


def user_of(pid: int) -> int | None:
    """The uid of a process; None if it has exited."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def _started_ranks(processes: Mapping[int, RankProcess], job: str | None) -> list[int]:
    """The pids of processes that were started as ranks (of one ``job``, None: of all), and of zombies with the same
    parents, whose environment the kernel no longer has."""
    started = [process for process in processes.values() if process.rank and (not job or job in process.jobs)]
    launchers = _launchers(processes)
    torch = {process.pid for process in started if has_torch(process.pid)}
    ranks = [process for process in started if process.pid in torch - launchers]
    ranks = [process for process in ranks if not _is_inherited(process, processes, torch)]
    ranks += _without_torch(started, ranks, launchers, processes)
    parents = {process.parent for process in ranks} - {0, 1}
    dead = {process.pid for process in processes.values() if process.is_zombie and process.parent in parents}
    pids = [process.pid for process in ranks]
    return sorted({*pids, *dead, *_launching_ranks(processes, pids)})


def _launching_ranks(processes: Mapping[int, RankProcess], ranks: Sequence[int]) -> set[int]:
    """The pids of processes with torch that have started ``ranks`` and are rank 0 themselves: Lightning's launcher
    numbers its children from LOCAL_RANK=1 (_SubprocessScriptLauncher of Lightning 2.6)."""
    children_of: dict[int, list[RankProcess]] = {}
    for pid in ranks:
        if processes[pid].local_rank:
            children_of.setdefault(processes[pid].parent, []).append(processes[pid])
    return {
        parent
        for parent, children in children_of.items()
        if parent in processes
        and parent not in ranks
        and not processes[parent].rank
        and not any(child.local_rank == "0" for child in children)
        and has_torch(parent)
    }


def _without_torch(
    started: Sequence[RankProcess],
    ranks: Sequence[RankProcess],
    launchers: Collection[int],
    processes: Mapping[int, RankProcess],
) -> list[RankProcess]:
    """The outermost Python process of each rank that no process with torch has. ``started``: all processes with a rank
    in their environment; ``ranks``: those with torch.

    PyTorch's own variable makes a process a rank without torch. Slurm and MPI number whatever they start: a task of
    Slurm's counts if its step has other ranks, or if its step is the only one that has candidates.
    """
    seen = {(process.jobs, process.rank) for process in ranks}
    numbered = [process for process in started if process.rank and (process.rank.name == _RANK or process.tasks)]
    absent = [process for process in numbered if (process.jobs, process.rank) not in seen]
    absent = [process for process in absent if process.pid not in launchers]
    pythons = {process.pid for process in started if _is_python(process.pid)} if absent else set()
    absent = [
        process for process in absent if process.pid in pythons and not _is_inherited(process, processes, pythons)
    ]
    by_torchrun = [process for process in absent if process.rank and process.rank.name == _RANK]
    steps = {process.jobs for process in (*ranks, *by_torchrun)} or {process.jobs for process in absent}
    if not ranks and not by_torchrun and len(steps) > 1:
        return []
    return [*by_torchrun, *(process for process in absent if process not in by_torchrun and process.jobs in steps)]


def _is_python(pid: int) -> bool:
    """True if the process's executable is a Python."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")  # noqa: PTH115, PTH119
    except OSError:
        return False


def _is_inherited(process: RankProcess, processes: Mapping[int, RankProcess], members: Collection[int]) -> bool:
    """True if the process inherited its environment from an ancestor of the same rank that is one of ``members``
    (pids), like a DataLoader's worker. A shell around the program is not in ``members``."""
    ancestor = processes.get(process.parent)
    while ancestor and (ancestor.jobs, ancestor.rank) == (process.jobs, process.rank):
        if ancestor.pid in members:
            return True
        ancestor = processes.get(ancestor.parent)
    return False


def _launchers(processes: Mapping[int, RankProcess]) -> set[int]:
    """The pids of ranks that are launchers themselves: a descendant has its rank from another variable (each task of
    ``srun torchrun``)."""
    launchers = set()
    for process in processes.values():
        ancestor = processes.get(process.parent)
        while process.rank and ancestor and ancestor.rank:
            if ancestor.rank.name != process.rank.name:
                launchers.add(ancestor.pid)
            ancestor = processes.get(ancestor.parent)
    return launchers


def _launched_by(processes: Mapping[int, RankProcess], launcher: int) -> list[int]:
    """The pids of the launcher's children that use torch and, if there are any, of the other ranks among its children
    (which have not loaded it yet) and of zombies, whose libraries are no longer known."""
    children = sorted(process.pid for process in processes.values() if process.parent == launcher)
    ranks = [pid for pid in children if has_torch(pid)]
    if not ranks or launcher <= 1:
        return []
    ranks += [pid for pid in children if pid not in ranks and processes[pid].rank and _is_python(pid)]
    dead = [pid for pid in children if processes[pid].is_zombie]
    return sorted([*ranks, *dead, *_launching_ranks(processes, ranks)])


def has_torch(pid: int) -> bool:
    """True if the process has mapped PyTorch, and we may read its maps."""
    try:
        return b"libtorch_cpu.so" in supervision.read_proc_file(pid, "maps")
    except OSError:
        return False
