"""The architectures that are known: by the machine of an ELF file, by name, by what a debugger calls them.

Nothing of an architecture is imported before its use: a launcher that only checks a process needs none.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from gdbext.errors import ForeignArchitecture

if TYPE_CHECKING:
    from gdbext.engine.arch import Architecture


_NAMES = {62: "x86_64"}
"""e_machine of an ELF file (elf.h) → the name that uname -m gives, which is that of a folder here."""
_GDB_NAMES = {"i386:x86-64": "x86_64"}
"""The beginning of the names that gdb has for an architecture (bfd/cpu-*.c) → its name."""


def names() -> tuple[str, ...]:
    """The names of all architectures."""
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
    """The architecture that the kernel calls so. Raises ForeignArchitecture."""
    if name not in names():
        raise foreign(f"processes of architecture {name} cannot be read")
    architecture: Architecture = import_module(f"gdbext.engine.arch.{name}.architecture").ARCHITECTURE
    return architecture


def own() -> Architecture | None:
    """The architecture of this machine, None where it is of another kind."""
    name = os.uname().machine
    return by_name(name) if name in names() else None


def by_gdb_name(name: str) -> Architecture | None:
    """The architecture that gdb calls so, None for one that cannot be read."""
    return next((by_name(ours) for beginning, ours in _GDB_NAMES.items() if name.startswith(beginning)), None)


def foreign(what: str) -> ForeignArchitecture:
    """The error for a process or core that cannot be read, with what could be."""
    titles = ", ".join(machine_title(machine) for machine in _NAMES)
    return ForeignArchitecture(what, why=f"only {titles} is supported now")


def machine_title(machine: int) -> str:
    """Name the architecture of any e_machine for people."""
    return {3: "x86", 62: "x86-64", 183: "aarch64"}.get(machine, f"machine {machine}")


def own_setgroups() -> int:
    """The number of setgroups(2) on this machine, 0 where it is of another kind."""
    # arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (Linux 6.1)
    return {"x86_64": 116, "aarch64": 159}.get(os.uname().machine, 0)
