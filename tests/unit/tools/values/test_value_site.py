"""Arguments that a function keeps, or only a part of them, until it looks its operator up."""

from __future__ import annotations

from typing import Any

from gdbext.engine.arch import Passing, architectures
from gdbext.engine.arch.argument_places import CFA, SavedArgument
from gdbext.tools.values.value_site import ValueSite, lost_registers, passed_at

X86_64 = architectures.by_machine(62)
KINDS = ("at::Tensor const&", "long", "bool", "double", "long")
SLOTS = tuple(X86_64.place_arguments([Passing.WORD] * 3 + [Passing.FLOAT] + [Passing.WORD]))
PLACES = {
    "rdi": SavedArgument("rbx"),
    "rsi": SavedArgument(CFA, -0x20, 4),  # mov %esi, -0x20(cfa)
    "rdx": SavedArgument(CFA, -0x24, 4),
    "xmm0": SavedArgument(CFA, -0x30),
}


class Registers:
    def register(self, name: str) -> int:
        return {"rbx": 0x5000, "rcx": 3}[name]

    def float_register(self, name: str) -> int:
        raise KeyError(name)


def test_a_number_of_which_four_bytes_are_kept_is_not_known() -> None:
    lost = frozenset(lost_registers(X86_64, KINDS, SLOTS, PLACES, hidden=False))
    assert lost == {"rsi", "rcx"}
    assert set(lost_registers(X86_64, KINDS, SLOTS, {"rsi": SavedArgument("r12")}, hidden=True)) >= {"rdi", "rdx"}
    site = ValueSite(("self", "dim", "keepdim", "p", "n"), KINDS, SLOTS, PLACES, False, 0x1000, lost)
    memory = {0x7000 - 0x20: 0xAAAA_0000_0007, 0x7000 - 0x24: 1, 0x7000 - 0x30: 0x3FF0_0000_0000_0000}
    control: Any = Registers()
    passed = passed_at(X86_64, site, control, 0x7000, memory.get)
    assert passed.words == (0x5000, None, 1, None, None, None)
    assert passed.floats == (0x3FF0_0000_0000_0000,)
