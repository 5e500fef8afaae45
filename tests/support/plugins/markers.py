"""A pytest plugin: markers say what a test needs; where that is missing it is skipped, and fails in CI."""

from __future__ import annotations

import pytest

from support.installed import machine


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: one of those may start what is not there."""
    needs = [mark for mark in item.iter_markers() if mark.name in machine.NEEDS]
    reasons = sorted(filter(None, {machine.missing(mark.name, *mark.args) for mark in needs}))
    if reasons:
        machine.lacking("; ".join(reasons))
