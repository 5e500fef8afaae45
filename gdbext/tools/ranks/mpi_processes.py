"""Finds the ranks of a job of MPI on this machine, with torch or without it: by the launcher's variables.

mpiexec of MPICH (hydra) numbers ranks by PMI_RANK and names no job: its ranks are those below one proxy. Open MPI and
other launchers with PMIx name the job (PMIX_NAMESPACE).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gdbext.diagnosis.job import MPI_RANK
from gdbext.engine.targets.live import supervision
from gdbext.errors import TargetError
from gdbext.tools.ranks import rank_processes
from gdbext.tools.ranks.rank_processes import RankProcess

_MPI = (b"/libmpi.so", b"/libmpi_abi.so", b"/libmpich", b"/libmpi_cray")
"""Files of implementations, of which a rank has mapped one."""
_TORCH = b"libtorch_cpu.so"


def job_of_process(pid: int, processes: Mapping[int, RankProcess]) -> list[int]:
    """The pids of the ranks of the job that process ``pid`` belongs to or launched, including dead ones. Raises
    TargetError."""
    ranks = rank_processes.job_of_process(pid, processes)
    found = _ranks_of_job(processes[pid], processes) if pid in processes else []
    is_launcher = ranks == [pid] and not processes[pid].rank
    return found if found and (is_launcher or len(found) > len(ranks)) else ranks


def ranks_of_node(job: str | None, processes: Mapping[int, RankProcess]) -> list[int]:
    """The pids of the ranks on this machine that a launcher started, of one ``job`` or all; those of MPI without torch
    if there are no others. Raises TargetError if there is none."""
    try:
        return rank_processes.ranks_of_node(job, processes)
    except TargetError:
        numbered = [process for process in processes.values() if _number(process) is not None]
        found = [process for process in numbered if (not job or job in process.jobs) and _has(process.pid, _MPI)]
        if not found:
            raise
        return _ranks_of_job(found[0], processes)


def _ranks_of_job(own: RankProcess, processes: Mapping[int, RankProcess]) -> list[int]:
    """The pids of the ranks of the job of MPI to which a process belongs, or which it launched; none if that is no job
    of MPI."""
    launcher = _launcher(own, processes) if _number(own) is not None else own.pid
    if launcher <= 1:
        return []
    members: dict[int, list[RankProcess]] = {}  # rank → its processes
    for process in processes.values():
        rank = _number(process)
        if rank is None:
            continue
        is_named = own.jobs and process.jobs
        if process.jobs[0] == own.jobs[0] if is_named else _is_below(launcher, process, processes):
            members.setdefault(rank, []).append(process)
    chosen = (_outermost(claims, processes) for claims in members.values())
    return sorted(pid for pid in chosen if pid)


def _has(pid: int, libraries: Collection[bytes]) -> bool:
    """True if the process has mapped one of these files, and we may see that."""
    try:
        maps = supervision.read_proc_file(pid, "maps")
    except OSError:
        return False
    return any(library in maps for library in libraries)


def _number(process: RankProcess) -> int | None:
    """The rank that a launcher of MPI gave it; None for none."""
    return process.rank[1] if process.rank and process.rank[0] in MPI_RANK else None


def _launcher(process: RankProcess, processes: Mapping[int, RankProcess]) -> int:
    """The pid of the parent of the outermost process with the same rank: the launcher or its proxy."""
    outer = process
    while (parent := processes.get(outer.parent)) and parent.rank == process.rank:
        outer = parent
    return outer.parent


def _is_below(launcher: int, process: RankProcess, processes: Mapping[int, RankProcess]) -> bool:
    """True if the launcher is an ancestor of the process."""
    ancestor: RankProcess | None = process
    while ancestor:
        if ancestor.parent == launcher:
            return True
        ancestor = processes.get(ancestor.parent)
    return False


def _outermost(claims: Collection[RankProcess], processes: Mapping[int, RankProcess]) -> int:
    """The pid of the rank among the processes with its number: of those that have a library of MPI or torch the
    outermost one, which is no shell around it and no worker that it started; 0 without one."""
    having = {process.pid for process in claims if _has(process.pid, (*_MPI, _TORCH))}
    for pid in sorted(having):
        ancestor = processes.get(processes[pid].parent)
        while ancestor and ancestor.pid not in having:
            ancestor = processes.get(ancestor.parent)
        if not ancestor:
            return pid
    return 0
