"""One program on every Python, looked at while it runs. A module's PROGRAM names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs.harness import Inferior
from support.programs.python_targets import PYTHONS, View, look, running


@pytest.fixture(scope="module", params=PYTHONS)
def inferior(request: pytest.FixtureRequest) -> Iterator[Inferior]:
    with running(request.param, request.module.PROGRAM) as process:
        yield process


@pytest.fixture(scope="module")
def view(inferior: Inferior) -> Iterator[View]:
    with look(inferior) as found:
        yield found
