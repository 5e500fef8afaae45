"""How often a breakpoint of dispatch-break was hit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.hosts.resume.breakpoint_setter import Equals, Register
from gdbext.tools.breaks.break_plan import BreakSite
from gdbext.tools.breaks.break_set import BreakSet
from gdbext.tools.breaks.breaks_section import BreakRequest
from support.fakes.fake_debugger import FakeSetter


class Thread:
    tid = 1

    def __init__(self, keyset: int) -> None:
        self._keyset = keyset

    def register(self, _name: str) -> int:
        return self._keyset


@pytest.mark.parametrize("go_on", [False, True])
def test_hits_are_those_where_the_condition_holds(go_on: bool) -> None:
    shown: list[str] = []
    setter: Any = FakeSetter()
    unused: Any = None
    breaks = BreakSet(BreakRequest("call", ("aten::mm",), go_on=go_on), setter, unused, unused, unused, shown.append)
    reports: Any = SimpleNamespace(lines=lambda *_: ["reported"])
    breaks._reports = reports
    sites = [
        BreakSite(0x1000, "call", 0x5000, "aten::mm", "its lookup", condition=Equals(Register("rdi"), 8)),
        BreakSite(0x2000, "call", 0x5000, "aten::mm", "its lookup"),
    ]
    plan: Any = SimpleNamespace(sites=lambda _: sites)
    breaks._add(plan)
    for keyset in (8, 9, 8):
        for each in setter.made:
            each.hit(Thread(keyset))
    assert [each.hits for each in breaks.report().breakpoints] == [2, 3]
    assert len(shown) == 5
