"""One program on every Python, looked at while it runs. A module's PROGRAM names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs.python_targets import PYTHONS, PythonInferior, View


@pytest.fixture(scope="module", params=PYTHONS)
def inferior(request: pytest.FixtureRequest) -> Iterator[PythonInferior]:
    """The module's program on each Python."""
    process = PythonInferior(request.param, request.module.PROGRAM)
    yield process
    process.close()


@pytest.fixture(scope="module")
def view(inferior: PythonInferior) -> Iterator[View]:
    with inferior.look("live") as found:
        yield found
