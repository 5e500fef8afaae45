"""The graph of a backward pass in graphviz' language, with a picture where graphviz is installed, or as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.model.sections.autograd_section import NOTHING_SAVED, GraphNode, NodeReference, SavedTensor
from gdbext.render.dot import draw, quoted, write_text
from gdbext.render.text.style import escape

_NO_NUMBER = (1 << 64) - 1
_DRAWN = 1000
"""Nodes that graphviz places in a second or two."""


def write(path: str, nodes: Sequence[GraphNode]) -> tuple[str, ...]:
    """Write the graph to ``path``, as text if it ends in .txt. Returns the files. Raises UsageError."""
    lines = text_lines(nodes) if path.endswith(".txt") else dot_lines(nodes)
    write_text(path, "\n".join(lines) + "\n", "--graph")
    picture = draw(path) if not path.endswith(".txt") and len(nodes) <= _DRAWN else None
    return (path, picture) if picture else (path,)


def dot_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """A digraph: leaves are ellipses, nodes that have saved what was modified since are red; an edge that goes to
    another input than the first has its number."""
    yield "digraph autograd {"
    yield '  node [fontname="monospace", fontsize=10, shape=box];'
    for each in nodes:
        look = ", shape=ellipse" if each.node.variable else ""
        if any(saved.is_stale for saved in each.saved or ()):
            look += ", color=red, fontcolor=red"
        label = "\n".join([_label(each.node), *(_escaped(saved) for saved in _tensors(each))])
        yield f"  n{each.node.address:x} [label={quoted(label)}{look}];"
    for each in nodes:
        for address, number in each.next_functions:
            if address:
                numbered = f' [label="{number}"]' if number else ""
                yield f"  n{each.node.address:x} -> n{address:x}{numbered};"
    yield "}"


def text_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """A line each, with what it passes its gradients on to."""
    names: dict[int, str] = {int(each.node.address): _name(each.node) for each in nodes}
    for each in nodes:
        after = (names.get(address, f"{address:#x}") if address else "none" for address, _ in each.next_functions)
        yield f"{escape(_name(each.node))} -> {escape(', '.join(after)) or 'nothing'}"
        yield from (f"    saved {_escaped(saved)}" for saved in _tensors(each))


def _tensors(node: GraphNode) -> tuple[SavedTensor, ...]:
    return tuple(saved for saved in node.saved or () if saved.tensor != NOTHING_SAVED)


def saved_text(saved: SavedTensor) -> str:
    """``self: f32[2, 3] CPU, version 0``, and what happened to it since."""
    version = f", version {saved.saved_version}" if saved.saved_version is not None else ""
    stale = f": modified in place since, it is at version {saved.version} now" if saved.is_stale else ""
    return f"{saved.name}: {saved.tensor}{version}{stale}"


def _escaped(saved: SavedTensor) -> str:
    return escape(saved_text(saved))


def _name(node: NodeReference) -> str:
    number = "" if node.sequence_nr in (None, _NO_NUMBER) else f" {node.sequence_nr}"
    return f"{node.name} of {node.variable}" if node.variable else f"{node.name}{number}"


def _label(node: NodeReference) -> str:
    if node.variable:
        return f"{node.name}\n{node.variable}"
    return node.name if node.sequence_nr in (None, _NO_NUMBER) else f"{node.name}\n{node.sequence_nr}"
