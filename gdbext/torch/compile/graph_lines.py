"""The line of the program that a line of a graph's generated function was made of.

torch/fx/graph_module.py (2.6 to 2.15): the function is a method of a GraphModule, whose ``_lineno_map`` has the number
of the node by the number of the line, counted from the function's first one, and whose ``_graph`` is a ring of nodes
that begins behind ``_root``. A node's ``meta`` has where it was made, as ``traceback`` writes it. Attributes of nodes
are in a dict or, in newer releases, in a structure of C.
"""

from __future__ import annotations

import re

from gdbext.cpython.objects.c_members import c_member
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.slots import local_of
from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.compile_section import SourcePlace
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.python_values import PythonValues

_NODES = 20_000
_TEXT = 16_384
_PLACE = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)', re.M)


class GraphLines:
    """Finds them in one process."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._values = PythonValues(runtime)

    def source(self, frame: PythonFrame) -> SourcePlace | None:
        """The line that is behind the one at which a graph's function is; None where that is not recorded."""
        try:
            return self._source(frame)
        except GdbextError:
            return None

    def _source(self, frame: PythonFrame) -> SourcePlace | None:
        module = local_of(self._runtime, frame, "self")
        first = self._runtime.codes.get(frame.code).first_line
        if not module or frame.line is None or first is None:
            return None
        number = self._node_number(module, frame.line - first)
        graph = self._attribute(module, names.GRAPH)
        if number is None or not graph:
            return None
        meta = self._attribute(self._node(graph, number), names.NODE_META)
        trace = dict(self._values.items(meta)).get(names.STACK_TRACE) if meta else None
        return _innermost(self._runtime.objects.text(trace, _TEXT)) if trace else None

    def _node_number(self, module: int, line: int) -> int | None:
        """The number of the node that a line, counted from that of the function, belongs to."""
        lines = self._attribute(module, names.GRAPH_LINES)
        objects = self._runtime.objects
        for key, value in self._runtime.dicts.items(lines, _NODES) if lines else ():
            if objects.type_of(key).name == "int" and objects.integer(key) == line:
                return objects.integer(value) if objects.type_of(value).name == "int" else None
        return None

    def _node(self, graph: int, number: int) -> int:
        """The node with that number. Raises BadData for one that the graph does not have."""
        root = node = self._attribute(graph, names.GRAPH_ROOT)
        if not 0 <= number < _NODES:
            raise BadData(f"the graph at {graph:#x} has no node {number}")
        for _ in range(number + 1):
            node = self._attribute(node, names.NEXT_NODE) if node else 0
            if not node or node == root:
                raise BadData(f"the graph at {graph:#x} has no node {number}")
        return node

    def _attribute(self, address: int, name: str) -> int:
        """Of an instance, by its dict or by its class's description; 0 for none. Raises MemoryFault, BadData."""
        found = self._values.attributes(address).get(name, 0)
        return found or c_member(self._runtime.objects, self._runtime.dicts, address, name)


def _innermost(trace: str) -> SourcePlace | None:
    places = list(_PLACE.finditer(trace))
    if not places:
        return None
    return SourcePlace(names.function_of(places[-1]["function"]), places[-1]["file"], int(places[-1]["line"]))
