"""What gdbext knows of an operator, as PyTorch dumps it (``torch._C._dispatch_dump``, ``_dispatch_dump_table``)."""

from __future__ import annotations

from gdbext.diagnosis.session import Session
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import ComputedEntry, Registration
from gdbext.torch.registry.kernel import KernelFunction


def _kernel_words(session: Session, kernel: KernelFunction) -> str:
    """What ``KernelFunction::dumpState`` prints."""
    words = {"fallthrough": session.dispatcher.kernels.fallthrough(kernel), "boxed": kernel.boxed}
    words["unboxed"] = kernel.unboxed
    return "".join(f"{word} " for word, given in words.items() if given)


def _registration_line(session: Session, one: Registration) -> str:
    """One line of ``_dispatch_dump``."""
    alias = "[alias]" if one.key in session.dispatcher.keys.alias_keys else ""
    inactive = "" if one.active else " (inactive)"
    schema = session.tables.inferred_schema(one) or "(none)"
    return f"{one.key}{alias}{inactive}: {one.debug} :: {schema} [ {_kernel_words(session, one.kernel)}]"


def state_dump(session: Session, operator: Operator) -> list[str]:
    """``_dispatch_dump`` of an operator, without the line of the alias analysis."""
    schema = operator.schema
    lines = [f"name: {operator.qualified}", f"schema: {schema.text if schema else '(none)'}"]
    if schema:
        assert not schema.missing, schema
        lines.append(f"debug: {operator.debug}")
    return lines + [_registration_line(session, one) for one in session.tables.registrations(operator)]


def table_dump(session: Session, cells: list[ComputedEntry]) -> list[str]:
    """``_dispatch_dump_table`` of an operator."""
    kernels, lines = session.dispatcher.kernels, []
    for cell in (each for each in cells if each.expected.valid):
        fallthrough = "fallthrough " if kernels.fallthrough(cell.expected) else ""
        lines.append(f"{cell.key}: {fallthrough}{cell.debug} [{cell.reason}]")
    return lines


def their_lines(text: str) -> list[str]:
    """The lines of PyTorch's dump that are compared."""
    return [line for line in text.split("\n") if line and not line.startswith("alias analysis kind")]
