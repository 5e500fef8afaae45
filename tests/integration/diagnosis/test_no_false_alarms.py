"""No false alarm: many looks at healthy processes of many kinds, each at another moment."""

from __future__ import annotations

import os

import pytest

from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

KINDS = ("gil", "operators", "backward", "openmp", "mutex", "queues", "dataloader", "gloo", "functorch", "sleepers")
LOOKS = int(os.environ.get("GDBEXT_TEST_LOOKS", "3"))
"""Looks at each kind; ten of them make a hundred."""
THROUGH_GDB = ("gil", "gloo")
"""Kinds whose last look is made through gdb: what differs then is how the process is stopped and read, not what it
does, and the programs work as long as somebody looks."""
HEALTHY = {"busy", "idle", "waiting-external"}
HELD_UP = {"slow", "starved"}
"""What is true of a healthy process on a machine that others keep busy."""
ALARMS = {"crash", "runaway-recursion", "deadlock", "self-deadlock", "orphaned-lock", "missing-workers", "blocked"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_processes(kind, inferior):
    target = inferior("healthy", kind)
    for number in range(LOOKS):
        debugger = "gdb" if kind in THROUGH_GDB and number == LOOKS - 1 else "none"
        report = target.dispatch("dispatch-diagnose", debugger=debugger).document
        verdict = report["verdict"]
        assert verdict["kind"] in HEALTHY | HELD_UP, verdict["summary"]
        assert not [each for each in report["findings"] if each["kind"] in ALARMS], report["findings"]
        assert not report.get("known"), report["known"]
        assert (verdict["kind"] != "waiting-external") or kind in ("dataloader", "gloo"), verdict["summary"]


NORMAL = ("idle", "busy", "pools", "nested-normal", "functorch")
CORES = ("busy", "nested-normal")
"""Those of which a core is looked at, too: one that runs while it is dumped, and one in the midst of operators. Of the
others memory and registers are the same in a core, as the contract of targets says."""


@pytest.mark.parametrize(
    ("scenario", "kind"), [*((name, "live") for name in NORMAL), *((name, "core") for name in CORES)]
)
def test_normal_nesting_and_pools(scenario, kind, inferior):
    target = inferior(scenario)
    report = Look(kind, "none")(target, "all-threads")
    kinds = {finding["kind"] for finding in report["findings"]}
    assert not kinds & {"runaway-recursion", "deadlock", "self-deadlock", "orphaned-lock", "missing-workers"}
    if scenario in ("idle", "busy", "pools"):
        assert not kinds - HELD_UP
