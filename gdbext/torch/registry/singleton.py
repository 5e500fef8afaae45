"""Where ``c10::Dispatcher`` is: found by symbols and by the code of one exported function, without any layout."""

from __future__ import annotations

from gdbext.arch.returned_address import returned_address
from gdbext.errors import TargetError
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.symbols import REAL_SINGLETON, SINGLETON, SINGLETON_GUARD, SINGLETON_REFERENCE

_FUNCTION = 256
"""Bytes of ``c10::Dispatcher::realSingleton`` at most, which constructs the dispatcher or returns it."""


def find_singleton(memory: Memory, symbolizer: Symbolizer) -> int:
    """Address of the dispatcher: its own local symbol, else the exported reference to it (which the dynamic loader may
    have put into another library), else what the exported function returns.

    Raises TargetError where no symbol leads there and where it is not constructed yet, MemoryFault.
    """
    guard = SINGLETON_GUARD.address(symbolizer)
    if guard is not None and not memory.u8(guard):
        raise not_yet("the guard of its static variable is not set")
    address = SINGLETON.address(symbolizer)
    if address is not None:
        return address
    place = SINGLETON_REFERENCE.address(symbolizer)
    address = (memory.try_u64(place) if place is not None else None) or _returned(memory, symbolizer)
    if not address:
        raise TargetError(
            "the dispatcher cannot be found: no symbol leads to c10::Dispatcher",
            why="libtorch_cpu.so is stripped, or its file cannot be used (see dispatch-info)",
            help="use the release wheel's libraries, or give --sysroot with the files of the target",
        )
    return address


def _returned(memory: Memory, symbolizer: Symbolizer) -> int | None:
    """Where the function that makes the dispatcher says that it is."""
    function = symbolizer.address_of(REAL_SINGLETON.examples[0], REAL_SINGLETON.library)
    code = memory.try_read(function, _FUNCTION) if function is not None else None
    return returned_address(memory.architecture, code, function) if code and function is not None else None


def not_yet(detail: str) -> TargetError:
    """The error for a process whose dispatcher is still being made."""
    return TargetError(
        f"the dispatcher does not exist yet: {detail}",
        why="the process is still loading libtorch_cpu.so: its static initialisers have not run",
        help="try again when torch is imported",
    )
