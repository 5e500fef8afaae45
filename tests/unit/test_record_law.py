"""The record law: a field is declared once. No two records have five names of fields in common."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import pytest

from support.source.parsed import nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

MOST = 4
"""Names that two records may have in common."""
TWO_FACTS = {
    "a stack shows a dispatch in part, its lookup proves it, rows and viewers have the names alone": [
        ("CompleteArguments", "DispatchFrame"),
        ("CompleteArguments", "LookupResult"),
        ("DispatchFrame", "DispatchSubject"),
        ("DispatchFrame", "InnermostStep"),
        ("DispatchFrame", "LookupResult"),
        ("DispatchFrame", "LookupSection"),
        ("DispatchSubject", "LookupResult"),
        ("LookupResult", "LookupSection"),
    ],
    "of a kernel that a stack shows only the function is known, and kernels for SymInts are not told apart": [
        ("Kernel", "RegisteredKernel"),
    ],
    "a table in memory has the words of kernels, half a million of them; a report has their names, and shares them": [
        ("ComputedEntry", "TableChoice"),
    ],
    "a TensorImpl has no size that is symbolic or computed; the report has what Python knows besides": [
        ("TensorFacts", "TensorSection"),
    ],
    "the report on a job has what ranks are compared by, and its members in another order": [
        ("Collective", "Issued"),
        ("JobRank", "RankReport"),
    ],
    "memory has a loop's tasks by address; the report has what each waits for, and who can wake it": [
        ("EventLoop", "RunningLoop"),
    ],
    "limits by where they were read, and in the groups of the report": [("MachineSection", "Surroundings")],
    "an entry of the catalogue has patterns and ranges, a match their texts": [("KnownBug", "KnownBugReport")],
    "a value of a call has a type and always its statistics, a part of a tensor its values": [("LaunchTensor", "Part")],
    "calls that returned, and all dispatches with their total": [("LatencySection", "TopSection")],
    "options of two commands": [("TraceRequest", "ValueRequest")],
}
"""Pairs that have more, by the reason why each record is a fact of its own."""


class Declared(NamedTuple):
    """The names of a record's bases and of its own fields."""

    bases: tuple[str, ...]
    fields: tuple[str, ...]


def records(files: Mapping[str, str]) -> dict[str, Declared]:
    """Name → record: classes that derive from NamedTuple or Section, and dataclasses."""
    classes = [node for source in files.values() for node in nodes(source) if isinstance(node, ast.ClassDef)]
    found = {node.name: Declared(_bases(node), tuple(_fields(node))) for node in classes}
    kinds = {"NamedTuple", "Section"}
    return {
        node.name: found[node.name]
        for node in classes
        if _is_dataclass(node) or kinds.intersection(_ancestors(node.name, found))
    }


def _bases(node: ast.ClassDef) -> tuple[str, ...]:
    return tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for line in node.body:
        is_field = isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("ClassVar")
        if is_field and isinstance(line.target, ast.Name):
            yield line.target.id


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list)


def _ancestors(name: str, found: Mapping[str, Declared]) -> set[str]:
    bases = found[name].bases if name in found else ()
    return {*bases, *(each for base in bases for each in _ancestors(base, found))}


def test_no_two_records_declare_the_same_fields() -> None:
    """Fields that both have of a common base do not count."""
    declared = records(sources())
    kinds = {name: {name, *_ancestors(name, declared)} & declared.keys() for name in declared}
    repeated = []
    for pair in combinations(sorted(declared), 2):
        shared = kinds[pair[0]] & kinds[pair[1]]
        fields, others = ({field for kind in kinds[name] - shared for field in declared[kind].fields} for name in pair)
        if len(fields & others) > MOST:
            repeated.append(pair)
    assert repeated == sorted(pair for pairs in TWO_FACTS.values() for pair in pairs)
