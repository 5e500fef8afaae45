"""The Python frames of a thread as torch.compile sees them, and what the compiled ones were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.cpython.threads.namespaces import used_names
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError
from gdbext.inspection.kernel_comments import KernelComments
from gdbext.model.record import Record
from gdbext.model.sections.compile_section import Compilation, CompileFrame, FrameState, SourcePlace
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.frame_states import states
from gdbext.torch.compile.graph_lines import GraphLines


class _Graph(Record):
    """What TorchDynamo's bytecode belongs to."""

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
        """With the graph of the bytecode that called it, and the line where one is known."""
        source, nodes, name = graph.source, "", graph.name
        if names.GRAPH_FILE in frame.file:
            source = self._lines.source(frame) or source
        elif frame.code not in self._originals:
            name = self._comments.graph(frame.file) or name
            nodes = self._comments.at(frame.file, frame.line) if frame.line is not None else ""
        return plain._replace(graph=name, compile_id=graph.compile_id, source=source, source_nodes=nodes)

    def _graph(self, frame: PythonFrame) -> _Graph:
        """That of TorchDynamo's bytecode: it calls one graph at most."""
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
