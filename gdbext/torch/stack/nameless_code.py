"""Code without symbols: which libraries can have kernels in them, and what part a kernel's code plays on a stack."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.engine.process.modules import Module
from gdbext.engine.record import Record
from gdbext.engine.unwind.unwinder import NativeStack
from gdbext.torch.assumed_symbols import IMPORTS_OF_USERS
from gdbext.torch.registry.dispatch_table import KernelEntry
from gdbext.torch.stack.roles import PLAIN, FunctionRole, Role

_OTHERS = ("libtorch", "libc10", "libc.so", "libc-", "libstdc++", "libm.so", "libgcc_s", "ld-linux", "libpython",
           "python", "libgomp", "[vdso]")  # fmt: skip
"""Beginnings of the names of torch's own libraries, and of those that know nothing of it and are on every stack."""


class UnreadFrames(Record):
    """Frames from ``first`` to ``last`` (innermost first) of one library, of which none has a name."""

    first: int
    last: int
    module: str

    @property
    def text(self) -> str:
        """``frames #2 to #10 of ops.so cannot be read: passes may be missing``."""
        frames = f"frame #{self.first}" if self.first == self.last else f"frames #{self.first} to #{self.last}"
        return f"{frames} of {self.module} cannot be read: passes may be missing"


class DispatcherLinks:
    """Tells by what a library imports whether it can register kernels and call operators."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def uses_dispatcher(self, module: Module) -> bool:
        """It is a user's library or program that is linked with torch's."""
        known = self._known.get(module.start)
        if known is None:
            known = self._known[module.start] = not module.name.startswith(_OTHERS) and _imports_c10(module)
        return known


def _imports_c10(module: Module) -> bool:
    image = module.image
    names = image.sections.get(".dynstr") if image is not None else None
    text = image.read(names.address, names.size) if image is not None and names is not None else None
    return text is not None and any(name.encode() in text for name in IMPORTS_OF_USERS)


def role_of_entry(entry: KernelEntry | None) -> FunctionRole:
    """The part that a function of registered kernels plays; PLAIN for any other function."""
    if entry is None:
        return PLAIN
    if not entry.boxed:
        return FunctionRole(Role.UNBOXED_BODY if entry.jumped_to else Role.UNBOXED_KERNEL)
    if entry.jumped_to:
        return FunctionRole(Role.BOXED_BODY)
    return FunctionRole(Role.BOXED_FROM_UNBOXED if entry.has_unboxed else Role.BOXED_KERNEL)


def stretches(stack: NativeStack, levels: Sequence[int], links: DispatcherLinks) -> list[UnreadFrames]:
    """The frames without names around these levels, each stretch once."""
    found: list[UnreadFrames] = []
    for level in levels:
        if found and level <= found[-1].last:
            continue
        module = stack.frames[level].module
        if module is not None and links.uses_dispatcher(module):
            first = _end(stack, level, module, -1)
            found.append(UnreadFrames(first, _end(stack, level, module, 1), module.name))
    return found


def _end(stack: NativeStack, level: int, module: Module, step: int) -> int:
    """The last frame in that direction that has no name and is of the same library."""
    while 0 <= level + step < len(stack):
        frame = stack.frames[level + step]
        if frame.module is not module or stack.function(level + step) is not None:
            break
        level += step
    return level
