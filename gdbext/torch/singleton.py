"""Finds the dispatcher (c10::Dispatcher::realSingleton), for which no layout is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.process.code_reader import returned_address
from gdbext.errors import TargetError
from gdbext.torch.assumed_symbols import REAL_SINGLETON, SINGLETON, SINGLETON_GUARD, SINGLETON_REFERENCE

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer

_FUNCTION = 256
"""Bytes of ``c10::Dispatcher::realSingleton`` at most, which constructs the dispatcher or returns it."""


def find_singleton(memory: Memory, symbolizer: Symbolizer) -> int:
    """Address of the dispatcher: its own local symbol, else the exported reference to it (which the dynamic loader may
    have put into another library), else what the exported function returns.

    Raises TargetError where no symbol leads there and where it is not constructed yet, MemoryFault.
    """
    guard = SINGLETON_GUARD.address(symbolizer)
    if guard and not memory.u8(guard):
        raise not_yet("the guard of its static variable is not set")
    address = SINGLETON.address(symbolizer)
    if address:
        return address
    place = SINGLETON_REFERENCE.address(symbolizer)
    address = (place and memory.try_u64(place)) or _returned(memory, symbolizer)
    if not address:
        raise TargetError(
            "the dispatcher cannot be found: no symbol leads to c10::Dispatcher",
            why="libtorch_cpu.so is stripped, or its file cannot be used (see dispatch-info)",
            help="use the release wheel's libraries, or give --sysroot with the files of the target",
        )
    return address


def _returned(memory: Memory, symbolizer: Symbolizer) -> int:
    """The address of the dispatcher that the function which makes it gives; 0 if unknown."""
    function = symbolizer.address_of(REAL_SINGLETON.examples[0], REAL_SINGLETON.library)
    code = memory.try_read(function, _FUNCTION) if function else b""
    if not code:
        return 0

    return returned_address(memory.architecture, code, function)


def not_yet(detail: str) -> TargetError:
    """The error for a process whose dispatcher is still being made."""
    return TargetError(
        f"the dispatcher does not exist yet: {detail}",
        why="the process is still loading libtorch_cpu.so: its static initialisers have not run",
        help="try again when torch is imported",
    )
