"""scripts/measure_releases.py: how cells are compared, and the page."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from gdbext.torch.compile.dynamo_names import compared
from support.source import script_module

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module.load("measure_releases")


def test_a_cell_is_what_stands_behind_its_key(script: ModuleType) -> None:
    lines = ["CPU: registered at a.cpp:1 [kernel]", "Meta: fallthrough registered at b.cpp:2 [backend fallback]"]
    assert script._cells(lines) == {
        "CPU": "registered at a.cpp:1 [kernel]",
        "Meta": "fallthrough registered at b.cpp:2 [backend fallback]",
    }


def test_what_differs_in_words(script: ModuleType) -> None:
    assert script._words("at a [kernel]", "at a [batched kernel]") == "[kernel], truly [batched kernel]"
    assert script._words(None, "at a [kernel]") == "[no entry], truly [kernel]"
    assert script._words("at a [kernel]", "at b [kernel]") == "another kernel, [kernel]"


def test_a_row_replaces_the_release_s_earlier_one_and_leaves_the_others(script: ModuleType, tmp_path: Path) -> None:
    page, keep = tmp_path / "page.md", script.each_release.release_page.keep
    for version, cells in (("2.10.0", "1 of 2"), ("2.9.1", "2 of 2"), ("2.10.0", "2 of 2")):
        keep(page, "# Head\n\n", ("torch", "CPython", "cells"), [version, "3.11.7", cells])
    assert page.read_text().splitlines() == [
        "# Head",
        "",
        "| torch | CPython | cells |",
        "|---|---|---|",
        "| 2.9.1 | 3.11.7 | 2 of 2 |",
        "| 2.10.0 | 3.11.7 | 2 of 2 |",
    ]


def test_what_dispatch_compile_knows_was_compared() -> None:
    """docs/measurements/compile-compared.md has a release of each that is known, all of it equal."""
    lines = (ROOT / "docs" / "measurements" / "compile-compared.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 2.")]
    assert {".".join(row[0].split(".")[:2]) for row in rows} == set(compared())
    for _, _, live, core, nodes, wrong in rows:
        assert live == core
        assert live.split(" of ")[0] == live.split(" of ")[1]
        assert (nodes, wrong) == ("20 of 20", "0")


def test_settings_equal_what_programs_say() -> None:
    """In settings-compared.md everything of each release is equal, save for what is said to be unknown."""
    lines = (ROOT / "docs" / "measurements" / "settings-compared.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 2.")]
    assert rows
    for _, _, *counts, cuda, unknown in rows:
        assert set(unknown.split(", ")) <= {
            "nothing",
            "dynamo",
            "inductor",
            "mkl_dynamic",
            "mkl_threads",
            "statistics of CUDA",
        }
        for cell in counts if cuda == "no build for CUDA" else (*counts, cuda):
            assert cell.split(" of ")[0] == cell.split(" of ")[1]


def test_every_row_of_the_committed_page_is_whole(script: ModuleType) -> None:
    lines = (ROOT / "docs" / "measurements" / "releases-compared.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 2.")]
    assert {len(row) for row in rows} == {len(script._COLUMNS)}
    assert {".".join(row[0].split(".")[:2]) for row in rows} == {f"2.{minor}" for minor in range(16)}
    for row in rows:
        cells, registrations, keysets = ([int(number) for number in row[at].split(" of ")] for at in (3, 4, 5))
        assert cells[0] == cells[1], row[0]
        assert registrations[0] == registrations[1], row[0]
        assert keysets[0] >= 0.98 * keysets[1] > 100, row[0]
        assert (row[6], row[8]) == ("0", "0"), "a wrong value is worse than none"
        assert row[9] == "yes", "without a compiler, headers and a network"
