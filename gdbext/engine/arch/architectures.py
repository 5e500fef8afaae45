"""The architectures that are known: by the machine of an ELF file, by name, by what a debugger calls them.

Nothing of an architecture is imported before it is asked for: a launcher that only checks a process needs none.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import ForeignArchitecture

if TYPE_CHECKING:
    from gdbext.engine.arch import Architecture


class KnownArchitecture(NamedTuple):
    """An architecture that can be read."""

    machine: int
    """The number e_machine of its ELF files (elf.h)."""
    name: str
    """The name that uname -m gives, and that of its folder here."""
    gdb_name: str
    """The beginning of the names that gdb has for it (bfd/cpu-*.c)."""


_KNOWN = (KnownArchitecture(62, "x86_64", "i386:x86-64"),)
_BY_MACHINE = {architecture.machine: architecture for architecture in _KNOWN}
_BY_NAME = {architecture.name: architecture for architecture in _KNOWN}
_TITLES = {3: "x86", 62: "x86-64", 183: "aarch64"}
"""Titles for messages about files of any machine."""


def names() -> tuple[str, ...]:
    """The names of all architectures."""
    return tuple(_BY_NAME)


def supported(machine: int) -> bool:
    """Processes of that e_machine can be read."""
    return machine in _BY_MACHINE


def by_machine(machine: int) -> Architecture:
    """The architecture of an ELF file's e_machine. Raises ForeignArchitecture."""
    if machine not in _BY_MACHINE:
        raise foreign(f"processes of ELF machine {machine} cannot be read")
    module = import_module(f"gdbext.engine.arch.{_BY_MACHINE[machine].name}.architecture")
    architecture: Architecture = module.ARCHITECTURE
    return architecture


def by_name(name: str) -> Architecture:
    """The architecture that the kernel calls so. Raises ForeignArchitecture."""
    if name not in _BY_NAME:
        raise foreign(f"processes of architecture {name} cannot be read")
    return by_machine(_BY_NAME[name].machine)


def own() -> Architecture | None:
    """The architecture of this machine, None where it is of another kind."""
    name = os.uname().machine
    return by_name(name) if name in _BY_NAME else None


def by_gdb_name(name: str) -> Architecture | None:
    """The architecture that gdb calls so, None for one that cannot be read."""
    return next((by_machine(known.machine) for known in _KNOWN if name.startswith(known.gdb_name)), None)


def foreign(what: str) -> ForeignArchitecture:
    """The error for a process or core that cannot be read, with what could be."""
    titles = ", ".join(machine_title(machine) for machine in _BY_MACHINE)
    return ForeignArchitecture(what, why=f"only {titles} is supported now")


def machine_title(machine: int) -> str:
    """Name the architecture of an e_machine for people."""
    return _TITLES.get(machine, f"machine {machine}")


def own_setgroups() -> int:
    """The number of setgroups(2) on this machine, 0 where it is of another kind."""
    # arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (Linux 6.1)
    return {"x86_64": 116, "aarch64": 159}.get(os.uname().machine, 0)
