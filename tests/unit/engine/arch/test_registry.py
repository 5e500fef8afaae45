"""Every architecture that is registered has everything that is asked of one."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import Architecture, architectures
from gdbext.errors import ForeignArchitecture, TargetError

ALL = [architectures.by_name(name) for name in architectures.names()]


@pytest.mark.parametrize("architecture", ALL, ids=lambda one: one.name)
def test_registers_that_are_cut_short(architecture: Architecture) -> None:
    kind, names = next(iter(architecture.register_sets.items()))
    assert architecture.unpack_registers(kind, bytes(8 * len(names))) == dict.fromkeys(names, 0)
    with pytest.raises(TargetError, match="bytes instead of"):
        architecture.unpack_registers(kind, bytes(8 * len(names) - 1))


def test_what_no_one_has_written_yet() -> None:
    with pytest.raises(ForeignArchitecture, match="243") as raised:
        architectures.by_machine(243)
    assert "x86-64" in raised.value.why
    with pytest.raises(ForeignArchitecture, match="riscv64"):
        architectures.by_name("riscv64")
    assert architectures.by_gdb_name("powerpc:common64") is None
