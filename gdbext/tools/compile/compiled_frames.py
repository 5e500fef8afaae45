"""Frames in compiled code and in the compiler: their graphs and source lines, and what is being compiled."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.source_lines import SourceReader
from gdbext.engine import numbers
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.errors import GdbextError
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.dynamo_names import GRAPH_ID, SOURCE_NODES

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target


def is_compiler(frame: PythonFrame) -> bool:
    """True if the frames that this one calls are the compiler at work."""
    file, functions = names.LATE_COMPILER
    name = frame.function.rpartition(".")[2]
    for compiler_file, function in (names.COMPILER, names.TRITON_COMPILER):
        if frame.file.endswith(compiler_file):
            return name == function
    return frame.file.endswith(file) and name in functions


def states(frames: Sequence[PythonFrame], compiled_codes: Collection[int]) -> list[compile_section.FrameState]:
    """The state of each frame, innermost first; all frames inside the outermost call of the compiler are COMPILING.
    ``compiled_codes``: addresses of the code objects that TorchDynamo made."""
    outermost = max((index for index, frame in enumerate(frames) if is_compiler(frame)), default=-1)
    frame_states = []
    for index, frame in enumerate(frames):
        is_compiled = frame.code in compiled_codes or names.is_generated(frame.file)
        state = compile_section.FrameState.COMPILED if is_compiled else compile_section.FrameState.EAGER
        frame_states.append(compile_section.FrameState.COMPILING if index <= outermost else state)
    return frame_states


def stage(frames: Sequence[PythonFrame]) -> str:
    """The part of the compiler that the innermost frame of torch belongs to: ``Inductor``; "" for none."""
    return next((name for frame in frames for part, name in names.STAGES if part in frame.file), "")


_NODES = 20_000
_PLACE = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)', re.M)
"""A line of ``traceback``."""


def graph_source(stack: PyStack, frame: PythonFrame) -> compile_section.SourcePlace | None:
    """The line of the program that became the current line of a graph's function; None if not recorded.

    The function (torch/fx/graph_module.py, 2.6 to 2.15) is a method of a GraphModule, whose ``_lineno_map`` maps line
    numbers, counted from the function's first one, to indices of nodes. A node's ``meta`` has its traceback.
    """
    module, code = stack.locals(frame)["self"], stack.code(frame)
    if not code or frame.line is None:
        return None
    line = frame.line - code.first_line
    lines = _attribute(module, names.GRAPH_LINES).items(_NODES)
    number = next((value.int() for key, value in lines if key.int() == line), None)
    node = graph_node(_attribute(module, names.GRAPH), number)
    return _innermost(_attribute(node, names.NODE_META)[names.STACK_TRACE].str(16_384))


def graph_node(graph: PyRef, number: int | None) -> PyRef:
    """The node at index ``number`` of the ring of nodes after the graph's root; a falsy PyRef if there is none."""
    root = node = _attribute(graph, names.GRAPH_ROOT)
    if number is None or not 0 <= number < _NODES:
        return PyRef(graph.python, 0)
    for _ in range(number + 1):
        node = _attribute(node, names.NEXT_NODE)
        if not node or node == root:
            return PyRef(graph.python, 0)
    return node


def _attribute(value: PyRef, name: str) -> PyRef:
    """An attribute of an instance, from its dict or, in newer releases of torch, a member of its C structure."""
    return value[name] or value.member(name)


def _innermost(trace: str) -> compile_section.SourcePlace | None:
    """The innermost line in a text of ``traceback``; None if there is none."""
    matches = list(_PLACE.finditer(trace))
    if not matches:
        return None
    innermost = matches[-1]
    line = numbers.number(innermost["line"]) or 0
    return compile_section.SourcePlace(names.function_of(innermost["function"]), innermost["file"], line)


_COMMENT = 300
"""Most characters of a comment."""


class KernelComments:
    """Reads the comments of generated modules, each file once, as the process sees it."""

    def __init__(self, target: Target) -> None:
        self._source = SourceReader(target)
        self._files: dict[str, ModuleComments] = {}

    def of_module(self, file: str) -> ModuleComments:
        """The comments in ``file``; empty ones if it cannot be read."""
        if file not in self._files:
            self._files[file] = module_comments(self._source.stripped_lines(file)[:20_000])
        return self._files[file]


class ModuleComments(NamedTuple):
    """Facts from the comments of a module that Inductor wrote."""

    graph: str
    """AOTAutograd's identity of the module's graph, "0_inference"; "" without one."""
    kernels: dict[str, str]
    """Kernel → the nodes that it was made of, by the comment above its definition, or else above its call."""
    lines: dict[int, str]
    """Number of a line → the same for the kernel that it calls."""


def module_comments(texts: list[str]) -> ModuleComments:
    """The comments in the lines of a module. Those above kernels are like ``# Topologically Sorted Source Nodes: [relu,
    add], Original ATen: [aten.relu, aten.add]`` (torch/_inductor/utils.py, get_kernel_metadata)."""
    graph = next((match[1] for text in texts[:20] if (match := GRAPH_ID.search(text))), "")
    lines: dict[int, str] = {}
    comment = ""  # applies to each statement up to the next comment or an empty line
    for number, text in enumerate(texts, 1):
        if SOURCE_NODES in text and text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT]
        elif not text or text.startswith("def "):
            comment = ""
        elif comment:
            lines[number] = comment
    kernels: dict[str, str] = {}
    comment = ""  # applies to the next statement, also after an empty line
    for text in texts:
        if text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_COMMENT] or comment
            continue
        name = re.match(r"\w+", text)
        if name and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
            kernels.setdefault(name[0], comment)
        if text:
            comment = ""
    return ModuleComments(graph, kernels, lines)


class _Graph(NamedTuple):
    """The graph that TorchDynamo's bytecode belongs to."""

    name: str = ""
    compile_id: str | None = None
    source: compile_section.SourcePlace | None = None


class CompiledFrames:
    """Describes the frames of threads with the graphs and lines that they were made of."""

    def __init__(
        self,
        originals: Mapping[int, PyRef],
        compilations: Sequence[compile_section.Compilation],
        comments: KernelComments,
    ) -> None:
        """``originals``: address of a code object that TorchDynamo made → the original one."""
        self._originals = originals
        self._compilations = compilations
        self._comments = comments

    def of_thread(self, tid: int, stack: PyStack) -> list[compile_section.CompileFrame]:
        """All frames of a thread, innermost first. A compiled frame has the graph of TorchDynamo's bytecode that called
        it, and the line of the program if that is known."""
        reports = []
        graph = _Graph()
        for level, (frame, state) in reversed(list(enumerate(zip(stack, states(stack, self._originals.keys()))))):
            report = compile_section.CompileFrame(tid, level, state, frame.function, frame.file, frame.line)
            if frame.code in self._originals:
                graph = self._graph(stack, frame)
            if state is compile_section.FrameState.COMPILED:
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
        """The graph that TorchDynamo's bytecode in ``frame`` calls: one at most, by the names that it uses."""
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
        source = compile_section.SourcePlace(names.function_of(code.name), code.file, code.first_line, exact=False)
        return _Graph(name, ids[0] if len(ids) == 1 else None, source)


def work_of_thread(tid: int, stack: PyStack) -> compile_section.CompilingThread | None:
    """What the innermost call of a compiler on a thread's stack compiles; None without one."""
    inner = next((index for index, frame in enumerate(stack) if is_compiler(frame)), None)
    if inner is None:
        return None
    part = stage(stack[: inner + 1])
    for frame in stack[inner:]:
        place = _compiled(stack, frame) if is_compiler(frame) else None
        if place:
            return compile_section.CompilingThread(tid, part, place.function, place.file, place.line)
    return compile_section.CompilingThread(tid, part, function="", file=None, line=None)


def _compiled(stack: PyStack, frame: PythonFrame) -> compile_section.SourcePlace | None:
    """The function that a call of a compiler compiles: TorchDynamo's frame, or Triton's kernel; None if its variables
    do not have it, as in other releases."""
    if frame.file.endswith(names.COMPILER[0]):
        code = stack.locals(frame)[names.COMPILED_LOCAL].code
        return compile_section.SourcePlace(code.name, code.file, code.first_line) if code else None
    if frame.file.endswith(names.TRITON_COMPILER[0]):  # its source has the JITFunction, which has the function
        kernel = stack.locals(frame)[names.TRITON_SOURCE][names.TRITON_FUNCTION]
        function = kernel[names.TRITON_FUNCTION].function
        if function and function.file:
            return compile_section.SourcePlace(function.qualname, function.file, function.line)
    return None


def work_of(pid: int) -> compile_section.CompilingThread | None:
    """What a process compiles, which is stopped for some milliseconds; None for nothing, or if it cannot be read."""
    with suppress(GdbextError), closing(briefly_stopped(pid)) as target:
        works = (work_of_thread(tid, stack) for tid, stack in python_stacks(Session(target)))
        return next((work for work in works if work), None)
    return None


def python_stacks(session: Session) -> Iterator[tuple[int, PyStack]]:
    """(tid, Python frames) of each thread; one that cannot be read is among the session's errors."""
    for thread in session.target.memory.threads():
        try:
            yield thread.tid, session.python_threads.frames(thread.tid)
        except GdbextError as error:
            session.errors.note(error, f"thread {thread.tid}")


def pool_of(tid: int, stack: PyStack) -> compile_section.CompilePool | None:
    """The pool of Inductor's workers whose results a thread waits for; None for another thread."""
    file, function = names.POOL_READER
    readers = (frame for frame in stack if frame.file.endswith(file) and frame.function.rpartition(".")[2] == function)
    reader = next(readers, None)
    if not reader:
        return None
    pool = stack.locals(reader)["self"]
    process, pending = pool[names.POOL_PROCESS]["pid"], pool[names.POOL_PENDING]
    jobs = pending.keys(100_000)
    if pending and jobs.fault:
        return None
    return compile_section.CompilePool(tid, process.int(), len(jobs) if pending else None)


def compiling_processes(session: Session) -> tuple[compile_section.CompilingProcess, ...]:
    """The descendants that compile; () for a core. At most eight workers that do not wait for a job in futex(2) are
    stopped for some milliseconds, to read what they compile."""
    parents = session.procfs.descendants()
    processes = {pid: session.procfs.process(pid) for pid in parents}
    compilers = {
        pid: process
        for pid, process in processes.items()
        if process.name in names.COMPILERS or names.WORKER in process.command
    }
    reports: list[compile_section.CompilingProcess] = []
    stops_left = 8
    for pid, process in compilers.items():
        children = [child for child_pid, child in compilers.items() if parents[child_pid] == pid]
        doing = ", ".join([process.doing, *(f"started {child.name} {child.pid}" for child in children)])
        # A compiler's source is the last of its arguments that looks like one.
        pattern = r"\S+\.(?:cpp|cc|c|cu|ptx)(?= |$)"
        sources = re.findall(pattern, process.command) if process.name in names.COMPILERS else []
        source, command, work = sources[-1] if sources else "", process.command[:300], None
        if names.WORKER in command and process.call != "futex" and not process.ending and stops_left:
            stops_left -= 1
            work = work_of(pid)
        reports.append(compile_section.CompilingProcess(pid, process.name, command, doing, parents[pid], source, work))
    return tuple(reports)


def compile_locks(session: Session) -> tuple[compile_section.CompileLock, ...]:
    """The lock files that are open in this process or its descendants; () for a core."""
    procfs = session.procfs
    users: dict[str, list[int]] = {}
    for pid in (session.target.pid, *procfs.descendants()):
        for path in procfs.open_files(pid):
            if names.LOCK_FILE.search(path):
                users.setdefault(path, []).append(pid)
    locks = []
    for path, pids in sorted(users.items()):
        peer = procfs.file_lock(path)
        others = {process.pid for process in peer.processes} if peer else set()
        holders = others.union(pid for pid in pids if procfs.has_locked(pid, path))
        locks.append(compile_section.CompileLock(path, tuple(sorted(pids)), tuple(sorted(holders))))
    return tuple(locks)
