"""Thread-local variables behind a guard, and those that need none."""

from __future__ import annotations

from typing import Any

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.torch.state.thread_variable import ThreadVariables, VariablesOfThread
from support.fakes.fake_target import FakeTarget

BLOCK = 0x10000


class Symbol:
    name, vaddr, size = "keysets", 0x20, 16


class Variables(ThreadVariables):
    """A variable 0x20 into the block of its module, and a guard before it that is not set."""

    def __init__(self) -> None:
        self.memory = Memory(FakeTarget({BLOCK: bytes(0x20) + b"\7" * 16 + bytes(0xFD0)}))

    def find(self, variable: Any) -> Any:
        return variable, Symbol

    def guard(self, module: Any, symbol: Any) -> int | None:  # noqa: ARG002 - as ThreadVariables
        return 0

    def block(self, thread_pointer: int, module: Any, guard: int | None) -> int | None:  # noqa: ARG002
        return None if guard is not None and not self.memory.u8(BLOCK + guard) else BLOCK


def test_a_guard_that_is_not_set_hides_only_what_it_guards() -> None:
    thread = VariablesOfThread(Variables(), 0)
    assert thread.read("any", 16) is None  # type: ignore[arg-type]
    assert thread.read_constant("any", 16) == b"\7" * 16  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [17, 100])
def test_more_than_the_variable_has(size: int) -> None:
    with pytest.raises(Exception, match="keysets has 16 bytes"):
        VariablesOfThread(Variables(), 0).read_constant("any", size)  # type: ignore[arg-type]
