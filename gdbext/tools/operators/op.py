"""``dispatch-op``: an operator's schema, registrations and computed dispatch table, equal entries on one line; or the
schemas that a release declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.report.finding import NOTE, Finding
from gdbext.diagnosis.reporting import make_report, make_report_alone
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.engine.layouts import store
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.engine.vocabulary import ErrorReport, Section, counted
from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.render import Style, escape, short_name
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables, OperatorRegistration, registration_text
from gdbext.torch.registry.kernel import KernelFacts, KernelFunction, KernelName, RegisteredKernel
from gdbext.torch.registry.operator_names import declared_schemas, matcher, split, unknown_operator
from gdbext.torch.stack.key_choice import missing_formula, raises_only

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal, Sparse


@dataclass(frozen=True)
class TableChoice(KernelFacts):
    """The kernel of a table entry and how it was chosen; None where the registrations cannot be read."""

    kernel: Inline[RegisteredKernel]
    debug: str | None
    reason: str | None
    """PyTorch's words: "kernel", "math kernel", "backend fallback", "missing", …"""
    path: str | None
    """The step of ``OperatorEntry::computeDispatchTableEntryWithDebug``: "1", "2.1" … "4"."""
    source: str | None
    """The key, alias key or "fallback" under which the kernel was registered."""
    expected: Sparse[RegisteredKernel | None] = None
    """The kernel that follows from the registrations, if the table in memory holds another one."""


class TableEntry(NamedTuple):
    """One slot of a dispatch table. All operators have half a million of them, which share equal choices."""

    key: str
    index_: int
    choice: Inline[TableChoice]


@dataclass(frozen=True)
class OperatorReport:
    """One overload of an operator."""

    op: str
    overload: str
    address: Hexadecimal
    """The address of the ``c10::Dispatcher::OperatorDef`` in memory."""
    schema: str | None
    debug: str | None
    """The source line where the schema was registered."""
    registrations: tuple[OperatorRegistration, ...] | None
    """None if they cannot be read; ``table`` then has only what is in memory."""
    table: tuple[TableEntry, ...]
    hidden: Internal[int] = 0
    """Number of registrations under other keys than --key."""

    @property
    def qualified(self) -> str:
        """The name with the overload: ``aten::mm.out``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass(frozen=True)
class OperatorSection(Section):
    """The requested operators."""

    name: ClassVar[str] = "operators"
    only_member: ClassVar[str] = "operators"
    operators: tuple[OperatorReport, ...]
    shows_all_keys: bool = True
    """The text has the entries of all keys, not only of ``devices``."""
    devices: tuple[str, ...] = ("CPU", "Meta")
    """Backends that the process can use."""


@dataclass(frozen=True)
class DeclaredSchema:
    """The schema of an operator as a release of PyTorch declares it (native_functions.yaml), equal in all known
    releases (the last one of each minor version) from ``since`` to ``until``."""

    op: str
    overload: str
    schema: str
    since: str
    until: str

    @property
    def qualified(self) -> str:
        """The name with the overload: ``aten::mm.out``."""
        return self.schema.partition("(")[0]


@dataclass(frozen=True)
class SchemasSection(Section):
    """The requested schemas of one release, without a process."""

    name: ClassVar[str] = "schemas"
    torch: str
    operators: tuple[DeclaredSchema, ...]


def declared(releases: Mapping[str, Sequence[str]], torch: str, pattern: str | None) -> SchemasSection:
    """The schemas of the release ``torch`` whose names match ``pattern`` (None: all). ``releases``: release → all its
    schemas, in order. Raises UsageError if none matches."""
    names = [schema.partition("(")[0] for schema in releases[torch]]
    fits = matcher(pattern) if pattern is not None else None
    wanted = [schema for name, schema in zip(names, releases[torch]) if not fits or fits(name)]
    if not wanted:
        raise unknown_operator(pattern or "", names, release=torch)
    order = list(releases)
    schemas_of = {release: frozenset(schemas) for release, schemas in releases.items()}
    operators = []
    for schema in wanted:
        first = last = order.index(torch)
        while first and schema in schemas_of[order[first - 1]]:
            first -= 1
        while last + 1 < len(order) and schema in schemas_of[order[last + 1]]:
            last += 1
        operators.append(DeclaredSchema(*split(schema.partition("(")[0]), schema, order[first], order[last]))
    return SchemasSection(torch, tuple(operators))


FEW = 6
"""Operators that are shown in full, at most; more get one line each."""


def declarations(section: SchemasSection, style: Style) -> Iterator[str]:
    """The schemas of a release; if there are few, also in which other releases they are the same."""
    for operator in section.operators:
        yield escape(operator.schema)
        if len(section.operators) <= FEW:
            since, until = operator.since, operator.until
            equal = f"from {since} to {until}" if since != until else f"in {since} only"
            yield style(f"  the same {equal}", "dim")
    schemas = counted(len(section.operators), "schema")
    yield f"{schemas} of PyTorch {section.torch}; to see kernels, name a process: -p PID"


def grouped(table: Sequence[TableEntry]) -> list[tuple[list[str], TableChoice]]:
    """(keys, choice) of table entries that have kernel, reason and source in common, in the order of the first key."""
    groups: dict[object, tuple[list[str], TableChoice]] = {}
    for key, _slot, choice in table:
        kernel = choice.kernel
        same = (kernel.function, choice.reason, choice.path, choice.debug, kernel.valid, bool(choice.expected))
        groups.setdefault(same, ([], choice))[0].append(key)
    return list(groups.values())


def function_text(kernel: RegisteredKernel) -> str:
    """The kernel's function, with file and line if it is a Python function."""
    name = escape(short_name(kernel.function or "no kernel"))
    python = kernel.python
    if not python:
        return name
    place = f" ({python.file}:{python.line})" if python.file else ""
    return f"Python {name}{escape(place)}"


def kernel_text(kernel: RegisteredKernel) -> str:
    """The kernel's function and abilities: ``at::native::mm  [unboxed]``, ``[fallthrough]``, ``[missing]``."""
    calls = {"boxed": kernel.boxed, "unboxed": kernel.unboxed, "unboxed with SymInts": kernel.sym_unboxed}
    abilities = " ".join(call for call, exists in calls.items() if exists)
    if not kernel.valid or kernel.fallthrough:
        abilities = "fallthrough" if kernel.valid else "missing"
    return f"{function_text(kernel)}  [{abilities}]"


class OperatorReporter:
    """Reports operators, and collects ``findings`` and ``errors`` meanwhile."""

    def __init__(self, tables: DispatchTables, key: str | None = None) -> None:
        """``key``: report only what concerns that key; None for all keys."""
        self._tables = tables
        self._kernels = tables.dispatcher.kernels
        self._keys = tables.dispatcher.keys
        self._key = key
        self.findings: list[Finding] = []
        self.errors: list[ErrorReport] = []
        self._registered: dict[tuple[KernelFunction, KernelName], RegisteredKernel] = {}
        tid = tables.dispatcher.registering_thread
        if tid:
            what = "it is registering operators, so lists and tables may be half updated"
            evidence = ("c10::Dispatcher::Guard::mutex is locked",)
            self.findings.append(Finding(NOTE, f"thread {tid} holds the dispatcher's lock: {what}", (tid,), evidence))
        # One error for all operators without a readable name: any of them may be the requested one.
        nameless = tables.dispatcher.nameless
        for address, error in list(nameless.items())[:1]:
            others = f" and of {len(nameless) - 1} more" if len(nameless) > 1 else ""
            self.errors.append(ErrorReport.of(error, f"name of the operator at {address:#x}{others}"))

    def report_all(self, operators: Sequence[Operator]) -> tuple[OperatorReport, ...]:
        """The reports on all operators that can be read; others become errors."""
        reports = []
        for operator in operators:
            try:
                reports.append(self.report(operator))
            except GdbextError as error:
                self.errors.append(ErrorReport.of(error, f"operator at {operator.address:#x}"))
        return tuple(reports)

    def report(self, operator: Operator) -> OperatorReport:
        """The report on an operator; if registrations are unreadable, only its table. Raises MemoryFault, BadData."""
        schema, debug = self._schema(operator)
        registrations: tuple[OperatorRegistration, ...] | None = None
        hidden, key = 0, self._key
        try:
            all_registrations = self._tables.registrations(operator)
            computed = self._tables.table(operator, all_registrations)
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, f"registrations of {operator.qualified}"))
            kind = "are inconsistent" if isinstance(error, BadData) else "cannot be read"
            summary = f"{operator.qualified}: its registrations {kind}, so its table is shown as it is in memory"
            self.findings.append(Finding(NOTE, summary, (), (error.what,)))
            table = []
            for slot, name in enumerate(slot.name for slot in self._keys.slots):
                if key in (None, name):
                    kernel = self._kernel(operator, operator.kernel(slot), name)._replace(aliases=())
                    table.append(TableEntry(name, slot, TableChoice(kernel, None, None, None, None)))
        else:
            # A library in the middle of an update has thousands of contradictions.
            self.findings.extend(_contradictions(operator, computed, 50 - len(self.findings)))
            # With a key: what is registered under it, or fills its entry.
            sources = {key, *(entry.source for entry in computed if entry.key == key)}
            registrations = tuple(
                registration._replace(
                    kernel=self._kernel(operator, registration.kernel.words, registration.key),
                    inferred_schema=self._inferred_schema(operator, registration),
                )
                for registration in all_registrations
                if key is None or registration.key in sources
            )
            hidden = len(all_registrations) - len(registrations)
            wanted = computed if key is None else [entry for entry in computed if key in (entry.key, entry.source)]
            table = self._table(operator, wanted)
        return OperatorReport(
            operator.name, operator.overload, operator.address, schema, debug, registrations, tuple(table), hidden
        )

    def _inferred_schema(self, operator: Operator, registration: OperatorRegistration) -> str | None:
        """The schema inferred for a registration; None without one, or if it cannot be read, which is an error."""
        try:
            return self._tables.inferred_schema(registration)
        except GdbextError as error:
            where = f"schema inferred for {registration.key} of {operator.qualified}"
            self.errors.append(ErrorReport.of(error, where))
            return None

    def _schema(self, operator: Operator) -> tuple[str | None, str | None]:
        """(the schema's text, the source line that registered it), None for what is unknown."""
        where = f"schema of {operator.qualified}"
        try:
            schema, debug = operator.schema, operator.debug
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, where))
            return None, None
        if schema and schema.missing:
            self.errors.append(ErrorReport(f"parts shown as ?: {'; '.join(schema.missing)}", where))
        return schema.text if schema else None, debug or None

    def _table(self, operator: Operator, computed: Sequence[ComputedEntry]) -> list[TableEntry]:
        """Entries of a dispatch table; equal ones share one TableChoice."""
        shared: dict[tuple[object, ...], TableChoice] = {}
        entries = []
        for entry in computed:
            same = entry[2:]  # all but the key and its slot
            choice = shared.get(same)
            if not choice:
                wanted = None if entry.consistent else self._kernel(operator, entry.expected, entry.key)
                expected = wanted and wanted._replace(aliases=())
                kernel = self._kernel(operator, entry.kernel, entry.key)
                debug, source = entry.debug or None, entry.source or None
                choice = TableChoice(kernel, debug, entry.reason, entry.path, source, expected)
                if entry.consistent and not choice.kernel.aliases:  # the key chooses among the names of folded code
                    shared[same] = choice
            entries.append(TableEntry(entry.key, entry.slot, choice))
        return entries

    def _kernel(self, operator: Operator, kernel: KernelFunction, key: str) -> RegisteredKernel:
        """The kernel with its name; if several functions share its code, the name that fits operator and key."""
        name = self._kernels.name(kernel, key, operator.name)
        registered = self._registered.get((kernel, name))
        if not registered:
            registered = self._registered[kernel, name] = self._kernels.registered(kernel, name)
        return registered


def _contradictions(operator: Operator, computed: Sequence[ComputedEntry], limit: int) -> list[Finding]:
    """A finding for each table entry that contradicts the registrations, at most ``limit``."""
    broken = [entry for entry in computed if entry.kernel != entry.expected][: max(0, limit)]
    name = operator.dispatcher.kernels.name
    findings = []
    for entry in broken:
        holds = name(entry.kernel, entry.key, operator.name).function or "no kernel"
        wanted = name(entry.expected, entry.key, operator.name).function or "no kernel"
        where = f"{operator.qualified}: the table entry of {entry.key}"
        step = f"step {entry.path} ({entry.reason}): {entry.debug}"
        evidence = (step, f"table {entry.kernel}", f"expected {entry.expected}")
        summary = f"{where} holds {holds}, but its registrations give {wanted}"
        findings.append(Finding(NOTE, summary, (), evidence))
    return findings


class OperatorTool(Tool):
    """The command ``dispatch-op`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        op_help = (
            "mm: every operator with that base name; aten::mm, aten::mm.out: exact (aten::mm.default: the "
            "overload without a name); '*mm*': a glob matched against base names"
        )
        parser.add_argument("op", nargs="?", metavar="OP[.OVERLOAD]|PATTERN", help=op_help)
        parser.add_argument("--all", action="store_true", help="show every operator")
        parser.add_argument("--key", metavar="KEY", help="show this key only (a runtime key or an alias key)")
        keys_help = (
            "show all registrations and all keys of the table (default: your own registrations, and the keys of "
            "devices in use)"
        )
        parser.add_argument("--all-keys", action="store_true", help=keys_help)
        torch_help = "without a process: show the schemas that this release declares (2.13)"
        parser.add_argument("--torch", metavar="VERSION", help=torch_help)

    def run_alone(self, args: Namespace) -> Report:
        """The schemas that a release of PyTorch declares. Raises UsageError, LayoutError."""
        if not args.torch:
            what = "dispatch-op needs a process, a core or a recording, or a release: --torch 2.13"
            raise UsageError(what, help="-p PID, -c CORE or -r FILE")
        if args.key or args.all_keys:
            raise UsageError("keys and kernels need a process", help="-p PID, -c CORE or -r FILE")
        _check_words(args)
        releases = declared_schemas()
        wanted = store.release(args.torch)[:2]
        torch = next((release for release in releases if store.release(release)[:2] == wanted), None)
        if not torch:
            raise UsageError(f"the schemas of PyTorch {args.torch} are not known", help=f"one of {', '.join(releases)}")
        return make_report_alone(self, args, (declared(releases, torch, args.op),))

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Report the operators; one that cannot be read is an error. Raises UsageError for an unknown name or key."""
        if args.torch:
            raise UsageError("--torch is for schemas without a process", why="the process has its own PyTorch")
        _check_words(args)

        def read(session: Session) -> tuple[OperatorReporter, OperatorSection]:
            """Check the key and find the operators, then report them."""
            dispatcher, key = session.dispatcher, args.key
            if key is not None:
                key = dispatcher.keys.own_name(key)
                if key not in dispatcher.keys.alias_keys:
                    dispatcher.keys.index_of_key(key)  # which raises for an unknown key
            operators = dispatcher.operators() if args.all else dispatcher.find(args.op)
            if not operators:
                raise dispatcher.unknown(args.op)
            reporter = OperatorReporter(session.tables, key)
            libraries = {"libtorch_cuda.so": "CUDA", "libtorch_hip.so": "HIP", "libtorch_xpu.so": "XPU"}
            in_use = [device for library, device in libraries.items() if session.modules.named(library)]
            with no_garbage_collection():  # half a million table entries
                reports = reporter.report_all(operators)
                all_keys = args.all_keys or args.why or key is not None
                return reporter, OperatorSection(reports, all_keys, ("CPU", "Meta", *in_use))

        session, (reporter, section) = session.read_consistently(read)
        return make_report(self, session, args, findings=reporter.findings, errors=reporter.errors, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """Each operator, a blank line between them, then what contradicts itself."""
        schemas = report.find_section(SchemasSection)
        if schemas:
            yield from declarations(schemas, style)
            return
        section = report.section(OperatorSection)
        operators = section.operators
        for position, operator in enumerate(operators):
            if len(operators) > FEW:
                yield escape(operator.schema or f"{operator.qualified} (no schema)")
                continue
            if position:
                yield ""
            yield from _operator_lines(operator, style, report.why, section)
        if len(operators) > FEW:
            yield f"{counted(len(operators), 'operator')}; name one to see its registrations and table"
        for finding in report.findings:
            yield style(f"note: {escape(finding.summary)}", "yellow")
            if report.why:
                yield from (f"      {escape(evidence)}" for evidence in finding.evidence)


def lacks_key_set(operator: OperatorReport) -> bool:
    """True if a call has no tensor argument to take its keys from, and no kernel for such calls is registered: all
    registrations are for backends, so a call raises NotImplementedError."""
    arguments = (operator.schema or "Tensor").partition(" -> ")[0]
    keys = {registration.key for registration in operator.registrations or ()}
    alias = {key for key in keys if key.startswith("Composite")}
    return bool(keys) and "Tensor" not in arguments and not alias and not keys & {"BackendSelect", "Undefined"}


def _check_words(args: Namespace) -> None:
    """Raise UsageError unless there is either an operator or --all."""
    if bool(args.op) == args.all:
        raise UsageError("name one operator or pattern, or give --all", help="dispatch-op aten::mm")


def _operator_lines(operator: OperatorReport, style: Style, why: bool, section: OperatorSection) -> Iterator[str]:
    """The schema, the registrations and the table of an operator. ``why``: with its address. Without
    section.shows_all_keys only keys of devices in use, and of registrations outside of PyTorch's own files."""
    all_keys, registrations = section.shows_all_keys, operator.registrations
    torch_files = ("/aten/src/ATen/", "/torch/csrc/", "/site-packages/torch/", "/dist-packages/torch/")
    usual = {f"{prefix}{device}" for prefix in ("", "Autograd") for device in section.devices}
    for registration in registrations or ():
        if registration.debug and not any(part in registration.debug for part in torch_files):
            usual.add(registration.key)
    # Alias keys that fill entries of every device (c10/core/DispatchKey.h).
    kinds = ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")
    usual_aliases = {"Autograd", *(f"Composite{kind}" for kind in kinds)}
    yield style(escape(operator.qualified), "bold") + (f"  OperatorDef at {operator.address:#x}" if why else "")
    yield f"  schema  {escape(operator.schema or '(none)')}"
    if operator.debug:
        yield f"          {escape(registration_text(operator.debug))}"
    if registrations is None:
        yield style("  registrations cannot be read", "yellow")
    else:
        others = f", {operator.hidden:,} under other keys" if operator.hidden else ""
        yield f"  {counted(len(registrations), 'registration')}{others}"
        shown_keys = usual | usual_aliases
        shows_all = all_keys or len(registrations) <= FEW
        shown = [registration for registration in registrations if shows_all or registration.key in shown_keys]
        for registration in shown:
            qualifiers = (" [alias]" if registration.alias else "") + ("" if registration.active else " (overridden)")
            line = f"    {registration.key}{qualifiers}: {kernel_text(registration.kernel)}"
            yield line if registration.active else style(line, "dim")
            yield style(f"        {escape(registration_text(registration.debug))}", "dim")
        if len(shown) < len(registrations):
            yield style(f"    … and {len(registrations) - len(shown)} more of PyTorch's: --all-keys", "dim")
        if lacks_key_set(operator):
            yield style(
                "  the schema has no tensor, so the key set of a call is empty: the operator needs a kernel for "
                "CompositeExplicitAutograd or BackendSelect",
                "yellow",
            )
    yield "  dispatch table"
    hidden = 0
    for keys, choice in grouped(operator.table):
        # Contradictions are shown with all keys.
        shown_of_choice = keys if all_keys or choice.expected else [key for key in keys if key in usual]
        hidden += len(keys) - len(shown_of_choice)
        if shown_of_choice:
            yield from _entry_lines(shown_of_choice, choice, style)
    if hidden:
        yield style(f"    … and {counted(hidden, 'more key')}: --all-keys", "dim")


def _entry_lines(keys: list[str], choice: TableChoice, style: Style) -> Iterator[str]:
    """Lines on a choice and the table's ``keys`` that have it."""
    step = f"{choice.path} {choice.reason}" if choice.reason else "as in memory"
    if not choice.kernel.valid:
        yield style(f"    {', '.join(keys)}: missing ({step})", "dim")
        return
    yield f"    {', '.join(keys)}: {kernel_text(choice.kernel)} ({step})"
    if choice.debug:
        yield style(f"        {escape(registration_text(choice.debug))}", "dim")
    function = choice.kernel.function or ""
    effect = raises_only(function) or (missing_formula(function) if keys[0].startswith("Autograd") else "")
    if effect:
        yield style(f"        {effect}", "yellow")
    if choice.expected:
        yield style(f"        the registrations give {function_text(choice.expected)}", "red")
