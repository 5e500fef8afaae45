"""A small program that has stopped somewhere, or runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.programs import plain_program
from support.programs.plain_program import Plain, running


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.build(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def pausing(program: Path) -> Iterator[Plain]:
    with running(program, "3") as plain:
        yield plain


@pytest.fixture
def counting(program: Path) -> Iterator[Plain]:
    with running(program, "0", "count") as plain:
        yield plain
