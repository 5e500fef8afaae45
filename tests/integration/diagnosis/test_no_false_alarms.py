"""No false alarm: many looks at healthy processes of many kinds, each at another moment."""

from __future__ import annotations

import os

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

KINDS = ("gil", "operators", "backward", "openmp", "mutex", "queues", "dataloader", "gloo", "functorch", "sleepers")
LOOKS = int(os.environ.get("GDBEXT_TEST_LOOKS", "3"))
"""Looks at each kind; ten of them make a hundred."""
THROUGH_GDB = ("gil", "gloo")
"""Kinds whose last look is made through gdb: what differs then is how the process is stopped and read, not what it
does, and the programs work as long as somebody looks."""
HEALTHY = {"busy", "idle", "waiting-external"}
ALARMS = {"crash", "runaway-recursion", "deadlock", "self-deadlock", "orphaned-lock", "missing-workers", "blocked"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_processes(kind, inferior):
    target = inferior("healthy", kind)
    for number in range(LOOKS):
        debugger = "gdb" if kind in THROUGH_GDB and number == LOOKS - 1 else "none"
        report = target.dispatch("dispatch-diagnose", debugger=debugger).document
        verdict = report["verdict"]
        assert verdict["kind"] in HEALTHY, verdict["summary"]
        assert not [each for each in report["findings"] if each["kind"] in ALARMS], report["findings"]
        assert not report.get("known"), report["known"]
        assert (verdict["kind"] != "waiting-external") or kind in ("dataloader", "gloo"), verdict["summary"]


@pytest.mark.parametrize("name", ["idle", "busy", "pools", "nested-normal", "functorch"])
def test_normal_nesting_and_pools(name, plain_look, inferior):
    target = inferior(name)
    report = plain_look(target, "all-threads")
    kinds = {finding["kind"] for finding in report["findings"]}
    assert not kinds & {"runaway-recursion", "deadlock", "self-deadlock", "orphaned-lock", "missing-workers"}
    if name in ("idle", "busy", "pools"):
        assert not kinds
