"""scripts/gen_layouts.py: where its documents go, and which wheels it asks for."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import LayoutError
from support.source import script_module

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = store.read_layout(Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json", whole=True)
BUILD_ID = DOCUMENT["build_ids"][store.TORCH_LIBRARY]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; what it measures is the shipped layout, of the older ABI."""
    module = script_module.load("gen_layouts")

    def torch_document(_torch: Path, _compiler: str | None, cxx11: bool | None, _place: object) -> dict[str, Any]:
        document = copy.deepcopy(DOCUMENT)
        document["id"] = "torch-2.13.0-cxx11" if cxx11 else "torch-2.13.0-precxx11"
        document["provenance"]["cxx11_abi"] = bool(cxx11)
        document["build_ids"] = {} if cxx11 else document["build_ids"]
        return document

    monkeypatch.setattr(module.generate, "torch_document", torch_document)
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gen_layouts.py", *map(str, words)])
    return int(script.main())


def test_both_abis_of_an_older_wheel_join_what_is_there(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(script, monkeypatch, "--torch", tmp_path, "--output", tmp_path / "data") == 0
    found = store.index(tmp_path / "data")
    assert sorted(found["torch"]) == ["torch-2.13.0-cxx11.json", "torch-2.13.0-precxx11.json"]
    assert found["build_ids"] == {BUILD_ID: "torch-2.13.0-precxx11.json"}
    layout = store.by_build_id(BUILD_ID, tmp_path / "data")
    assert layout is not None
    assert layout.id == "torch-2.13.0-precxx11"


def test_one_for_the_cache_of_a_machine(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run(script, monkeypatch, "--torch", tmp_path, "--cache") == 0
    assert [path.name for path in Path(store.layout_cache()).iterdir()] == [f"{BUILD_ID}.json"]
    layout = store.by_build_id(BUILD_ID, _no_data(tmp_path))
    assert layout is not None
    assert layout.match == "generated"


def _no_data(folder: Path) -> Path:
    (folder / store.INDEX).write_text('{"build_ids": {}, "torch": {}}')
    return folder


def test_released_versions(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0, 2.9.1, 2.10.0rc1, 2.10.0, 2.0.0, 1.13.1\n"
    monkeypatch.setattr(script.torch_wheels, "_pip", lambda *_: said)
    assert script.torch_wheels.released() == ["2.0.0", "2.9.1", "2.10.0", "2.13.0", "2.15.0"]


def test_one_that_fails_does_not_cost_the_others(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(version: str, folder: Path) -> Path:
        if version == "2.0.0":
            raise LayoutError("pip download failed")
        return folder

    monkeypatch.setattr(script.torch_wheels, "fetch", fetch)
    assert run(script, monkeypatch, "--releases", "2.0.0", "2.13.0", "--output", tmp_path) == 1
    assert "error: 2.0.0: pip download failed" in capsys.readouterr().err
    assert len(store.index(tmp_path)["torch"]) == 2
