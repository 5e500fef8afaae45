"""Jobs that hang, all forked by one process."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest
from harness import Inferior

SCENARIOS = ("late_sleep", "other_order", "crossing", "pipeline", "late_gil", "dead")


@pytest.fixture(scope="package")
def job() -> Iterator[Inferior]:
    """All ranks of these jobs; ``truth["pids"]`` has them by scenario and rank."""
    with harness.started("job", *SCENARIOS, env={"GDBEXT_ROOM": "-" * 100}) as inferior:
        yield inferior
