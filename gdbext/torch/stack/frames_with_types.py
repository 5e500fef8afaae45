"""Frames of a dispatch call whose own names say how the operator's arguments are passed: layers and the kernel's body.

A build without optimisation has ``Dispatcher::call<…>`` and ``KernelFunction::call<…>`` as functions, most builds
``BoxedKernelWrapper<…>::call``, and the kernel's own function where its wrapper did not leave by a jump. Each takes the
operator's arguments last (ATen/core/dispatch/Dispatcher.h, boxing/KernelFunction_impl.h, boxing/impl/boxing.h).
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.record import Record
from gdbext.engine.unwind.unwinder import NativeStack
from gdbext.torch.assumed_symbols import (
    BOXED_WRAPPER,
    DISPATCHER_CALL,
    DISPATCHER_REDISPATCH,
    KERNEL_FUNCTION,
    KERNEL_MACHINERY,
    KERNEL_MACHINERY_PARTS,
    RUNTIME_FUNCTOR_CLASS,
)
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.kernel_signature import parameters

_LAYERS = (BOXED_WRAPPER, DISPATCHER_CALL, DISPATCHER_REDISPATCH, KERNEL_FUNCTION)
_BETWEEN = 8
"""Frames between a kernel's entry and its body, at most, without optimisation."""
_KEYSET = "c10::DispatchKeySet"


class TypedFrame(Record):
    """``before``: words before the arguments, the last of which is "keyset" where the function takes one."""

    level: int
    before: tuple[str, ...]
    kinds: tuple[str, ...]


def frames_with_types(stack: NativeStack, call: DispatchCall, count: int) -> Iterator[TypedFrame]:
    """Those of a call of an operator with ``count`` arguments."""
    for level in call.header[1:] if call.hosted or call.elided else call.header:
        function = stack.function(level)
        if function is not None and any(family.begins(function.name) for family in _LAYERS):
            typed = _typed(level, function.name, count)
            if typed is not None:
                yield typed
    body = _body(stack, call)
    if body is not None:
        function = stack.function(body)
        typed = _typed(body, function.name, count) if function is not None else None
        if typed is not None and typed.before in ((), ("keyset",)):
            yield typed


def _typed(level: int, mangled: str, count: int) -> TypedFrame | None:
    """By the function's name; None where its last parameters cannot be the operator's."""
    taken = parameters(demangle(mangled).split(" [clone ", 1)[0])
    if len(taken) < count or ".part." in mangled or ".isra." in mangled or ".constprop." in mangled:
        return None
    leading = taken[: len(taken) - count]
    if _KEYSET in leading[:-1]:
        return None
    member = ["this"] if mangled.startswith("_ZNK") else []
    before = (*member, *("keyset" if kind == _KEYSET else kind for kind in leading))
    return TypedFrame(level, before, tuple(kind.replace("&&", "&") for kind in taken[len(leading) :]))


def _body(stack: NativeStack, call: DispatchCall) -> int | None:
    """The frame of the kernel's own function: the first one further in that is not part of its wrapper."""
    if call.kernel is None:
        return None
    for level in range(call.kernel, max(call.kernel - _BETWEEN, -1), -1):
        function = stack.function(level)
        if function is None:
            return None
        if not _is_machinery(function.name):
            return level
    return None


def _is_machinery(name: str) -> bool:
    return name.startswith(KERNEL_MACHINERY) or any(
        part in name for part in (RUNTIME_FUNCTOR_CLASS, *KERNEL_MACHINERY_PARTS)
    )
