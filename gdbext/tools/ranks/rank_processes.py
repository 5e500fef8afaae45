"""The processes of this machine that belong to a job: by their initial environment, else by the tree of processes."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gdbext.diagnosis.job import job_names, rank_of
from gdbext.engine.numbers import number
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.proc_checks import check_exists
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import parse_environ, split_stat
from gdbext.errors import TargetError, or_root

_TORCH = "libtorch_cpu.so"
_RANK = "RANK"
"""The variable that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
LOOKS = "GDBEXT_LOOKS"
"""The variable of our own processes beside the ranks of a job (other_machines.py): they are none of them."""
_PYTHONS = ("python", "pt_main_thread")
"""Beginnings of the kernel's name of a Python process; some releases of torch set the second one."""


class RankProcess(NamedTuple):
    """The facts of /proc on a process: its parent, the job and rank of its initial environment, whether it is dead."""

    pid: int
    parent: int
    is_zombie: bool
    jobs: tuple[str, ...]
    """All names of its job."""
    rank: tuple[str, int] | None
    """The variable that gives it, and the rank."""
    is_closed: bool = False
    """A Python whose environment may not be read."""
    local_rank: str = ""
    """LOCAL_RANK of its initial environment: its number on this machine."""
    is_endless: bool = False
    """Its environment is longer than execve(2) makes any: it may be of any job."""
    tasks: int = 0
    """The number of tasks of its step of Slurm's; 0 for a process of none, and for one that looks at the others."""


def local_processes() -> dict[int, RankProcess]:
    """All processes that can be seen; what may not be read of one is None."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - strings are all that is needed
        if name.isdecimal():
            process = read_process(int(name))
            if process:
                found[process.pid] = process
    return found


def read_process(pid: int) -> RankProcess | None:
    """The facts of a process; None where it is gone."""
    try:
        name, rest = split_stat(proc_files.read(f"/proc/{pid}/stat"))
    except OSError:
        return None
    fields = rest.split()
    environ: Mapping[str, str] = {}
    is_closed = is_endless = False
    try:
        environ = parse_environ(supervision.read_file_of(pid, "environ"))
    except PermissionError:
        is_closed = name.startswith(_PYTHONS)
    except OSError as error:
        is_endless = error.errno == errno.EFBIG
    is_zombie = fields[0] in ("Z", "X")
    return RankProcess(
        pid,
        int(fields[1]),
        is_zombie,
        tuple(job_names(environ)),
        rank_of(environ),
        is_closed,
        environ.get("LOCAL_RANK", ""),
        is_endless,
        _tasks(environ),
    )


def _tasks(environ: Mapping[str, str]) -> int:
    if "SLURM_STEP_ID" not in environ or LOOKS in environ:
        return 0
    return number(environ.get("SLURM_NTASKS", "")) or 1


def job_of_process(pid: int, known: Mapping[int, RankProcess] | None = None) -> list[int]:
    """The ranks of the job that process ``pid`` is of, or launched, dead ones included. Raises TargetError."""
    check_exists(pid)
    known = local_processes() if known is None else known
    own = known.get(pid)
    if not own:
        raise TargetError(f"process {pid} ended while its job was looked for")
    if own.rank and own.jobs and pid not in _launchers(known):
        return _ranks(known, own.jobs[0])
    children = _below(known, pid)
    if children:
        return children
    siblings = _below(known, own.parent)
    return siblings if pid in siblings else [pid]


def ranks_of_node(job: str | None, known: Mapping[int, RankProcess] | None = None) -> list[int]:
    """Every rank on this machine that a launcher started; of one ``job`` only, where one is given. Raises TargetError:
    there is none."""
    known = local_processes() if known is None else known
    found = _ranks(known, job)
    if found:
        return found
    closed = sum(process.is_closed for process in known.values())
    what = "there is no rank on this machine" + (f" of job {job}" if job else "")
    if closed:
        raise TargetError(
            f"{what} that may be looked at",
            why=f"the environment of {closed} Python process{'es' if closed > 1 else ''}, by which a rank is known, "
            "may not be read: another user's",
            help=or_root("run it as the user of the job"),
        )
    raise TargetError(
        what,
        why="a rank is a process with torch in it whose launcher set RANK in its environment",
        help="name one of the processes: dispatch ranks -p PID",
    )


def endless_environments(known: Mapping[int, RankProcess], ranks: Collection[int]) -> list[int]:
    """The processes whose environment is too long to be read, of the users of those ranks: others are of other jobs."""
    found = [each.pid for each in known.values() if each.is_endless]
    users = {user_of(pid) for pid in ranks} if found else set()
    return [pid for pid in found if user_of(pid) in users]


def user_of(pid: int) -> int | None:
    """The user of a process; None where it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def _ranks(known: Mapping[int, RankProcess], job: str | None) -> list[int]:
    """Processes that were started as ranks, and the dead beside them, of which the kernel keeps no environment."""
    started = [each for each in known.values() if each.rank and (not job or job in each.jobs)]
    launchers = _launchers(known)
    torch = {each.pid for each in started if has_torch(each.pid)}
    ranks = [each for each in started if each.pid not in launchers and each.pid in torch]
    ranks = [each for each in ranks if not _inherited(each, known, torch)]
    ranks += _before_torch(started, ranks, launchers, known)
    parents = {each.parent for each in ranks} - {0, 1}
    dead = [each for each in known.values() if each.is_zombie and each.parent in parents]
    return sorted({each.pid for each in (*ranks, *dead)} | _first_ranks(known, [each.pid for each in ranks]))


def _first_ranks(known: Mapping[int, RankProcess], ranks: Sequence[int]) -> set[int]:
    """Processes with torch that have started the others and are rank 0 themselves, as with Lightning's launcher, which
    numbers its children from LOCAL_RANK=1 (_SubprocessScriptLauncher of Lightning 2.6)."""
    below: dict[int, list[RankProcess]] = {}
    for pid in ranks:
        if known[pid].local_rank:
            below.setdefault(known[pid].parent, []).append(known[pid])
    return {
        parent
        for parent, children in below.items()
        if parent in known
        and parent not in ranks
        and not known[parent].rank
        and not any(each.local_rank == "0" for each in children)
        and has_torch(parent)
    }


def _before_torch(
    started: Sequence[RankProcess],
    ranks: Sequence[RankProcess],
    launchers: Collection[int],
    known: Mapping[int, RankProcess],
) -> list[RankProcess]:
    """The outermost Python of each rank that no process with torch is.

    PyTorch's own variable makes a rank of a process without torch. Slurm and MPI number whatever they start: a task of
    Slurm's is one where others of its step are, or where its step is the only one that any could be in.
    """
    found = {(each.jobs, each.rank) for each in ranks}
    numbered = [each for each in started if each.rank and (each.rank[0] == _RANK or each.tasks)]
    absent = [each for each in numbered if (each.jobs, each.rank) not in found and each.pid not in launchers]
    pythons = {each.pid for each in started if _is_python(each.pid)} if absent else set()
    absent = [each for each in absent if each.pid in pythons and not _inherited(each, known, pythons)]
    given = [each for each in absent if each.rank and each.rank[0] == _RANK]
    steps = {each.jobs for each in (*ranks, *given)} or {each.jobs for each in absent}
    if not ranks and not given and len(steps) > 1:
        return []
    return [*given, *(each for each in absent if each not in given and each.jobs in steps)]


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")  # noqa: PTH115, PTH119
    except OSError:
        return False


def _inherited(process: RankProcess, known: Mapping[int, RankProcess], members: Collection[int]) -> bool:
    """It has its environment from another process of that rank that is one of ``members``, as a loader's worker has. A
    shell around the program is none."""
    above = known.get(process.parent)
    while above and (above.jobs, above.rank) == (process.jobs, process.rank):
        if above.pid in members:
            return True
        above = known.get(above.parent)
    return False


def _launchers(known: Mapping[int, RankProcess]) -> set[int]:
    """Processes that launch ranks themselves, though another launcher gave them a number: each task of
    ``srun torchrun`` is one."""
    found = set()
    for process in known.values():
        above = known.get(process.parent)
        while process.rank and above and above.rank:
            if above.rank[0] != process.rank[0]:
                found.add(above.pid)
            above = known.get(above.parent)
    return found


def _below(known: Mapping[int, RankProcess], launcher: int) -> list[int]:
    """The launcher's children that use torch; zombies, of which nothing is left to tell, beside such ones."""
    children = sorted(each.pid for each in known.values() if each.parent == launcher)
    ranks = [pid for pid in children if has_torch(pid)]
    ranks += [pid for pid in children if pid not in ranks and ranks and known[pid].rank and _is_python(pid)]
    dead = [pid for pid in children if known[pid].is_zombie]
    return sorted([*ranks, *dead, *_first_ranks(known, ranks)]) if ranks and launcher > 1 else []


def has_torch(pid: int) -> bool:
    """PyTorch is mapped there, and we may see that."""
    try:
        return _TORCH.encode() in supervision.read_file_of(pid, "maps")
    except OSError:
        return False
