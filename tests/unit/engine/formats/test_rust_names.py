"""Paths of functions in Rust's mangled names."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.waits.pool_table import RAYON, PoolIndex, PoolPart
from gdbext.engine.formats.rust_names import rust_path

SLEEP = (
    "_RINvMNtCsjpdOAJTRuNw_10rayon_core5sleepNtB3_5Sleep5sleepNCNvMs8_NtB5_8registryNtB10_12WorkerThread15"
    "wait_until_cold0EB5_"
)
WAIT = "_RNvMs8_NtCsjpdOAJTRuNw_10rayon_core8registryNtB5_12WorkerThread15wait_until_cold"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (SLEEP, ("rayon_core", "sleep", "Sleep", "sleep", "registry", "WorkerThread", "wait_until_cold")),
        (WAIT, ("rayon_core", "registry", "WorkerThread", "wait_until_cold")),
        ("_ZN10rayon_core5sleep", ()),
        ("_R99999999999999999999abc", ("abc",)),
        ("_R", ()),
    ],
)
def test_paths(name: str, path: tuple[str, ...]) -> None:
    assert rust_path(name) == path


def test_pools_of_rust() -> None:
    for name in (SLEEP, WAIT):
        assert [(part.pool, part.part) for part in PoolIndex().functions_of((name,))] == [(RAYON, PoolPart.WAITS)]
    assert not PoolIndex().functions_of(("_RNvCsjpdOAJTRuNw_10rayon_core4join",))
