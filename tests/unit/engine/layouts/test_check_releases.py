"""scripts/check_releases.py: from the names of a release's symbols to a page."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from gdbext.engine.layouts import store
from support.source import script_module

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module.load("check_releases")


def names(script: ModuleType, without: str = "") -> dict[str, object]:
    """A release that has every name but those of one row."""
    found: dict[str, list[str]] = {}
    for name, row in script.SYMBOLS.items():
        if name != without:
            found.setdefault(row.library or "libtorch_cpu.so", []).extend(row.beginnings)
    return {library: script.SymbolNames("symtab", sorted(each)) for library, each in found.items()}


def test_every_row_is_in_the_table_or_is_inlined_in_releases(script: ModuleType) -> None:
    asked = {name for rows in script.FEATURES.values() for name in rows}
    assert asked <= set(script.SYMBOLS)
    left = {name for name, row in script.SYMBOLS.items() if not row.unoptimised} - asked
    names_only = {"BACKEND_IS_NAMED", "BACKEND_NAME", "RPC_AGENT"}  # names of backends, and of RPC's workers
    assert left == {"REPORT_ERROR"} | names_only, "a new row belongs to a feature of the table"


def test_nothing_is_missing(script: ModuleType) -> None:
    assert script.missing(names(script)) == {}


@pytest.mark.parametrize(
    ("row", "cell"), [("LOOKUP", "all but 1"), ("SINGLETON", "works"), ("FLIGHT_RECORDER_OF_NCCL", "works")]
)
def test_one_is_missing(script: ModuleType, row: str, cell: str) -> None:
    lacks = script.missing(names(script, without=row))
    assert set(lacks) == {row}
    feature = next(rows for rows in script.FEATURES.values() if row in rows)
    assert script._cell(feature, lacks) == cell, "an alternative will do"


def test_a_wheel_for_the_cpu_lacks_no_name_of_cuda_s(script: ModuleType) -> None:
    libraries = names(script)
    del libraries["libtorch_cuda.so"], libraries["libc10_cuda.so"]
    assert script.missing(libraries) == {}


def test_neighbours_are_one_range(script: ModuleType) -> None:
    every = ["2.0.0", "2.0.1", "2.1.0", "2.2.0"]
    assert script._range(["2.0.0", "2.0.1", "2.2.0"], every) == "2.0.0 to 2.0.1, 2.2.0"


def test_the_page_names_every_release_with_a_layout() -> None:
    page = (ROOT / "docs" / "releases.md").read_text()
    for version in store.index()["torch"].values():
        assert f"| {'.'.join(map(str, store.release(version)))} |" in page


def test_what_the_page_says_of_names_agrees_with_their_table(script: ModuleType) -> None:
    """``first`` of a row is the first release that does not lack it."""
    page = (ROOT / "docs" / "releases.md").read_text()
    versions = [line.split(" | ")[0][2:] for line in page.splitlines() if line.startswith("| 2.")]
    for name in (*script.FEATURES["thread-local state"], *script.FEATURES["settings"]):
        row = script.SYMBOLS[name]
        lacks = [line for line in page.splitlines() if line.startswith("- ") and f": {row.purpose}." in line]
        earlier = versions[: versions.index(row.first)]
        assert bool(lacks) == bool(earlier), name
