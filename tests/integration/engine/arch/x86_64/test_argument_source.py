"""Instruction boundaries against objdump, and argument sources on hand-assembled calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from gdbext.engine.arch.argument_places import Location, argument_source
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.arch.x86_64.decode import instructions

pytestmark = pytest.mark.compiler


def assemble(tmp_path: Path, source: str) -> bytes:
    """Machine code of AT&T assembly, as the system's assembler encodes it."""
    (tmp_path / "code.s").write_text(source)
    subprocess.run(["as", "-o", tmp_path / "code.o", tmp_path / "code.s"], check=True)
    with (tmp_path / "code.o").open("rb") as stream:
        return bytes(ELFFile(stream).get_section_by_name(".text").data())


def source_of(tmp_path: Path, register: str, source: str) -> Location | None:
    code = list(instructions(assemble(tmp_path, source), 0x1000))
    assert code[-1].is_call
    return argument_source(ARCHITECTURE, code, register)


def objdump_functions(path: Path) -> list[list[int]]:
    """Instruction addresses of each function, functions with undecodable bytes left out."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-w", "-j", ".text", str(path)]
    functions: list[list[int]] = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(">:"):
            functions.append([])
        elif (match := re.match(r"\s+([0-9a-f]+):\t(.*)", line)) and functions:
            functions[-1].append(-1 if "(bad)" in line or ".byte" in line else int(match[1], 16))
    return [addresses for addresses in functions if addresses and -1 not in addresses]


@pytest.mark.parametrize("library", ["libstdc++.so.6"])
def test_boundaries_equal_objdumps(library: str) -> None:
    """Of libc see test_lengths in test_decode_vs_objdump.py."""
    path = next(Path("/").glob(f"usr/lib/x86_64-linux-gnu/{library}"))
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".text")
        start, text = section["sh_addr"], section.data()
    functions = objdump_functions(path)
    assert len(functions) > 1000
    for addresses in functions:
        code = text[addresses[0] - start : addresses[-1] - start + 16]
        found = [each.address for each in instructions(code, addresses[0]) if each.address <= addresses[-1]]
        assert found == addresses


def test_a_callee_saved_register_is_a_place(tmp_path: Path) -> None:
    assert source_of(tmp_path, "rdx", "mov %rbx,%rdx; mov %r12,%rdi; call *%rax") == Location("register", "rbx")


def test_moves_are_followed(tmp_path: Path) -> None:
    assert source_of(tmp_path, "rsi", "mov %r14,%rax; mov %rax,%rsi; call *%rcx") == Location("register", "r14")


def test_a_stack_slot_is_a_place(tmp_path: Path) -> None:
    found = source_of(tmp_path, "rdi", "mov -0xa8(%rbp),%rdi; call *%rax")
    assert found == Location("memory", "rbp", -0xA8)


def test_pushed_arguments_move_the_stack_pointer(tmp_path: Path) -> None:
    found = source_of(tmp_path, "rdx", "mov 0x18(%rsp),%rdx; push %rax; push %rcx; call *%rax")
    assert found == Location("memory", "rsp", 0x28)


def test_addresses_and_constants(tmp_path: Path) -> None:
    assert source_of(tmp_path, "rdi", "lea 8(%rsp),%rdi; call *%rax") == Location("register", "rsp", 8)
    assert source_of(tmp_path, "rsi", "xor %esi,%esi; call *%rax") == Location("constant", value=0)
    assert source_of(tmp_path, "rsi", "mov $0x18000,%esi; call *%rax") == Location("constant", value=0x18000)


@pytest.mark.parametrize(
    "source",
    [
        "mov %rbx,%rdi; movabs $0x1fffffefffffffff,%rax; and %rax,%rdi; call *%rax",
        "movabs $0x1fffffefffffffff,%rdi; and %rbx,%rdi; call *%rax",
    ],
)
def test_a_masked_keyset_is_followed(tmp_path: Path, source: str) -> None:
    found = source_of(tmp_path, "rdi", source)
    assert found is not None
    mask, register = Location("constant", value=0x1FFFFFEFFFFFFFFF), Location("register", "rbx")
    assert (found.kind, set(found.parts)) == ("and", {mask, register})


def test_a_mask_may_come_from_memory_or_the_instruction(tmp_path: Path) -> None:
    slot, register = Location("memory", "rsp", 16), Location("register", "r12")
    found = source_of(tmp_path, "rdi", "mov %r12,%rdi; and 16(%rsp),%rdi; call *%rax")
    assert found == Location("and", parts=(register, slot))
    found = source_of(tmp_path, "rdi", "mov %r12,%rdi; and $-2,%rdi; call *%rax")
    assert found == Location("and", parts=(register, Location("constant", value=2**64 - 2)))


@pytest.mark.parametrize(
    "source",
    [
        "mov %rbx,%rdx; mov $1,%rbx; call *%rax",  # the register was reused
        "mov 8(%rsp),%rdx; mov %rcx,8(%rsp); call *%rax",  # the slot was overwritten
        "mov %rax,%rdx; call *%rax",  # a caller-saved register of unknown origin
        "mov %rbx,%rdx; call 1f; 1: call *%rax",  # a call in between may have changed rdx
        "jmp 1f; mov %rbx,%rdx; 1: call *%rax",  # another path leads to the call
        "je 1f; mov %rbx,%rdx; 1: nop; call *%rax",
        "mov (%rbx,%rcx,8),%rdx; call *%rax",  # an index that is gone
        "or %rbx,%rdx; call *%rax",  # arithmetic
        "and %rbx,%rdx; call *%rax",  # half of it unknown
        "mul %rbx; call *%rcx",  # an implicit destination
    ],
)
def test_what_is_unsure_is_no_place(tmp_path: Path, source: str) -> None:
    assert source_of(tmp_path, "rdx", source) is None
