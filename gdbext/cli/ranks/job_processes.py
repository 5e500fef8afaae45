"""Which processes of this machine belong to a job: by their initial environment, else by the tree of processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from gdbext.errors import TargetError
from gdbext.inspection.job.job_rank import job_names, rank_of
from gdbext.model.record import Record
from gdbext.targets.live.proc_checks import check_exists
from gdbext.targets.system.linux import parse_environ

_TORCH = "libtorch_cpu.so"
_RANK = "RANK"
"""The variable that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
_PYTHONS = (b"python", b"pt_main_thread")
"""How the kernel's name of a Python process begins; some releases of torch set the second one."""


class LocalProcess(Record):
    """What /proc says of a process: its parent, the job and rank of its initial environment, whether it is dead."""

    pid: int
    parent: int
    is_zombie: bool
    jobs: tuple[str, ...]
    """All names of its job."""
    rank: tuple[str, int] | None
    """The variable that gives it, and the rank."""
    is_closed: bool = False
    """A Python whose environment may not be read."""


def local_processes() -> dict[int, LocalProcess]:
    """All processes that can be seen; what may not be read of one is None."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - strings are all that is needed
        if name.isdecimal():
            process = _read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def _read(pid: int) -> LocalProcess | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            begin, _, end = stream.read().rpartition(b") ")
    except OSError:
        return None
    fields = end.split()
    environ: Mapping[str, str] = {}
    is_closed = False
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            environ = parse_environ(stream.read())
    except PermissionError:
        is_closed = begin.partition(b"(")[2].startswith(_PYTHONS)
    except OSError:
        pass
    is_zombie = fields[0] in (b"Z", b"X")
    return LocalProcess(pid, int(fields[1]), is_zombie, tuple(job_names(environ)), rank_of(environ), is_closed)


def job_of_process(pid: int) -> list[int]:
    """The ranks of the job that process ``pid`` is of, or launched, dead ones included. Raises TargetError."""
    check_exists(pid)
    known = local_processes()
    own = known.get(pid)
    if own is None:
        raise TargetError(f"process {pid} ended while its job was looked for")
    if own.rank is not None and own.jobs and pid not in _launchers(known):
        return _ranks(known, own.jobs[0])
    children = _below(known, pid)
    if children:
        return children
    siblings = _below(known, own.parent)
    return siblings if pid in siblings else [pid]


def ranks_of_node(job: str | None) -> list[int]:
    """Every rank on this machine that a launcher started; of one ``job`` only, where one is given. Raises TargetError:
    there is none."""
    known = local_processes()
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
            help="run it as the user of the job, or as root",
        )
    raise TargetError(
        what,
        why="a rank is a process with torch in it whose launcher set RANK in its environment",
        help="name one of the processes: dispatch ranks -p PID",
    )


def _ranks(known: Mapping[int, LocalProcess], job: str | None) -> list[int]:
    """Processes that were started as ranks, and the dead beside them, of which the kernel keeps no environment."""
    started = [each for each in known.values() if each.rank is not None and (job is None or job in each.jobs)]
    launchers = _launchers(known)
    torch = {each.pid for each in started if _has_torch(each.pid)}
    ranks = [each for each in started if each.pid not in launchers and each.pid in torch]
    ranks = [each for each in ranks if not _inherited(each, known, torch)]
    ranks += _before_torch(started, ranks, launchers, known)
    parents = {each.parent for each in ranks} - {0, 1}
    dead = [each for each in known.values() if each.is_zombie and each.parent in parents]
    return sorted(each.pid for each in (*ranks, *dead))


def _before_torch(
    started: Sequence[LocalProcess],
    ranks: Sequence[LocalProcess],
    launchers: Collection[int],
    known: Mapping[int, LocalProcess],
) -> list[LocalProcess]:
    """The outermost Python of each rank that no process with torch is.

    Only PyTorch's own variable makes a rank of a process without torch: Slurm and MPI number whatever they start, what
    looks at the job in a step of its own (``srun --overlap``) as well.
    """
    found = {(each.jobs, each.rank) for each in ranks}
    numbered = [each for each in started if each.rank is not None and each.rank[0] == _RANK]
    absent = [each for each in numbered if (each.jobs, each.rank) not in found and each.pid not in launchers]
    pythons = {each.pid for each in started if _is_python(each.pid)} if absent else set()
    return [each for each in absent if each.pid in pythons and not _inherited(each, known, pythons)]


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")  # noqa: PTH115, PTH119
    except OSError:
        return False


def _inherited(process: LocalProcess, known: Mapping[int, LocalProcess], members: Collection[int]) -> bool:
    """It has its environment from another process of that rank that is one of ``members``, as a loader's worker has. A
    shell around the program is none."""
    above = known.get(process.parent)
    while above is not None and (above.jobs, above.rank) == (process.jobs, process.rank):
        if above.pid in members:
            return True
        above = known.get(above.parent)
    return False


def _launchers(known: Mapping[int, LocalProcess]) -> set[int]:
    """Processes that launch ranks themselves, though another launcher gave them a number: each task of
    ``srun torchrun`` is one."""
    found = set()
    for process in known.values():
        above = known.get(process.parent)
        while process.rank is not None and above is not None and above.rank is not None:
            if above.rank[0] != process.rank[0]:
                found.add(above.pid)
            above = known.get(above.parent)
    return found


def _below(known: Mapping[int, LocalProcess], launcher: int) -> list[int]:
    """The launcher's children that use torch; zombies, of which nothing is left to tell, beside such ones."""
    children = sorted(each.pid for each in known.values() if each.parent == launcher)
    ranks = [pid for pid in children if _has_torch(pid)]
    ranks += [pid for pid in children if pid not in ranks and ranks and known[pid].rank and _is_python(pid)]
    return sorted([*ranks, *(pid for pid in children if known[pid].is_zombie)]) if ranks and launcher > 1 else []


def _has_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as stream:
            return any(_TORCH in line for line in stream)
    except OSError:
        return False
