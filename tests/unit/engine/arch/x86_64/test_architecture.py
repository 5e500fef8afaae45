"""What the x86-64 object says about registers and code."""

from __future__ import annotations

from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE

CODE = bytes(0x0F) + b"\xcc" + bytes(0x10)


def read(address: int, size: int) -> bytes | None:
    start = address - 0x400000
    return CODE[start : start + size] if 0 <= start < len(CODE) else None


def test_a_trap_is_the_instruction_before_the_program_counter() -> None:
    assert ARCHITECTURE.stopped_at_trap({"rip": 0x400010}, read)
    assert not ARCHITECTURE.stopped_at_trap({"rip": 0x40000F}, read)
    assert not ARCHITECTURE.stopped_at_trap({"rip": 0x300000}, read)
