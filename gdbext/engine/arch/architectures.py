"""Finds the supported architectures by an ELF file's machine, by name, or by gdb's name; imports them on demand."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from gdbext.errors import ForeignArchitecture

if TYPE_CHECKING:
    from gdbext.engine.arch import Architecture


_NAMES = {62: "x86_64"}  # e_machine of an ELF file (elf.h) → the name that uname -m prints, also a folder here


def names() -> tuple[str, ...]:
    """The names of all supported architectures, as uname -m prints them."""
    return tuple(_NAMES.values())


def supported(machine: int) -> bool:
    """True if processes of that e_machine can be read."""
    return machine in _NAMES


def by_machine(machine: int) -> Architecture:
    """The architecture of an ELF file's e_machine. Raises ForeignArchitecture."""
    if machine not in _NAMES:
        raise foreign(f"processes of ELF machine {machine} cannot be read")
    return by_name(_NAMES[machine])


def by_name(name: str) -> Architecture:
    """The architecture of that uname -m. Raises ForeignArchitecture."""
    if name not in names():
        raise foreign(f"processes of architecture {name} cannot be read")
    architecture: Architecture = import_module(f"gdbext.engine.arch.{name}.architecture").ARCHITECTURE
    return architecture


def own() -> Architecture | None:
    """The architecture of this machine, None if it is not supported."""
    name = os.uname().machine
    return by_name(name) if name in names() else None


def by_gdb_name(name: str) -> Architecture | None:
    """The architecture of that name in gdb (bfd/cpu-*.c), None if it is not supported."""
    return by_name("x86_64") if name.startswith("i386:x86-64") else None


def foreign(what: str) -> ForeignArchitecture:
    """The error for a process or core of another architecture; it names the supported ones."""
    titles = ", ".join(machine_title(machine) for machine in _NAMES)
    return ForeignArchitecture(what, why=f"only {titles} is supported now")


def machine_title(machine: int) -> str:
    """The name of an e_machine's architecture in printed text."""
    return {3: "x86", 62: "x86-64", 183: "aarch64"}.get(machine, f"machine {machine}")


def own_setgroups() -> int:
    """The system call number of setgroups(2) on this machine, 0 if unknown."""
    # arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (Linux 6.1)
    return {"x86_64": 116, "aarch64": 159}.get(os.uname().machine, 0)
