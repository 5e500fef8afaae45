"""Arguments followed back from a call, on assembled code."""

from __future__ import annotations

import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from gdbext.engine.arch.argument_places import Location, argument_source, jump_targets
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.arch.x86_64.decode import instructions

pytestmark = pytest.mark.compiler


def memory(register: str, displacement: int) -> Location:
    return Location("memory", register, displacement)


def register(name: str, displacement: int = 0) -> Location:
    return Location("register", name, displacement)


def constant(value: int) -> Location:
    return Location("constant", value=value)


KNOWN = {
    "mov %rbx,%rdi; call *%rax": register("rbx"),
    "mov %r12,%rax; mov %rax,%rdi; mov $1,%esi; call *%rdx": register("r12"),
    "mov 8(%rsp),%rdi; call *%rax": memory("rsp", 8),
    "mov %r13,%rax; mov 24(%rax),%rdi; call *%rax": memory("r13", 24),
    "lea 32(%rsp),%rax; mov 8(%rax),%rdi; call *%rax": memory("rsp", 40),
    "xor %edi,%edi; call *%rax": constant(0),
    "mov $0x18000,%edi; call *%rax": constant(0x18000),
    "mov $-1,%rdi; call *%rax": constant((1 << 64) - 1),
    "mov 8(%rsp),%rdi; push %rax; push %rbx; call *%rax": memory("rsp", 24),
    "mov 8(%rsp),%rdi; sub $16,%rsp; call *%rax": memory("rsp", 24),
    "mov 8(%rsp),%rdi; mov %rax,16(%rsp); call *%rax": memory("rsp", 8),
    "mov 8(%rsp),%rdi; movups %xmm0,16(%rsp); call *%rax": memory("rsp", 8),
    "mov 8(%rsp),%rdi; mov (%rax),%rcx; movups (%rsi),%xmm0; call *%rax": memory("rsp", 8),
    "test %rax,%rax; je 1f; 1: mov %rbx,%rdi; call *%rax": register("rbx"),
    "mov %rbx,%rdi; test %rax,%rax; jne 2f; call *%rax; 2: nop": register("rbx"),
    "mov %ebx,%edi; call *%rax": register("rbx")._replace(size=4),
    "mov 8(%rsp),%edi; call *%rax": memory("rsp", 8)._replace(size=4),
    "mov 8(%rsp),%eax; movzbl %al,%edi; call *%rax": memory("rsp", 8)._replace(size=1),
    "mov %rbx,%rdi; movabs $0x1fffffefffffffff,%rax; and %rax,%rdi; call *%rax": Location(
        "and", parts=(register("rbx"), constant(0x1FFFFFEFFFFFFFFF))
    ),
    "mov %r12,%rdi; and 16(%rsp),%rdi; call *%rax": Location("and", parts=(register("r12"), memory("rsp", 16))),
    "mov %r12,%rdi; and $-2,%rdi; call *%rax": Location("and", parts=(register("r12"), constant(2**64 - 2))),
}
KNOWN_FLOATS = {
    "movsd 8(%rsp),%xmm0; call *%rax": memory("rsp", 8),
    "movapd -32(%rbp),%xmm1; movapd %xmm1,%xmm0; call *%rax": memory("rbp", -32),
    "movq %rbx,%xmm0; call *%rax": register("rbx"),
    "pxor %xmm0,%xmm0; call *%rax": constant(0),
    "movsd 0x10(%rip),%xmm0; call *%rax": Location("fixed", value=0x1018),
}
UNSURE_FLOATS = [
    "movsd %xmm1,%xmm0; call *%rax",
    "movsd 8(%rsp),%xmm0; addsd %xmm1,%xmm0; call *%rax",
    "movsd 8(%rsp),%xmm0; movsd %xmm1,8(%rsp); call *%rax",
    "movsd 8(%rsp),%xmm0; call *%rax; call *%rax",
    "movsd 8(%rsp),%xmm0; vzeroall; call *%rax",
    "pxor %xmm1,%xmm0; call *%rax",
    "movsd (%rsp,%rcx,8),%xmm0; call *%rax",
]
UNSURE = [
    "mov %rax,%rdi; call *%rdx",
    "mov %rbx,%rdi; call *%rax; call *%rax",
    "mov (%rax),%rdi; call *%rdx",
    "mov %fs:8(%rbx),%rdi; call *%rax",
    "mov %rbx,%rdi; mov %rax,%rbx; call *%rax",
    "mov 8(%rsp),%rdi; mov %rax,8(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; movl $1,12(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; movups %xmm0,(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; mov %rax,(%rcx); call *%rax",
    "mov 8(%rsp),%rdi; vmovdqu64 %zmm0,(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; rep stosq; call *%rax",
    "mov 8(%rsp),%rdi; push %rax; mov %rax,16(%rsp); call *%rax",
    "mov 8(%rsp,%rcx,8),%rdi; call *%rax",
    "mov %rbx,%rdi; add $8,%rdi; call *%rax",
    "or %rbx,%rdi; call *%rax",
    "and %rbx,%rdi; call *%rax",
    "mov %rbx,%rdi; mov $1,%dil; call *%rax",
    "mov %bx,%di; call *%rax",
    "mov %ebx,%eax; mov (%rax),%rdi; call *%rax",
    "mov %rbx,%rdi; cmovne %r12,%rdi; call *%rax",
    "mov 8(%rsp),%rdi; and $-64,%rsp; call *%rax",
    "mov %rbx,%rdi; xchg %rax,%rbx; call *%rax",
    "mov %rbp,%rdi; leave; call *%rax",
    "mov %rbx,%rdi; jmp 1f; nop; 1: call *%rax",
    "jmp 1f; mov %rbx,%rdi; 1: call *%rax",
    "ud2; call *%rax",
    "mov %rbx,%rdi; test %rax,%rax; je 1f; nop; call *%rax; 1: call *%rax",
    "call *%rax",
]
SOURCES = [
    *(("rdi", text, expected) for text, expected in KNOWN.items()),
    *(("rdi", text, None) for text in UNSURE),
    *(("xmm0", text, expected) for text, expected in KNOWN_FLOATS.items()),
    *(("xmm0", text, None) for text in UNSURE_FLOATS),
    ("rdx", "mov %rbx,%rdx; mul %rbx; call *%rcx", None),
]


JUMP_FROM_BEHIND = "mov %rbx,%rdi; 1: nop; call *%rax; jmp 1b; call *%rax"
OTHER_REGISTER = "mov -8(%rbp),%rdi; mov %rax,8(%rsp); call *%rax"

Codes = dict[str, list[Instruction]]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Codes:
    file = tmp_path_factory.mktemp("code") / "code.o"
    texts = [*(text for _, text, _ in SOURCES), JUMP_FROM_BEHIND, OTHER_REGISTER]
    sections = "".join(f'.section .text.{number},"ax"\n{text}\n' for number, text in enumerate(texts))
    subprocess.run(["as", "-o", file], input=sections, text=True, check=True)
    found = {}
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        for number, text in enumerate(texts):
            code = list(instructions(elf.get_section_by_name(f".text.{number}").data(), 0x1000))
            found[text] = code[: 1 + max(place for place, one in enumerate(code) if one.is_call)]
    return found


@pytest.mark.parametrize(("name", "text", "expected"), SOURCES, ids=[text for _, text, _ in SOURCES])
def test_argument_source(codes: Codes, name: str, text: str, expected: Location | None) -> None:
    assert argument_source(ARCHITECTURE, codes[text], name) == expected


def test_a_jump_from_behind_the_call(codes: Codes) -> None:
    code = codes[JUMP_FROM_BEHIND]
    assert argument_source(ARCHITECTURE, code[:3], "rdi") == register("rbx")
    assert argument_source(ARCHITECTURE, code[:3], "rdi", jump_targets(code)) is None


def test_a_store_relative_to_another_register_counts_only_where_it_does_not_hit(codes: Codes) -> None:
    found = argument_source(ARCHITECTURE, codes[OTHER_REGISTER], "rdi")
    assert found == Location("memory", "rbp", -8, others=(("rsp", 8, 8),))
    assert found.intact({"rbp": 0x1040, "rsp": 0x1000})
    assert not found.intact({"rbp": 0x1014, "rsp": 0x1000})
    assert found.intact({"rbp": 0x1008, "rsp": 0x1000})
    assert not found.intact({"rbp": 0x1040})
