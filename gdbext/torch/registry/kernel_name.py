"""The C++ function that a kernel's wrapper was instantiated for, taken out of the wrapper's demangled name.

Every kernel in a dispatch table is a wrapper; what people want to know is its template argument::

    c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<
        TYPE, &at::(anonymous namespace)::wrapper_CPU_mm>, ...>, SIGNATURE>::call(...)

Wrappers: ATen/core/boxing/KernelFunction_impl.h, BoxedKernel_impl.h and impl/make_boxed_from_unboxed_functor.h, 2.13.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdbext.torch.symbols import (
    BOXED_FROM_UNBOXED_TEXT,
    BOXED_FUNCTION_TEXT,
    BOXED_FUNCTOR_TEXTS,
    UNBOXED_WRAPPER_TEXT,
    WRAPPED_AT_RUNTIME,
    WRAPPED_FUNCTION_POINTER,
    WRAPPED_STATICALLY,
)

_AROUND_FUNCTORS = (UNBOXED_WRAPPER_TEXT, BOXED_FROM_UNBOXED_TEXT, *BOXED_FUNCTOR_TEXTS)
_WRAPPERS = (*_AROUND_FUNCTORS, BOXED_FUNCTION_TEXT)

_OPEN, _CLOSE = "<({[", ">)}]"
_PUNCTUATION = re.compile(r"operator[<>=-]+|->|[<({\[>)}\],]")
"""Brackets and commas, and the operators and arrows whose angle brackets are none."""

FUNCTION_POINTER = "(function pointer)"
"""What ``kernel_target`` gives for a wrapper around a pointer that only the functor object holds."""


def is_wrapper(demangled: str) -> bool:
    """True for the name of one of the dispatcher's kernel wrappers."""
    return any(wrapper in demangled for wrapper in _WRAPPERS)


def kernel_target(demangled: str) -> str | None:
    """The function, functor or lambda behind a wrapper's demangled name; None when it is not a wrapper.

    FUNCTION_POINTER where the wrapper calls through a pointer that is not part of its type.
    """
    for wrapper in _AROUND_FUNCTORS:
        argument = _first_argument(demangled, wrapper)
        if argument is not None:
            return functor_target(argument)
    argument = _first_argument(demangled, BOXED_FUNCTION_TEXT)
    return None if argument is None else _function_name(argument)


def functor_target(functor: str) -> str:
    """The function behind a functor class: ``WrapFunctionIntoFunctor_<…>`` or a class of its own."""
    if functor.startswith(WRAPPED_STATICALLY):
        arguments = _arguments_of(functor, WRAPPED_FUNCTION_POINTER)
        return _function_name(arguments[1]) if len(arguments) > 1 else functor
    argument = _first_argument(functor, WRAPPED_AT_RUNTIME)
    if argument is None:
        return functor
    return argument if "lambda" in argument else FUNCTION_POINTER


def _first_argument(text: str, opening: str) -> str | None:
    arguments = _arguments_of(text, opening)
    return arguments[0] if arguments else None


def _arguments_of(text: str, opening: str) -> list[str]:
    start = text.find(opening)
    return [] if start < 0 else template_arguments(text, start + len(opening))


def template_arguments(text: str, start: int) -> list[str]:
    """The template arguments from ``start`` (just behind the ``<``) to the matching ``>``.

    Brackets of all kinds nest; the ``>`` of an ``operator>`` or ``->`` is not a bracket.
    """
    arguments: list[str] = []
    depth, first = 0, start
    for match in _PUNCTUATION.finditer(text, start):
        mark = match.group()
        if mark in _OPEN:
            depth += 1
        elif mark == ",":
            if depth == 0:
                arguments.append(text[first : match.start()].strip())
                first = match.end()
        elif mark in _CLOSE:
            if depth == 0:
                arguments.append(text[first : match.start()].strip())
                return arguments
            depth -= 1
    return []


def _function_name(argument: str) -> str:
    """``&(void ns::f<1>(int))`` and ``&ns::f`` to ``ns::f<1>`` and ``ns::f``."""
    name = argument.lstrip("&").strip()
    if name.startswith("(") and name.endswith(")") and not name.startswith("(anonymous namespace)"):
        name = plain_name(name[1:-1])
    return name


def plain_name(signature: str) -> str:
    """A demangled function without its return type, parameters and qualifiers."""
    end = _parameters_start(signature)
    name = signature[:end]
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        letter = name[at]
        if letter in _CLOSE:
            depth += 1
        elif letter in _OPEN:
            depth -= 1
        elif letter == " " and depth == 0 and not name.startswith("operator", at - 8):
            return name[at + 1 :]
    return name


def _parameters_start(signature: str) -> int:
    """Where the last parameter list begins; the end of the text when there is none."""
    end = signature.rfind(")")
    depth = 0
    for at in range(end, -1, -1):
        letter = signature[at]
        depth += letter == ")"
        depth -= letter == "("
        if depth == 0:
            inside = signature[at : end + 1]
            return len(signature) if inside == "(anonymous namespace)" else at
    return len(signature)


def most_telling(functions: Sequence[str], key: str = "", operator: str = "") -> str:
    """Of several functions at one address the one that names this key and operator best; the first where none does.

    Folded code has the names of all that were folded: ``wrapper_CPU__add``, ``wrapper_SparseCPU__add``. A name
    that has the key between underscores is better than one that merely contains it.
    """
    base = operator.rpartition("::")[2].rstrip("_")

    def score(function: str) -> tuple[bool, bool, bool]:
        last = function.rpartition("::")[2]
        return bool(key) and f"_{key}_" in last + "_", bool(base) and base in last, bool(key) and key in function

    return max(functions, key=score) if functions else ""
