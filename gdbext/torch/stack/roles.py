"""What part a frame plays in the dispatcher, told by the names of its function.

The names are the mangled ones: a prefix of a mangled name is unambiguous, while in the demangled text
``at::_ops::mm::call`` may as well be a template argument of something else. The functions are those of
aten/src/ATen/core/dispatch/Dispatcher.h, aten/src/ATen/core/boxing/KernelFunction_impl.h,
BoxedKernel_impl.h and impl/boxing.h, impl/make_boxed_from_unboxed_functor.h (torch 2.0 to 2.13).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gdbext.process.symbols import Function


class Role(Enum):
    """The part a function plays. Values are what people see in the ``role`` of a native frame."""

    OPERATOR = "operator"
    """``at::_ops::NAME::call`` / ``redispatch``: Dispatcher::call inlined behind a static handle."""
    HANDLE = "handle"
    """``OperatorHandle`` / ``TypedOperatorHandle`` methods that forward to the Dispatcher."""
    DISPATCHER = "dispatcher"
    """``c10::Dispatcher``'s own call, redispatch, callBoxed, redispatchBoxed."""
    SLOW_PATH = "dispatcher (profiled)"
    """``callWithDispatchKeySlowPath``: the same call while RecordFunction callbacks are active."""
    LOOKUP = "lookup"
    """``OperatorEntry::lookup``."""
    ENTERING = "entering"
    """Finding or initialising the operator's handle."""
    BOXING = "boxing"
    """Layers between the table entry and the kernel."""
    UNBOXED_KERNEL = "kernel"
    """``wrap_kernel_functor_unboxed_``: the unboxed entry of a kernel."""
    BOXED_FROM_UNBOXED = "kernel (boxed entry)"
    """``make_boxed_from_unboxed_functor``: the boxed entry of an unboxed kernel."""
    BOXED_KERNEL = "boxed kernel"
    """``BoxedKernel::make_boxed_function<&f>`` and the thunks of boxed functors."""
    BOXED_BODY = "boxed kernel body"
    """A function with a boxed kernel's own signature, or a boxed functor's operator()."""
    UNBOXED_BODY = "kernel body"
    """A function whose first parameter is a DispatchKeySet, as kernels above the backends have it."""
    PLAIN = ""

    @property
    def opens(self) -> bool:
        """A pass through the dispatcher begins here."""
        return self in (Role.OPERATOR, Role.HANDLE, Role.DISPATCHER)

    @property
    def is_layer(self) -> bool:
        """Between the dispatcher and the kernel, part of neither."""
        return self in (Role.BOXING, Role.SLOW_PATH)

    @property
    def is_kernel_entry(self) -> bool:
        """Code that a dispatch table can point to, or that such code tail-calls."""
        return self in _KERNEL_ENTRIES


_KERNEL_ENTRIES = frozenset(
    (Role.UNBOXED_KERNEL, Role.BOXED_FROM_UNBOXED, Role.BOXED_KERNEL, Role.BOXED_BODY, Role.UNBOXED_BODY)
)


@dataclass(frozen=True)
class FunctionRole:
    """The role of a function; ``event`` and ``operator_struct`` only where it opens a pass."""

    role: Role
    event: str = ""
    """"call", "redispatch", "callBoxed" or "redispatchBoxed"."""
    operator_struct: str = ""
    """NAME of ``at::_ops::NAME``: the operator's name and overload joined by an underscore."""
    mangled: str = ""
    """The name by which the role was recognised."""

    @property
    def calls_its_functor(self) -> bool:
        """A wrapper whose functor holds a function pointer: what it calls through a pointer is that function."""
        return RUNTIME_FUNCTOR in self.mangled


RUNTIME_FUNCTOR = "31WrapFunctionIntoRuntimeFunctor_I"
"""``c10::impl::detail::WrapFunctionIntoRuntimeFunctor_`` (ATen/core/boxing/impl/WrapFunctionIntoRuntimeFunctor.h)."""

PLAIN = FunctionRole(Role.PLAIN)

_OPERATOR = re.compile(r"_ZN2at4_ops(\d+)")
_METHODS = {"4call": "call", "10redispatch": "redispatch"}

_PREFIXES: tuple[tuple[str, Role, str], ...] = (
    ("_ZNK3c1010Dispatcher9callBoxed", Role.DISPATCHER, "callBoxed"),
    ("_ZNK3c1010Dispatcher23callBoxedForDispatchKey", Role.DISPATCHER, "callBoxed"),
    ("_ZNK3c1010Dispatcher15redispatchBoxed", Role.DISPATCHER, "redispatchBoxed"),
    ("_ZNK3c1010Dispatcher4callI", Role.DISPATCHER, "call"),
    ("_ZNK3c1010Dispatcher10redispatchI", Role.DISPATCHER, "redispatch"),
    ("_ZN3c1010Dispatcher27callWithDispatchKeySlowPathI", Role.SLOW_PATH, ""),
    ("_ZNK3c1014OperatorHandle9callBoxedE", Role.HANDLE, "callBoxed"),
    ("_ZNK3c1014OperatorHandle23callBoxedForDispatchKeyE", Role.HANDLE, "callBoxed"),
    ("_ZNK3c1014OperatorHandle15redispatchBoxedE", Role.HANDLE, "redispatchBoxed"),
    ("_ZNK3c104impl13OperatorEntry6lookupE", Role.LOOKUP, ""),
    ("_ZN3c104impl18BoxedKernelWrapperI", Role.BOXING, ""),
    ("_ZNK3c1014KernelFunction", Role.BOXING, ""),
    ("_ZNK3c1011BoxedKernel9callBoxedE", Role.BOXING, ""),
    ("_ZN3c1025callUnboxedKernelFunctionI", Role.BOXING, ""),
    ("_ZN3c104impl28wrap_kernel_functor_unboxed_I", Role.UNBOXED_KERNEL, ""),
    ("_ZN3c104impl31make_boxed_from_unboxed_functorI", Role.BOXED_FROM_UNBOXED, ""),
    ("_ZN3c1011BoxedKernel19make_boxed_functionI", Role.BOXED_KERNEL, ""),
    ("_ZZN3c1011BoxedKernel15makeFromFunctorI", Role.BOXED_KERNEL, ""),
    ("_ZN5torch4impl8dispatch18PythonKernelHolderclE", Role.BOXED_BODY, ""),
    ("_ZN3c1010Dispatcher10findSchemaE", Role.ENTERING, ""),
    ("_ZN3c1010Dispatcher17findSchemaOrThrowE", Role.ENTERING, ""),
    ("_ZN3c1010Dispatcher13realSingletonE", Role.ENTERING, ""),
    ("__cxa_guard_acquire", Role.ENTERING, ""),
)

_TYPED_HANDLE = "_ZNK3c1019TypedOperatorHandleI"
_CREATE_HANDLE = re.compile(r"_ZN2at4_ops\w*create_\w+_typed_handleE")
_UNBOXED_BODY = re.compile(r"\w\(c10::DispatchKeySet, [^()]*\)$")
_STACK = "std::vector<c10::IValue, std::allocator<c10::IValue> >*"
_BOXED_SIGNATURES = (
    f"(c10::OperatorHandle const&, c10::DispatchKeySet, {_STACK})",
    f"(c10::OperatorKernel*, c10::OperatorHandle const&, c10::DispatchKeySet, {_STACK})",
)


def classify(function: Function | None) -> FunctionRole:
    """The role of ``function``; any of its names may tell it."""
    if function is None:
        return PLAIN
    for name in function.names:
        found = _by_mangled_name(name)
        if found is not None:
            return found
    return _by_signature(function)


def _by_mangled_name(name: str) -> FunctionRole | None:
    if not name.startswith("_Z") and not name.startswith("__cxa"):
        return None
    operator = _operator(name)
    if operator is not None:
        return operator
    for prefix, role, event in _PREFIXES:
        if name.startswith(prefix):
            return FunctionRole(role, event, "", name)
    if name.startswith(_TYPED_HANDLE):
        return _typed_handle(name)
    if _CREATE_HANDLE.match(name):
        return FunctionRole(Role.ENTERING, "", "", name)
    return None


def _operator(name: str) -> FunctionRole | None:
    match = _OPERATOR.match(name)
    if match is None:
        return None
    start = match.end()
    end = start + int(match.group(1))
    for method, event in _METHODS.items():
        if name.startswith(method + "E", end):
            return FunctionRole(Role.OPERATOR, event, name[start:end], name)
    return None


def _typed_handle(name: str) -> FunctionRole | None:
    for method, event in _METHODS.items():
        if f"E{method}E" in name:
            return FunctionRole(Role.HANDLE, event, "", name)
    return None


def _by_signature(function: Function) -> FunctionRole:
    for text, mangled in zip(function.demangled, function.names):
        bare = text.split(" [clone ", 1)[0]
        if bare.endswith(_BOXED_SIGNATURES) and not bare.startswith("c10::Dispatcher"):
            return FunctionRole(Role.BOXED_BODY, "", "", mangled)
        if "(c10::DispatchKeySet, " in bare and _UNBOXED_BODY.search(bare):
            return FunctionRole(Role.UNBOXED_BODY, "", "", mangled)
    return PLAIN
