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


def test_accesses_to_a_table_by_gcc_and_by_clang() -> None:
    """lea 0xf8(%r15,%rax,8),%rbx; add $0xaf8,%r12; add $0xaf8,%rax: each behind a shr $16; the last one without."""
    shift, nops = b"\x48\xc1\xea\x10", b"\x90" * 8
    lea = b"\x49\x8d\x9c\xc7\xf8\x00\x00\x00"
    add, add_rax = b"\x49\x81\xc4\xf8\x0a\x00\x00", b"\x48\x05\xf8\x0a\x00\x00"
    code = shift + lea + add + add_rax + nops * 40 + add
    assert list(ARCHITECTURE.table_accesses(code, 0xF8, 16, 64)) == [4]
    assert list(ARCHITECTURE.table_accesses(code, 0xAF8, 16, 64)) == [12, 19]
