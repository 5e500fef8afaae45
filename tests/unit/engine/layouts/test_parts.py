"""What was measured before an interruption is not measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import LayoutError
from gdbext.torch.measure import compiler, generate
from gdbext.torch.measure.compiler import Measured
from gdbext.torch.measure.generate import Parts
from gdbext.torch.measure.wants import Wants

BUILD_ID = "ab" * 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Path(store.layout_cache())


def test_a_damaged_part_is_made_again(cache: Path) -> None:
    parts = Parts(BUILD_ID)
    assert parts.get("keys", lambda: {"a": 1}) == {"a": 1}
    assert parts.get("keys", lambda: {"a": 2}) == {"a": 1}
    next(cache.iterdir()).write_text("{")
    assert parts.get("keys", lambda: {"a": 3}) == {"a": 3}


def test_without_headers_of_distributed_the_rest_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(wants: Wants, *_: Any) -> Measured:
        if any(want.name == "c10d::ProcessGroup" for want in wants.all):
            raise LayoutError("the headers do not compile")
        return Measured("g++", {"A": {"size": 1, "fields": {}}})

    monkeypatch.setattr(generate, "measure", measure)
    monkeypatch.setattr(compiler, "dispatch_section", lambda *_: {})
    measured, _ = generate._torch_parts(tmp_path, "true", [], generate.MeasuringContext(tmp_path))
    assert measured.structs == {"A": {"size": 1, "fields": {}}}
    assert "c10d::FlightRecorder" in measured.absent
