"""The process as one rank of a job: whether it is one, and of which job, by the variables that launchers set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.pool_table import BACKENDS, PoolFunction
from gdbext.engine.numbers import number
from gdbext.torch.torch_symbol import DISTRIBUTED_FILE, RPC_FILE

if TYPE_CHECKING:
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.base_target import Target

MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Those of the launchers of MPI: Open MPI, PMIx, and hydra of MPICH or Slurm."""
_LAUNCHED = ("RANK", *MPI_RANK)
"""Variables that a launcher sets for a rank alone. Slurm sets its own for every program of a job."""
RANK = (*_LAUNCHED, "SLURM_PROCID")
SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Variables that torchrun, Open MPI, PMIx, MPICH and Slurm set; the first that is set counts."""


def is_rank(target: Target, process: ProcessSnapshot, threads: Iterable[ThreadReport]) -> bool:
    """True if a thread waits for other ranks or serves a process group, or a launcher gave the process a rank."""
    if any(thread.wait and thread.wait.kind is WaitKind.COLLECTIVE for thread in threads):
        return True
    files = (RPC_FILE, DISTRIBUTED_FILE)  # only ranks are in their functions
    if any(frame.file.endswith(files) for thread in process.threads for frame in thread.python):
        return True
    tags = {tag for thread in process.threads for tag in thread.inner_tags}
    if any(isinstance(tag, PoolFunction) and tag.pool in BACKENDS for tag in tags):
        return True
    return any(name in target.origin.environ() for name in _LAUNCHED)


class RankVariable(NamedTuple):
    """The first variable of RANK that is set, and the rank in it."""

    name: str
    rank: int


def rank_of(environ: Mapping[str, str]) -> RankVariable | None:
    """The rank in an environment; None if no launcher set one."""
    ranks = ((name, number(environ.get(name, ""))) for name in RANK)
    return next((RankVariable(name, rank) for name, rank in ranks if rank is not None), None)


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """True if a launcher gave the process a rank in a job of more than one."""
    return rank_of(environ) is not None and (first_number(environ, SIZE) or 0) > 1


def job_names(environ: Mapping[str, str]) -> list[str]:
    """Names by which a user may select the process's job; the first is common to all its ranks."""
    names = []
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        names.append(run)
    if environ.get("SLURM_JOB_ID"):
        name = f"slurm {environ['SLURM_JOB_ID']}"
        names += [f"{name}.{environ.get('SLURM_STEP_ID', '0')}", name]
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        names.append(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
    if environ.get("PMIX_NAMESPACE"):
        names.append(f"mpi {environ['PMIX_NAMESPACE']}")
    return names


def first_number(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The number in the first of these variables that has one."""
    values = (number(environ.get(name, "")) for name in names)
    return next((value for value in values if value is not None), None)
