"""Operators as ``dispatch-op`` reports them: schema, registrations, dispatch table; or the schemas that a release
declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.engine.vocabulary import Section, counted
from gdbext.render import Style, escape, short_name
from gdbext.torch.registry.dispatch_table import OperatorRegistration
from gdbext.torch.registry.kernel import KernelFacts, RegisteredKernel
from gdbext.torch.registry.operator_names import matcher, split, unknown_operator

if TYPE_CHECKING:
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
    """The kernel that the registrations lead to, where the table in memory holds another one."""


class TableEntry(NamedTuple):
    """One slot of a dispatch table. A tuple, for all operators have half a million; equal choices are shared."""

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
    """None where they cannot be read; ``table`` then holds what stands in memory."""
    table: tuple[TableEntry, ...]
    hidden: Internal[int] = 0
    """Registrations under other keys than the one that was asked for."""

    @property
    def qualified(self) -> str:
        """The name with the overload: ``aten::mm.out``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass(frozen=True)
class OperatorSection(Section):
    """The operators that were asked for."""

    name: ClassVar[str] = "operators"
    only_member: ClassVar[str] = "operators"
    operators: tuple[OperatorReport, ...]
    shows_all_keys: bool = True
    devices: tuple[str, ...] = ("CPU", "Meta")
    """Backends that the process can use: text has their keys."""
    """Text has the entries of all keys, too, and not only those of the usual ones."""


@dataclass(frozen=True)
class DeclaredSchema:
    """The schema of an operator as a release of PyTorch declares it (native_functions.yaml), equal in all releases from
    ``since`` to ``until``, of which the last one of each minor version is known."""

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
    """The schemas that were asked for of one release, without a process."""

    name: ClassVar[str] = "schemas"
    torch: str
    operators: tuple[DeclaredSchema, ...]


def declared(releases: Mapping[str, Sequence[str]], torch: str, pattern: str | None) -> SchemasSection:
    """The schemas of the release ``torch`` whose names match ``pattern`` (None: all). ``releases``: the schemas of all
    known releases, in their order. Raises UsageError if none matches."""
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
"""Operators that are shown in full, at most; of more, one line each."""


def declarations(section: SchemasSection, style: Style) -> Iterator[str]:
    """The schemas of a release; if there are few, also in which other releases they are the same."""
    for operator in section.operators:
        yield escape(operator.schema)
        if len(section.operators) <= FEW:
            since, until = operator.since, operator.until
            equal = f"from {since} to {until}" if since != until else f"in {since} only"
            yield style(f"  the same {equal}", "dim")
    yield f"{counted(len(section.operators), 'schema')} of PyTorch {section.torch}; kernels are in a process: -p PID"


def grouped(table: Sequence[TableEntry]) -> list[tuple[list[str], TableChoice]]:
    """Entries that have kernel, reason and source in common, in the order of the first, with their keys."""
    groups: dict[object, tuple[list[str], TableChoice]] = {}
    for key, _slot, choice in table:
        kernel, contradicted = choice.kernel, bool(choice.expected)
        same = (kernel.function, choice.reason, choice.path, choice.debug, kernel.valid, contradicted)
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
