"""``operators`` of a report as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.model.dispatch.registered_kernel import RegisteredKernel
from gdbext.model.sections.operator_section import (
    OperatorRegistration,
    OperatorReport,
    OperatorSection,
    TableChoice,
    TableEntry,
)


def document(section: OperatorSection, why: bool) -> list[dict[str, Any]]:
    """All operators."""
    return [_operator(operator, why) for operator in section.operators]


def _operator(operator: OperatorReport, why: bool) -> dict[str, Any]:
    registrations = operator.registrations
    return {
        "op": operator.op,
        "overload": operator.overload,
        "address": f"{operator.address:#x}",
        "schema": operator.schema,
        "debug": operator.debug,
        "registrations": None if registrations is None else [_registration(one, why) for one in registrations],
        "table": _table(operator.table, why and registrations is not None),
    }


def _registration(one: OperatorRegistration, why: bool) -> dict[str, Any]:
    return {
        "key": one.key,
        "alias": one.is_alias,
        "active": one.active,
        **kernel(one.kernel, why),
        "debug": one.debug,
        "inferred_schema": one.inferred_schema,
    }


def _table(entries: Sequence[TableEntry], why: bool) -> list[dict[str, Any]]:
    """What entries share is rendered once: there are half a million entries in all."""
    rendered: dict[int, dict[str, Any]] = {}
    documents = []
    for key, slot, choice in entries:
        common = rendered.get(id(choice))
        if common is None:
            common = rendered[id(choice)] = _choice(choice, why)
        documents.append({"key": key, "index": slot, **common})
    return documents


def _choice(choice: TableChoice, why: bool) -> dict[str, Any]:
    value = {
        **kernel(choice.kernel, why),
        "debug": choice.debug,
        "reason": choice.reason,
        "path": choice.path,
        "source": choice.source,
    }
    if choice.expected is not None:
        value["expected"] = kernel(choice.expected)
    return value


def kernel(registered: RegisteredKernel, why: bool = False) -> dict[str, Any]:
    """What a kernel is and can do; with ``why`` also the other names of its code."""
    value: dict[str, Any] = {
        "function": registered.function,
        "valid": registered.valid,
        "boxed": registered.boxed,
        "unboxed": registered.unboxed,
        "sym_unboxed": registered.sym_unboxed,
        "fallthrough": registered.fallthrough,
    }
    if registered.python is not None:
        value["python"] = {"file": registered.python.file, "line": registered.python.line}
    if why and registered.aliases:
        value["aliases"] = list(registered.aliases)
    return value
