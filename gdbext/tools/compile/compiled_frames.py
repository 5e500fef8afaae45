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
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine import numbers
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import Compilation, CompileFrame, FrameState, SourcePlace
from gdbext.torch.compile.dynamo_names import GRAPH_ID, SOURCE_NODES

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


def graph_source(stack: PyStack, frame: PythonFrame) -> SourcePlace | None:
    """The line that is behind the one at which a graph's function is; None where that is not recorded."""
    module, code = stack.locals(frame)["self"], stack.code(frame)
    if not code or frame.line is None:
        return None
    line = frame.line - code.first_line
    lines = _attribute(module, names.GRAPH_LINES).items(_NODES)
    number = next((value.int() for key, value in lines if key.int() == line), None)
    node = graph_node(_attribute(module, names.GRAPH), number)
    return _innermost(_attribute(node, names.NODE_META)[names.STACK_TRACE].str(_TEXT))


def graph_node(graph: PyRef, number: int | None) -> PyRef:
    """The node with that number, counted from behind the root; missing where the graph has none."""
    root = node = _attribute(graph, names.GRAPH_ROOT)
    if number is None or not 0 <= number < _NODES:
        return PyRef(graph.python, 0)
    for _ in range(number + 1):
        node = _attribute(node, names.NEXT_NODE)
        if not node or node == root:
            return PyRef(graph.python, 0)
    return node


def _attribute(value: PyRef, name: str) -> PyRef:
    """An attribute of an instance, by its dict or by its class's description."""
    return value[name] or value.member(name)


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


class _Comments(NamedTuple):
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
        if name and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
            found.setdefault(name[0], comment)
        if text:
            comment = ""
    return found


class _Graph(NamedTuple):
    """The graph that TorchDynamo's bytecode belongs to."""

    name: str
    compile_id: str | None
    source: SourcePlace | None


_UNKNOWN = _Graph("", None, None)


class CompiledFrames:
    """Describes frames; ``originals``: each compiled code object's original one."""

    def __init__(
        self,
        originals: Mapping[int, PyRef],
        compilations: Sequence[Compilation],
        comments: KernelComments,
    ) -> None:
        self._originals = originals
        self._compilations = compilations
        self._comments = comments

    def of_thread(self, tid: int, stack: PyStack) -> list[CompileFrame]:
        """All frames of a thread, innermost first."""
        found = []
        graph = _UNKNOWN
        for level, (frame, state) in reversed(list(enumerate(zip(stack, states(stack, self._originals.keys()))))):
            plain = CompileFrame(tid, level, state, frame.function, frame.file, frame.line)
            if frame.code in self._originals:
                graph = self._graph(stack, frame)
            found.append(self._made_of(stack, frame, plain, graph) if state is FrameState.COMPILED else plain)
        return found[::-1]

    def _made_of(self, stack: PyStack, frame: PythonFrame, plain: CompileFrame, graph: _Graph) -> CompileFrame:
        """The frame with the graph of the bytecode that called it, and the line where one is known."""
        source, nodes, name = graph.source, "", graph.name
        if names.GRAPH_FILE in frame.file:
            source = graph_source(stack, frame) or source
        elif frame.code not in self._originals:
            name = self._comments.graph(frame.file) or name
            nodes = self._comments.at(frame.file, frame.line) if frame.line is not None else ""
        return plain._replace(graph=name, compile_id=graph.compile_id, source=source, source_nodes=nodes)

    def _graph(self, stack: PyStack, frame: PythonFrame) -> _Graph:
        """The graph of TorchDynamo's bytecode, which calls one graph at most."""
        called = [name for name in stack.used_names(frame) if name.startswith(names.COMPILED_GRAPH)]
        name = called[0] if len(called) == 1 else ""
        code = self._originals[frame.code].code
        if not code:
            return _Graph(name, None, None)
        ids = [
            each.compile_id
            for each in self._compilations
            if (each.file, each.line) == (code.file, code.first_line) and each.has_code is not False
        ]
        source = SourcePlace(names.function_of(code.name), code.file, code.first_line, exact=False)
        return _Graph(name, ids[0] if len(ids) == 1 else None, source)
