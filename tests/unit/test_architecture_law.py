"""What is true of one architecture stands in arch/, what is glibc's stands in glibc/, and nobody else says it.

All else would have to be found again for every further architecture.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from gdbext.engine.arch import architectures
from gdbext.engine.glibc import pthread
from support.source.parsed import breaches, last_name, nodes

pytestmark = pytest.mark.xdist_group("laws")

NAMES_ITS_ROWS = {"engine/glibc/pthread.py"}
"""Files outside of arch/ that may name an architecture: tables with a row for each."""
BPF = "tools/probes/"
"""The folder with programs for the kernel's own machine, BPF, whose registers r0 to r10 are on every architecture."""
_ALL = [architectures.by_name(name) for name in architectures.names()]
_REGISTERS = {
    name
    for each in _ALL
    for name in (*each.general_registers, *each.system_registers, *(n for s in each.register_sets.values() for n in s))
    if len(name) > 2 or name[-1].isdigit()  # not the segment registers: cs, ss, …
}
_NARROWER = {"e" + name[1:] for name in _REGISTERS if re.fullmatch(r"r[a-z][a-z]", name)}
_ARCHITECTURES = {"x86", "x86_64", "x86-64", "amd64", "aarch64", "arm64", "i386"}
_WORDS = sorted(_REGISTERS | _NARROWER | _ARCHITECTURES, key=len, reverse=True)
WORDS = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, _WORDS))})(?![A-Za-z0-9])", re.IGNORECASE)
_PARTS = re.compile(r"[a-z0-9]+")
FIRST_PARTS = {_PARTS.findall(word.lower())[0] for word in _WORDS}
"""Where none of these is, WORDS finds nothing: it takes ten times as long."""
SYSCALLS = {name: number for each in _ALL for number, name in each.syscall_names.items()}
_GLIBC_NAMES = re.compile(r"_?(PTHREAD|MUTEX|CONDVAR|COND|RWLOCK|SEMAPHORE|BARRIER|TCB|DTV)_\w+")
_GLIBC_OFFSETS = {number for row in pthread.ROWS.values() for number in (row.thread_id,)}
"""Offsets that are too odd to be anything else."""


def found(file: str, source: str) -> Iterator[tuple[int, str]]:
    """What says something of one architecture, or of glibc."""
    if file.startswith("engine/arch/"):
        return
    if file not in NAMES_ITS_ROWS and not FIRST_PARTS.isdisjoint(_PARTS.findall(source.lower())):
        for match in WORDS.finditer(source):
            if file.startswith(BPF) and re.fullmatch(r"r\d+", match.group()):
                continue
            yield source.count("\n", 0, match.start()) + 1, f"{match.group()} is of one architecture"
    for node in nodes(source):
        yield from _conventions(node)
        if isinstance(node, (ast.Dict, ast.Assign, ast.Compare)):
            yield from _numbers(node)
        if isinstance(node, (ast.Assign, ast.Constant)) and not file.startswith("engine/glibc/"):
            yield from _offsets(node)


def _conventions(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a call leaves its return address and a frame ends: Architecture's return_slot and frame_record."""
    if isinstance(node, ast.BinOp) and getattr(node.right, "value", None) in (8, 16):
        left = last_name(node.left)
        if isinstance(node.op, ast.Sub) and re.fullmatch(r"cfa|top|\w+_cfa", left):
            yield node.lineno, f"{left} -: where a call leaves its return address is the architecture's"
        if isinstance(node.op, ast.Add) and re.fullmatch(r"frame(_pointer)?|fp", left):
            yield node.lineno, f"{left} +: what a frame pointer leads to is the architecture's"


def _numbers(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Numbers of system calls: in tables, as constants of that name, and compared with one."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and _is_syscall(getattr(value, "value", None), key.value):
                yield node.lineno, f"{key.value!r} is the number of a system call on one architecture"
    elif isinstance(node, ast.Assign):
        for target, assigned in _assigned(node):
            if _is_syscall(re.sub(r"^(_*NR_|SYS_|_)", "", target).lower(), assigned):
                yield node.lineno, f"{target} is the number of a system call on one architecture"
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "number":
        parts = [part for each in node.comparators for part in ast.walk(each)]
        if any(isinstance(part, ast.Constant) for part in parts) and "call" in ast.unparse(node.left):
            yield node.lineno, "the number of a system call is compared: compare its name"


def _is_syscall(name: object, number: object) -> bool:
    return isinstance(name, str) and isinstance(number, int) and SYSCALLS.get(name) == number


def _offsets(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Offsets into glibc's structures: constants named after one, and the odd ones wherever they stand."""
    if isinstance(node, ast.Assign):
        for target, value in _assigned(node):
            if _GLIBC_NAMES.fullmatch(target) and isinstance(value, int):
                yield node.lineno, f"{target} is for glibc/ to know"
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value in _GLIBC_OFFSETS:
        yield node.lineno, f"{node.value:#x} is an offset into a structure of glibc"


def _assigned(node: ast.Assign) -> Iterator[tuple[str, object]]:
    """(name, constant) pairs, also of ``A, B = 1, 2``."""
    for target in node.targets:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for name, value in zip(names, values):
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                yield name.id, value.value


def test_only_arch_knows_an_architecture() -> None:
    assert breaches(found) == []
