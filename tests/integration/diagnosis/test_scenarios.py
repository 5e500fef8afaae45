"""Every scenario: verdict, threads, resources and operator, live and from a core, with and without gdb.

What is expected comes from the truth that each inferior writes down about itself.
"""

from __future__ import annotations

import pytest

from support.recorded.scenario_checks import (
    check_cycle_of_families,
    check_missing_kernel,
    check_nobody_is_accused_without_need,
    check_verdict,
    check_waits_of_every_kind,
)
from support.recorded.scenarios import KNOWN, SCENARIOS

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

FAMILIES = (
    *("meta-mm", "meta-mm-debian", "guard-entry", "gil-mutex", "gil-mutex-debian", "mutex-abba", "python-lock-abba"),
    *("python-lock-abba-3.8", "python-lock-abba-3.13", "fork-mutex", "boxed-recursion", "dataloader", "gloo-mismatch"),
)
"""Scenarios of which a core is looked at, too, and with gdb: one of each family. Of the others that proves nothing that
these do not: the contract of targets says that memory and registers are the same by each way."""
CORES_IN_GDB = {"meta-mm", "meta-mm-debian", "gil-mutex", "fork-mutex", "kernel-crash"}
"""Those of which a core is looked at through gdb, which takes a second of a processor: of the others the core is looked
at without it, and the process with it."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_verdict(scenario, look, inferior):
    """What holds of every report holds of this one, too."""
    if scenario.only and scenario.only != look.kind:
        pytest.skip(f"only as {scenario.only}")
    if (look.core or look.debugger == "gdb") and not scenario.only and str(scenario) not in FAMILIES:
        pytest.skip("one core, and one look with gdb, of each family")
    if look.core and look.debugger == "gdb" and str(scenario) not in CORES_IN_GDB:
        pytest.skip("a core in gdb of five families")
    target = inferior(scenario.name, *scenario.args, python=scenario.python)
    report = look(target, "dispatch-diagnose")
    check_verdict(scenario.verdict, report, target.truth)
    check_nobody_is_accused_without_need(report, target.truth)
    assert [bug["id"] for bug in report.get("known", [])] == KNOWN.get(str(scenario), [])


def test_waits_of_every_kind(look, inferior):
    target = inferior("waits")
    check_waits_of_every_kind(look(target, "all-threads"), target.truth)


@pytest.mark.parametrize("kind", ["join", "openmp", "stream", "loader"])
def test_the_gil_and_something_else(kind, plain_look, inferior):
    """A cycle of the GIL with a join, an OpenMP team, a stdio stream or the dynamic loader's lock."""
    target = inferior("families", kind)
    check_cycle_of_families(plain_look(target, "dispatch-diagnose"), target.truth)


@pytest.mark.program("missing-kernel")
def test_missing_kernel_names_what_is_registered(look, inferior):
    target = inferior("missing-kernel")
    check_missing_kernel(look(target, "dispatch-diagnose"), target.truth)
