"""PyTorch's fallbacks that leave by a tail call, what runs in their place, and the call of the Python dispatcher.

A fallback that redispatches with everything below its own key, or that ends in a virtual call, is not on the stack any
more while that runs. It counts as entered if its keyset was read and what runs is what it is known to call. The Python
dispatcher (torch/csrc/PyInterpreter.cpp, ``python_dispatcher``, torch 2.0 to 2.13) calls
``Dispatcher::callBoxedForDispatchKey``: the kernel is that of a key which Python names, and the keyset one that the
call makes anew of the arguments and the thread's state, so that it may have keys of a higher priority.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.vocabulary import Certainty
from gdbext.torch import assumed_symbols

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.dispatch_calls import DispatchCall
    from gdbext.torch.stack.kernel_match import KernelMatcher

_PYTHON_DISPATCHER = "PythonDispatcher"
_VIRTUAL_CALLS = (
    (assumed_symbols.AUTOGRAD_KERNELS[1:], assumed_symbols.AUTOGRAD_KERNELS[1:]),
    ((assumed_symbols.PYTHON_DISPATCHERS_FALLBACK,), (assumed_symbols.PYTHON_DISPATCHERS_CALL,)),
)
"""Parts of the names of kernels that end in a virtual call, and of the functions that they call."""


class RecoveredCall:
    """What is known of a dispatch call. ``confidence`` is that of the keyset."""

    def __init__(self, operator: Operator | None = None) -> None:
        self.operator = operator
        self.keyset: int | None = None
        self.index: int | None = None
        self.kernel: KernelFunction | None = None
        self.entry = 0
        """The one of the kernel's functions that runs; 0 if none does yet."""
        self.confidence = Certainty.UNKNOWN
        self.evidence: list[str] = []


class KnownFallbacks:
    """Recognizes such fallbacks on stacks of one process."""

    def __init__(self, dispatcher: Dispatcher, memory: Memory, matcher: KernelMatcher, sites: CallSites) -> None:
        self._dispatcher = dispatcher
        self._memory = memory
        self._matcher = matcher
        self._sites = sites
        self._virtual_calls: dict[tuple[KernelFunction, int], bool] = {}
        """Whether a kernel ends in a virtual call of the function with that start."""

    def left_for_frame(self, stack: NativeStack, level: int, operator: Operator, keyset: int) -> bool:
        """The kernel for ``keyset`` is a fallback that left by a tail call for what runs in frame ``level``: a virtual
        function of its own, or the kernel for everything below its key."""
        for _ in range(4):  # in a row, at most one for each kind (negation, conjugation, zeros, tracing)
            index, kernel = operator.kernel_for(keyset)
            if self._ends_in_virtual_call(stack, level, kernel):
                return True
            if not kernel.valid or not self.goes_below_its_key(kernel):
                return False
            keyset = self._below(keyset, index)
            if not keyset or not self._dispatcher.keys.can_be_keyset(keyset):
                return False
            if self._matcher.matches_frame(stack, level, operator.kernel_for(keyset)[1]):
                return True
        return False

    def goes_below_its_key(self, kernel: KernelFunction) -> bool:
        """It is known to redispatch with everything below its own key."""
        return _is_below(self._dispatcher.kernels.name(kernel).function)

    def _ends_in_virtual_call(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """The kernel leaves by a virtual call of the function of frame ``level``."""
        function = stack.function(level)
        key = kernel, function.start if function else 0
        if key not in self._virtual_calls:
            name = self._dispatcher.kernels.name(kernel).function
            texts = " ".join(function.demangled) if function else ""
            self._virtual_calls[key] = any(
                any(part in name for part in kernels) and any(part in texts for part in called)
                for kernels, called in _VIRTUAL_CALLS
            )
        return self._virtual_calls[key]

    def below_callers_key(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, caller: RecoveredCall
    ) -> None:
        """Accept the keyset below the caller's key, if that is a fallback that is known to redispatch so."""
        function = stack.function(call.header[0])
        if function and any(map(_is_below, function.demangled)):
            self.below_key_of(caller, stack, call, result)

    def below_key_of(
        self, caller: RecoveredCall, stack: NativeStack, call: DispatchCall, result: RecoveredCall
    ) -> None:
        """Accept the keyset of ``caller`` below its own key, if the kernel for that is what runs."""
        operator = result.operator
        if not operator or call.kernel is None or caller.keyset is None or caller.index is None:
            return
        value = self._below(caller.keyset, caller.index)
        if not self._dispatcher.keys.can_be_keyset(value):
            return
        index, kernel = operator.kernel_for(value)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if entry or self.left_for_frame(stack, call.kernel, operator, value):
            result.evidence.append(f"keyset {value:#x}: what is below the key of the fallback that goes on here")
            accept(result, value, index, kernel, Certainty.VERIFIED)
            result.entry = entry

    def _below(self, keyset: int, index: int) -> int:
        """The rest of ``keyset`` below the key at ``index``."""
        keys = self._dispatcher.keys
        key = keys.key_of_index(index)
        value = keyset & keys.full_after(key)
        if key == _PYTHON_DISPATCHER:  # FULL_AFTER keeps it, and its fallback removes it
            value &= ~keys.bits_of(key)
        return value

    def chosen_by_python(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, around: RecoveredCall | None
    ) -> bool:
        """Accept the key that Python named: the highest one of the keyset around it, but for its own, if the kernel of
        that key is what runs. Raises GdbextError."""
        operator, keys = result.operator, self._dispatcher.keys
        if not operator or call.kernel is None or not around or around.operator is not operator:
            return False
        if not is_python_dispatcher(stack, call.header[0]) or around.keyset is None:
            return False
        wanted = around.keyset & ~keys.bits_of(_PYTHON_DISPATCHER)
        if not wanted:
            return False
        index, kernel = operator.kernel_for(wanted)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if not entry and not self.left_for_frame(stack, call.kernel, operator, wanted):
            return False
        result.evidence.append(f"Python was asked for {keys.key_of_index(index)}, and its kernel is what runs")
        # a boxed call (BoxedKernel_impl.h) passes the keyset behind the operator's handle
        _, handle, keyset = self._sites.arguments(stack, call.header[-1], 3)
        is_handle = handle and not handle & 7 and self._memory.try_u64(handle) == operator.address
        if not keyset or not is_handle or not keys.can_be_keyset(keyset):
            keyset = None
            result.evidence.append("which keyset the Python dispatcher's call passes is not known")
        accept(result, keyset, index, kernel, Certainty.INFERRED if keyset is None else Certainty.EXACT)
        result.entry = entry
        return True


def is_python_dispatcher(stack: NativeStack, level: int) -> bool:
    """The frame's function asks the Python dispatcher which kernel is meant."""
    function = stack.function(level)
    return bool(function and _asks_python(function.names))


@lru_cache(maxsize=1024)
def _asks_python(names: tuple[str, ...]) -> bool:
    """Cached: it is asked of the same few functions at each of thousands of levels of a recursion."""
    return any(assumed_symbols.PYTHON_DISPATCHERS_CALL in demangle(name) for name in names)


def accept(
    result: RecoveredCall, keyset: int | None, index: int, kernel: KernelFunction, confidence: Certainty
) -> None:
    """Set what was found of the keyset, with the table entry that it leads to."""
    result.keyset, result.index, result.kernel, result.confidence = keyset, index, kernel, confidence
    result.evidence.append(
        f"table index {index}: boxed {kernel.boxed:#x}, unboxed {kernel.unboxed:#x}, functor {kernel.functor:#x}"
    )


def _is_below(name: str) -> bool:
    return any(known in name for known in assumed_symbols.KERNELS_BELOW_THEIR_KEY)
