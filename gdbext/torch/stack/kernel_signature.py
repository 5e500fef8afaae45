"""Reads what an unboxed kernel takes and returns from the name of the function that the dispatcher calls.

``c10::impl::wrap_kernel_functor_unboxed_<Functor, Return (Parameters)>::call(OperatorKernel*, DispatchKeySet, …)``
(ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h, 2.13.0): extensions have no function of their own for an
operator, whose name would say it.

The parameters of a C++ function by its demangled name.

The words that a function was given, where it keeps them while its frame is on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.engine.arch.base import Slot
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.record import Record
from gdbext.engine.unwind.unwinder import NativeStack

_OPENING, _CLOSING = "<([{", ">)]}"


def parameters(demangled: str) -> list[str]:
    """The types of its parameters: those in the last parentheses that stand outside of template arguments.

    [] for a function without any, and for a name without parentheses.
    """
    end = demangled.rfind(")")
    depth = 0
    for start in range(end, -1, -1):
        letter = demangled[start]
        depth += (letter in _CLOSING) - (letter in _OPENING)
        if depth == 0 and end >= 0:
            return split_types(demangled[start + 1 : end])
    return []


def split_types(text: str) -> list[str]:
    """``A, B<C, D>`` are two."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*found, last] if last else found


_CLASS = "c10::impl::wrap_kernel_functor_unboxed_<"
_LEADING = ["c10::OperatorKernel*", "c10::DispatchKeySet"]
_IN_REGISTERS = ("void", "bool", "long", "double")
_THROUGH_POINTER = (
    "at::Tensor", "c10::Scalar", "c10::SymInt", "std::tuple<", "std::vector<", "std::__cxx11::basic_string<",
)  # fmt: skip
"""Those with a destructor: the first argument points to where the caller has room for them (Itanium C++ ABI 3.1.3)."""


class KernelSignature(Record):
    """``hidden``: the result goes through a pointer before all arguments."""

    parameters: tuple[str, ...]
    hidden: bool


def kernel_signature(names: Sequence[str]) -> KernelSignature | None:
    """The signature of a function with these mangled names; None where they do not say it, or not the same."""
    found = {_of(demangle(name)) for name in names}
    return found.pop() if len(found) == 1 else None


def _of(name: str) -> KernelSignature | None:
    inside = name[len(_CLASS) : name.rfind(">::call(")] if name.startswith(_CLASS) else ""
    types, taken = split_types(inside), parameters(name)
    if not types or taken[:2] != _LEADING:
        return None
    hidden = _is_hidden(types[-1])
    return None if hidden is None else KernelSignature(tuple(taken[2:]), hidden)


def _is_hidden(function: str) -> bool | None:
    """True for a hidden result of the type ``Return (Parameters)``; None for a result that may be either."""
    result = function.partition(" (")[0]
    if result.endswith("&") or result in _IN_REGISTERS:
        return False
    return True if result.startswith(_THROUGH_POINTER) else None


class KeptArguments:
    """Those of ``function`` in frame ``level``."""

    def __init__(self, memory: Memory, code: FunctionCode, stack: NativeStack, level: int, function: Function) -> None:
        self._memory = memory
        self._stack = stack
        self._level = level
        self._frame = stack.frames[level]
        architecture = memory.architecture
        self._names = architecture.argument_registers
        self._float_names = architecture.float_argument_registers
        if self._frame.pc == function.start:
            self._places = {name: SavedArgument(name) for name in (*self._names, *self._float_names)}
        else:
            self._places = saved_arguments(architecture, code.of(function).instructions, self._frame.pc)

    def word(self, slot: Slot, size: int) -> int | None:
        """A word of which the low ``size`` bytes matter; None where they are not known any more."""
        if slot.offset is not None:
            return self._memory.try_u64(self._frame.cfa + slot.offset)
        if slot.float_register is not None:
            name = self._float_names[slot.float_register]
        elif slot.register is not None:
            name = self._names[slot.register]
        else:
            return None
        holder = self._places.get(name)
        if holder is None or holder.size < size:
            return None
        return holder.word(self._register, self._memory.try_u64, self._frame.cfa)

    def _register(self, name: str) -> int | None:
        if name in self._float_names:
            return self._stack.floats().get(name) if self._level == 0 else None
        return self._frame.registers.get(name)
