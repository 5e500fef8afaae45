"""Operators, kernels and chains as a report carries them (``model``), made from the dispatcher's own structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.diagnosis.report.thread_report import Finding, FindingKind
from gdbext.engine.vocabulary import ErrorReport
from gdbext.errors import BadData, GdbextError
from gdbext.tools.operators import operator_section
from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables, Registration
from gdbext.torch.registry.kernel import KernelFunction, KernelName, KernelReader
from gdbext.torch.registry.operators import Operator
from gdbext.torch.stack.dispatch_frame import DispatchKeySet
from gdbext.torch.values.key_names import KeyNames

CONTRADICTIONS_SHOWN = 50
"""Contradictions that are spelled out; a library torn out in the middle makes thousands."""


def key_set(keys: KeyNames, bits: int) -> DispatchKeySet:
    """A keyset with its keys as PyTorch prints them."""
    return DispatchKeySet(bits, keys.decode(bits))


def registered_kernel(
    kernels: KernelReader, kernel: KernelFunction, name: KernelName
) -> operator_section.RegisteredKernel:
    """A kernel with its name and abilities."""
    return operator_section.RegisteredKernel(
        function=name.function or None,
        valid=kernel.valid,
        boxed=kernel.boxed != 0,
        unboxed=kernel.unboxed != 0,
        sym_unboxed=kernel.sym_unboxed != 0,
        fallthrough=kernels.fallthrough(kernel),
        python=operator_section.PythonPlace(name.file or None, name.line) if name.kind == "python" else None,
        aliases=name.aliases,
    )


class OperatorReporter:
    """Reports operators, all their keys or one. Collects ``findings`` and ``errors`` on the way."""

    def __init__(self, tables: DispatchTables, key: str | None = None) -> None:
        self._tables = tables
        self._kernels = tables.dispatcher.kernels
        self._keys = tables.dispatcher.keys
        self._key = key
        self.findings = _registering(tables)
        self.errors: list[ErrorReport] = _nameless(tables.dispatcher.nameless)

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
        registrations: tuple[operator_section.OperatorRegistration, ...] | None = None
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
            table = self._table(operator, [entry for entry in computed if self._key in (None, entry.key, entry.source)])
        return operator_section.OperatorReport(
            operator.name, operator.overload, operator.address, schema, debug, registrations, table
        )  # fmt: skip

    def _schema(self, operator: Operator) -> tuple[str | None, str | None]:
        """(the schema's text, where it was registered)."""
        where = f"schema of {operator.qualified}"
        try:
            schema, debug = operator.schema, operator.debug
        except GdbextError as error:
            self.errors.append(ErrorReport.of(error, where))
            return None, None
        if schema is not None and schema.missing:
            self.errors.append(ErrorReport(f"parts shown as ?: {'; '.join(schema.missing)}", where))
        return schema.text if schema else None, debug or None

    # --- registrations ---------------------------------------------------------------------------

    def _concerns(self, registration: Registration, computed: Sequence[ComputedEntry]) -> bool:
        """Registered under the wanted key, or the one that fills that key's entry."""
        key = self._key
        if key is None or registration.key == key:
            return True
        return any(entry.key == key and entry.source == registration.key for entry in computed)

    def _registration(self, operator: Operator, one: Registration) -> operator_section.OperatorRegistration:
        name = self._kernels.name(one.kernel, one.key, operator.name)
        return operator_section.OperatorRegistration(
            key=one.key,
            is_alias=one.key in self._keys.alias_keys,
            active=one.active,
            kernel=registered_kernel(self._kernels, one.kernel, name),
            debug=one.debug,
            inferred_schema=self._inferred_schema(operator, one),
        )

    def _inferred_schema(self, operator: Operator, one: Registration) -> str | None:
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
            same = (entry.kernel, entry.expected, entry.path, entry.source, entry.debug)
            choice = shared.get(same)
            if choice is None:
                choice = self._choice(operator, entry)
                if entry.consistent and not choice.kernel.aliases:  # the key chooses among the names of folded code
                    shared[same] = choice
            entries.append(operator_section.TableEntry(entry.key, entry.slot, choice))
        return tuple(entries)

    def _choice(self, operator: Operator, entry: ComputedEntry) -> operator_section.TableChoice:
        expected = None
        if not entry.consistent:
            expected = self._kernel(operator, entry.expected, entry.key)
        return operator_section.TableChoice(
            self._kernel(operator, entry.kernel, entry.key),
            entry.debug or None,
            entry.reason,
            entry.path,
            entry.source or None,
            expected,
        )

    def _kernel(self, operator: Operator, kernel: KernelFunction, key: str) -> operator_section.RegisteredKernel:
        return registered_kernel(self._kernels, kernel, self._kernels.name(kernel, key, operator.name))

    def _bare_table(self, operator: Operator) -> tuple[operator_section.TableEntry, ...]:
        """The table as it stands in memory: how its entries were chosen is not known. Raises MemoryFault."""
        entries = []
        for slot, key in enumerate(each.name for each in self._keys.slots):
            if self._key in (None, key):
                kernel = self._kernel(operator, operator.kernel(slot), key)
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
    if tid is None:
        return []
    summary = f"thread {tid} holds the dispatcher's lock: it is registering, so lists and tables may be half updated"
    return [Finding(FindingKind.NOTE, summary, (tid,), ("c10::Dispatcher::Guard::mutex is locked",))]


def _unreadable(operator: Operator, error: GdbextError) -> Finding:
    kind = "do not hold together" if isinstance(error, BadData) else "cannot be read"
    summary = f"{operator.qualified}: its registrations {kind}, so its table is shown as it stands"
    return Finding(FindingKind.NOTE, summary, (), (error.what,))


def _contradictions(operator: Operator, computed: Sequence[ComputedEntry], known: int) -> list[Finding]:
    """A table entry that is not what the registrations lead to, each a finding of its own."""
    broken = [entry for entry in computed if not entry.consistent][: max(0, CONTRADICTIONS_SHOWN - known)]
    name = operator.dispatcher.kernels.name
    found = []
    for entry in broken:
        holds = name(entry.kernel, entry.key, operator.name).function or "no kernel"
        wanted = name(entry.expected, entry.key, operator.name).function or "no kernel"
        where = f"{operator.qualified}: the table entry of {entry.key}"
        step = f"step {entry.path} ({entry.reason}): {entry.debug}"
        evidence = (step, f"table {entry.kernel}", f"expected {entry.expected}")
        summary = f"{where} holds {holds}, its registrations lead to {wanted}"
        found.append(Finding(FindingKind.NOTE, summary, (), evidence))
    return found
