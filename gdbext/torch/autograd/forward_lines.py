"""The line of Python that made a node, where Python knows it.

Anomaly mode keeps a dict for each node with the lines of ``traceback.format_stack()`` in a PyAnomalyMetadata, as its
first member behind those of AnomalyMetadata (torch/csrc/autograd/python_anomaly_mode.{h,cpp}, 2.13.0). A node of
torch.autograd.Function knows its class (torch/autograd/function.py).
"""

from __future__ import annotations

import re

from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData
from gdbext.model.record import Record
from gdbext.torch.autograd.nodes import PYTHON_NODE, NodeReader
from gdbext.torch.python_names import ANOMALY_TRACEBACK, FUNCTION_FORWARD, FUNCTION_FORWARD_CLASS
from gdbext.torch.tensors.vtables import ClassNames

_ANOMALY, _ANOMALY_BASE = "torch::autograd::PyAnomalyMetadata", "torch::autograd::AnomalyMetadata"
FUNCTION, ANOMALY_MODE = "torch.autograd.Function", "anomaly mode"
"""How a line is known."""
_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>[^\n]*)\n?(?P<source>[^\n]*)')
_LIBRARY = ("/torch/", "/lib/python3")
_LINES_LIMIT = 10_000


class ForwardLine(Record):
    """``function`` is the one that the line is in, ``source`` its text, "" if unknown; ``known_by`` says how."""

    file: str
    line: int | None
    function: str
    source: str
    known_by: str


class ForwardLineReader:
    """Reads forward lines with the help of one Python."""

    def __init__(self, nodes: NodeReader, classes: ClassNames, python: PythonRuntime) -> None:
        self._nodes = nodes
        self._classes = classes
        self._python = python

    def of(self, node: int) -> ForwardLine | None:
        """The line, None where nobody wrote it down. Raises BadData, MemoryFault, LayoutError."""
        return self._from_anomaly_mode(node) or self.of_function(node)

    def python_class(self, node: int) -> str:
        """The name of a node that Python defines. Raises BadData, MemoryFault."""
        return self._python.objects.type_of(self._nodes.python_object(node)).name

    def _from_anomaly_mode(self, node: int) -> ForwardLine | None:
        metadata = self._nodes.anomaly_metadata(node)
        if not metadata or _ANOMALY not in self._classes.of(metadata):
            return None
        kept = self._nodes.memory.u64(metadata + self._nodes.layout.struct(_ANOMALY_BASE).size)
        lines = self._python.dicts.get(kept, ANOMALY_TRACEBACK) if self._python.objects.is_dict(kept) else None
        if not lines:
            return None
        texts = (self._python.objects.text(each) for each in self._python.objects.list_items(lines, _LINES_LIMIT)[::-1])
        found = [match for match in map(_LINE.match, texts) if match]
        own = [match for match in found if not any(part in match["file"] for part in _LIBRARY)]
        return _forward_line((own or found)[0]) if found else None

    def of_function(self, node: int) -> ForwardLine | None:
        """Where the ``forward`` of a torch.autograd.Function is defined; None for another node. Raises as ``of``."""
        if self._nodes.class_of(node) != PYTHON_NODE:
            return None
        kind = self._python.objects.type_of(self._nodes.python_object(node))
        forward_class = self._python.dicts.class_attribute(kind.address, FUNCTION_FORWARD_CLASS)
        if not forward_class:
            return None
        function = self._function_of(forward_class)
        found = self._python.functions.source(function) if function else None
        if found is None or found.file is None:
            return None
        return ForwardLine(found.file, found.line, found.qualname, "", FUNCTION)

    def _function_of(self, forward_class: int) -> int | None:
        """The function in a staticmethod named ``forward``."""
        held = self._python.dicts.class_attribute(forward_class, FUNCTION_FORWARD)
        if held is None:
            return None
        objects = self._python.objects
        if objects.type_of(held).name == "function":
            return held
        if objects.type_of(held).name != "staticmethod":
            raise BadData("forward is not a function")
        inner = self._python.memory.u64(held + self._python.layout.size("PyObject"))
        return inner if objects.type_of(inner).name == "function" else None


def _forward_line(match: re.Match[str]) -> ForwardLine:
    line = int(match["line"])
    return ForwardLine(match["file"], line, match["function"], match["source"].strip(), ANOMALY_MODE)
