"""Tests that share a process stay together."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_the_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes a test's group behind its id; where it fails to, every program is started once more."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@together")
