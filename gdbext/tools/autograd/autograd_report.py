"""Reads what each thread does in autograd: forward or backward, the node that it runs, and the engine's graph tasks.

The nodes of backward passes that run on a stack: one for each call of the engine, several where it is reentrant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from gdbext.cpython.abi.assumed_names import is_below_library
from gdbext.diagnosis.report.thread_report import BackwardNode
from gdbext.errors import GdbextError
from gdbext.tools.autograd import autograd_section
from gdbext.tools.autograd.engine import CPU_DEVICE, NO_DEVICE, EngineReader, RunningNode
from gdbext.tools.autograd.node_reporter import NodeReporter
from gdbext.torch import assumed_symbols
from gdbext.torch.stack.roles import engine_calls
from gdbext.torch.structures import GraphTaskStruct
from gdbext.torch.torch_symbol import ENGINE_CALLERS, MODULE_FILE

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind import NativeStack

_PASSES = 64
"""Native frames in which a thread that waits for its backward pass has the call that waits."""
_READY = 16
"""Nodes of a queue that are named."""
T = TypeVar("T")


class AutogradReporter:
    """Describes the threads of one session."""

    def __init__(self, session: Session) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._engine = EngineReader(session.memory, session.layout, session.symbolizer)
        self.nodes = NodeReporter(session, lambda number: self._tids.get(number))
        self._problems: list[str] = []

    def section(self, threads: Sequence[TargetThread]) -> autograd_section.AutogradSection:
        """These threads, and the graph tasks that they take part in."""
        found = tuple(self.thread(thread) for thread in threads)
        tasks: dict[int, list[int]] = {}
        for thread in found:
            if thread.graph_task:
                tasks.setdefault(thread.graph_task, []).append(thread.tid)
        reports = tuple(self._task(address, tuple(tids)) for address, tids in tasks.items())
        return autograd_section.AutogradSection(
            found, reports, self._anomaly_mode(), device_queues=self._device_queues()
        )

    @cached_property
    def _tids(self) -> dict[int, int]:
        """RecordFunction's number of each thread that has one."""
        found: dict[int, int] = {}
        for thread in self._session.target.memory.threads():
            number = self._field(lambda t=thread: self._engine.thread_id(self._pointer(t)))  # type: ignore[misc]
            if number:
                found[number] = thread.tid
        return found

    def _pointer(self, thread: TargetThread) -> int:
        return self._session.memory.architecture.thread_pointer(thread.registers())

    def running(self, thread: TargetThread) -> RunningNode:
        """The node and graph task that the engine runs in a thread. Raises BadData, ThreadLocalUnknown, MemoryFault,
        TargetError."""
        return self._engine.running(self._pointer(thread))

    def thread(self, thread: TargetThread) -> autograd_section.AutogradThread:
        """One thread; what cannot be read is None, and one of its problems."""
        self._problems = []
        running = self._field(lambda: self.running(thread))
        snapshot = self._field(lambda: self._session.threads.of(thread))
        node = running.node if running else 0
        found = self._field(lambda: self.nodes.full(node, self._codes(thread.tid))) if node else None
        return autograd_section.AutogradThread(
            tid=thread.tid,
            name=(snapshot.python_name or snapshot.name) if snapshot else thread.name,
            phase=_phase(running, snapshot),
            node=found,
            next_sequence_nr=self._field(lambda: self._engine.next_sequence_nr(self._pointer(thread))),
            graph_task=running.graph_task if running and running.graph_task else None,
            grad_mode=self._field(lambda: self._grad_mode(thread)),
            operator=_outermost_operator(snapshot),
            line=_line(snapshot),
            outer=self._outer(snapshot),
            problems=(*dict.fromkeys(self._problems), *self.nodes.take_problems()),
        )

    def _codes(self, tid: int) -> set[int]:
        """Code objects of the Python functions that the thread runs since its backward pass began."""
        frames = self._session.python_threads.frames(tid)
        return {frame.code for frame in takewhile(lambda frame: not frame.file.endswith(ENGINE_CALLERS), frames)}

    def _outer(self, snapshot: ThreadSnapshot | None) -> tuple[autograd_section.NodeReference, ...]:
        levels = engine_calls(snapshot.stack) if snapshot else []
        return outer_nodes(self.nodes, snapshot.stack, levels) if snapshot and len(levels) > 1 else ()

    def _grad_mode(self, thread: TargetThread) -> bool | None:
        return self._session.dispatch_states.read(self._pointer(thread)).autograd.grad_mode

    def _field(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except GdbextError as error:
            self._problems.append(error.what)
            return None

    def _anomaly_mode(self) -> bool | None:
        value = self._session.settings.value("anomaly_mode")
        return value if isinstance(value, bool) else None

    # --- graph tasks -----------------------------------------------------------------------------

    def _task(self, address: int, tids: tuple[int, ...]) -> autograd_section.GraphTask:
        task, field = self._engine.task(address), self._field
        ready = field(lambda: self._engine.ready(address))
        waiting = field(lambda: self._engine.waiting(address))
        return autograd_section.GraphTask(
            address=address,
            id=field(lambda: task.id_),
            tids=tids,
            outstanding=field(lambda: task.outstanding_tasks_),
            waiting=field(lambda: self._engine.count(address, GraphTaskStruct.dependencies_)),
            nodes=field(lambda: self._engine.count(address, GraphTaskStruct.nodes_in_graph_)),
            ready=len(ready) if ready is not None else None,
            owner=field(lambda: _device(task.owner_)),
            reentrant_depth=field(lambda: task.reentrant_depth_),
            keep_graph=field(lambda: task.keep_graph_),
            has_error=field(lambda: task.has_error_),
            ready_nodes=self._references(ready or ()),
            stale=tuple(self.nodes.stale((*(ready or ()), *(waiting or ())))),
            selective=field(lambda: self._engine.is_selective(address)),
        )

    def _references(self, nodes: Sequence[int]) -> tuple[autograd_section.NodeReference, ...]:
        found = (self._field(lambda n=node: self.nodes.reference(n)) for node in nodes[:_READY] if node)  # type: ignore[misc]
        return tuple(node for node in found if node)

    def _device_queues(self) -> tuple[autograd_section.DeviceQueue, ...]:
        """Those of devices whose nodes run in threads of their own; none on a machine without such devices."""
        engine = self._field(lambda: self._engine.engine(self.nodes.classes))
        queues = self._field(lambda: self._engine.device_queues(engine)) if engine else None
        found = []
        for device, queue in enumerate(queues or ()):
            ready = self._field(lambda q=queue: self._engine.queued(q)) if queue else None  # type: ignore[misc]
            count = len(ready) if ready is not None else None
            found.append(autograd_section.DeviceQueue(device, count, self._references(ready or ())))
        return tuple(found)


def _device(number: int) -> str:
    return {NO_DEVICE: "none", CPU_DEVICE: "cpu"}.get(number, f"device {number}")


def _phase(running: RunningNode | None, snapshot: ThreadSnapshot | None) -> autograd_section.Phase:
    if running and (running.node or running.graph_task):
        return autograd_section.Phase.BACKWARD
    if not snapshot:
        return autograd_section.Phase.NONE
    if _waits_for_backward(snapshot):
        return autograd_section.Phase.BACKWARD
    in_module = any(frame.file.endswith(MODULE_FILE) for frame in snapshot.python)
    return autograd_section.Phase.FORWARD if snapshot.dispatch or in_module else autograd_section.Phase.NONE


def _waits_for_backward(snapshot: ThreadSnapshot) -> bool:
    """``Engine::execute`` is on its stack: devices of their own run the nodes."""
    for level in range(min(_PASSES, len(snapshot.stack))):
        function = snapshot.stack.function(level)
        if function and function.name.startswith(assumed_symbols.AUTOGRAD_EXECUTE.beginnings):
            return True
    return False


def _outermost_operator(snapshot: ThreadSnapshot | None) -> str | None:
    return snapshot.dispatch[-1].qualified if snapshot and snapshot.dispatch else None


def _line(snapshot: ThreadSnapshot | None) -> str:
    """The innermost line of the program, outside of libraries."""
    frames = snapshot.python if snapshot else ()
    own = next((f for f in frames if not is_below_library(f.file) and f.file[:1] != "<"), None)
    return own.place if own else ""


_APPLY = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")
_PYTHON_NODE = "PyNode"
"""The name of the method of a node that Python defines."""
_FRAME_LIMIT = 1 << 14
"""Bytes of a frame of ``Engine::thread_main`` at most."""


def nodes_on_stack(
    session: Session, thread: TargetThread, stack: NativeStack, levels: Sequence[int]
) -> tuple[BackwardNode, ...]:
    """The nodes that the engine's calls at ``levels`` run. Raises nothing: a node that is not known is left out."""
    try:
        reporter = NodeReporter(session)
    except GdbextError:
        found: list[BackwardNode | None] = [
            _named(stack, inner + 1, outer) for inner, outer in zip((-1, *levels), levels)
        ]
        return tuple(node for node in found if node)
    found = [_running(session, reporter, thread, levels[0]) or _named(stack, 0, levels[0])]
    for inner, outer in zip(levels, levels[1:]):
        reference = outer_node(reporter, stack, inner, outer)
        found.append(_node(outer, reference) if reference else _named(stack, inner + 1, outer))
    return tuple(node for node in found if node)


def outer_nodes(
    reporter: NodeReporter, stack: NativeStack, levels: Sequence[int]
) -> tuple[autograd_section.NodeReference, ...]:
    """The nodes from whose backward the innermost pass was started, innermost first, as far as they are known."""
    found = (outer_node(reporter, stack, inner, outer) for inner, outer in zip(levels, levels[1:]))
    return tuple(node for node in found if node)


def _running(session: Session, reporter: NodeReporter, thread: TargetThread, level: int) -> BackwardNode | None:
    """The one that the engine says this thread runs."""
    try:
        engine = EngineReader(session.memory, session.layout, session.symbolizer)
        node = engine.running(session.memory.architecture.thread_pointer(thread.registers())).node
        return _node(level, reporter.reference(node), reporter.made_at(node)) if node else None
    except GdbextError:
        return None


def _node(level: int, found: autograd_section.NodeReference, made_at: str = "") -> BackwardNode:
    return BackwardNode(level, found.name, found.sequence_nr, found.variable, made_at)


def outer_node(
    reporter: NodeReporter, stack: NativeStack, inner: int, outer: int
) -> autograd_section.NodeReference | None:
    """The node that the engine's call at ``outer`` runs, from which that at ``inner`` was started; None if unknown.

    ``Engine::thread_main``, which makes both calls, keeps in its frame the node that it runs, and the one that ran
    before it began (engine.cpp, NodeGuard): the node that both frames have is the one.
    """
    both = _nodes_in(reporter, stack, inner + 1) & _nodes_in(reporter, stack, outer + 1)
    try:
        found = reporter.reference(both.pop()) if len(both) == 1 else None
    except GdbextError:
        return None
    named = _named(stack, inner + 1, outer)
    if not found or (named and named.name not in (found.name.rpartition("::")[2], _PYTHON_NODE)):
        return None
    return found


def _nodes_in(reporter: NodeReporter, stack: NativeStack, level: int) -> set[int]:
    """Addresses of nodes in the frame at ``level``."""
    frame = stack.frames[level] if level < len(stack) else None
    if not frame or not 0 < frame.cfa - frame.sp <= _FRAME_LIMIT:
        return set()
    try:
        words = set(reporter.nodes.memory.words(frame.sp, (frame.cfa - frame.sp) // 8))
    except GdbextError:
        return set()
    return {word for word in words if _is_node(reporter, word)}


def _is_node(reporter: NodeReporter, word: int) -> bool:
    if not word or word % 8:
        return False
    try:
        return reporter.nodes.is_node(word)
    except GdbextError:
        return False


def _named(stack: NativeStack, first: int, level: int) -> BackwardNode | None:
    """The one whose method is among the frames that the engine's call at ``level`` made."""
    for inner in range(level - 1, first - 1, -1):
        function = stack.function(inner)
        found = next(filter(None, map(_APPLY.match, function.demangled if function else ())), None)
        if found:
            return BackwardNode(level, found.group(1), None)
    return None
