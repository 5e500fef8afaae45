"""Which diagnoses scripts/dispatch watch takes for a hang."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.formats.workplace import Workplace
from gdbext.tools.watch import evidence
from gdbext.tools.watch.evidence import Evidence
from gdbext.tools.watch.watch import Watch


def document(kind: str, *waits: str | None) -> dict[str, Any]:
    """A report on threads 1, 2, …, which the verdict is about, and on another one."""
    threads = [{"tid": tid, "wait": None if each is None else {"kind": each}} for tid, each in enumerate(waits, 1)]
    verdict = {"kind": kind, "summary": "so it is", "threads": [thread["tid"] for thread in threads]}
    return {"verdict": verdict, "errors": [], "threads": [*threads, {"tid": 99, "wait": {"kind": "sleep"}}]}


@pytest.mark.parametrize(
    ("report", "computes", "hangs"),
    [
        (document("waiting-external", "child-process"), True, False),
        (document("waiting-external", "child-process"), False, True),
        (document("waiting-external", "read"), True, True),
        (document("waiting-external", "child-process", "read"), True, True),
        (document("busy", None), True, False),
        (document("idle"), True, False),
        (document("idle"), False, True),
        (document("deadlock", "mutex", "mutex"), True, True),
        ({"verdict": None, "errors": [], "threads": []}, True, True),
    ],
)
def test_a_process_that_waits_for_children_that_compute_does_not_hang(
    report: dict[str, Any], computes: bool, hangs: bool, tmp_path: Path
) -> None:
    path = tmp_path / "hang.json"
    with Workplace(str(tmp_path)) as place:
        os.write(place.create("hang.json"), json.dumps(report).encode())
        verdict, waits, wrong = evidence._verdict(place, "hang.json")
        place.publish("hang.json")
    assert wrong == ""
    told: list[str] = []
    watch: Any = Watch.__new__(Watch)
    watch.pid, watch._trace, watch._args = 1, None, SimpleNamespace(run=None, job=False, core=False)
    watch._folder = SimpleNamespace(take=lambda _: Evidence(str(tmp_path), "hang", verdict, "", waits))
    watch._tell = lambda event, *_: told.append(event)
    assert watch._hung(5.0, computes=computes) is hangs
    assert told == (["hung"] if hangs else [])
    assert path.exists() is hangs
