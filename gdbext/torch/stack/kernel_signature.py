"""What an unboxed kernel takes and returns, by the name of the function that the dispatcher calls.

``c10::impl::wrap_kernel_functor_unboxed_<Functor, Return (Parameters)>::call(OperatorKernel*, DispatchKeySet, …)``
(ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h, 2.13.0): extensions have no function of their own for an
operator, whose name would say it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.formats.symbols.demangle import demangle
from gdbext.model.record import Record
from gdbext.torch.stack.cpp_signature import parameters, split_types

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
    """That of a function with these mangled names; None where they do not say it, or not the same."""
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
    """Of the type ``Return (Parameters)``; None for a result that may be either."""
    result = function.partition(" (")[0]
    if result.endswith("&") or result in _IN_REGISTERS:
        return False
    return True if result.startswith(_THROUGH_POINTER) else None
