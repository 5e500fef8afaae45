"""The part of a frame's function in a dispatch, and what a kernel takes, by the function's names.

The names are the mangled ones: a prefix of a mangled name is unambiguous, while in the demangled text
``at::_ops::mm::call`` may as well be a template argument of something else. The functions are those of
aten/src/ATen/core/dispatch/Dispatcher.h, aten/src/ATen/core/boxing/KernelFunction_impl.h,
BoxedKernel_impl.h and impl/boxing.h, impl/make_boxed_from_unboxed_functor.h (torch 2.0 to 2.13).

The part of code without symbols is known by the kernels that it registered; a library that can have kernels but has no
names leaves frames that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.numbers import number
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function, Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.torch import assumed_symbols
from gdbext.torch.assumed_symbols import IMPORTS_OF_USERS, POINTER_FUNCTOR_CLASSES, RUNTIME_FUNCTOR_CLASS
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.dispatch_table import KernelEntry
from gdbext.torch.torch_symbol import TorchSymbol


class Role(Enum):
    """The part of a function in a dispatch. Values are what users see in the ``role`` of a native frame."""

    OPERATOR = "operator"
    """``at::_ops::NAME::call`` / ``redispatch``: Dispatcher::call inlined behind a static handle."""
    HANDLE = "handle"
    """``OperatorHandle`` / ``TypedOperatorHandle`` methods that forward to the Dispatcher."""
    DISPATCHER = "dispatcher"
    """``c10::Dispatcher``'s own call, redispatch, callBoxed, redispatchBoxed."""
    SLOW_PATH = "dispatcher (profiled)"
    """``callWithDispatchKeySlowPath``: the same call while RecordFunction callbacks are active."""
    LOOKUP = "lookup"
    """The role of the function ``OperatorEntry::lookup`` itself."""
    ENTERING = "entering"
    """Finding or initializing the operator's handle."""
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
        """A dispatch call begins here."""
        return self in (Role.OPERATOR, Role.HANDLE, Role.DISPATCHER)

    @property
    def is_layer(self) -> bool:
        """Between the dispatcher and the kernel, part of neither."""
        return self in (Role.BOXING, Role.SLOW_PATH)

    @property
    def is_kernel_entry(self) -> bool:
        """Code that a dispatch table can point to, or that such code tail-calls."""
        return self in (
            Role.UNBOXED_KERNEL,
            Role.BOXED_FROM_UNBOXED,
            Role.BOXED_KERNEL,
            Role.BOXED_BODY,
            Role.UNBOXED_BODY,
        )


class FunctionRole(NamedTuple):
    """The role of a function; ``event`` and ``operator_struct`` only where it opens a dispatch call."""

    role: Role
    event: str = ""
    """"call", "redispatch", "callBoxed" or "redispatchBoxed"."""
    operator_struct: str = ""
    """NAME of ``at::_ops::NAME``: the operator's name and overload joined by an underscore."""
    mangled: str = ""
    """The name by which the role was recognized."""

    @property
    def calls_its_functor(self) -> bool:
        """True for a wrapper whose functor holds a function pointer: what it calls through a pointer is that function,
        not a kernel that it dispatches to."""
        return any(pointer in self.mangled for pointer in POINTER_FUNCTOR_CLASSES)


PLAIN = FunctionRole(Role.PLAIN)

_METHODS = {"4call": "call", "10redispatch": "redispatch"}
"""Methods of ``at::_ops::NAME`` in mangled names → DispatchEvent's value."""

_FAMILIES: tuple[tuple[TorchSymbol, Role, str], ...] = (
    (assumed_symbols.DISPATCHER_CALL_BOXED, Role.DISPATCHER, "callBoxed"),
    (assumed_symbols.DISPATCHER_CALL_BOXED_FOR_KEY, Role.DISPATCHER, "callBoxed"),
    (assumed_symbols.DISPATCHER_REDISPATCH_BOXED, Role.DISPATCHER, "redispatchBoxed"),
    (assumed_symbols.DISPATCHER_CALL, Role.DISPATCHER, "call"),
    (assumed_symbols.DISPATCHER_REDISPATCH, Role.DISPATCHER, "redispatch"),
    (assumed_symbols.SLOW_PATH, Role.SLOW_PATH, ""),
    (assumed_symbols.HANDLE_CALL_BOXED, Role.HANDLE, "callBoxed"),
    (assumed_symbols.HANDLE_CALL_BOXED_FOR_KEY, Role.HANDLE, "callBoxed"),
    (assumed_symbols.HANDLE_REDISPATCH_BOXED, Role.HANDLE, "redispatchBoxed"),
    (assumed_symbols.LOOKUP, Role.LOOKUP, ""),
    (assumed_symbols.BOXED_WRAPPER, Role.BOXING, ""),
    (assumed_symbols.KERNEL_FUNCTION, Role.BOXING, ""),
    (assumed_symbols.BOXED_CALL, Role.BOXING, ""),
    (assumed_symbols.UNBOXED_CALL, Role.BOXING, ""),
    (assumed_symbols.UNBOXED_WRAPPER, Role.UNBOXED_KERNEL, ""),
    (assumed_symbols.BOXED_FROM_UNBOXED, Role.BOXED_FROM_UNBOXED, ""),
    (assumed_symbols.BOXED_FUNCTION, Role.BOXED_KERNEL, ""),
    (assumed_symbols.BOXED_FUNCTOR, Role.BOXED_KERNEL, ""),
    (assumed_symbols.PYTHON_KERNEL, Role.BOXED_BODY, ""),
    (assumed_symbols.FIND_SCHEMA, Role.ENTERING, ""),
    (assumed_symbols.REAL_SINGLETON, Role.ENTERING, ""),
)

_CREATE_HANDLE = re.compile(assumed_symbols.CREATE_HANDLE)
_UNBOXED_BODY = re.compile(r"\w\(c10::DispatchKeySet, [^()]*\)$")
_STACK = "std::vector<c10::IValue, std::allocator<c10::IValue> >*"
_BOXED_SIGNATURES = (
    f"(c10::OperatorHandle const&, c10::DispatchKeySet, {_STACK})",
    f"(c10::OperatorKernel*, c10::OperatorHandle const&, c10::DispatchKeySet, {_STACK})",
)


def classify(function: Function | None) -> FunctionRole:
    """The role of ``function`` by its mangled or demangled names, any of which may tell it; PLAIN for None."""
    if not function:
        return PLAIN
    for name in function.names:
        role = _role_of_mangled_name(name)
        if role:
            return role
    for text, mangled in zip(function.demangled, function.names):
        bare = text.split(" [clone ", 1)[0]
        if assumed_symbols.PYTHON_DISPATCHERS_CALL in bare:  # which its fallback leaves for
            return FunctionRole(Role.BOXED_BODY, event="", operator_struct="", mangled=mangled)
        if bare.endswith(_BOXED_SIGNATURES) and not bare.startswith("c10::Dispatcher"):
            return FunctionRole(Role.BOXED_BODY, event="", operator_struct="", mangled=mangled)
        if "(c10::DispatchKeySet, " in bare and _UNBOXED_BODY.search(bare):
            return FunctionRole(Role.UNBOXED_BODY, event="", operator_struct="", mangled=mangled)
    # the call operator of a functor around a function pointer is part of the kernel
    functor = next((name for name in function.names if RUNTIME_FUNCTOR_CLASS in name), "")
    return FunctionRole(Role.PLAIN, event="", operator_struct="", mangled=functor) if functor else PLAIN


def _role_of_mangled_name(name: str) -> FunctionRole | None:
    """The role of a function by one of its mangled names; None if that does not tell it."""
    if name.startswith("__cxa_guard_acquire"):
        return FunctionRole(Role.ENTERING, event="", operator_struct="", mangled=name)
    if not name.startswith("_Z"):
        return None
    struct, event = operator_method(name)
    if event:
        return FunctionRole(Role.OPERATOR, event, struct, name)
    for family, role, event in _FAMILIES:
        if family.begins(name):
            return FunctionRole(role, event, "", name)
    if assumed_symbols.TYPED_HANDLE.begins(name):
        events = (event for method, event in _METHODS.items() if f"E{method}E" in name)
        return next((FunctionRole(Role.HANDLE, event, "", name) for event in events), None)
    return FunctionRole(Role.ENTERING, "", "", name) if _CREATE_HANDLE.match(name) else None


def is_python_dispatcher(stack: NativeStack, level: int) -> bool:
    """True if frame ``level`` is the function that asks the Python dispatcher which kernel to call
    (torch/csrc/PyInterpreter.cpp)."""
    function = stack.function(level)
    return bool(function and _is_python_dispatcher(function.names))


@lru_cache(maxsize=1024)
def _is_python_dispatcher(names: tuple[str, ...]) -> bool:
    """As ``is_python_dispatcher``, by mangled names. A recursion asks it of the same few functions thousands of
    times."""
    return any(assumed_symbols.PYTHON_DISPATCHERS_CALL in demangle(name) for name in names)


def engine_calls(stack: NativeStack) -> list[int]:
    """Levels of the autograd engine's calls of a node, innermost first."""
    evaluate = assumed_symbols.AUTOGRAD_EVALUATE.beginnings
    functions = ((level, stack.function(level)) for level in range(len(stack)))
    return [level for level, function in functions if function and function.name.startswith(evaluate)]


def operator_method(name: str) -> tuple[str, str]:
    """("mm", "call") of ``_ZN2at4_ops2mm4callE...``: NAME of ``at::_ops::NAME`` and DispatchEvent's value; ("", "") for
    any other mangled name."""
    if not assumed_symbols.OPERATOR_STRUCT.begins(name):
        return "", ""
    length = re.compile(r"\d+").match(name, len(assumed_symbols.OPERATOR_STRUCT.names[0]))
    letters = number(length.group()) if length else None
    if not length or letters is None:
        return "", ""
    end = length.end() + letters
    struct = name[length.end() : end]
    return next(((struct, event) for method, event in _METHODS.items() if name.startswith(method + "E", end)), ("", ""))


def static_handle(mangled: str) -> str:
    """The mangled name of the static OperatorHandle inside a function with that mangled name."""
    return f"_ZZ{mangled.split('.', 1)[0][2:]}E2op"


_OTHERS = (
    *("libtorch", "libc10", "libc.so", "libc-", "libstdc++", "libm.so", "libgcc_s", "ld-linux", "libpython", "python"),
    *("libgomp", "[vdso]"),
)
"""Beginnings of the names of torch's own libraries, and of those that know nothing of it and are on every stack."""


class UnreadFrames(NamedTuple):
    """Frames ``first`` to ``last`` (innermost first) of one library, none of which has a name."""

    first: int
    last: int
    module: str

    @property
    def text(self) -> str:
        """The sentence for people."""
        frames = f"frame #{self.first}" if self.first == self.last else f"frames #{self.first} to #{self.last}"
        return f"{frames} of {self.module} cannot be read: dispatches may be missing"


class DispatcherLinks:
    """Tells by what a library imports whether it can register kernels and call operators."""

    @memoized
    def uses_dispatcher(self, module: Module) -> bool:
        """True for a library or program of the user's that imports functions of c10."""
        image = None if module.name.startswith(_OTHERS) else module.image
        names = image.sections.get(".dynstr") if image else None
        text = image.read(names.address, names.size) if image and names else b""
        return any(name.encode() in text for name in IMPORTS_OF_USERS)


def role_of_entry(entry: KernelEntry | None) -> FunctionRole:
    """The role of a function without a name that dispatch tables point to (``entry``); PLAIN for None."""
    if not entry:
        return PLAIN
    if not entry.boxed:
        return FunctionRole(Role.UNBOXED_BODY if entry.jumped_to else Role.UNBOXED_KERNEL)
    if entry.jumped_to:
        return FunctionRole(Role.BOXED_BODY)
    return FunctionRole(Role.BOXED_FROM_UNBOXED if entry.has_unboxed else Role.BOXED_KERNEL)


def unread_stretches(stack: NativeStack, levels: Sequence[int], links: DispatcherLinks) -> list[UnreadFrames]:
    """The frames without names around each of ``levels`` in a library that can have kernels, each stretch once."""

    def end(level: int, module: Module, step: int) -> int:
        """The last frame without a name in ``module`` from ``level`` on, inwards (``step`` -1) or outwards (1)."""
        while 0 <= level + step < len(stack):
            if stack.frames[level + step].module is not module or stack.function(level + step):
                break
            level += step
        return level

    unread: list[UnreadFrames] = []
    for level in levels:
        module = stack.frames[level].module
        if module and links.uses_dispatcher(module) and not (unread and level <= unread[-1].last):
            unread.append(UnreadFrames(end(level, module, -1), end(level, module, 1), module.name))
    return unread


_OPENING, _CLOSING = "<([{", ">)]}"


def parameters(demangled: str) -> list[str]:
    """The types of the parameters in a demangled function name: those in the last parentheses outside of template
    arguments; [] without any."""
    end = demangled.rfind(")")
    depth = 0
    for start in range(end, -1, -1):
        letter = demangled[start]
        depth += (letter in _CLOSING) - (letter in _OPENING)
        if depth == 0 and end >= 0:
            return split_types(demangled[start + 1 : end])
    return []


def split_types(text: str) -> list[str]:
    """["A", "B<C, D>"] of ``A, B<C, D>``: C++ types, or arguments, between commas outside of brackets."""
    types, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            types.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*types, last] if last else types


class KernelSignature(NamedTuple):
    """The arguments that an unboxed kernel takes."""

    parameters: tuple[str, ...]
    """C++ types of the operator's arguments."""
    hidden: bool
    """The result goes through a pointer before all arguments (sret)."""


def kernel_signature(names: Sequence[str]) -> KernelSignature | None:
    """The signature of a kernel's unboxed entry with these mangled names; None if they do not say it, or differ.

    Each is ``c10::impl::wrap_kernel_functor_unboxed_<Functor, Return (Parameters)>::call(OperatorKernel*,
    DispatchKeySet, …)`` (ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h, 2.13.0). An extension has no
    ``at::_ops::NAME`` for its operators, whose name would say it.
    """
    class_name = "c10::impl::wrap_kernel_functor_unboxed_<"
    signatures = set()
    for name in map(demangle, names):
        arguments = name[len(class_name) : name.rfind(">::call(")] if name.startswith(class_name) else ""
        types, taken = split_types(arguments), parameters(name)
        uses_sret = returns_by_sret(types[-1].partition(" (")[0]) if types else None
        is_known = uses_sret is not None and taken[:2] == ["c10::OperatorKernel*", "c10::DispatchKeySet"]
        signatures.add(KernelSignature(tuple(taken[2:]), bool(uses_sret)) if is_known else None)
    return signatures.pop() if len(signatures) == 1 else None


def returns_by_sret(result: str) -> bool | None:
    """True if a C++ type is returned through a pointer that the caller passes (sret), False if in registers; None if
    either may be."""
    if result.endswith("&") or result in ("void", "bool", "long", "double"):
        return False
    # with a destructor: the first argument points to the space that the caller has for it (Itanium C++ ABI 3.1.3)
    has_destructor = ("at::Tensor", "c10::Scalar", "c10::SymInt", "std::tuple<", "std::vector<")
    return True if result.startswith((*has_destructor, "std::__cxx11::basic_string<")) else None


def static_handles(symbolizer: Symbolizer, function: Function) -> frozenset[int]:
    """Addresses of the function-local ``static auto op`` (aten/src/ATen/Operators_*.cpp) under any of its names."""
    mangled = (name for name in function.names if name.startswith("_ZN"))
    found = (symbolizer.address_of(static_handle(name), function.module.name) for name in mangled)
    return frozenset(filter(None, found))
