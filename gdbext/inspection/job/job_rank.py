"""Whether a process is a rank, and which of which job: launchers say so in its initial environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag

if TYPE_CHECKING:
    from gdbext.model.sections.collectives_section import JobRank
    from gdbext.targets.base import Target
    from gdbext.waits.recognise import State
    from gdbext.waits.snapshot import ProcessSnapshot

_LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables that a launcher sets for a rank alone. Slurm sets its own for every program of a job."""
_RANK = (*_LAUNCHED, "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""What torchrun, Open MPI, PMIx, MPICH and Slurm set, the first that is there."""
_RESTART = ("TORCHELASTIC_RESTART_COUNT",)
"""What torchrun's agent counts for its own machine (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
_BACKENDS = (FunctionTag.GLOO_LOOP, FunctionTag.GLOO_QUEUE, FunctionTag.NCCL_WATCHDOG)


def is_rank(target: Target, process: ProcessSnapshot, states: Mapping[int, State | None]) -> bool:
    """Whether the process looks like one: a thread waits for others or serves a group, or a launcher made it a rank."""
    waits = (state.wait for state in states.values() if state is not None)
    if any(wait is not None and wait.kind is WaitKind.COLLECTIVE for wait in waits):
        return True
    if any(tag in thread.inner_tags for thread in process.threads for tag in _BACKENDS):
        return True
    return any(name in target.environ() for name in _LAUNCHED)


def from_environment(target: Target) -> JobRank:
    """What the environment says; all None for a process that no launcher started."""
    from gdbext.model.sections.collectives_section import JobRank

    environ = target.environ()
    return JobRank(
        rank=_number(environ, _RANK),
        size=_number(environ, _SIZE),
        local_rank=_number(environ, _LOCAL_RANK),
        local_size=_number(environ, _LOCAL_SIZE),
        host=_host(target),
        job=job_of(environ),
        restart=_number(environ, _RESTART),
    )


def rank_of(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The variable by which a launcher gave it its rank, and the rank."""
    return next(((name, int(environ[name])) for name in _RANK if environ.get(name, "").isdecimal()), None)


def job_of(environ: Mapping[str, str]) -> str | None:
    """What the ranks of a job have in common: a scheduler's or torchrun's run id, else where they meet."""
    return next(iter(job_names(environ)), None)


def job_names(environ: Mapping[str, str]) -> list[str]:
    """All that a person may call its job, the name that ``job_of`` gives it first."""
    found = []
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        found.append(run)
    if environ.get("SLURM_JOB_ID"):
        name = f"slurm {environ['SLURM_JOB_ID']}"
        found += [f"{name}.{environ.get('SLURM_STEP_ID', '0')}", name]
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        found.append(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
    return found


def _number(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def _host(target: Target) -> str | None:
    """The machine of a live process; a core does not say where it is from."""
    return None if target.is_core else target.files.host() or None
