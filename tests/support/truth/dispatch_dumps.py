"""What gdbext knows of an operator, as PyTorch dumps it (``torch._C._dispatch_dump``, ``_dispatch_dump_table``)."""

from __future__ import annotations

from gdbext.diagnosis.session import Session
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import ComputedEntry, OperatorRegistration


def _registration_line(session: Session, one: OperatorRegistration) -> str:
    """One line of ``_dispatch_dump``; in brackets what ``KernelFunction::dumpState`` prints."""
    alias = "[alias]" if one.alias else ""
    inactive = "" if one.active else " (inactive)"
    schema = session.tables.inferred_schema(one) or "(none)"
    given = (one.kernel.fallthrough, one.kernel.boxed, one.kernel.unboxed)
    words = "".join(f"{word} " for word, is_given in zip(("fallthrough", "boxed", "unboxed"), given) if is_given)
    return f"{one.key}{alias}{inactive}: {one.debug} :: {schema} [ {words}]"


def state_dump(session: Session, operator: Operator) -> list[str]:
    """``_dispatch_dump`` of an operator, without the line of the alias analysis."""
    schema = operator.schema
    lines = [f"name: {operator.qualified}", f"schema: {schema.text if schema else '(none)'}"]
    if schema:
        assert not schema.missing, schema
        lines.append(f"debug: {operator.debug}")
    return lines + [_registration_line(session, one) for one in session.tables.registrations(operator)]


def table_dump(session: Session, cells: list[ComputedEntry]) -> list[str]:
    kernels, lines = session.dispatcher.kernels, []
    for cell in (each for each in cells if each.expected.valid):
        fallthrough = "fallthrough " if kernels.fallthrough(cell.expected) else ""
        lines.append(f"{cell.key}: {fallthrough}{cell.debug} [{cell.reason}]")
    return lines


def their_lines(text: str) -> list[str]:
    """The lines of PyTorch's dump that are compared."""
    return [line for line in text.split("\n") if line and not line.startswith("alias analysis kind")]
