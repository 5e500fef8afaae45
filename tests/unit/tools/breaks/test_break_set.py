"""How often a breakpoint of dispatch-break was hit, and what is said where none is."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.live import timed_run
from gdbext.live.breakpoint_setter import Equals, Register
from gdbext.live.operator_functions import Opening
from gdbext.tools import breaks
from gdbext.tools.breaks.break_plan import BreakSite, end_site
from gdbext.tools.breaks.break_set import BreakSet
from gdbext.tools.breaks.breaks_section import BreakRequest
from support.fakes.fake_debugger import FakeSetter
from support.programs import procfs
from support.programs.harness import wait_until


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


def test_the_end_of_a_call_is_that_of_the_frame_that_looked_the_operator_up() -> None:
    """The lookup is for all operators; on another thread, or in another frame, the same place is no end."""

    def at(tid: int, rsp: int, rdi: int = 0) -> Any:
        return SimpleNamespace(tid=tid, register={"rsp": rsp, "rdi": rdi}.__getitem__, word=lambda _: 0x7000)

    shown: list[str] = []
    setter: Any = FakeSetter()
    memory = SimpleNamespace(architecture=ARCHITECTURE)
    unused: Any = None
    request = BreakRequest("return", ("own::one",))
    breaks = BreakSet(request, setter, lambda: SimpleNamespace(memory=memory), unused, unused, shown.append)  # type: ignore[arg-type, return-value]
    reports: Any = SimpleNamespace(lines=lambda *_: ["reported"])
    breaks._reports = reports
    looks_up = Opening(0x1000, "rdi", CfaRule("rsp", 0x40, 0x40), True)
    site = end_site(breaks._open_calls, 0x5000, "own::one", 0x1010, "its end", CfaRule("rsp", 0x48, 0x48), (looks_up,))
    plan: Any = SimpleNamespace(sites=lambda _: [site])
    breaks._add(plan)
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


SLEEPS = set(map(str, procfs.SYSCALLS["sleep"]))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import time; print(1, flush=True); time.sleep(60)", "none of 1 thread ran"),
        ("print(1, flush=True)\nwhile True: pass", "1 of 1 thread ran"),
    ],
)
def test_a_run_without_a_stop_is_told_what_the_process_does(
    monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr(timed_run, "SILENT_AFTER", 0.02)
    monkeypatch.setattr(timed_run, "_SETTLED", 0.01)
    counted = timed_run.activities
    looks: list[Any] = []

    def look(pid: int) -> Any:
        if looks and "while" in code:  # it need not have got a processor within that time
            wait_until(lambda: counted(pid) != looks[0], "it has run")
        looks.append(counted(pid))
        return looks[-1]

    monkeypatch.setattr(timed_run, "activities", look)
    shown: list[str] = []
    request = BreakRequest("call", ("aten::mm",), "Meta", "", False)
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if "while" not in code:
                wait_until(lambda: procfs.syscall(process.pid, process.pid)[0] in SLEEPS, "it sleeps")
            table: Any = SimpleNamespace(hits=0)
            session: Any = SimpleNamespace(target=process)
            with breaks._silence(session, table, request, shown.append) as notice:
                notice._thread.join()
        finally:
            process.kill()
    assert said in shown[0]
    assert ("with that key" in shown[0]) == ("did not come" in shown[0])
    table.hits = 1
    with breaks._silence(session, table, request, shown.append) as notice:
        notice._thread.join()
    assert len(shown) == 1
