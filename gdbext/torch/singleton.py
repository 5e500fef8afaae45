"""Finds the dispatcher (c10::Dispatcher::realSingleton), which needs no layout."""

from __future__ import annotations

from gdbext.engine.process.code_reader import returned_address
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import TargetError
from gdbext.torch.assumed_symbols import REAL_SINGLETON, SINGLETON, SINGLETON_GUARD, SINGLETON_REFERENCE


def find_singleton(memory: Memory, symbolizer: Symbolizer) -> int:
    """Address of the c10::Dispatcher: by its own local symbol, else by the exported reference to it (which the dynamic
    loader may have put into another library), else as what the code of the exported function returns. Raises
    TargetError if no symbol leads there or it is not constructed yet, MemoryFault."""
    guard = SINGLETON_GUARD.address(symbolizer)
    if guard and not memory.u8(guard):
        raise not_yet("the guard of its static variable is not set")
    address = SINGLETON.address(symbolizer)
    if address:
        return address
    reference = SINGLETON_REFERENCE.address(symbolizer)
    address = (reference and memory.try_u64(reference)) or 0
    function = 0 if address else symbolizer.address_of(REAL_SINGLETON.examples[0], REAL_SINGLETON.library)
    code = memory.try_read(function, 256) if function else b""  # realSingleton() is shorter
    if code:
        address = returned_address(memory.architecture, code, function)
    if not address:
        raise TargetError(
            "the dispatcher cannot be found: no symbol leads to c10::Dispatcher",
            why="libtorch_cpu.so is stripped, or its file cannot be used (see dispatch-info)",
            help="use the release wheel's libraries, or give --sysroot with the files of the target",
        )
    return address


def not_yet(detail: str) -> TargetError:
    """The error for a process whose dispatcher is not constructed yet."""
    return TargetError(
        f"the dispatcher does not exist yet: {detail}",
        why="the process is still loading libtorch_cpu.so: its static initializers have not run",
        help="try again once torch is imported",
    )
