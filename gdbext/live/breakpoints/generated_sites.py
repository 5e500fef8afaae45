"""Where to stop for kernels that Inductor generated, and for the functions by which its code calls torch.

A kernel in C++ has a library of its own, in which its function is called "kernel", or, in a model that was compiled
ahead of time, its own name; ``aoti_torch_…`` are functions of libtorch (torch/csrc/inductor/aoti_torch/c/shim.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gdbext.errors import NotTorch, UsageError
from gdbext.model.record import Record
from gdbext.torch.compile.inductor_source import CPP, TRITON
from gdbext.torch.compile.shim_signatures import PREFIX as SHIM

if TYPE_CHECKING:
    from gdbext.inspection.session import Session


class GeneratedFunction(Record):
    """``what`` says where it is from: a C++ file or a library."""

    name: str
    address: int
    what: str


def is_generated(pattern: str) -> bool:
    """The pattern means such kernels and functions, not operators."""
    return pattern.startswith((CPP, TRITON, SHIM))


def check_pattern(pattern: str, where: str) -> None:
    """Raises UsageError for a place that they do not have, and for kernels without a function on the CPU."""
    if where != "kernel":
        raise UsageError(f"{pattern} has no {where}", why="it is no operator", help=f"dispatch-break kernel {pattern}")
    if pattern.startswith(TRITON):
        raise UsageError(
            f"{pattern} is a kernel of Triton",
            why="it runs on a device, and Triton's launchers all are one function on the CPU",
            help="stop at a line of Python instead, or at the kernel of an operator",
        )


def generated_functions(session: Session, pattern: str) -> list[GeneratedFunction]:
    """Those that are loaded; none without a Python. Raises MemoryFault."""
    found = [GeneratedFunction(*each) for each in _kernels(session, pattern)]
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


def not_loaded(pattern: str) -> UsageError:
    """What is said as long as there is none."""
    return UsageError(f"no kernel {pattern} is loaded", help="Inductor may not have compiled it yet")
