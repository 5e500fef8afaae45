"""The Python frames of a thread as torch.compile sees them, and what the compiled ones were made of.

What torch.compile has to do with each Python frame of a stack: by code objects, files and functions.

The line of the program that a line of a graph's generated function was made of.

torch/fx/graph_module.py (2.6 to 2.15): the function is a method of a GraphModule, whose ``_lineno_map`` has the number
of the node by the number of the line, counted from the function's first one, and whose ``_graph`` is a ring of nodes
that begins behind ``_root``. A node's ``meta`` has where it was made, as ``traceback`` writes it. Attributes of nodes
are in a dict or, in newer releases, in a structure of C.

What Inductor's modules say above the calls of their kernels: the nodes of the graph that a kernel was made of.

``# Topologically Sorted Source Nodes: [relu, add], Original ATen: [aten.relu, aten.add]`` (torch/_inductor/utils.py,
get_kernel_metadata); where the configuration or the release leaves it out there is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.objects.object_items import c_member
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import local_of, used_names
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine import numbers
from gdbext.engine.record import Record
from gdbext.errors import BadData, GdbextError
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import Compilation, CompileFrame, FrameState, SourcePlace
from gdbext.torch.compile.dynamo_names import GRAPH_ID, SOURCE_NODES
from gdbext.torch.compile.dynamo_reader import PythonValues

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target


def is_compiler(frame: PythonFrame) -> bool:
    """Its callees are the compiler at work."""
    file, functions = names.LATE_COMPILER
    plain = frame.function.rpartition(".")[2]
    for place, function in (names.COMPILER, names.TRITON_COMPILER):
        if frame.file.endswith(place):
            return plain == function
    return frame.file.endswith(file) and plain in functions


def states(frames: Sequence[PythonFrame], compiled_codes: Collection[int]) -> list[FrameState]:
    """The state of each frame, innermost first: a frame inside of the innermost call of the compiler is part of it."""
    compilers = [index for index, frame in enumerate(frames) if is_compiler(frame)]
    outermost = compilers[-1] if compilers else -1
    return [
        FrameState.COMPILING if index <= outermost else _state(frame, compiled_codes)
        for index, frame in enumerate(frames)
    ]


def _state(frame: PythonFrame, compiled_codes: Collection[int]) -> FrameState:
    if frame.code in compiled_codes or names.is_generated(frame.file):
        return FrameState.COMPILED
    return FrameState.EAGER


def stage(frames: Sequence[PythonFrame]) -> str:
    """The part of the compiler that the innermost frame of torch belongs to; "" for none."""
    for frame in frames:
        for part, name in names.STAGES:
            if part in frame.file:
                return name
    return ""


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
        """An attribute of an instance, by its dict or by its class's description; 0 for none. Raises MemoryFault,
        BadData."""
        found = self._values.attributes(address).get(name, 0)
        return found or c_member(self._runtime.objects, self._runtime.dicts, address, name)


def _innermost(trace: str) -> SourcePlace | None:
    places = list(_PLACE.finditer(trace))
    if not places:
        return None
    line = numbers.number(places[-1]["line"]) or 0
    return SourcePlace(names.function_of(places[-1]["function"]), places[-1]["file"], line)


_COMMENT = 300
"""Most characters of a comment that are kept."""
_LINES = 20_000
_HEAD = 20
"""First lines, one of which names the graph."""


class KernelComments:
    """Reads each module's file once, as the process sees it."""

    def __init__(self, target: Target) -> None:
        self._source = SourceReader(target)
        self._files: dict[str, _Comments] = {}

    def of(self, file: str, kernel: str) -> str:
        """The comment above the kernel's definition, or else above its call; "" without one."""
        return self._module(file).kernels.get(kernel, "")

    def graph(self, file: str) -> str:
        """AOTAutograd's identity of the graph that a module was made of: "0_inference"; "" without one."""
        return self._module(file).graph

    def at(self, file: str, line: int) -> str:
        """The comment above a line, in the same function; "" without one."""
        return self._module(file).lines.get(line, "")

    def _module(self, file: str) -> _Comments:
        if file not in self._files:
            texts = self._source.texts(file)[:_LINES]
            self._files[file] = _Comments(_graph(texts), _above_kernels(texts), _above_lines(texts))
        return self._files[file]


class _Comments(Record):
    """The comments of one module: its graph, and the nodes by kernel and by line."""

    graph: str
    kernels: dict[str, str]
    lines: dict[int, str]


def _graph(texts: list[str]) -> str:
    found = (GRAPH_ID.search(text) for text in texts[:_HEAD])
    return next((match[1] for match in found if match), "")


def _above_lines(texts: list[str]) -> dict[int, str]:
    """The nodes of each statement that follows a comment with them, until the next one or an empty line."""
    found: dict[int, str] = {}
    comment = ""
    for number, text in enumerate(texts, 1):
        if SOURCE_NODES in text and text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT]
        elif not text or text.startswith("def "):
            comment = ""
        elif comment:
            found[number] = comment
    return found


def _above_kernels(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    comment = ""
    for text in texts:
        if text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT] or comment
            continue
        name = re.match(r"\w+", text)
        if name is not None and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
            found.setdefault(name[0], comment)
        if text:
            comment = ""
    return found


class _Graph(Record):
    """The graph that TorchDynamo's bytecode belongs to."""

    name: str
    compile_id: str | None
    source: SourcePlace | None


_UNKNOWN = _Graph("", None, None)


class CompiledFrames:
    """Describes frames; ``originals``: each compiled code object's original one."""

    def __init__(
        self,
        runtime: PythonRuntime,
        originals: Mapping[int, int],
        compilations: Sequence[Compilation],
        comments: KernelComments,
    ) -> None:
        self._runtime = runtime
        self._originals = originals
        self._compilations = compilations
        self._comments = comments
        self._lines = GraphLines(runtime)

    def of_thread(self, tid: int, frames: Sequence[PythonFrame]) -> list[CompileFrame]:
        """All frames of a thread, innermost first."""
        found = []
        graph = _UNKNOWN
        for level, (frame, state) in reversed(list(enumerate(zip(frames, states(frames, self._originals.keys()))))):
            plain = CompileFrame(tid, level, state, frame.function, frame.file, frame.line)
            if frame.code in self._originals:
                graph = self._graph(frame)
            found.append(self._made_of(frame, plain, graph) if state is FrameState.COMPILED else plain)
        return found[::-1]

    def _made_of(self, frame: PythonFrame, plain: CompileFrame, graph: _Graph) -> CompileFrame:
        """The frame with the graph of the bytecode that called it, and the line where one is known."""
        source, nodes, name = graph.source, "", graph.name
        if names.GRAPH_FILE in frame.file:
            source = self._lines.source(frame) or source
        elif frame.code not in self._originals:
            name = self._comments.graph(frame.file) or name
            nodes = self._comments.at(frame.file, frame.line) if frame.line is not None else ""
        return plain._replace(graph=name, compile_id=graph.compile_id, source=source, source_nodes=nodes)

    def _graph(self, frame: PythonFrame) -> _Graph:
        """The graph of TorchDynamo's bytecode, which calls one graph at most."""
        called = [name for name in used_names(self._runtime, frame) if name.startswith(names.COMPILED_GRAPH)]
        name = called[0] if len(called) == 1 else ""
        try:
            code = self._runtime.codes.get(self._originals[frame.code])
        except GdbextError:
            return _Graph(name, None, None)
        ids = [
            each.compile_id
            for each in self._compilations
            if (each.file, each.line) == (code.file, code.first_line) and each.has_code is not False
        ]
        source = SourcePlace(names.function_of(code.name), code.file, code.first_line, exact=False)
        return _Graph(name, ids[0] if len(ids) == 1 else None, source)
