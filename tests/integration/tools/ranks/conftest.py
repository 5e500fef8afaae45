"""Jobs that hang, all forked by one process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.programs import harness
from support.programs.harness import Inferior

SCENARIOS = (
    "late_sleep",
    "other_order",
    "crossing",
    "pipeline",
    "late_gil",
    "dead",
    "alone",
    "awaited_transfers",
    "saving_thread",
)


@pytest.fixture(scope="package")
def job() -> Iterator[Inferior]:
    """All ranks of these jobs; ``truth["pids"]`` has them by scenario and rank."""
    with harness.started("job", *SCENARIOS, env={"GDBEXT_ROOM": "-" * 100}) as inferior:
        yield inferior


@pytest.fixture(scope="package")
def cores(job: Inferior, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the cores of all ranks of late_sleep, ``core.RANK``."""
    folder = tmp_path_factory.mktemp("cores")
    for rank, pid in enumerate(job.truth["pids"]["late_sleep"]):
        harness.take_core(pid, folder / f"core.{rank}")
    yield folder
    shutil.rmtree(folder)
