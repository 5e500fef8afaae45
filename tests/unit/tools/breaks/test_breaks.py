"""Conditions of breakpoints, their hits, and generated kernels that are loaded later."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.layouts import store
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.errors import BadData, UsageError
from gdbext.live import breakpoint_setter as setting
from gdbext.live.breakpoint_setter import ALWAYS, AllOf, AnyOf, Bits, Choice, Equals, Pointee, Register
from gdbext.live.registrations import KernelWatch, check_pattern, generated_functions, is_generated
from gdbext.tools.breaks.break_plan import BreakSite, Opening, check_keys, end_site, key_condition
from gdbext.tools.breaks.break_set import BreakSet
from gdbext.tools.breaks.breaks_section import BreakRequest
from gdbext.torch.assumed_symbols import CALL_CHECKS
from gdbext.torch.compile.generated_kernels import GeneratedKernel
from gdbext.torch.values.key_names import KeyNames
from support.fakes.fake_debugger import FakeSetter

A, B = Register("a"), Register("b")


@pytest.fixture(scope="module")
def keys() -> KeyNames:
    return KeyNames(store.load(sorted(Path(store.DATA).glob("torch-*.json"))[-1]))


def thread(tid: int = 1, **registers: int) -> Any:
    return SimpleNamespace(tid=tid, register=registers.__getitem__, word=lambda _: 0x7000)


def test_key_conditions_hold_exactly_for_their_key(keys: KeyNames) -> None:
    generator = random.Random(7)
    names = [slot.name for slot in keys.slots[1:]]
    for _ in range(300):
        bits = keys.bits_of(generator.choice(names)) | keys.bits_of(generator.choice(names))
        highest = keys.highest_key(bits)
        for name in {highest, *generator.sample(names, 10)}:
            condition = key_condition(keys, A, name)
            assert setting.holds(condition, thread(a=bits)) == (name == highest), (name, hex(bits), condition)
    check_keys(keys, BreakRequest("call", ["mm"], key="CPU", has="Meta"))
    with pytest.raises(UsageError, match="Autogard"):
        check_keys(keys, BreakRequest("call", ["mm"], key="Autogard"))
    with pytest.raises(UsageError, match="no keyset"):
        check_keys(keys, BreakRequest("return", ["mm"], key="CPU"))


def test_as_gdb_reads_conditions_and_what_they_mean() -> None:
    either = AnyOf((Equals(A, 16), Equals(Pointee(B), 16)))
    condition = setting.conjunction(either, Equals(Bits(Choice(Equals(A, 16), B, A), 4, 3), 4))
    chosen = "($a == 0x10 ? $b : $a)"
    text = f"($a == 0x10 || *(unsigned long*)$b == 0x10) && (((unsigned long){chosen} & 0x4) >> 3) == 4"
    assert setting.condition_text(condition) == text
    assert setting.condition_text(ALWAYS) == ""
    choice = Choice(Equals(A, 1), B, Register("none"))
    assert setting.value_of(choice, thread(a=1, b=5)) == 5
    assert setting.value_of(Pointee(A), thread(a=1)) == 0x7000
    one, two, three = (Equals(A, number) for number in (1, 2, 3))
    assert setting.conjunction(ALWAYS, one) == one
    assert setting.conjunction(setting.conjunction(one, two), three) == AllOf((one, two, three))
    assert setting.holds(ALWAYS, thread())


def break_set(request: BreakRequest, session: Any) -> tuple[BreakSet, FakeSetter, list[str]]:
    shown: list[str] = []
    setter: Any = FakeSetter()
    unused: Any = None
    breaks = BreakSet(request, setter, session, unused, unused, shown.append)
    reports: Any = SimpleNamespace(lines=lambda *_: ["reported"])
    breaks._reports = reports
    return breaks, setter, shown


@pytest.mark.parametrize("go_on", [False, True])
def test_hits_are_those_where_the_condition_holds(go_on: bool) -> None:
    breaks, setter, shown = break_set(BreakRequest("call", ("aten::mm",), continue_=go_on), None)
    words = ("call", 0x5000, "aten::mm", "its lookup")
    sites = [BreakSite(0x1000, *words, condition=Equals(Register("rdi"), 8)), BreakSite(0x2000, *words)]
    breaks._add(SimpleNamespace(sites=lambda _: sites))  # type: ignore[arg-type]
    for keyset in (8, 9, 8):
        for each in setter.made:
            each.hit(thread(rdi=keyset))
    assert [each.hits for each in breaks.report().breakpoints] == [2, 3]
    assert len(shown) == 5


def test_the_end_of_a_call_is_that_of_the_frame_that_looked_the_operator_up() -> None:
    """The lookup is for all operators; on another thread, or in another frame, the same place is no end."""
    session: Any = SimpleNamespace(memory=SimpleNamespace(architecture=ARCHITECTURE))
    breaks, setter, shown = break_set(BreakRequest("return", ("own::one",)), lambda: session)
    looks_up = Opening(0x1000, "rdi", CfaRule("rsp", 0x40, 0x40), True)
    site = end_site(breaks._open_calls, 0x5000, "own::one", 0x1010, "its end", CfaRule("rsp", 0x48, 0x48), (looks_up,))
    breaks._add(SimpleNamespace(sites=lambda _: [site]))  # type: ignore[arg-type]
    end, trap = setter.made
    for operator, tid, is_end in ((0x6000, 1, False), (0x5000, 2, False), (0x5000, 1, True)):
        trap.hit(thread(rsp=0x8000, rdi=operator))
        end.hit(thread(tid, rsp=0x7FF8))
        assert bool(shown) is is_end
    end.hit(thread(rsp=0x7FF8))  # nothing is open any more
    behind = setter.made[2]
    assert behind.place == 0x7000  # the function may leave by a jump into the kernel
    trap.hit(thread(rsp=0x8000, rdi=0x5000))
    behind.hit(thread(rsp=0x8040))
    assert len(shown) == 2


KERNELS = [
    GeneratedKernel("cpp_fused_add_0", "/c/a.py", "/c/ab.main.so", 0x1000),
    GeneratedKernel("cpp_fused_exp_1", "/c/a.py", "/c/cd.main.so", 0x2000),
]


def session(**addresses: int) -> Any:
    module = SimpleNamespace(base=0x4000, name="libtorch_cpu.so")
    symbols = {name: (module, SimpleNamespace(vaddr=address)) for name, address in addresses.items()}
    symbolizer = SimpleNamespace(address_of=lambda name, _=None: addresses.get(name, 0), symbol_of=symbols.get)
    return SimpleNamespace(generated_kernels=SimpleNamespace(all=KERNELS), symbolizer=symbolizer)


def test_what_a_pattern_means_and_what_is_refused_by_name() -> None:
    for pattern, found in {
        "cpp_fused_*": [("cpp_fused_add_0", 0x1000, "/c/ab.main.cpp"), ("cpp_fused_exp_1", 0x2000, "/c/cd.main.cpp")],
        "aoti_torch_cpu_mm_out": [("aoti_torch_cpu_mm_out", 0x4020, "libtorch_cpu.so")],
        "cpp_fused_sub_0": [],
        "aoti_torch_*": [],
    }.items():
        assert is_generated(pattern)
        assert [tuple(each)[:3] for each in generated_functions(session(aoti_torch_cpu_mm_out=0x20), pattern)] == found
    assert not is_generated("aten::mm")
    assert not is_generated("mm")
    for name in ("cpp_fused_add_0", "triton_poi_fused_add_0"):
        check_pattern(name, "kernel")
    with pytest.raises(UsageError, match="cpp_fused_add_0 has no lookup"):
        check_pattern("cpp_fused_add_0", "lookup")


class Traps:
    def __init__(self) -> None:
        self.set: dict[int, tuple[Callable[[Any], None], list[bool]]] = {}

    def set_trap(self, address: int, reached: Callable[[Any], None]) -> Any:
        state = [True]
        self.set[address] = (reached, state)
        return SimpleNamespace(enable=lambda wanted: state.__setitem__(0, wanted), delete=lambda: self.set.pop(address))

    def hit(self, *addresses: int) -> None:
        for address in addresses:
            reached, state = self.set[address]
            if state[0]:
                reached(None)


def watch(changed: Callable[[], None], failed: list[Exception]) -> tuple[KernelWatch, Traps]:
    traps = Traps()
    found = session(**{"dlopen": 1, CALL_CHECKS.names[0]: 2})
    return KernelWatch(found, traps, changed, failed.append), traps


def test_calls_are_looked_at_for_a_while_after_a_library_was_loaded_and_what_cannot_be_read_ends_nothing() -> None:
    seen: list[int] = []
    watching, traps = watch(lambda: seen.append(1), [])
    assert watching.works
    assert not KernelWatch(session(dlopen=1), Traps(), list, list).works, "a torch without the checks"
    traps.hit(2)
    assert seen == []
    traps.hit(1, *[2] * 20)
    assert len(seen) == 8
    traps.hit(1, 2)
    assert len(seen) == 9
    watching.close()
    assert traps.set == {}
    failed: list[Exception] = []
    error = BadData("no")
    _, traps = watch(lambda: (_ for _ in ()).throw(error), failed)
    traps.hit(1, 2)
    assert failed == [error]
