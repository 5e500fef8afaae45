"""Which processes of this machine belong to a job: by their initial environment, else by the tree of processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gdbext.errors import TargetError
from gdbext.inspection.job.job_rank import job_names, rank_of
from gdbext.model.record import Record
from gdbext.targets.live.proc_checks import check_exists
from gdbext.targets.system.linux import parse_environ

_TORCH = "libtorch_cpu.so"


class LocalProcess(Record):
    """What /proc says of a process: its parent, the job and rank of its initial environment, whether it is dead."""

    pid: int
    parent: int
    is_zombie: bool
    jobs: tuple[str, ...]
    """All names of its job."""
    rank: tuple[str, int] | None
    """The variable that gives it, and the rank."""


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
            fields = stream.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    environ: Mapping[str, str] = {}
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            environ = parse_environ(stream.read())
    except OSError:
        pass
    return LocalProcess(pid, int(fields[1]), fields[0] in (b"Z", b"X"), tuple(job_names(environ)), rank_of(environ))


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
    """Every rank on this machine that a launcher started; of one ``job`` only, where one is given."""
    return _ranks(local_processes(), job)


def _ranks(known: Mapping[int, LocalProcess], job: str | None) -> list[int]:
    """Processes that were started as ranks, and the dead beside them, of which the kernel keeps no environment."""
    started = [each for each in known.values() if each.rank is not None and (job is None or job in each.jobs)]
    launchers = _launchers(known)
    ranks = [each for each in started if each.pid not in launchers and _has_torch(each.pid)]
    ranks = [each for each in ranks if not _inherited(each, known)]
    parents = {each.parent for each in ranks} - {0, 1}
    dead = [each for each in known.values() if each.is_zombie and each.parent in parents]
    return sorted(each.pid for each in (*ranks, *dead))


def _inherited(process: LocalProcess, known: Mapping[int, LocalProcess]) -> bool:
    """It has its environment from another process of that rank that uses torch, as a loader's worker has. A shell
    around the program is none."""
    above = known.get(process.parent)
    while above is not None and (above.jobs, above.rank) == (process.jobs, process.rank):
        if _has_torch(above.pid):
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
    return sorted([*ranks, *(pid for pid in children if known[pid].is_zombie)]) if ranks and launcher > 1 else []


def _has_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as stream:
            return any(_TORCH in line for line in stream)
    except OSError:
        return False
