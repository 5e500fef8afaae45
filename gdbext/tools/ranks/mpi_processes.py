"""Finds the ranks of a job of MPI on this machine, with torch or without it: by the launcher's variables.

mpiexec of MPICH (hydra) numbers ranks by PMI_RANK and names no job: its ranks are those below one proxy. Open MPI and
other launchers with PMIx name the job (PMIX_NAMESPACE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gdbext.diagnosis.job import MPI_RANK

if TYPE_CHECKING:
    from gdbext.tools.ranks.rank_processes import RankProcess

LIBRARIES = (b"/libmpi.so", b"/libmpi_abi.so", b"/libmpich", b"/libmpi_cray", b"libtorch_cpu.so")
"""Files of which a rank has mapped one."""


def mpi_ranks(pid: int, processes: Mapping[int, RankProcess], is_candidate: Callable[[int], bool]) -> tuple[int, ...]:
    """The pids of the ranks of the job to which process ``pid`` belongs, or which it launched; none if that is no job
    of MPI. ``is_candidate``: the process with that pid has a library of MPI, or torch."""
    own = processes[pid]
    numbered = {process.pid: process for process in processes.values() if _number(process) is not None}
    launcher = _launcher(own, processes) if _number(own) is not None else pid
    if launcher <= 1:
        return ()
    members: dict[int, list[RankProcess]] = {}  # rank → its processes
    for process in numbered.values():
        is_same = (
            process.jobs[0] == own.jobs[0] if own.jobs and process.jobs else _is_below(launcher, process, processes)
        )
        if is_same:
            members.setdefault(_number(process) or 0, []).append(process)
    chosen = (_outermost(claims, processes, is_candidate) for claims in members.values())
    return tuple(sorted(pid for pid in chosen if pid))


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
    """The launcher is an ancestor of the process."""
    ancestor: RankProcess | None = process
    while ancestor:
        if ancestor.parent == launcher:
            return True
        ancestor = processes.get(ancestor.parent)
    return False


def _outermost(
    claims: list[RankProcess], processes: Mapping[int, RankProcess], is_candidate: Callable[[int], bool]
) -> int:
    """The pid of the rank among the processes with its number: of those that have a library of MPI or torch the
    outermost one, which is no shell around it and no worker that it started; 0 without one."""
    having = {process.pid for process in claims if is_candidate(process.pid)}
    for process in claims:
        ancestor = processes.get(process.parent)
        while ancestor and ancestor.pid not in having:
            ancestor = processes.get(ancestor.parent)
        if process.pid in having and not ancestor:
            return process.pid
    return 0
