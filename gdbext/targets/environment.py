"""Which environment variables a report or a recording may show."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SHOWN = re.compile(
    r"^(TORCH|PYTORCH|ATEN|NCCL|GLOO|CUDA|OMP|MKL|KMP|GOMP|OPENBLAS|UCX|TP_|MASTER_|PYTHON|LD_|MALLOC_|MASTER)"
    r"|^(RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)$"
    r"|^(OMPI_COMM_WORLD_|PMIX?_RANK$|PMI_SIZE$|MPI_LOCAL|SLURM_(JOB_ID|STEP_ID|PROCID|NTASKS|LOCALID)$)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """As ``shown``, without secrets."""
    return {name: value for name, value in shown(environ).items() if not _SECRET.search(name)}


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what torch, OpenMP, NCCL or Python do, by name; the values of secrets are hidden."""
    return {
        name: "(hidden)" if _SECRET.search(name) else value
        for name, value in sorted(environ.items())
        if _SHOWN.match(name)
    }
