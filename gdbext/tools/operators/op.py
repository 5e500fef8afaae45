"""``dispatch-op``: an operator's schema, registrations and computed dispatch table, equal entries on one line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.report.finding import NOTE, Finding
from gdbext.diagnosis.reporting import make_report, make_report_alone
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.layouts import store
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.engine.vocabulary import ErrorReport, counted
from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.render import Style, escape
from gdbext.tools.operators import operator_section
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables, OperatorRegistration
from gdbext.torch.registry.kernel import KernelFunction, KernelName, RegisteredKernel
from gdbext.torch.registry.operator_names import declared_schemas

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost


CONTRADICTIONS_SHOWN = 50
"""Contradictions that are spelled out; a library torn out in the middle makes thousands."""


class OperatorReporter:
    """Reports operators, all their keys or one. Collects ``findings`` and ``errors`` on the way."""

    def __init__(self, tables: DispatchTables, key: str | None = None) -> None:
        self._tables = tables
        self._kernels = tables.dispatcher.kernels
        self._keys = tables.dispatcher.keys
        self._key = key
        self.findings = _registering(tables)
        self.errors: list[ErrorReport] = _nameless(tables.dispatcher.nameless)
        self._registered: dict[tuple[KernelFunction, KernelName], RegisteredKernel] = {}

    def report_all(self, operators: Sequence[Operator]) -> tuple[operator_section.OperatorReport, ...]:
        """Every operator that can be read."""
        found = []
        for operator in operators:
            try:
                found.append(self.report(operator))
            except GdbextError as error:
                self.errors.append(ErrorReport.of(error, f"operator at {operator.address:#x}"))
        return tuple(found)

    def report(self, operator: Operator) -> operator_section.OperatorReport:
        """One operator; with its bare table where its registrations cannot be read. Raises MemoryFault, BadData."""
        schema, debug = self._schema(operator)
        registrations: tuple[OperatorRegistration, ...] | None = None
        hidden = 0
        try:
            known = self._tables.registrations(operator)
            computed = self._tables.table(operator, known)
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, f"registrations of {operator.qualified}"))
            self.findings.append(_unreadable(operator, error))
            table = self._bare_table(operator)
        else:
            self.findings.extend(_contradictions(operator, computed, len(self.findings)))
            registrations = tuple(self._registration(operator, one) for one in known if self._concerns(one, computed))
            hidden = len(known) - len(registrations)
            key = self._key
            wanted = computed if key is None else [entry for entry in computed if key in (entry.key, entry.source)]
            table = self._table(operator, wanted)
        return operator_section.OperatorReport(
            operator.name, operator.overload, operator.address, schema, debug, registrations, table, hidden
        )

    def _schema(self, operator: Operator) -> tuple[str | None, str | None]:
        """(the schema's text, where it was registered)."""
        where = f"schema of {operator.qualified}"
        try:
            schema, debug = operator.schema, operator.debug
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, where))
            return None, None
        if schema and schema.missing:
            self.errors.append(ErrorReport(f"parts shown as ?: {'; '.join(schema.missing)}", where))
        return schema.text if schema else None, debug or None

    # --- registrations ---------------------------------------------------------------------------

    def _concerns(self, registration: OperatorRegistration, computed: Sequence[ComputedEntry]) -> bool:
        """Registered under the wanted key, or the one that fills that key's entry."""
        key = self._key
        if key is None or registration.key == key:
            return True
        return any(entry.key == key and entry.source == registration.key for entry in computed)

    def _registration(self, operator: Operator, one: OperatorRegistration) -> OperatorRegistration:
        kernel = self._kernel(operator, one.kernel.words, one.key)
        return one._replace(kernel=kernel, inferred_schema=self._inferred_schema(operator, one))

    def _inferred_schema(self, operator: Operator, one: OperatorRegistration) -> str | None:
        try:
            return self._tables.inferred_schema(one)
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, f"schema inferred for {one.key} of {operator.qualified}"))
            return None

    # --- the table -------------------------------------------------------------------------------

    def _table(self, operator: Operator, computed: Sequence[ComputedEntry]) -> tuple[operator_section.TableEntry, ...]:
        """Entries of a dispatch table. A choice that entries have in common is made once."""
        shared: dict[tuple[object, ...], operator_section.TableChoice] = {}
        entries = []
        for entry in computed:
            same = entry[2:]  # all but the key and its slot
            choice = shared.get(same)
            if not choice:
                choice = self._choice(operator, entry)
                if entry.consistent and not choice.kernel.aliases:  # the key chooses among the names of folded code
                    shared[same] = choice
            entries.append(operator_section.TableEntry(entry.key, entry.slot, choice))
        return tuple(entries)

    def _choice(self, operator: Operator, entry: ComputedEntry) -> operator_section.TableChoice:
        expected = None
        if not entry.consistent:
            expected = self._kernel(operator, entry.expected, entry.key)._replace(aliases=())
        return operator_section.TableChoice(
            self._kernel(operator, entry.kernel, entry.key),
            entry.debug or None,
            entry.reason,
            entry.path,
            entry.source or None,
            expected,
        )

    def _kernel(self, operator: Operator, kernel: KernelFunction, key: str) -> RegisteredKernel:
        name = self._kernels.name(kernel, key, operator.name)
        known = self._registered.get((kernel, name))
        if not known:
            known = self._registered[kernel, name] = self._kernels.registered(kernel, name)
        return known

    def _bare_table(self, operator: Operator) -> tuple[operator_section.TableEntry, ...]:
        """The table as it stands in memory: how its entries were chosen is not known. Raises MemoryFault."""
        entries = []
        for slot, key in enumerate(each.name for each in self._keys.slots):
            if self._key in (None, key):
                kernel = self._kernel(operator, operator.kernel(slot), key)._replace(aliases=())
                entries.append(
                    operator_section.TableEntry(key, slot, operator_section.TableChoice(kernel, None, None, None, None))
                )
        return tuple(entries)


def _nameless(lost: Mapping[int, GdbextError]) -> list[ErrorReport]:
    """One error for all operators whose names cannot be read: any of them may be the one that was asked for."""
    if not lost:
        return []
    address, error = next(iter(lost.items()))
    others = f" and of {len(lost) - 1} more" if len(lost) > 1 else ""
    return [ErrorReport.of(error, f"name of the operator at {address:#x}{others}")]


def _registering(tables: DispatchTables) -> list[Finding]:
    """Says that a thread is registering right now, so what follows may be half done."""
    tid = tables.dispatcher.registering_thread
    if not tid:
        return []
    summary = f"thread {tid} holds the dispatcher's lock: it is registering, so lists and tables may be half updated"
    return [Finding(NOTE, summary, (tid,), ("c10::Dispatcher::Guard::mutex is locked",))]


def _unreadable(operator: Operator, error: GdbextError) -> Finding:
    kind = "do not hold together" if isinstance(error, BadData) else "cannot be read"
    summary = f"{operator.qualified}: its registrations {kind}, so its table is shown as it stands"
    return Finding(NOTE, summary, (), (error.what,))


def _contradictions(operator: Operator, computed: Sequence[ComputedEntry], known: int) -> list[Finding]:
    """A table entry that is not what the registrations lead to, each a finding of its own."""
    broken = [entry for entry in computed if entry.kernel != entry.expected][: max(0, CONTRADICTIONS_SHOWN - known)]
    name = operator.dispatcher.kernels.name
    found = []
    for entry in broken:
        holds = name(entry.kernel, entry.key, operator.name).function or "no kernel"
        wanted = name(entry.expected, entry.key, operator.name).function or "no kernel"
        where = f"{operator.qualified}: the table entry of {entry.key}"
        step = f"step {entry.path} ({entry.reason}): {entry.debug}"
        evidence = (step, f"table {entry.kernel}", f"expected {entry.expected}")
        summary = f"{where} holds {holds}, its registrations lead to {wanted}"
        found.append(Finding(NOTE, summary, (), evidence))
    return found


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
            "overload without a name); '*mm*': a glob matched against base names",
        )
        parser.add_argument("--all", action="store_true", help="show every operator")
        parser.add_argument("--key", metavar="KEY", help="show this key only (a runtime key or an alias key)")
        parser.add_argument(
            "--all-keys",
            action="store_true",
            help="show all registrations and all keys of the table (default: your own registrations, and the keys of "
            "devices in use)",
        )
        parser.add_argument(
            "--torch",
            metavar="VERSION",
            help="without a process: the schemas that this release declares (2.13)",
        )

    def run_alone(self, args: Namespace) -> Report:
        """Tell what a release of PyTorch declares. Raises UsageError, LayoutError."""
        if not args.torch:
            what = "dispatch-op needs a process, a core or a recording, or a release: --torch 2.13"
            raise UsageError(what, help="-p PID, -c CORE or -r FILE")
        if args.key or args.all_keys:
            raise UsageError("keys and kernels are in a process only", help="-p PID, -c CORE or -r FILE")
        _check_words(args)
        releases = declared_schemas()
        wanted = store.release(args.torch)[:2]
        torch = next((each for each in releases if store.release(each)[:2] == wanted), None)
        if not torch:
            raise UsageError(f"the schemas of PyTorch {args.torch} are not known", help=f"one of {', '.join(releases)}")
        return make_report_alone(self, args, (operator_section.declared(releases, torch, args.op),))

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the operators. One that cannot be read costs that one. Raises UsageError for an unknown name or key."""
        if args.torch:
            raise UsageError("--torch is for schemas without a process", why="the process has its own PyTorch")
        _check_words(args)
        session, (reporter, section) = session.settled(lambda each: _read(each, args))
        return make_report(self, session, args, findings=reporter.findings, errors=reporter.errors, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _check_words(args: Namespace) -> None:
    if bool(args.op) == args.all:
        raise UsageError("name one operator or pattern, or give --all", help="dispatch-op aten::mm")


def _read(session: Session, args: Namespace) -> tuple[OperatorReporter, operator_section.OperatorSection]:
    dispatcher = session.dispatcher
    if args.key is not None:
        args.key = dispatcher.keys.own_name(args.key)
        if args.key not in dispatcher.keys.alias_keys:
            dispatcher.keys.index_of_key(args.key)  # which raises for what is none
    operators = dispatcher.operators() if args.all else dispatcher.find(args.op)
    if not operators:
        raise dispatcher.unknown(args.op)
    reporter = OperatorReporter(session.tables, args.key)
    with no_garbage_collection():  # half a million table entries
        return reporter, operator_section.OperatorSection(
            reporter.report_all(operators), args.all_keys or args.why or args.key is not None, _devices(session)
        )


def render(report: Report, style: Style) -> Iterator[str]:
    """Each operator, a blank line between them, then what contradicts itself."""
    schemas = report.find_section(operator_section.SchemasSection)
    if schemas:
        yield from operator_section.declarations(schemas, style)
        return
    section = report.section(operator_section.OperatorSection)
    operators = section.operators
    full = len(operators) <= operator_section.FEW
    for position, operator in enumerate(operators):
        if position and full:
            yield ""
        if full:
            yield from _operator(operator, style, report.why, section)
        else:
            yield escape(operator.schema or f"{operator.qualified} (no schema)")
    if not full:
        yield f"{counted(len(operators), 'operator')}; name one to see its registrations and its table"
    for finding in report.findings:
        yield style(f"note: {escape(finding.summary)}", "yellow")
        if report.why:
            yield from (f"      {escape(evidence)}" for evidence in finding.evidence)


_DEVICE_LIBRARIES = {"libtorch_cuda.so": "CUDA", "libtorch_hip.so": "HIP", "libtorch_xpu.so": "XPU"}
"""Libraries without which nothing is on such a device."""
_USUAL_ALIASES = (
    "Autograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
"""Alias keys that fill entries of every device (c10/core/DispatchKey.h)."""
_OF_TORCH = ("/aten/src/ATen/", "/torch/csrc/", "/site-packages/torch/", "/dist-packages/torch/")
"""Parts of the paths under which PyTorch's own registrations stand."""


def _devices(session: Session) -> tuple[str, ...]:
    """The devices whose libraries are loaded, and CPU and meta."""
    loaded = (name for library, name in _DEVICE_LIBRARIES.items() if session.modules.named(library))
    return ("CPU", "Meta", *loaded)


def _operator(
    operator: operator_section.OperatorReport, style: Style, why: bool, section: operator_section.OperatorSection
) -> Iterator[str]:
    all_keys = section.shows_all_keys
    known = operator.registrations or ()
    usual = {f"{prefix}{device}" for prefix in ("", "Autograd") for device in section.devices}
    usual |= {each.key for each in known if _is_own(each)}
    yield style(escape(operator.qualified), "bold") + (f"  OperatorDef at {operator.address:#x}" if why else "")
    yield f"  schema  {escape(operator.schema or '(none)')}"
    if operator.debug:
        yield f"          {escape(operator.debug)}"
    if operator.registrations is None:
        yield style("  registrations cannot be read", "yellow")
    else:
        others = f", {operator.hidden:,} under other keys" if operator.hidden else ""
        yield f"  {counted(len(operator.registrations), 'registration')}{others}"
        told = [each for each in known if all_keys or each.key in usual or each.key in _USUAL_ALIASES]
        for registration in told:
            yield from _registration(registration, style)
        if len(told) < len(operator.registrations):
            yield style(f"    … and {len(operator.registrations) - len(told)} more of PyTorch's: --all-keys", "dim")
    yield "  dispatch table"
    hidden = 0
    for keys, choice in operator_section.grouped(operator.table):
        shown = keys if all_keys else _usual(keys, choice, usual)
        hidden += len(keys) - len(shown)
        if shown:
            yield from _entries(shown, choice, style)
    if hidden:
        yield style(f"    … and {counted(hidden, 'more key')}: --all-keys", "dim")


def _is_own(registration: OperatorRegistration) -> bool:
    """The registration does not stand in PyTorch's own files."""
    return bool(registration.debug) and not any(part in registration.debug for part in _OF_TORCH)


def _usual(keys: list[str], choice: operator_section.TableChoice, usual: Collection[str]) -> list[str]:
    """Those keys of equal entries that people ask for; all of what contradicts itself."""
    return keys if choice.expected else [key for key in keys if key in usual]


def _registration(registration: OperatorRegistration, style: Style) -> Iterator[str]:
    qualifiers = (" [alias]" if registration.alias else "") + ("" if registration.active else " (overridden)")
    kernel = registration.kernel
    line = f"    {registration.key}{qualifiers}: {operator_section.described(kernel)}"
    yield line if registration.active else style(line, "dim")
    yield style(f"        {escape(registration.debug)}", "dim")


def _entries(keys: list[str], choice: operator_section.TableChoice, style: Style) -> Iterator[str]:
    step = f"{choice.path} {choice.reason}" if choice.reason else "as it stands"
    if not choice.kernel.valid:
        yield style(f"    {', '.join(keys)}: missing ({step})", "dim")
        return
    yield f"    {', '.join(keys)}: {operator_section.described(choice.kernel)} ({step})"
    if choice.debug:
        yield style(f"        {escape(choice.debug)}", "dim")
    if choice.expected:
        yield style(f"        the registrations lead to {operator_section.function(choice.expected)}", "red")
