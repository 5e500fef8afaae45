"""Which architectures there are: by the machine of an ELF file, by name, by what a debugger calls them.

Nothing of an architecture is imported before it is asked for: a launcher that only checks a process needs none.
"""

from __future__ import annotations

from importlib import import_module

from gdbext.errors import ForeignArchitecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.arch.base import Architecture

_MODULES = {62: "gdbext.arch.x86_64.architecture"}
"""e_machine (elf.h) → the module whose ARCHITECTURE it is."""
_MACHINES = {"x86_64": 62}
"""Name (uname -m) → e_machine."""
_GDB_NAMES = {"i386:x86-64": 62}
"""How gdb's name begins (bfd/cpu-i386.c) → e_machine."""
_TITLES = {3: "x86", 62: "x86-64", 183: "aarch64"}
"""For messages about files of any machine."""


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


def by_gdb_name(name: str) -> Architecture | None:
    """The architecture that gdb calls so, None for one that cannot be read."""
    return next((by_machine(machine) for prefix, machine in _GDB_NAMES.items() if name.startswith(prefix)), None)


def foreign(what: str) -> ForeignArchitecture:
    """The error for a process or core that cannot be read, with what could be."""
    titles = ", ".join(machine_title(machine) for machine in _MODULES)
    return ForeignArchitecture(what, why=f"only {titles} is supported now")


def machine_title(machine: int) -> str:
    """A machine in words."""
    return _TITLES.get(machine, f"machine {machine}")
