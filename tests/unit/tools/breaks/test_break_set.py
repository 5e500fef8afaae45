"""How often a breakpoint of dispatch-break was hit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.live.breakpoint_setter import Equals, Register
from gdbext.live.operator_functions import Opening
from gdbext.tools.breaks.break_plan import BreakSite, end_site
from gdbext.tools.breaks.break_set import BreakSet
from gdbext.tools.breaks.breaks_section import BreakRequest
from support.fakes.fake_debugger import FakeSetter


class Thread:
    tid = 1

    def __init__(self, keyset: int) -> None:
        self._keyset = keyset

    def register(self, _name: str) -> int:
        return self._keyset


def break_set(request: BreakRequest, session: Any) -> tuple[BreakSet, FakeSetter, list[str]]:
    """Breakpoints, what sets them, and the list that gets what is shown of each hit."""
    shown: list[str] = []
    setter: Any = FakeSetter()
    unused: Any = None
    breaks = BreakSet(request, setter, session, unused, unused, shown.append)
    reports: Any = SimpleNamespace(lines=lambda *_: ["reported"])
    breaks._reports = reports
    return breaks, setter, shown


def add(breaks: BreakSet, *sites: BreakSite) -> None:
    plan: Any = SimpleNamespace(sites=lambda _: list(sites))
    breaks._add(plan)


@pytest.mark.parametrize("go_on", [False, True])
def test_hits_are_those_where_the_condition_holds(go_on: bool) -> None:
    breaks, setter, shown = break_set(BreakRequest("call", ("aten::mm",), go_on=go_on), None)
    words = ("call", 0x5000, "aten::mm", "its lookup")
    add(breaks, BreakSite(0x1000, *words, condition=Equals(Register("rdi"), 8)), BreakSite(0x2000, *words))
    for keyset in (8, 9, 8):
        for each in setter.made:
            each.hit(Thread(keyset))
    assert [each.hits for each in breaks.report().breakpoints] == [2, 3]
    assert len(shown) == 5


def test_the_end_of_a_call_is_that_of_the_frame_that_looked_the_operator_up() -> None:
    """The lookup is for all operators; on another thread, or in another frame, the same place is no end."""

    def at(tid: int, rsp: int, rdi: int = 0) -> Any:
        return SimpleNamespace(tid=tid, register={"rsp": rsp, "rdi": rdi}.__getitem__, word=lambda _: 0x7000)

    session: Any = SimpleNamespace(memory=SimpleNamespace(architecture=ARCHITECTURE))
    breaks, setter, shown = break_set(BreakRequest("return", ("own::one",)), lambda: session)
    looks_up = Opening(0x1000, "rdi", CfaRule("rsp", 0x40, 0x40), True)
    site = end_site(breaks._open_calls, 0x5000, "own::one", 0x1010, "its end", CfaRule("rsp", 0x48, 0x48), (looks_up,))
    add(breaks, site)
    end, trap = setter.made
    for operator, thread, is_end in ((0x6000, 1, False), (0x5000, 2, False), (0x5000, 1, True)):
        trap.hit(at(1, 0x8000, operator))
        end.hit(at(thread, 0x7FF8))
        assert bool(shown) is is_end
    end.hit(at(1, 0x7FF8))  # nothing is open any more
    behind = setter.made[2]
    assert behind.place == 0x7000  # the function may leave by a jump into the kernel
    trap.hit(at(1, 0x8000, 0x5000))
    behind.hit(at(1, 0x8040))
    assert len(shown) == 2
