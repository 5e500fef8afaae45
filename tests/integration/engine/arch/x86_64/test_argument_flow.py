"""Arguments followed back from a call, on assembled code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gdbext.engine.arch.argument_places import Location, argument_source, jump_targets
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.arch.x86_64.decode import instructions

pytestmark = pytest.mark.compiler


@pytest.fixture
def assemble(tmp_path: Path) -> Callable[[str], list[Instruction]]:
    def run(text: str) -> list[Instruction]:
        """The instructions of AT&T ``text``, up to the last call."""
        source, object_file, raw = (tmp_path / name for name in ("a.s", "a.o", "a.bin"))
        source.write_text(text.replace(";", "\n") + "\n")
        subprocess.run(["as", "-o", object_file, source], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", object_file, raw], check=True)
        found = list(instructions(raw.read_bytes(), 0x1000))
        last = max(number for number, one in enumerate(found) if one.is_call)
        return found[: last + 1]

    return run


def memory(register: str, displacement: int) -> Location:
    return Location("memory", register, displacement)


def register(name: str, displacement: int = 0) -> Location:
    return Location("register", name, displacement)


KNOWN = {
    "mov %rbx,%rdi; call *%rax": register("rbx"),
    "mov %r12,%rax; mov %rax,%rdi; mov $1,%esi; call *%rdx": register("r12"),
    "mov 8(%rsp),%rdi; call *%rax": memory("rsp", 8),
    "mov -64(%rbp),%rdi; mov %rbx,%rsi; call *%rax": memory("rbp", -64),
    "mov 24(%r13),%rdi; call *%rax": memory("r13", 24),
    "mov %r13,%rax; mov 24(%rax),%rdi; call *%rax": memory("r13", 24),
    "lea 32(%rsp),%rdi; call *%rax": register("rsp", 32),
    "lea 32(%rsp),%rax; mov %rax,%rdi; call *%rax": register("rsp", 32),
    "lea 32(%rsp),%rax; mov 8(%rax),%rdi; call *%rax": memory("rsp", 40),
    "xor %edi,%edi; call *%rax": Location("constant", value=0),
    "mov $7,%edi; call *%rax": Location("constant", value=7),
    "mov $-1,%rdi; call *%rax": Location("constant", value=(1 << 64) - 1),
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
}
KNOWN_FLOATS = {
    "movsd 8(%rsp),%xmm0; call *%rax": memory("rsp", 8),
    "movapd -32(%rbp),%xmm1; movapd %xmm1,%xmm0; call *%rax": memory("rbp", -32),
    "movq %rbx,%xmm0; call *%rax": register("rbx"),
    "pxor %xmm0,%xmm0; call *%rax": Location("constant", value=0),
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
    "mov %rbx,%rdi; 1: nop; call *%rax; jmp 1b; call *%rax",
    "mov %rbx,%rdi; call *%rax; call *%rax",
    "mov (%rax),%rdi; call *%rdx",
    "mov %fs:8(%rbx),%rdi; call *%rax",
    "mov %rbx,%rdi; mov %rax,%rbx; call *%rax",
    "mov 8(%rbx),%rdi; mov %rax,%rbx; call *%rax",
    "mov 8(%rsp),%rdi; mov %rax,8(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; movl $1,12(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; movups %xmm0,(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; mov %rax,(%rcx); call *%rax",
    "mov 8(%rsp),%rdi; mov %rax,(%rsp,%rcx,8); call *%rax",
    "mov 8(%rsp),%rdi; vmovdqu64 %zmm0,(%rsp); call *%rax",
    "mov 8(%rsp),%rdi; rep stosq; call *%rax",
    "mov 8(%rsp),%rdi; push %rax; mov %rax,16(%rsp); call *%rax",
    "mov 8(%rsp,%rcx,8),%rdi; call *%rax",
    "mov %rbx,%rdi; add $8,%rdi; call *%rax",
    "mov %rbx,%rdi; mov $1,%dil; call *%rax",
    "mov %bx,%di; call *%rax",
    "mov %ebx,%eax; mov (%rax),%rdi; call *%rax",
    "mov %rbx,%rdi; cmovne %r12,%rdi; call *%rax",
    "mov %rbx,%rdi; pop %rdi; call *%rax",
    "mov 8(%rsp),%rdi; and $-64,%rsp; call *%rax",
    "mov %rbx,%rdi; xchg %rax,%rbx; call *%rax",
    "mov %rbp,%rdi; leave; call *%rax",
    "mov %rbx,%rdi; jmp 1f; nop; 1: call *%rax",
    "ud2; call *%rax",
    "mov %rbx,%rdi; test %rax,%rax; je 1f; nop; call *%rax; 1: call *%rax",
    "call *%rax",
]


@pytest.mark.parametrize("text", KNOWN_FLOATS)
def test_numbers_followed(assemble: Callable[[str], list[Instruction]], text: str) -> None:
    assert argument_source(ARCHITECTURE, assemble(text), "xmm0") == KNOWN_FLOATS[text]


@pytest.mark.parametrize("text", UNSURE_FLOATS)
def test_unsure_of_numbers(assemble: Callable[[str], list[Instruction]], text: str) -> None:
    assert argument_source(ARCHITECTURE, assemble(text), "xmm0") is None


@pytest.mark.parametrize("text", KNOWN)
def test_followed(assemble: Callable[[str], list[Instruction]], text: str) -> None:
    code = assemble(text)
    assert argument_source(ARCHITECTURE, code, "rdi") == KNOWN[text]


@pytest.mark.parametrize("text", UNSURE)
def test_unsure(assemble: Callable[[str], list[Instruction]], text: str) -> None:
    if text == "mov %rbx,%rdi; 1: nop; call *%rax; jmp 1b; call *%rax":
        code = assemble(text)[:3]
        # The jump behind the call is not in these bytes.
        assert argument_source(ARCHITECTURE, code, "rdi") == register("rbx")
        assert argument_source(ARCHITECTURE, code, "rdi", jump_targets(assemble(text))) is None
        return
    assert argument_source(ARCHITECTURE, assemble(text), "rdi") is None


def test_a_store_relative_to_another_register_counts_only_where_it_does_not_hit(
    assemble: Callable[[str], list[Instruction]],
) -> None:
    found = argument_source(ARCHITECTURE, assemble("mov -8(%rbp),%rdi; mov %rax,8(%rsp); call *%rax"), "rdi")
    assert found == Location("memory", "rbp", -8, others=(("rsp", 8, 8),))
    assert found.intact({"rbp": 0x1040, "rsp": 0x1000})
    assert not found.intact({"rbp": 0x1014, "rsp": 0x1000})
    assert found.intact({"rbp": 0x1008, "rsp": 0x1000})
    assert not found.intact({"rbp": 0x1040})


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#define KEEP __attribute__((noinline, noclone))
struct node { long number; struct node *next; long more[4]; };
long total;
KEEP void sink(struct node *n, long a, long b, long c) {
    printf("args %lx %lx %lx %lx\n", (long)n, a, b, c);
    total += a + b + c;
}
KEEP long walk(struct node *n, long a, long b) {
    struct node local = {a, n, {b}};
    for (int i = 0; i < 2; i++) {
        sink(n, a, b, i);
        sink(&local, local.number, (long)local.next, b);
        sink(n->next, b, a, 7);
        if (n->next) { sink(n, 0, a, -1); a += n->number; }
    }
    return a + local.more[0];
}
int main(int argc, char **argv) {
    struct node second = {5, NULL, {1}}, first = {argc, &second, {2}};
    return (int)walk(&first, 10 + argc, 20) & 1;
}
"""

SCRIPT = r"""
import gdb, json
gdb.execute("set pagination off")
gdb.execute("break sink")
gdb.execute("run")
stops = []
def value(frame, name):
    return int(frame.read_register(name)) & (1 << 64) - 1
while gdb.selected_inferior().threads():
    frame = gdb.newest_frame()
    names = ("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15", "rip")
    caller = {name: value(frame.older(), name) for name in names}
    memory = bytes(gdb.selected_inferior().read_memory(caller["rsp"], 512)).hex()
    symbol = int(gdb.parse_and_eval(f"(long)&{frame.older().name()}"))
    code = bytes(gdb.selected_inferior().read_memory(symbol, caller["rip"] - symbol)).hex()
    arguments = {name: value(frame, name) for name in ("rdi", "rsi", "rdx", "rcx")}
    stops.append([caller, memory, symbol, code, arguments])
    gdb.execute("continue", to_string=True)
open("OUT", "w").write(json.dumps(stops))
"""


@pytest.mark.gdb
@pytest.mark.parametrize("options", ["-O1", "-O2", "-O3", "-Os", "-O2 -fno-omit-frame-pointer"])
def test_against_a_running_program(tmp_path: Path, options: str) -> None:
    """Whatever is found must be the value that gdb sees in the register at the callee's entry."""
    (tmp_path / "p.c").write_text(PROGRAM)
    program = tmp_path / "p"
    subprocess.run(["gcc", *options.split(), "-o", program, tmp_path / "p.c"], check=True)
    (tmp_path / "s.py").write_text(SCRIPT.replace("OUT", str(tmp_path / "out")))
    subprocess.run(
        ["gdb", "-nx", "-batch", "-x", tmp_path / "s.py", program],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    stops = json.loads((tmp_path / "out").read_text())
    assert len(stops) >= 6
    found = 0
    for caller, stack, start, code, arguments in stops:
        before = list(instructions(bytes.fromhex(code), start))
        assert before[-1].is_call
        for name, value in arguments.items():
            location = argument_source(ARCHITECTURE, before, name)
            if location is None:
                continue
            seen = evaluate(location, caller, bytes.fromhex(stack))
            if seen is not None:
                assert seen == value, (name, location)
                found += 1
    assert found >= len(stops)


def evaluate(location: Location, registers: dict[str, int], stack: bytes) -> int | None:
    if location.kind == "constant":
        return location.value
    assert location.register is not None
    address = registers[location.register] + location.displacement
    if location.kind == "register":
        return address
    if not location.intact(registers):
        return None
    at = address - registers["rsp"]
    return int.from_bytes(stack[at : at + 8], "little") if 0 <= at <= len(stack) - 8 else None
