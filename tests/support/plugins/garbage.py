"""A pytest plugin: garbage collections look through what the running file of tests has made, not through all there is.

Thousands of tests, the syntax trees of the package and the recordings are some millions of objects, which stay. Python
would look through all of them again and again while they grow, and so would each test that collects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

_OBJECTS = 50_000
"""New objects between collections."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that collecting the tests makes goes away before the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(_OBJECTS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Behind the last test of a file its circles of objects are let go, with the descriptors in them."""
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            gc.collect()
            gc.freeze()
