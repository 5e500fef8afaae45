"""``dispatch-op``: an operator's schema, registrations and computed dispatch table."""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.report import ErrorFact, Report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.dispatch_table import Cell, Registration
    from gdbext.torch.registry.operators import Dispatcher, Operator
    from gdbext.torch.values.keyset import KeyNames

NAME = "dispatch-op"

_BROKEN_SHOWN = 50
"""Contradictions that are spelled out; a library torn out in the middle makes thousands."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "op",
        nargs="?",
        metavar="OP[.OVERLOAD]|PATTERN",
        help="mm: every operator with that base name; aten::mm, aten::mm.out: exact (aten::mm.default: the overload "
        "without a name); '*mm*': a pattern over base names",
    )
    parser.add_argument("--all", action="store_true", help="every operator")
    parser.add_argument("--key", metavar="KEY", help="this key only (a runtime key or an alias key)")


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads the operators. One that cannot be read costs that one. Raises UsageError for an unknown name or key."""
    if bool(args.op) == args.all:
        raise UsageError("name one operator or pattern, or give --all", help="dispatch-op aten::mm")
    dispatcher = session.dispatcher
    if args.key is not None:
        _check_key(dispatcher.keys, args.key)
    operators = dispatcher.operators() if args.all else dispatcher.find(args.op)
    if not operators:
        raise dispatcher.unknown(args.op)
    documents: list[dict[str, Any]] = []
    findings: list[Finding] = list(_registering(dispatcher))
    errors: list[ErrorFact] = []
    with _no_garbage_collection():
        for operator in operators:
            try:
                documents.append(_document(session, operator, args, findings, errors))
            except GdbextError as error:
                errors.append(ErrorFact.of(error, f"operator at {operator.address:#x}"))
    return Report(
        command=NAME,
        target=session.target_facts(),
        view="op",
        findings=tuple(findings),
        errors=(*errors, *session.errors()),
        extra={"operators": documents},
        why=args.why,
    )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Half a million table entries, none in a cycle: looking for cycles would take a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_key(keys: KeyNames, key: str) -> None:
    if key not in keys.alias_keys:
        keys.index_of_key(key)


def _registering(dispatcher: Dispatcher) -> list[Finding]:
    """Says that somebody is registering right now, so what follows may be half done."""
    tid = dispatcher.registering_thread
    if tid is None:
        return []
    summary = f"thread {tid} holds the dispatcher's lock: it is registering, so lists and tables may be half updated"
    return [Finding(FindingKind.NOTE, summary, (tid,), ("c10::Dispatcher::Guard::mutex is locked",))]


def _document(
    session: Session, operator: Operator, args: argparse.Namespace, findings: list[Finding], errors: list[ErrorFact]
) -> dict[str, Any]:
    from gdbext.render.json.operators import bare_cell_document, registration_document, table_document

    key: str | None = args.key
    document: dict[str, Any] = {"op": operator.name, "overload": operator.overload, "address": f"{operator.address:#x}"}
    document.update(_schema(operator, errors))
    try:
        registrations = session.tables.registrations(operator)
        cells = session.tables.table(operator, registrations)
    except GdbextError as error:
        errors.append(ErrorFact.of(error, f"registrations of {operator.qualified}"))
        findings.append(_unreadable(operator, error))
        document["registrations"] = None
        slots = range(session.dispatcher.keys.num_slots)
        table = [bare_cell_document(operator, slot) for slot in slots]
        document["table"] = [entry for entry in table if key in (None, entry["key"])]
        return document
    findings.extend(_contradictions(operator, cells, len(findings)))
    if key is not None:
        registrations = [one for one in registrations if _concerns(one, key, cells)]
        cells = [cell for cell in cells if key in (cell.key, cell.source)]
    document["registrations"] = [
        registration_document(operator, one, session.tables, args.why) for one in registrations
    ]
    document["table"] = table_document(operator, cells, args.why)
    return document


def _concerns(registration: Registration, key: str, cells: list[Cell]) -> bool:
    """Registered under the key, or the one that fills the key's entry."""
    return registration.key == key or any(cell.key == key and cell.source == registration.key for cell in cells)


def _schema(operator: Operator, errors: list[ErrorFact]) -> dict[str, Any]:
    try:
        schema, debug = operator.schema, operator.debug
    except GdbextError as error:
        errors.append(ErrorFact.of(error, f"schema of {operator.qualified}"))
        return {"schema": None, "debug": None}
    if schema is not None and schema.missing:
        errors.append(ErrorFact(f"parts shown as ?: {'; '.join(schema.missing)}", f"schema of {operator.qualified}"))
    return {"schema": schema.text if schema else None, "debug": debug or None}


def _unreadable(operator: Operator, error: GdbextError) -> Finding:
    kind = "do not hold together" if isinstance(error, BadData) else "cannot be read"
    summary = f"{operator.qualified}: its registrations {kind}, so its table is shown as it stands"
    return Finding(FindingKind.NOTE, summary, (), (error.what,))


def _contradictions(operator: Operator, cells: list[Cell], known: int) -> list[Finding]:
    """A table entry that is not what the registrations lead to, each a finding of its own."""
    broken = [cell for cell in cells if not cell.consistent][: max(0, _BROKEN_SHOWN - known)]
    name = operator.dispatcher.kernels.name
    found = []
    for cell in broken:
        holds = name(cell.kernel, cell.key, operator.name).function or "no kernel"
        wanted = name(cell.expected, cell.key, operator.name).function or "no kernel"
        where = f"{operator.qualified}: the table entry of {cell.key}"
        step = f"step {cell.path} ({cell.reason}): {cell.debug}"
        evidence = (step, f"table {cell.kernel}", f"expected {cell.expected}")
        found.append(
            Finding(FindingKind.NOTE, f"{where} holds {holds}, its registrations lead to {wanted}", (), evidence)
        )
    return found
