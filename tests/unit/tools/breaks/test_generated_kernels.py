"""dispatch-break for kernels that Inductor generated: which are meant, and how one that is loaded later is noticed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import BadData, UsageError
from gdbext.live.registrations import KernelWatch, check_pattern, generated_functions, is_generated
from gdbext.torch.assumed_symbols import CALL_CHECKS
from gdbext.torch.compile.generated_kernels import GeneratedKernel

KERNELS = [
    GeneratedKernel("cpp_fused_add_0", "/c/a.py", "/c/ab.main.so", 0x1000),
    GeneratedKernel("cpp_fused_exp_1", "/c/a.py", "/c/cd.main.so", 0x2000),
]


class Symbols:
    """Functions of libraries, by name."""

    def __init__(self, **addresses: int) -> None:
        self._addresses = addresses

    def address_of(self, name: str, _: str | None = None) -> int | None:
        return self._addresses.get(name)

    def symbol_of(self, name: str) -> Any:
        address = self._addresses.get(name)
        module = SimpleNamespace(base=0x4000, name="libtorch_cpu.so")
        return None if address is None else (module, SimpleNamespace(vaddr=address))


def session(**addresses: int) -> Any:
    return SimpleNamespace(generated_kernels=SimpleNamespace(all=KERNELS), symbolizer=Symbols(**addresses))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("cpp_fused_add_0", [("cpp_fused_add_0", 0x1000, "/c/ab.main.cpp")]),
        ("cpp_fused_*", [("cpp_fused_add_0", 0x1000, "/c/ab.main.cpp"), ("cpp_fused_exp_1", 0x2000, "/c/cd.main.cpp")]),
        ("aoti_torch_cpu_mm_out", [("aoti_torch_cpu_mm_out", 0x4020, "libtorch_cpu.so")]),
        ("cpp_fused_sub_0", []),
        ("aoti_torch_*", []),
    ],
)
def test_what_a_pattern_means(pattern: str, found: list[tuple[str, int, str]]) -> None:
    assert is_generated(pattern)
    assert [tuple(each)[:3] for each in generated_functions(session(aoti_torch_cpu_mm_out=0x20), pattern)] == found


def test_what_is_refused_by_name() -> None:
    assert not is_generated("aten::mm")
    assert not is_generated("mm")
    for name in ("cpp_fused_add_0", "triton_poi_fused_add_0"):
        check_pattern(name, "kernel")
    with pytest.raises(UsageError, match="cpp_fused_add_0 has no lookup"):
        check_pattern("cpp_fused_add_0", "lookup")


class Traps:
    """A debugger's traps: what each calls, and whether it is on."""

    def __init__(self) -> None:
        self.set: dict[int, tuple[Callable[[Any], None], list[bool]]] = {}

    def set_trap(self, address: int, reached: Callable[[Any], None]) -> Any:
        state = [True]
        self.set[address] = (reached, state)
        return SimpleNamespace(enable=lambda wanted: state.__setitem__(0, wanted), delete=lambda: self.set.pop(address))

    def hit(self, address: int) -> bool:
        reached, state = self.set[address]
        if state[0]:
            reached(None)
        return state[0]


def watch(changed: Callable[[], None], failed: list[Exception]) -> tuple[KernelWatch, Traps]:
    traps = Traps()
    found = session(**{"dlopen": 1, CALL_CHECKS.names[0]: 2})
    return KernelWatch(found, traps, changed, failed.append), traps


def test_calls_are_looked_at_for_a_while_after_a_library_was_loaded() -> None:
    seen: list[int] = []
    watching, traps = watch(lambda: seen.append(1), [])
    assert watching.works
    assert not KernelWatch(session(dlopen=1), Traps(), list, list).works, "a torch without the checks"
    traps.hit(2)
    assert seen == []
    traps.hit(1)
    for _ in range(20):
        traps.hit(2)
    assert len(seen) == 8
    traps.hit(1)
    traps.hit(2)
    assert len(seen) == 9
    watching.close()
    assert traps.set == {}


def test_what_cannot_be_read_is_told_and_ends_nothing() -> None:
    failed: list[Exception] = []

    def unreadable() -> None:
        raise BadData("no")

    _, traps = watch(unreadable, failed)
    traps.hit(1)
    traps.hit(2)
    assert [str(each) for each in failed] == ["no"]
