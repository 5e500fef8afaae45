"""A kernel as the dispatcher has it registered: what it can do and what it is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PythonPlace:
    """Where a kernel written in Python is defined; None for what is not known of it."""

    file: str | None
    line: int | None


@dataclass(frozen=True)
class RegisteredKernel:
    """A ``c10::KernelFunction``. ``unboxed`` is PyTorch's word: a kernel for SymInts has ``sym_unboxed`` instead."""

    function: str | None
    valid: bool
    boxed: bool
    unboxed: bool
    sym_unboxed: bool
    fallthrough: bool
    python: PythonPlace | None = None
    """None for a kernel written in C++."""
    aliases: tuple[str, ...] = ()
    """Other functions whose code the linker folded into the same address."""
