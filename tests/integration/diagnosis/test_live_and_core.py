"""One verdict, live and from a core, through gdb and without: what a core lacks costs no more than what it says."""

from __future__ import annotations

import pytest

from support.programs.ways import WAYS, Look

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]

HANGS = (
    ("thread-polled", "", "3.13", ""),
    ("flock-held", "flock", "3.8", "what file descriptors refer to"),
    ("feeder-full", "parent", "3.12", "what process"),
)
"""Program, argument, Python, and what its core lacks: nothing but that. A sleep until an absolute time is not among
it, for Python's own call says how long it was to last."""


@pytest.mark.parametrize(("name", "argument", "python", "lacks"), HANGS)
def test_the_same_verdict_everywhere(name, argument, python, lacks, inferior):
    target = inferior(name, argument, python=python)
    reports = {way: Look(*way)(target, "dispatch-diagnose") for way in WAYS}
    verdicts = [(report["verdict"]["kind"], report["verdict"]["threads"]) for report in reports.values()]
    assert verdicts.count(verdicts[0]) == len(WAYS), verdicts
    for (kind, _debugger), report in reports.items():
        missing = [error["what"] for error in report["errors"] if error["where"] == "core"]
        assert bool(missing) == (kind == "core" and bool(lacks))
        assert all(lacks in what for what in missing)
