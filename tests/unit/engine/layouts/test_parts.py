"""What was measured before an interruption is not measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import LayoutError
from gdbext.torch.measure import compiler, generate
from gdbext.torch.measure.measured import Measured
from gdbext.torch.measure.wants import Parts, Wants

BUILD_ID = "ab" * 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Path(store.layout_cache())


def test_an_interrupted_measurement_goes_on_where_it_was(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def measure(wants: Wants, *_: Any) -> Measured:
        names = {want.name for want in wants.all}
        if "at::Context" in names:
            done.append("settings")
            return Measured("g++", {"F": {"size": 4, "fields": {}}})
        done.append("distributed" if "c10d::ProcessGroup" in names else "types")
        if "c10d::ProcessGroup" in names:
            return Measured("g++", {"A": {"size": 2, "fields": {}}, "D": {"size": 3, "fields": {}}}, absent=["E"])
        return Measured("g++", {"A": {"size": 1, "fields": {}}}, absent=["B"])

    def ask(*_: Any) -> dict[str, Any]:
        done.append("keys")
        if done.count("keys") == 1:
            raise KeyboardInterrupt
        return {"key_names": []}

    monkeypatch.setattr(generate, "measure", measure)
    monkeypatch.setattr(compiler, "ask", ask)

    def parts(folder: str) -> tuple[Measured, Any]:
        (tmp_path / folder).mkdir()
        place = generate.MeasuringContext(tmp_path / folder, Parts(BUILD_ID))
        return generate._torch_parts(tmp_path, "g++", [], place)

    with pytest.raises(KeyboardInterrupt):
        parts("first")
    assert {path.name.partition(".")[0] for path in cache.iterdir()} == {BUILD_ID}
    measured, keys = parts("second")
    assert done == ["types", "distributed", "settings", "keys", "keys"]
    assert measured.structs == {
        "A": {"size": 1, "fields": {}},
        "D": {"size": 3, "fields": {}},
        "F": {"size": 4, "fields": {}},
    }
    assert (measured.absent, keys) == (["B", "E"], {"key_names": []})
    assert list(cache.iterdir()) == [], "the layout is whole, and is kept as such"


def test_a_damaged_part_is_made_again(cache: Path) -> None:
    parts = Parts(BUILD_ID)
    assert parts.get("keys", lambda: {"a": 1}) == {"a": 1}
    assert parts.get("keys", lambda: {"a": 2}) == {"a": 1}
    next(cache.iterdir()).write_text("{")
    assert parts.get("keys", lambda: {"a": 3}) == {"a": 3}


def test_without_a_build_id_nothing_is_kept(cache: Path) -> None:
    assert Parts().get("keys", lambda: {"a": 1}) == {"a": 1}
    assert not cache.exists()


def test_without_the_headers_of_torch_distributed_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(wants: Wants, *_: Any) -> Measured:
        if any(want.name == "c10d::ProcessGroup" for want in wants.all):
            raise LayoutError("the headers do not compile")
        return Measured("g++", {"A": {"size": 1, "fields": {}}})

    monkeypatch.setattr(generate, "measure", measure)
    monkeypatch.setattr(compiler, "ask", lambda *_: {})
    measured, _ = generate._torch_parts(tmp_path, "true", [], generate.MeasuringContext(tmp_path))
    assert measured.structs == {"A": {"size": 1, "fields": {}}}
    assert "c10d::FlightRecorder" in measured.absent
