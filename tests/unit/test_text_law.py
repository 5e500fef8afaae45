"""No code reads text that code wrote: sentences, names and labels are for people; code asks typed fields.

What counts as reading: comparing such a text, searching it, taking it apart. A member of an enumeration is compared
itself, not the word that it has in JSON.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, nodes, walk

pytestmark = pytest.mark.xdist_group("laws")

ROOMS = ("diagnosis/", "render/", "live/", "tools/", "hosts/")
SENTENCES = frozenset({"summary", "evidence", "phrase", "sentence", "advice", "label", "why", "what", "notes", "place"})
"""Attributes that hold text for people, whatever the object."""
NAMED = frozenset({"resource", "held", "mutex", "waits_for"})
"""Objects whose ``name`` is for people."""
SEARCHES = {
    *("startswith", "endswith", "find", "rfind", "index", "count", "split", "rsplit", "splitlines", "partition"),
    *("rpartition", "removeprefix", "removesuffix"),
}
PATTERNS = frozenset({"search", "match", "fullmatch", "findall", "finditer", "sub", "split"})


def readings(file: str, source: str) -> Iterator[tuple[int, str]]:
    """Where the source reads text that is meant for people."""
    found: set[int] = set()
    for scope in nodes(source) if file.startswith(ROOMS) else ():
        if isinstance(scope, (ast.FunctionDef, ast.Module)):
            found.update(_readings_in(scope))
    return ((line, "reads text for people") for line in sorted(found))


def _readings_in(scope: ast.FunctionDef | ast.Module) -> Iterator[int]:
    texts = _variables(scope)
    for node in walk(scope):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            sides = (node.left, *node.comparators)
            is_text = any(_is_text(side, texts) for side in sides) and not any(map(_is_empty, sides))
            if is_text or (any(map(_is_value, sides)) and any(map(_is_word, sides))):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = [node.func.value] if node.func.attr in SEARCHES else []
            searched += node.args if node.func.attr in PATTERNS else []
            if any(_is_text(each, texts) for each in searched):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and _is_text(node.value, texts) and not _is_list(node.value):
            yield node.lineno


def _variables(scope: ast.FunctionDef | ast.Module) -> frozenset[str]:
    """Local names that are given such a text."""
    names = set()
    for node in walk(scope):
        if isinstance(node, ast.Assign) and _is_text(node.value, frozenset()):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.NamedExpr) and _is_text(node.value, frozenset()):
            names.add(node.target.id)
        elif isinstance(node, (ast.For, ast.comprehension)) and _is_list(node.iter):
            names.update(target.id for target in walk(node.target) if isinstance(target, ast.Name))
    return frozenset(names)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)


def _is_value(node: ast.expr) -> bool:
    """The word of an enumeration's member."""
    return isinstance(node, ast.Attribute) and node.attr == "value"


def _is_word(node: ast.expr) -> bool:
    words = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return all(isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value for word in words)


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("evidence", "notes", "advice")


def _is_text(node: ast.expr, variables: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in variables
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return node.attr in SENTENCES or (node.attr == "name" and owner in NAMED)


def test_no_code_reads_what_code_wrote() -> None:
    assert breaches(readings) == []
