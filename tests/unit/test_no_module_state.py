"""No state in modules: what changes while the program runs belongs to an object that somebody made and hands on.

State in a module outlives the target that it is about, is shared by two users of the module who do not know of each
other, and is what a second ``source gdbext/init.py`` in gdb leaves behind. What a function computes once from its
arguments alone may be remembered by functools.lru_cache.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache, partial

import pytest

from support.source.parsed import breaches, sources, tree, walk

pytestmark = pytest.mark.xdist_group("laws")

MUTATORS = {
    *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "pop", "popitem"),
    *("intersection_update", "popleft", "remove", "reverse", "setdefault", "sort", "symmetric_difference_update"),
    *("update", "__setitem__", "__delitem__", "__setattr__"),
}
CHANGES = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Call)


def state(changing: Iterable[str], _: str, source: str) -> Iterator[tuple[int, str]]:
    """What a module keeps and changes; ``changing`` are classes whose objects change."""
    module = tree(source)
    (ours, standard), own = _imported(module), _bound_at_top(module)
    for function in _functions(module):
        shared = (own | ours | {"cls"}) - _local_names(function)
        if function.name == "__init_subclass__":  # the class is still being made
            shared.discard("cls")
        for node in _that_change(function):
            yield from _changes(node, shared, standard)
    for node in module.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.If)):
            yield from _kept(node, changing)
            yield from _changes_of_others(node, ours)


def _kept(node: ast.stmt, changing: Iterable[str]) -> Iterator[tuple[int, str]]:
    """An object of a class that changes itself, kept by the module."""
    value = getattr(node, "value", None)
    name = getattr(value.func, "id", getattr(value.func, "attr", "")) if isinstance(value, ast.Call) else ""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in changing:
        yield node.lineno, f"the module keeps a {name}, which changes"


def _changes(node: ast.AST, shared: set[str], standard: set[str]) -> Iterator[tuple[int, str]]:
    """Changes, in a function, of what belongs to a module."""
    for target in _targets(node):
        if not isinstance(target, ast.Name) and _root(target) in shared:
            yield target.lineno, f"changes {_root(target)}, which belongs to a module"
        elif isinstance(target, ast.Attribute) and _root(target) in standard:
            yield target.lineno, f"changes {_root(target)}, which everybody shares"
    changed = _mutated(node)
    if changed is not None and _root(changed) in shared:
        yield changed.lineno, f"changes {_root(changed)}, which belongs to a module"


def _mutated(node: ast.AST) -> ast.expr | None:
    """What a call changes: the list of ``list.append(…)``, the object of ``setattr(object, …)``."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return node.func.value
    by_name = isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr") and node.args
    return node.args[0] if by_name else None


def _changes_of_others(node: ast.AST, imported: set[str]) -> Iterator[tuple[int, str]]:
    """Changes, while a module is imported, of what it has imported."""
    for each in _that_change(node):
        for target in _targets(each):
            if isinstance(target, (ast.Subscript, ast.Attribute)) and _root(target) in imported:
                yield target.lineno, f"changes {_root(target)} of another module"


@cache
def _that_change(node: ast.AST) -> list[ast.AST]:
    """What in it may change something."""
    return [each for each in walk(node) if isinstance(each, CHANGES)]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for each in node.targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    return list(node.targets) if isinstance(node, ast.Delete) else []


def _root(node: ast.expr) -> str:
    """``a`` of ``a.b[c].d``; "" where it is no name."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names of everything that the file imports from gdbext, anywhere in it, and those of all other modules."""
    ours, others = set(), set()
    for node in walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                (ours if top == "gdbext" else others).add(alias.asname or top)
        elif isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("gdbext")):
            ours |= {alias.asname or alias.name for alias in node.names}
    return ours, others


def _bound_at_top(tree: ast.Module) -> set[str]:
    """Variables, classes and functions of the module itself."""
    variables = {_root(target) for node in tree.body for target in _targets(node) if isinstance(target, ast.Name)}
    return variables | {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions of the module and methods of its classes; those inside of others are walked with them."""
    bodies = [node.body if isinstance(node, (ast.ClassDef, ast.If)) else [node] for node in tree.body]
    return [each for body in bodies for each in body if isinstance(each, ast.FunctionDef)]


def _local_names(function: ast.FunctionDef) -> set[str]:
    """Parameters and names that the function binds itself, in whatever depth."""
    arguments = {node.arg for node in walk(function) if isinstance(node, ast.arg) and node.arg != "cls"}
    stored = [node for node in walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return arguments | {node.id for node in stored}


def changing_classes(source: str) -> Iterator[str]:
    """Classes that assign their own attributes, or change what they hold, after they were made."""
    for node in walk(tree(source)):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
            if any(_changes_itself(method) for method in methods):
                yield node.name


def _changes_itself(method: ast.FunctionDef) -> bool:
    for node in _that_change(method):
        changed = [target for target in _targets(node) if not isinstance(target, ast.Name)]
        if any(_root(each) == "self" for each in (*changed, _mutated(node)) if each is not None):
            return True
    return False


def test_no_module_keeps_state() -> None:
    changing = {name for source in sources().values() for name in changing_classes(source)}
    assert breaches(partial(state, changing)) == []
