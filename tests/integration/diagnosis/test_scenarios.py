"""Every scenario: verdict, threads, resources and operator, live and from a core, with and without gdb.

What is expected comes from the truth that each inferior writes down about itself.
"""

from __future__ import annotations

import pytest

from support.programs.harness import Start
from support.programs.ways import Look
from support.recorded.scenario_checks import (
    check_cycle_of_families,
    check_missing_kernel,
    check_nobody_is_accused_without_need,
    check_verdict,
    check_waits_of_every_kind,
)
from support.recorded.scenarios import KNOWN, SCENARIOS, Scenario

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

_CORES = """
meta-mm meta-mm-debian guard-entry gil-mutex gil-mutex-debian mutex-abba python-lock-abba python-lock-abba-3.8
python-lock-abba-3.13 fork-mutex boxed-recursion dataloader gloo-mismatch
"""
"""Scenarios of which a core is looked at, too: one of each family."""
_IN_GDB = "meta-mm gil-mutex fork-mutex kernel-crash python-lock-abba-3.8"
"""Those that are looked at through gdb, which takes seconds of a processor: what it adds its contract suite has."""
NAMED = {str(scenario): scenario for scenario in SCENARIOS}
LOOKS = [
    *((scenario, scenario.only or "live", "none") for scenario in SCENARIOS),
    *((NAMED[name], "core", "none") for name in _CORES.split()),
    *((NAMED[name], NAMED[name].only or "live", "gdb") for name in _IN_GDB.split()),
]


@pytest.mark.parametrize(("scenario", "kind", "debugger"), LOOKS, ids=str)
def test_verdict(scenario: Scenario, kind: str, debugger: str, inferior: Start) -> None:
    """What holds of every report holds of this one, too."""
    target = inferior(scenario.name, *scenario.args, python=scenario.python)
    report = Look(kind, debugger)(target, "dispatch-diagnose")
    check_verdict(scenario.verdict, report, target.truth)
    check_nobody_is_accused_without_need(report, target.truth)
    assert [bug["id"] for bug in report.get("known", [])] == KNOWN.get(str(scenario), [])
    if scenario.name == "missing-kernel":
        check_missing_kernel(report, target.truth)


def test_waits_of_every_kind(look: Look, inferior: Start) -> None:
    target = inferior("waits")
    check_waits_of_every_kind(look(target, "all-threads"), target.truth)


@pytest.mark.parametrize("kind", ["join", "openmp", "stream", "loader"])
def test_the_gil_and_something_else(kind: str, inferior: Start) -> None:
    target = inferior("families", kind)
    check_cycle_of_families(Look("live", "none")(target, "dispatch-diagnose"), target.truth)
