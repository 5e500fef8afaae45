"""Reads what each thread does in autograd, the engine's graph tasks, and the nodes of backward passes that run on a
stack.

Sources: torch/csrc/autograd/engine.h, engine.cpp, graph_task.h, 2.13.0. The engine keeps what a thread does in
thread-local variables, which are zero in idle threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gdbext.cpython.abi.assumed_names import is_below_library
from gdbext.diagnosis.report.thread_report import BackwardNode
from gdbext.engine.formats.symbol_table import STT_TLS, Symbol
from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Member, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError
from gdbext.tools.autograd.autograd_section import (
    AutogradNode,
    AutogradSection,
    AutogradThread,
    DeviceQueue,
    GraphTask,
    NodeReference,
    Phase,
)
from gdbext.tools.autograd.node_reporter import NodeReporter
from gdbext.torch import assumed_symbols
from gdbext.torch.assumed_symbols import UNNAMED_ENGINE_VARIABLES
from gdbext.torch.stack.roles import engine_calls
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.structures import Engine, GraphTaskStruct, NodeTask, ReadyQueue
from gdbext.torch.torch_symbol import ENGINE_CALLERS, MODULE_FILE, TorchSymbol
from gdbext.torch.values.containers import hash_entries, vector_span
from gdbext.torch.values.cpp_objects import ClassNames
from gdbext.torch.values.value_structures import UnorderedMap

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind import NativeStack

_SHARED_POINTER = 16
"""Bytes of a std::shared_ptr, which the thread-local variables are."""
_QUEUE_LIMIT = 1 << 20
NO_DEVICE, CPU_DEVICE = -2, -1
"""Numbers of devices in torch/csrc/autograd/graph_task.h."""


class RunningNode(NamedTuple):
    """What the engine runs in a thread: the addresses of a Node and of a GraphTask, 0 for none."""

    node: int
    graph_task: int


class EngineReader:
    """Reads the state of autograd's engine. ``thread_pointer`` is the address of a thread's control block."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._variables = ThreadVariables(memory, symbolizer)
        self._unnamed: dict[str, tuple[Module, Symbol]] = {}
        """Name of an accessor → the variable that it returns."""
        self._symbolizer = symbolizer

    def running(self, thread_pointer: int) -> RunningNode:
        """What runs in a thread. Raises BadData if torch has no such variables, ThreadLocalUnknown, MemoryFault."""
        node = self._current(thread_pointer, assumed_symbols.EVALUATING_NODE, assumed_symbols.EVALUATING_NODE_ACCESS)
        task = self._current(thread_pointer, assumed_symbols.GRAPH_TASK, assumed_symbols.GRAPH_TASK_ACCESS)
        return RunningNode(node, task)

    def _current(self, thread_pointer: int, variable: TorchSymbol, access: TorchSymbol) -> int:
        """The value of the thread-local ``variable``, found by its accessor if the compiler gave it no name."""
        if variable.find(self._symbolizer):
            return self._named_variable(thread_pointer, variable)
        name = access.names[0]
        if name not in self._unnamed:
            self._unnamed[name] = self._find_unnamed(access)
        module, symbol = self._unnamed[name]
        return int.from_bytes(self._variables.of(thread_pointer).read_symbol(module, symbol, 8), "little")

    def _find_unnamed(self, access: TorchSymbol) -> tuple[Module, Symbol]:
        """The thread-local variable that an accessor returns. Raises BadData, MemoryFault.

        In some releases such a variable is a static one of a lambda in a ``c10::ThreadLocal`` (c10/util/ThreadLocal.h),
        which keeps a pointer to the lambda's function (``access``). Lambdas of different files have one name, but the
        function's code has the offset of its variable among the library's thread-locals.
        """
        location, pointer = access.find(self._symbolizer), access.address(self._symbolizer)
        if not location or not pointer:
            raise BadData(f"{access.library} has no {access.names[0]}")
        address = self._memory.u64(pointer)
        function = self._symbolizer.function(address)
        if not function or function.start != address:
            raise BadData(f"there is no function at {address:#x}")
        code = self._memory.read(address, min(function.size, 160))
        module, has_operand = location[0], self._memory.architecture.has_operand
        index = self._symbolizer.index(module)
        candidates = [
            symbol
            for name in UNNAMED_ENGINE_VARIABLES
            for symbol in (index.lookup(name) if index else ())
            if symbol.type == STT_TLS and symbol.size == _SHARED_POINTER and has_operand(code, symbol.vaddr)
        ]
        if len(candidates) != 1:
            raise BadData(f"the code of {access.names[0]} does not show which variable it returns")
        return module, candidates[0]

    def next_sequence_nr(self, thread_pointer: int) -> int:
        """The sequence number that the thread's next node gets. Raises as ``running``."""
        return self._named_variable(thread_pointer, assumed_symbols.SEQUENCE_NUMBER)

    def thread_id(self, thread_pointer: int) -> int:
        """RecordFunction's own number of the thread; 0 if it never asked for one. Raises as ``running``."""
        return self._named_variable(thread_pointer, assumed_symbols.RECORD_FUNCTION_THREAD)

    def _named_variable(self, thread_pointer: int, variable: TorchSymbol) -> int:
        return int.from_bytes(self._variables.of(thread_pointer).read(variable, 8) or b"", "little")

    def task(self, address: int) -> GraphTaskStruct:
        return GraphTaskStruct(self._space, address)

    def count(self, address: int, table: Member[int]) -> int:
        """The number of elements in a hash table of the GraphTask at ``address``. Raises LayoutError, MemoryFault."""
        return self._memory.u64(self.task(address).place(table) + UnorderedMap.elements.field(self._layout).offset)

    def waiting(self, address: int) -> tuple[int, ...]:
        """The nodes of a GraphTask that wait for the gradients of others. Raises BadData, LayoutError, MemoryFault."""
        table = self.task(address).dependencies_
        return tuple(node for (node,) in hash_entries(self._memory, self._layout, table, 1, _QUEUE_LIMIT))

    def queued(self, queue: int) -> tuple[int, ...]:
        """The nodes in the ReadyQueue at ``queue`` (0: none); 0 only wakes its thread. Raises as ``waiting``."""
        if not queue:
            return ()
        heap = ReadyQueue(self._space, queue).heap_
        first, count = vector_span(self._memory, heap, NodeTask.size(self._space), _QUEUE_LIMIT)
        return tuple(task.fn_ for task in NodeTask.array(self._space, first, count))

    def device_queues(self, classes: ClassNames) -> tuple[int, ...]:
        """The ReadyQueue of each device, 0 for one without a thread of its own; () if the engine of a program with
        Python was not used yet, or cannot be found. Raises as ``waiting``."""
        engine = assumed_symbols.PYTHON_ENGINE.address(self._symbolizer)
        if not engine or "torch::autograd::python::PythonEngine" not in classes.of(engine):
            return ()
        table = Engine(self._space, engine).device_ready_queues_
        first, count = vector_span(self._memory, table, _SHARED_POINTER, 128)  # a signed byte numbers the devices
        return tuple(self._memory.u64(first + index * _SHARED_POINTER) for index in range(count))


T = TypeVar("T")


class AutogradReporter:
    """Describes the threads of one session."""

    def __init__(self, session: Session) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._engine = EngineReader(session.memory, session.layout, session.symbolizer)
        self.nodes = NodeReporter(session, lambda number: self._tids.get(number))
        self._problems: list[str] = []

    def section(self, threads: Sequence[TargetThread]) -> AutogradSection:
        """The report on these threads, the graph tasks that they take part in, and the queues of devices."""
        reports = tuple(self.thread(thread) for thread in threads)
        tasks: dict[int, list[int]] = {}  # address of a GraphTask → tids
        for report in reports:
            if report.graph_task:
                tasks.setdefault(report.graph_task, []).append(report.tid)
        task_reports = tuple(self._task(address, tuple(tids)) for address, tids in tasks.items())
        anomaly_mode = self._session.settings.value("anomaly_mode")
        queues = []
        for device, queue in enumerate(self._field(lambda: self._engine.device_queues(self.nodes.classes)) or ()):
            ready = self._field(partial(self._engine.queued, queue)) if queue else None
            queues.append(DeviceQueue(device, None if ready is None else len(ready), self._references(ready or ())))
        is_on = anomaly_mode if isinstance(anomaly_mode, bool) else None
        return AutogradSection(reports, task_reports, is_on, device_queues=tuple(queues))

    @cached_property
    def _tids(self) -> dict[int, int]:
        """RecordFunction's number of a thread → its tid."""
        tids: dict[int, int] = {}
        for thread in self._session.target.memory.threads():
            number = self._field(partial(lambda thread: self._engine.thread_id(self._thread_pointer(thread)), thread))
            if number:
                tids[number] = thread.tid
        return tids

    def _thread_pointer(self, thread: TargetThread) -> int:
        return self._session.memory.architecture.thread_pointer(thread.registers())

    def thread(self, thread: TargetThread) -> AutogradThread:
        """The report on a thread; a part that cannot be read is None, with a problem that says why."""
        self._problems = []
        session, field = self._session, self._field
        running = field(lambda: self._engine.running(self._thread_pointer(thread)))
        snapshot = field(lambda: session.threads.snapshot(thread))

        def node_report() -> AutogradNode | None:
            """The report on the node that runs; only frames since the call of backward() count as running."""
            if not running or not running.node:
                return None
            frames = session.python_threads.frames(thread.tid)
            since_backward = takewhile(lambda frame: not frame.file.endswith(ENGINE_CALLERS), frames)
            return self.nodes.node_report(running.node, {frame.code for frame in since_backward})

        levels = engine_calls(snapshot.stack) if snapshot else []
        own = (frame for frame in (snapshot.python if snapshot else ()) if not is_below_library(frame.file))
        line = next((frame.place for frame in own if frame.file[:1] != "<"), "")
        return AutogradThread(
            tid=thread.tid,
            name=(snapshot.python_name or snapshot.name) if snapshot else thread.name,
            phase=_phase(running, snapshot),
            node=field(node_report),
            next_sequence_nr=field(lambda: self._engine.next_sequence_nr(self._thread_pointer(thread))),
            graph_task=running.graph_task if running and running.graph_task else None,
            grad_mode=field(lambda: session.dispatch_states.read(self._thread_pointer(thread)).autograd.grad_mode),
            operator=snapshot.dispatch[-1].qualified if snapshot and snapshot.dispatch else None,
            line=line,
            outer=tuple(
                node
                for inner, outer in zip(levels, levels[1:])
                if snapshot and (node := outer_node(self.nodes, snapshot.stack, inner, outer))
            ),
            problems=(*dict.fromkeys(self._problems), *self.nodes.take_problems()),
        )

    def _field(self, read: Callable[[], T]) -> T | None:
        """The result of ``read``; None if it raises GdbextError, which becomes one of the problems."""
        try:
            return read()
        except GdbextError as error:
            self._problems.append(error.what)
            return None

    def _task(self, address: int, tids: tuple[int, ...]) -> GraphTask:
        """The report on the GraphTask at ``address``. ``tids``: the threads that run its nodes."""
        task, field = self._engine.task(address), self._field
        ready = field(lambda: self._engine.queued(task.cpu_ready_queue_))
        waiting = field(lambda: self._engine.waiting(address))
        devices = {NO_DEVICE: "none", CPU_DEVICE: "cpu"}
        return GraphTask(
            address=address,
            id=field(lambda: task.id_),
            tids=tids,
            outstanding=field(lambda: task.outstanding_tasks_),
            waiting=field(lambda: self._engine.count(address, GraphTaskStruct.dependencies_)),
            nodes=field(lambda: self._engine.count(address, GraphTaskStruct.nodes_in_graph_)),
            ready=len(ready) if ready is not None else None,
            owner=field(lambda: devices.get(task.owner_, f"device {task.owner_}")),
            reentrant_depth=field(lambda: task.reentrant_depth_),
            keep_graph=field(lambda: task.keep_graph_),
            has_error=field(lambda: task.has_error_),
            ready_nodes=self._references(ready or ()),
            stale=tuple(self.nodes.stale((*(ready or ()), *(waiting or ())))),
            selective=field(lambda: self._engine.count(address, GraphTaskStruct.exec_info_) != 0),
        )

    def _references(self, nodes: Sequence[int]) -> tuple[NodeReference, ...]:
        """The first 16 nodes of a queue (addresses, 0 for no node), as far as they can be read."""
        references = (self._field(partial(self.nodes.reference, node)) for node in nodes[:16] if node)
        return tuple(reference for reference in references if reference)


def _phase(running: RunningNode | None, snapshot: ThreadSnapshot | None) -> Phase:
    """The phase of a thread, from the engine's own variables (``running``), else from the thread's stack; None for what
    could not be read."""
    if running and (running.node or running.graph_task):
        return Phase.BACKWARD
    if not snapshot:
        return Phase.NONE
    # Engine::execute is among the inner frames of a thread that waits while threads of devices run the nodes.
    for level in range(min(64, len(snapshot.stack))):
        function = snapshot.stack.function(level)
        if function and function.name.startswith(assumed_symbols.AUTOGRAD_EXECUTE.beginnings):
            return Phase.BACKWARD
    in_module = any(frame.file.endswith(MODULE_FILE) for frame in snapshot.python)
    return Phase.FORWARD if snapshot.dispatch or in_module else Phase.NONE


_APPLY = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")


def nodes_on_stack(
    session: Session, thread: TargetThread, stack: NativeStack, levels: Sequence[int]
) -> tuple[BackwardNode, ...]:
    """The nodes that the engine runs at ``levels`` of a thread's stack (indices of frames that call a node, innermost
    first); an unknown node is left out. The diagnosis adds them to its reports (Extras.backward_nodes)."""
    nodes = [_node_by_class(stack, inner + 1, outer) for inner, outer in zip((-1, *levels), levels)]
    with suppress(GdbextError):
        reporter = NodeReporter(session)
        with suppress(GdbextError):
            engine = EngineReader(session.memory, session.layout, session.symbolizer)
            running = engine.running(session.memory.architecture.thread_pointer(thread.registers())).node
            if running:
                name, _, number, variable = reporter.reference(running)
                nodes[0] = BackwardNode(levels[0], name, number, variable, reporter.made_at(running))
        for index, (inner, outer) in enumerate(zip(levels, levels[1:]), 1):
            reference = outer_node(reporter, stack, inner, outer)
            if reference:
                nodes[index] = BackwardNode(outer, reference.name, reference.sequence_nr, reference.variable, "")
    return tuple(node for node in nodes if node)


def outer_node(reporter: NodeReporter, stack: NativeStack, inner: int, outer: int) -> NodeReference | None:
    """The node that the engine's call at level ``outer`` of a stack runs, whose backward has made the engine's call at
    level ``inner``; None if unknown.

    ``Engine::thread_main``, which makes both calls, keeps in its frame the node that it runs, and the node that ran
    before (engine.cpp, NodeGuard): if both frames have exactly one node in common, it is that one.
    """

    def is_node(word: int) -> bool:
        with suppress(GdbextError):
            return bool(word) and not word % 8 and reporter.nodes.is_node(word)
        return False

    def nodes_in_frame(level: int) -> set[int]:
        """The addresses of nodes among the words of the frame at ``level``; none if it is unknown or above 16 KiB."""
        frame = stack.frames[level] if level < len(stack) else None
        if frame and 0 < frame.cfa - frame.sp <= 1 << 14:
            with suppress(GdbextError):
                words = set(reporter.nodes.memory.words(frame.sp, (frame.cfa - frame.sp) // 8))
                return {word for word in words if is_node(word)}
        return set()

    common = nodes_in_frame(inner + 1) & nodes_in_frame(outer + 1)
    by_class = _node_by_class(stack, inner + 1, outer)
    with suppress(GdbextError):
        reference = reporter.reference(common.pop()) if len(common) == 1 else None
        if reference and (not by_class or by_class.name in (reference.name.rpartition("::")[2], "PyNode")):
            return reference
    return None


def _node_by_class(stack: NativeStack, first: int, level: int) -> BackwardNode | None:
    """The node whose apply() is among the frames from ``first`` to the engine's call at ``level``, named by its C++
    class; None if no apply() is there."""
    for inner in range(level - 1, first - 1, -1):
        function = stack.function(inner)
        match = next(filter(None, map(_APPLY.match, function.demangled if function else ())), None)
        if match:
            return BackwardNode(level, match.group(1), None)
    return None
