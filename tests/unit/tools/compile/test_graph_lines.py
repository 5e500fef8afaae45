"""The line of the program behind one of a graph's function, where what the process says of the graph is damaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import BadData
from gdbext.tools.compile.compiled_frames import GraphLines, _innermost
from gdbext.torch.compile import dynamo_names as names

GRAPH, ROOT, FIRST, SECOND = range(8, 40, 8)


class Values:
    """A graph whose nodes are a ring behind the root; ``closed``: its last node leads back there."""

    def __init__(self, closed: bool) -> None:
        following = {ROOT: FIRST, FIRST: SECOND, SECOND: ROOT if closed else FIRST}
        self._of = {GRAPH: {names.GRAPH_ROOT: ROOT}}
        self._of.update({node: {names.NEXT_NODE: following[node]} for node in following})

    def attributes(self, address: int) -> dict[str, int]:
        return self._of[address]


def lines(closed: bool = True) -> GraphLines:
    found: Any = GraphLines.__new__(GraphLines)
    found._runtime, found._values = SimpleNamespace(), Values(closed)
    return found  # type: ignore[no-any-return]


def test_nodes_are_counted_from_behind_the_root() -> None:
    assert [lines()._node(GRAPH, number) for number in (0, 1)] == [FIRST, SECOND]


@pytest.mark.parametrize(("number", "closed"), [(2, True), (-1, True), (1 << 60, True), (1 << 60, False)])
def test_a_number_that_no_node_has(number: int, closed: bool) -> None:
    with pytest.raises(BadData, match=f"has no node {number}"):
        lines(closed)._node(GRAPH, number)


def test_the_innermost_place_of_a_trace() -> None:
    trace = '  File "a.py", line 3, in outer\n    inner()\n  File "b.py", line 7, in inner\n    x.sin()\n'
    assert _innermost(trace) == ("inner", "b.py", 7, True)
    assert _innermost("something else") is None
