"""The architectures that are known: by the machine of an ELF file, by name, by what a debugger calls them.

Nothing of an architecture is imported before it is asked for: a launcher that only checks a process needs none.
"""

from __future__ import annotations

import os
from importlib import import_module

from gdbext.engine.record import Record
from gdbext.errors import ForeignArchitecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.engine.arch.base import Architecture

_MODULES = {62: "gdbext.engine.arch.x86_64.architecture"}
"""e_machine (elf.h) → the module whose ARCHITECTURE it is."""
_MACHINES = {"x86_64": 62}
"""Name (uname -m) → e_machine."""
_GDB_NAMES = {"i386:x86-64": 62}
"""Beginnings of gdb's names (bfd/cpu-i386.c) → e_machine."""
_TITLES = {3: "x86", 62: "x86-64", 183: "aarch64"}
"""Titles for messages about files of any machine."""


def names() -> tuple[str, ...]:
    """The names of all architectures."""
    return tuple(_MACHINES)


def supported(machine: int) -> bool:
    """Processes of that e_machine can be read."""
    return machine in _MODULES


def by_machine(machine: int) -> Architecture:
    """The architecture of an ELF file's e_machine. Raises ForeignArchitecture."""
    if machine not in _MODULES:
        raise foreign(f"processes of ELF machine {machine} cannot be read")
    found: Architecture = import_module(_MODULES[machine]).ARCHITECTURE
    return found


def by_name(name: str) -> Architecture:
    """The architecture that the kernel calls so. Raises ForeignArchitecture."""
    if name not in _MACHINES:
        raise foreign(f"processes of architecture {name} cannot be read")
    return by_machine(_MACHINES[name])


def own() -> Architecture | None:
    """The architecture of this machine, None where it is of another kind."""
    name = os.uname().machine
    return by_name(name) if name in _MACHINES else None


def by_gdb_name(name: str) -> Architecture | None:
    """The architecture that gdb calls so, None for one that cannot be read."""
    return next((by_machine(machine) for prefix, machine in _GDB_NAMES.items() if name.startswith(prefix)), None)


def foreign(what: str) -> ForeignArchitecture:
    """The error for a process or core that cannot be read, with what could be."""
    titles = ", ".join(machine_title(machine) for machine in _MODULES)
    return ForeignArchitecture(what, why=f"only {titles} is supported now")


def machine_title(machine: int) -> str:
    """Name the architecture of an e_machine for people."""
    return _TITLES.get(machine, f"machine {machine}")


class OwnCalls(Record):
    """The numbers of setgroups(2) and capset(2)."""

    setgroups: int
    capset: int


_NUMBERS = {"x86_64": OwnCalls(116, 126), "aarch64": OwnCalls(159, 91)}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (Linux 6.1), by the machine of uname(2)."""


def own_calls() -> OwnCalls | None:
    """Those of this machine, None where it is of another kind."""
    return _NUMBERS.get(os.uname().machine)
