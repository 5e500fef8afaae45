"""The stacks of known bugs as the pages of their entries print them: made reports, for programs that hang by chance, on
hardware, or with versions that are not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gdbext.known.signatures import ThreadFacts

SITE = "/env/lib/python3.13/site-packages"
STDLIB = "/usr/lib/python3.13"
NOTHING: Mapping[str, str] = MappingProxyType({})


class Stuck(NamedTuple):
    """A process as its page shows it. ``bug``: the id of the entry that fits, or a name."""

    bug: str
    threads: Sequence[ThreadFacts]
    versions: Mapping[str, str] = NOTHING
    environment: Mapping[str, str] = NOTHING
    relations: Sequence[str] = ()
    architecture: str = "x86_64"


def thread(label: str, waits_for: str = "", python: str = "", native: str = "", **facts: Any) -> ThreadFacts:
    """A thread; ``python`` has lines "file function", ``native`` lines "library function", the innermost first."""
    frames = [line.split(None, 1) for line in native.strip().splitlines()]
    stack = [((lambda name=name: (name,)), library) for library, name in frames]
    lines = [line.split() for line in python.strip().splitlines()]
    return ThreadFacts(
        label, [(file, function) for file, function in lines], waits_for, facts.pop("missing_workers", ""),
        lambda: stack, **facts,
    )  # fmt: skip


# joblib/threadpoolctl#239, description: the thread with the GIL, and that which called dl_iterate_phdr.
SCANNING = f"""
{SITE}/threadpoolctl.py ThreadpoolController._find_libraries_with_dl_iterate_phdr
{SITE}/threadpoolctl.py ThreadpoolController.__init__
"""
HOLDING = """
libc.so.6 dl_iterate_phdr
libgcc_s.so.1 _Unwind_Find_FDE
_multiarray_umath.cpython-313-x86_64-linux-gnu.so array_add
"""
TEAM = """
libc.so.6 syscall
libgomp-98.so.1 ??
libtorch_cpu.so at::parallel_for
"""

STACKS = [
    Stuck(
        "joblib/threadpoolctl#239", [thread("holds", "loader-lock", native=HOLDING), thread("scans", "gil", SCANNING)]
    ),
    Stuck("gcc#52303", [thread("MainThread", "worker-pool", native=TEAM, missing_workers="OpenMP")]),
]
ALIKE = [
    Stuck("no GIL", [thread("holds", "loader-lock"), thread("scans", "io", SCANNING)]),
    Stuck("another function", [thread("holds", "loader-lock"), thread("scans", "gil", "/a/threadpoolctl.py other")]),
    Stuck("another lock", [thread("holds", "mutex"), thread("scans", "gil", SCANNING)]),
    Stuck("another runtime", [thread("m", "worker-pool", native="libiomp5.so f", missing_workers="OpenMP")]),
    Stuck("workers are there", [thread("m", "worker-pool", native=TEAM)]),
]
