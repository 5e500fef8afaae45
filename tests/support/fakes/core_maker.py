"""ELF cores made of bytes, as the kernel (or gcore) would write them, with whatever damage a test wants."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

R, W, X = 4, 2, 1
REGISTERS = [
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
]


@dataclass
class Load:
    """A PT_LOAD: ``data`` are its first bytes, the file has no more of it; ``size`` is what it covers in memory."""

    start: int
    data: bytes = b""
    size: int = 0
    flags: int = R | W


def note(kind: int, description: bytes, owner: bytes = b"CORE\0") -> bytes:
    """One note, padded to four bytes as in every core."""
    head = struct.pack("<III", len(owner), len(description), kind)
    return head + owner.ljust(-(-len(owner) // 4) * 4, b"\0") + description.ljust(-(-len(description) // 4) * 4, b"\0")


def prstatus(tid: int, signal: int = 0, **registers: int) -> bytes:
    values = struct.pack("<27Q", *(registers.get(name, index + 1) for index, name in enumerate(REGISTERS)))
    head = struct.pack("<iiihhQQiiii", signal, 0, 0, signal, 0, 0, 0, tid, 1, 2, 3)
    return note(1, head.ljust(112, b"\0") + values + struct.pack("<ii", 1, 0))


def prpsinfo(pid: int) -> bytes:
    head = struct.pack("<bbbbiQIIiiii", 0, 82, 0, 0, 0, 0, 0, 0, pid, 1, 2, 3)
    return note(3, head + b"python".ljust(16, b"\0") + b"python a.py ".ljust(80, b"\0"))


def siginfo(number: int, code: int, address: int) -> bytes:
    return note(0x53494749, struct.pack("<iiiiQ", number, 0, code, 0, address).ljust(128, b"\0"))


def auxv(**entries: int) -> bytes:
    """NT_AUXV; entries are named "n33=…"."""
    pairs = (struct.pack("<QQ", int(name[1:]), value) for name, value in entries.items())
    return note(6, b"".join(pairs) + bytes(16))


def files(*entries: tuple[int, int, int, str]) -> bytes:
    """NT_FILE: (start, end, offset in bytes, path)."""
    table = b"".join(struct.pack("<QQQ", start, end, offset // 4096) for start, end, offset, _ in entries)
    names = b"".join(path.encode() + b"\0" for _, _, _, path in entries)
    return note(0x46494C45, struct.pack("<QQ", len(entries), 4096) + table + names)


@dataclass
class Core:
    """A core to be. ``by_gcore`` gives it section headers and puts the notes last, as gdb does."""

    loads: list[Load] = field(default_factory=list)
    notes: bytes = field(default_factory=lambda: prstatus(100) + prpsinfo(100))
    machine: int = 62
    kind: int = 4
    elf_class: int = 2
    by_gcore: bool = False

    def build(self) -> bytes:
        count = len(self.loads) + 1
        extended = count >= 0xFFFF
        data_at = 64 + 56 * count + (64 if extended else 0)
        placed, body = [], b"" if self.by_gcore else self.notes
        for load in self.loads:
            placed.append(data_at + len(body))
            body += load.data
        note_at = data_at + len(body) if self.by_gcore else data_at
        body += self.notes if self.by_gcore else b""
        headers = [struct.pack("<IIQQQQQQ", 4, 0, note_at, 0, 0, len(self.notes), 0, 1)]
        for load, offset in zip(self.loads, placed):
            size = len(load.data)
            headers.append(
                struct.pack("<IIQQQQQQ", 1, load.flags, offset, load.start, 0, size, load.size or size, 4096)
            )
        sections = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, count, 0, 0) if extended else b""
        sections_at = data_at + len(body) if self.by_gcore else 64 + 56 * count if extended else 0
        identity = b"\x7fELF" + bytes([self.elf_class, 1, 1]) + bytes(9)
        section_count = 3 if self.by_gcore else int(extended)
        shown = 0xFFFF if extended else count
        fields = (self.kind, self.machine, 1, 0, 64, sections_at, 0, 64, 56, shown, 64, section_count, 0)
        header = identity + struct.pack("<HHIQQQIHHHHHH", *fields)
        return header + b"".join(headers) + sections + body
