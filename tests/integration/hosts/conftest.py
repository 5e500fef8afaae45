"""A small program and a process of it, for the files of tests that look at one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.programs import plain_program
from support.programs.harness import wait_until
from support.programs.plain_program import Plain, running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.build(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def shared(program: Path) -> Iterator[Plain]:
    with running(program, "3") as plain:
        yield plain


@pytest.fixture
def plain(shared: Plain) -> Iterator[Plain]:
    """A process that must be untouched afterwards."""
    yield shared
    wait_until(shared.is_untouched, "the process is as it was")
