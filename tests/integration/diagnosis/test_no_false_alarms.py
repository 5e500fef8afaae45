"""No false alarm: looks at healthy processes of many kinds, each at another moment."""

from __future__ import annotations

import os

import pytest

from gdbext.diagnosis import kinds
from support.programs.harness import Start

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

KINDS = ("gil", "backward", "openmp", "queues", "dataloader", "gloo")
LOOKS = int(os.environ.get("GDBEXT_TEST_LOOKS", "3"))
"""Looks at each kind; ten of them make more than a hundred."""
THROUGH_GDB = ("gil", "gloo")
"""Kinds whose last look is made through gdb: what differs then is how the process is stopped and read, not what it
does, and the programs work as long as somebody looks."""
OTHERS_WORK = ("dataloader", "gloo")
HEALTHY = {kind.value for kind in kinds.KINDS if not kind.is_hang}
"""That it is slow or starved is true of a healthy process on a machine that others keep busy."""
ALARMS = {kind.value for kind in kinds.KINDS if kind.is_defect}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_processes(kind: str, inferior: Start) -> None:
    target = inferior("healthy", kind)
    for number in range(LOOKS):
        debugger = "gdb" if kind in THROUGH_GDB and number == LOOKS - 1 else "none"
        report = target.dispatch("dispatch-diagnose", debugger=debugger).document
        verdict = report["verdict"]
        assert verdict["kind"] in HEALTHY | ({"waiting-external"} if kind in OTHERS_WORK else set()), verdict["summary"]
        assert not [each for each in report["findings"] if each["kind"] in ALARMS], report["findings"]
        assert not report.get("known"), report["known"]
