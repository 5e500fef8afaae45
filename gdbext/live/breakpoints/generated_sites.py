"""Where to stop for kernels that Inductor generated, and for the functions by which its code calls torch.

A kernel in C++ has a library of its own, in which its function is called "kernel", or, in a model that was compiled
ahead of time, its own name; ``aoti_torch_…`` are functions of libtorch (torch/csrc/inductor/aoti_torch/c/shim.h). A
kernel of Triton runs on a device: the place to stop is the driver's function that launches it, which gets its handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gdbext.errors import NotTorch, UsageError
from gdbext.live.breakpoints.conditions import ALWAYS, Equals, Register
from gdbext.model.record import Record
from gdbext.torch.compile.inductor_source import CPP, TRITON
from gdbext.torch.compile.shim_signatures import PREFIX as SHIM
from gdbext.torch.compile.triton_kernels import LAUNCHING, triton_kernels

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.breakpoints.conditions import Condition


class GeneratedFunction(Record):
    """``what`` says where it is from: a C++ file or a library. ``condition``: the call is one for this kernel."""

    name: str
    address: int
    what: str
    condition: Condition = ALWAYS


def is_generated(pattern: str) -> bool:
    """The pattern means such kernels and functions, not operators."""
    return pattern.startswith((CPP, TRITON, SHIM))


def check_pattern(pattern: str, where: str) -> None:
    """Raises UsageError for a place that they do not have."""
    if where != "kernel":
        instead = f"dispatch-break kernel {pattern}"
        raise UsageError(f"{pattern} has no {where}", why="it is not an operator", help=instead)


def generated_functions(session: Session, pattern: str) -> list[GeneratedFunction]:
    """Those that are loaded; none without a Python. Raises MemoryFault."""
    found = [GeneratedFunction(*each) for each in _kernels(session, pattern)]
    found += _launches(session, pattern) if pattern.startswith(TRITON) else []
    if not found and pattern.isidentifier():
        exported = session.symbolizer.symbol_of(pattern)
        if exported is not None:
            module, symbol = exported
            found.append(GeneratedFunction(pattern, module.base + symbol.vaddr, module.name))
    return found


def _kernels(session: Session, pattern: str) -> Sequence[tuple[str, int, str]]:
    try:
        kernels = session.generated_kernels.all
    except NotTorch:
        return ()
    return [(each.name, each.address, each.source) for each in kernels if fnmatchcase(each.name, pattern)]


def _launches(session: Session, pattern: str) -> list[GeneratedFunction]:
    """Where kernels of Triton are launched that were launched before: until then, they have no handle."""
    if session.python is None:
        return []
    arguments = [Register(name) for name in session.memory.architecture.argument_registers]
    return [
        GeneratedFunction(kernel.name, address, f"its launch, in {function}", Equals(arguments[place], handle))
        for kernel in triton_kernels(session.python)
        if fnmatchcase(kernel.name, pattern)
        for function, place in LAUNCHING
        for address in [session.symbolizer.address_of(function)]
        if address is not None
        for handle in kernel.handles
    ]


def not_loaded(pattern: str) -> UsageError:
    """What is said as long as there is none."""
    help = "Inductor may not have compiled it yet"
    if pattern.startswith(TRITON):
        help += "; it has no handle before its first launch, which is not seen"
    return UsageError(f"no kernel {pattern} is loaded", help=help)
