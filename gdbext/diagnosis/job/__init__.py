"""The process as one rank of a job: process groups, collectives and the operations that it recorded.

Decides whether a process is a rank, and which of which job: launchers say so in its initial environment, and
programs that launch themselves in Python's os.environ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.pool_table import BACKENDS, PoolFunction
from gdbext.engine.numbers import number
from gdbext.torch.torch_symbol import DISTRIBUTED_FILE, RPC_FILE

if TYPE_CHECKING:
    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.diagnosis.job.collectives_section import JobRank
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.base_target import Target

_LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables that a launcher sets for a rank alone. Slurm sets its own for every program of a job."""
_RANK = (*_LAUNCHED, "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables that torchrun, Open MPI, PMIx, MPICH and Slurm set, the first that is there."""
_RESTART = ("TORCHELASTIC_RESTART_COUNT",)
"""The count of torchrun's agent for its own machine (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""


_JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")
_READ = frozenset((*_RANK, *_SIZE, *_LOCAL_RANK, *_LOCAL_SIZE, *_RESTART, *_JOB))
"""All variables that are of interest here."""


def is_rank(target: Target, process: ProcessSnapshot, threads: Iterable[ThreadReport]) -> bool:
    """True if the process looks like a rank: a thread waits for others or serves a group, or a launcher made it a
    rank."""
    if any(thread.wait and thread.wait.kind is WaitKind.COLLECTIVE for thread in threads):
        return True
    if any(frame.file.endswith(_CALLS) for thread in process.threads for frame in thread.python):
        return True
    tags = {tag for thread in process.threads for tag in thread.inner_tags}
    if any(isinstance(tag, PoolFunction) and tag.pool in BACKENDS for tag in tags):
        return True
    return any(name in target.origin.environ() for name in _LAUNCHED)


_CALLS = (RPC_FILE, DISTRIBUTED_FILE)
"""Files of torch whose functions only ranks are in."""
_OS, _ENVIRON, _ENTRIES = "os", "environ", "_data"
"""Lib/os.py: os.environ is an _Environ, which keeps a dict of bytes."""
_VARIABLES = 4_000
_LONGEST = 4_096


def environment(session: Session) -> Mapping[str, str]:
    """The environment as the program has it now: Python's os.environ, else the one that it was started with."""
    found = dict(session.target.origin.environ())
    environ = session.python.globals_of(_OS)[_ENVIRON][_ENTRIES]
    entries = environ.items(_VARIABLES)
    for key, value in entries:
        name = _decoded(key)
        if name in _READ:
            found[name] = _decoded(value)
    recorded = session.target.origin.recorded is not None  # perhaps before this was read
    if entries.fault and not environ.is_absent and not recorded:
        session.errors.note(entries.fault, "os.environ")
    return found


def _decoded(value: PyRef) -> str:
    return (value.bytes(_LONGEST) or b"").decode("utf-8", "replace")


def from_environment(session: Session) -> JobRank:
    """The rank that the environment tells; all None for a process that no launcher started."""
    from gdbext.diagnosis.job.collectives_section import JobRank  # 7 ms, for ranks

    environ, target = environment(session), session.target
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
    found = ((name, number(environ.get(name, ""))) for name in _RANK)
    return next(((name, rank) for name, rank in found if rank is not None), None)


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """A launcher gave it a rank in a job of more than one."""
    return rank_of(environ) is not None and (_number(environ, _SIZE) or 0) > 1


def job_of(environ: Mapping[str, str]) -> str | None:
    """The name that the ranks of a job have in common: a scheduler's or torchrun's run id, else where they meet."""
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
    found = (number(environ.get(name, "")) for name in names)
    return next((each for each in found if each is not None), None)


def _host(target: Target) -> str | None:
    """The machine of a live process; a core does not say where it is from."""
    return None if target.origin.is_core else target.origin.files.host() or None
