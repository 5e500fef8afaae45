"""The Python frames of a thread as torch.compile sees them, and what compiled frames were made of.

A graph's generated function: torch/fx/graph_module.py (2.6 to 2.15). It is a method of a GraphModule, whose
``_lineno_map`` has the number of the node by the number of the line, counted from the function's first one, and whose
``_graph`` is a ring of nodes that begins behind ``_root``. A node's ``meta`` has where it was made, as ``traceback``
writes it. Attributes of nodes are in a dict or, in newer releases, in a structure of C.

Inductor's modules name above the calls of their kernels the nodes of the graph that a kernel was made of: ``#
Topologically Sorted Source Nodes: [relu, add], Original ATen: [aten.relu, aten.add]`` (torch/_inductor/utils.py,
get_kernel_metadata), unless the configuration or the release leaves it out.
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
    """The frames that it calls are the compiler at work."""
    file, functions = names.LATE_COMPILER
    plain = frame.function.rpartition(".")[2]
    for compiler_file, function in (names.COMPILER, names.TRITON_COMPILER):
        if frame.file.endswith(compiler_file):
            return plain == function
    return frame.file.endswith(file) and plain in functions


def states(frames: Sequence[PythonFrame], compiled_codes: Collection[int]) -> list[FrameState]:
    """The state of each frame, innermost first; the frames inside of the outermost call of the compiler are part of
    it."""
    outermost = max((index for index, frame in enumerate(frames) if is_compiler(frame)), default=-1)
    frame_states = []
    for index, frame in enumerate(frames):
        is_compiled = frame.code in compiled_codes or names.is_generated(frame.file)
        state = FrameState.COMPILED if is_compiled else FrameState.EAGER
        frame_states.append(FrameState.COMPILING if index <= outermost else state)
    return frame_states


def stage(frames: Sequence[PythonFrame]) -> str:
    """The part of the compiler that the innermost frame of torch belongs to; "" for none."""
    stages = (name for frame in frames for part, name in names.STAGES if part in frame.file)
    return next(stages, "")


_NODES = 20_000
_PLACE = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)', re.M)


def graph_source(stack: PyStack, frame: PythonFrame) -> SourcePlace | None:
    """The line of the program behind the current line of a graph's function; None if that is not recorded."""
    module, code = stack.locals(frame)["self"], stack.code(frame)
    if not code or frame.line is None:
        return None
    line = frame.line - code.first_line
    lines = _attribute(module, names.GRAPH_LINES).items(_NODES)
    number = next((value.int() for key, value in lines if key.int() == line), None)
    node = graph_node(_attribute(module, names.GRAPH), number)
    return _innermost(_attribute(node, names.NODE_META)[names.STACK_TRACE].str(16_384))


def graph_node(graph: PyRef, number: int | None) -> PyRef:
    """The node with that number, counted from behind the root; a missing object if the graph has none."""
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
    """The innermost place of a text of ``traceback``."""
    places = list(_PLACE.finditer(trace))
    if not places:
        return None
    line = numbers.number(places[-1]["line"]) or 0
    return SourcePlace(names.function_of(places[-1]["function"]), places[-1]["file"], line)


_COMMENT = 300
"""Characters of a comment that are kept, at most."""


class KernelComments:
    """The comments of generated modules, each file read once, as the process sees it."""

    def __init__(self, target: Target) -> None:
        self._source = SourceReader(target)
        self._files: dict[str, ModuleComments] = {}

    def of_module(self, file: str) -> ModuleComments:
        if file not in self._files:
            self._files[file] = module_comments(self._source.stripped_lines(file)[:20_000])
        return self._files[file]


class ModuleComments(NamedTuple):
    """``graph``: AOTAutograd's identity of the graph that the module was made of, "0_inference"; "" without one. The
    nodes of the graph by kernel (above its definition, or else above its call), and by line in the same function."""

    graph: str
    kernels: dict[str, str]
    lines: dict[int, str]


def module_comments(texts: list[str]) -> ModuleComments:
    """The comments in the lines of a module; its graph is in one of the first."""
    graph = next((match[1] for text in texts[:20] if (match := GRAPH_ID.search(text))), "")
    return ModuleComments(graph, _above_kernels(texts), _above_lines(texts))


def _above_lines(texts: list[str]) -> dict[int, str]:
    """Line number → nodes, of each statement after a comment with nodes, up to the next one or an empty line."""
    nodes: dict[int, str] = {}
    comment = ""
    for number, text in enumerate(texts, 1):
        if SOURCE_NODES in text and text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT]
        elif not text or text.startswith("def "):
            comment = ""
        elif comment:
            nodes[number] = comment
    return nodes


def _above_kernels(texts: list[str]) -> dict[str, str]:
    nodes: dict[str, str] = {}
    comment = ""
    for text in texts:
        if text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT] or comment
            continue
        name = re.match(r"\w+", text)
        if name and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
            nodes.setdefault(name[0], comment)
        if text:
            comment = ""
    return nodes


class _Graph(NamedTuple):
    """The graph that TorchDynamo's bytecode belongs to."""

    name: str = ""
    compile_id: str | None = None
    source: SourcePlace | None = None


class CompiledFrames:
    """Describes frames."""

    def __init__(
        self, originals: Mapping[int, PyRef], compilations: Sequence[Compilation], comments: KernelComments
    ) -> None:
        """``originals``: address of a compiled code object → its original one."""
        self._originals = originals
        self._compilations = compilations
        self._comments = comments

    def of_thread(self, tid: int, stack: PyStack) -> list[CompileFrame]:
        """All frames of a thread, innermost first. A compiled frame has the graph of the bytecode that called it, and
        the line of the program if it is known."""
        reports = []
        graph = _Graph()
        for level, (frame, state) in reversed(list(enumerate(zip(stack, states(stack, self._originals.keys()))))):
            report = CompileFrame(tid, level, state, frame.function, frame.file, frame.line)
            if frame.code in self._originals:
                graph = self._graph(stack, frame)
            if state is FrameState.COMPILED:
                name, source, nodes = graph.name, graph.source, ""
                if names.GRAPH_FILE in frame.file:
                    source = graph_source(stack, frame) or source
                elif frame.code not in self._originals:
                    comments = self._comments.of_module(frame.file)
                    name = comments.graph or name
                    nodes = comments.lines.get(frame.line, "") if frame.line is not None else ""
                report = report._replace(graph=name, compile_id=graph.compile_id, source=source, source_nodes=nodes)
            reports.append(report)
        return reports[::-1]

    def _graph(self, stack: PyStack, frame: PythonFrame) -> _Graph:
        """The graph of TorchDynamo's bytecode, which calls one graph at most."""
        called = [name for name in stack.used_names(frame) if name.startswith(names.COMPILED_GRAPH)]
        name = called[0] if len(called) == 1 else ""
        code = self._originals[frame.code].code
        if not code:
            return _Graph(name)
        ids = [
            compilation.compile_id
            for compilation in self._compilations
            if (compilation.file, compilation.line) == (code.file, code.first_line)
            and compilation.has_code is not False
        ]
        source = SourcePlace(names.function_of(code.name), code.file, code.first_line, exact=False)
        return _Graph(name, ids[0] if len(ids) == 1 else None, source)
