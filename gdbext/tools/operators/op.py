"""``dispatch-op``: an operator's schema, registrations and computed dispatch table, equal entries on one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Mode, Tool
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.errors import UsageError
from gdbext.render.style import Style, escape
from gdbext.tools.operators import operator_section

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.tools.operators.operator_report import OperatorReporter
    from gdbext.torch.values.key_names import KeyNames


class OperatorTool(Tool):
    """The command ``dispatch-op`` as a tool."""

    name = "dispatch-op"
    summary = "Show an operator: schema, registrations and its computed dispatch table."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this tool."""
        parser.add_argument(
            "op",
            nargs="?",
            metavar="OP[.OVERLOAD]|PATTERN",
            help="mm: every operator with that base name; aten::mm, aten::mm.out: exact (aten::mm.default: the "
            "overload without a name); '*mm*': a pattern over base names",
        )
        parser.add_argument("--all", action="store_true", help="show every operator")
        parser.add_argument("--key", metavar="KEY", help="show this key only (a runtime key or an alias key)")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the operators. One that cannot be read costs that one. Raises UsageError for an unknown name or key."""
        if bool(args.op) == args.all:
            raise UsageError("name one operator or pattern, or give --all", help="dispatch-op aten::mm")
        session, (reporter, section) = session.settled(lambda each: _read(each, args))
        return make_report(self, session, args, findings=reporter.findings, errors=reporter.errors, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _read(session: Session, args: Namespace) -> tuple[OperatorReporter, operator_section.OperatorSection]:
    from gdbext.tools.operators.operator_report import OperatorReporter

    dispatcher = session.dispatcher
    if args.key is not None:
        args.key = dispatcher.keys.own_name(args.key)
        _check_key(dispatcher.keys, args.key)
    operators = dispatcher.operators() if args.all else dispatcher.find(args.op)
    if not operators:
        raise dispatcher.unknown(args.op)
    reporter = OperatorReporter(session.tables, args.key)
    with no_garbage_collection():  # half a million table entries
        return reporter, operator_section.OperatorSection(reporter.report_all(operators))


def _check_key(keys: KeyNames, key: str) -> None:
    if key not in keys.alias_keys:
        keys.index_of_key(key)


_FULL = 6
"""Most operators that are shown in full; of more, one line each."""


def render(report: Report, style: Style) -> Iterator[str]:
    """Each operator, a blank line between them, then what contradicts itself."""
    operators = report.section(operator_section.OperatorSection).operators
    full = len(operators) <= _FULL
    for position, operator in enumerate(operators):
        if position and full:
            yield ""
        yield from _operator(operator, style, report.why) if full else _line(operator)
    if not full:
        yield f"{len(operators)} operators; name one to see its registrations and its table"
    for finding in report.findings:
        yield style(f"note: {escape(finding.summary)}", "yellow")
        if report.why:
            yield from (f"      {escape(evidence)}" for evidence in finding.evidence)


def _line(operator: operator_section.OperatorReport) -> Iterator[str]:
    yield escape(operator.schema or f"{operator.qualified} (no schema)")


def _operator(operator: operator_section.OperatorReport, style: Style, why: bool) -> Iterator[str]:
    yield style(escape(operator.qualified), "bold") + (f"  OperatorDef at {operator.address:#x}" if why else "")
    yield f"  schema  {escape(operator.schema or '(none)')}"
    if operator.debug:
        yield f"          {escape(operator.debug)}"
    if operator.registrations is None:
        yield style("  registrations cannot be read", "yellow")
    else:
        yield f"  {len(operator.registrations)} registrations"
        for registration in operator.registrations:
            yield from _registration(registration, style)
    yield "  dispatch table"
    for keys, choice in grouped(operator.table):
        yield from _entries(keys, choice, style)


def _registration(registration: operator_section.OperatorRegistration, style: Style) -> Iterator[str]:
    qualifiers = (" [alias]" if registration.is_alias else "") + ("" if registration.active else " (overridden)")
    kernel = registration.kernel
    line = f"    {registration.key}{qualifiers}: {function(kernel)}  [{abilities(kernel)}]"
    yield line if registration.active else style(line, "dim")
    yield style(f"        {escape(registration.debug)}", "dim")


def grouped(table: Sequence[operator_section.TableEntry]) -> list[tuple[list[str], operator_section.TableChoice]]:
    """Entries that have kernel, reason and source in common, in order of the first, with their keys."""
    groups: dict[object, tuple[list[str], operator_section.TableChoice]] = {}
    for key, _slot, choice in table:
        kernel, contradicted = choice.kernel, choice.expected is not None
        same = (kernel.function, choice.reason, choice.path, choice.debug, kernel.valid, contradicted)
        groups.setdefault(same, ([], choice))[0].append(key)
    return list(groups.values())


def _entries(keys: list[str], choice: operator_section.TableChoice, style: Style) -> Iterator[str]:
    step = f"{choice.path} {choice.reason}" if choice.reason else "as it stands"
    if not choice.kernel.valid:
        yield style(f"    {', '.join(keys)}: missing ({step})", "dim")
        return
    yield f"    {', '.join(keys)}: {function(choice.kernel)}  [{abilities(choice.kernel)}] ({step})"
    if choice.debug:
        yield style(f"        {escape(choice.debug)}", "dim")
    if choice.expected is not None:
        yield style(f"        the registrations lead to {function(choice.expected)}", "red")


def function(kernel: operator_section.RegisteredKernel) -> str:
    """The kernel's function, with its place when it is a Python one."""
    name = escape(kernel.function or "no kernel")
    python = kernel.python
    if python is None:
        return name
    place = f" ({python.file}:{python.line})" if python.file else ""
    return f"Python {name}{escape(place)}"


def abilities(kernel: operator_section.RegisteredKernel) -> str:
    """The kernel's abilities: ``boxed unboxed``, ``fallthrough``, ``missing``."""
    if not kernel.valid:
        return "missing"
    if kernel.fallthrough:
        return "fallthrough"
    ways = {"boxed": kernel.boxed, "unboxed": kernel.unboxed, "unboxed with SymInts": kernel.sym_unboxed}
    return " ".join(way for way, exists in ways.items() if exists)
