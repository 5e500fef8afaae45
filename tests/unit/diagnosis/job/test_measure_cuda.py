"""scripts/measure_cuda.py: what it compares, and that it says so where there is no device."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.recorded.recordings import Replay
from support.source.script_module import load


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("measure_cuda")


def truth_of(hung: Replay, **changes: Any) -> dict[str, Any]:
    """What the recorded program said of one thread, as a scene would say it of its main thread."""
    said = hung.truth["threads"]["item"]
    return {
        "pid": said["tid"],
        "call": said["call"],
        "stream": f"{said['stream']:#x}",
        "op": "aten::_local_scalar_dense",
        **changes,
    }


def test_a_scene_that_agrees_and_one_that_does_not(replay: type[Replay], script: ModuleType) -> None:
    hung = replay("device-waits-2.15.0")
    report = hung.document("dispatch-diagnose")
    row = script._row("item", truth_of(hung), report, 12.0)
    assert (row.differs, row.said) == ("", row.found)
    wrong = script._row("item", truth_of(hung, stream="0x7f00", collective="all_reduce"), report, 12.0)
    assert wrong.differs == "stream, collective"
    text = "\n".join(script.page("a device", [row, wrong]))
    assert "| nothing | 12 |" in text
    assert "| stream, collective | 12 |" in text


def test_a_program_that_is_gone_is_no_agreement(script: ModuleType) -> None:
    assert script._row("item", {"pid": 1, "call": "cudaFree"}, {"threads": []}, 1.0).differs == "call"


def test_every_scene_has_a_function(script: ModuleType) -> None:
    functions = [
        each.name.replace("_", "-")
        for each in ast.parse(script.SCENES.read_text()).body
        if isinstance(each, ast.FunctionDef)
    ]
    assert [each for each in functions if each in script.NAMES] == list(script.NAMES)


def test_without_a_device_nothing_is_measured(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    assert script.main(["--python", "/nowhere/python", "--output", str(page), "stream"]) == 3
    assert "no NVIDIA device" in capsys.readouterr().err
    assert not page.exists()
    with pytest.raises(SystemExit):
        script.main(["strem"])
