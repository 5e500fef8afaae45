"""Reads what each thread does in autograd, the engine's graph tasks, and the nodes of backward passes that run on a
stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from gdbext.cpython.abi.assumed_names import is_below_library
from gdbext.diagnosis.report.thread_report import BackwardNode
from gdbext.errors import GdbextError
from gdbext.tools.autograd.autograd_section import (
    AutogradNode,
    AutogradSection,
    AutogradThread,
    DeviceQueue,
    GraphTask,
    NodeReference,
    Phase,
)
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
        """These threads, the graph tasks that they take part in, and the queues of devices with threads of their
        own."""
        reports = tuple(self.thread(thread) for thread in threads)
        tasks: dict[int, list[int]] = {}
        for report in reports:
            if report.graph_task:
                tasks.setdefault(report.graph_task, []).append(report.tid)
        task_reports = tuple(self._task(address, tuple(tids)) for address, tids in tasks.items())
        anomaly_mode = self._session.settings.value("anomaly_mode")
        engine = self._field(lambda: self._engine.engine(self.nodes.classes))
        queues = (self._field(lambda: self._engine.device_queues(engine)) if engine else None) or ()
        device_queues = tuple(self._device_queue(device, queue) for device, queue in enumerate(queues))
        is_on = anomaly_mode if isinstance(anomaly_mode, bool) else None
        return AutogradSection(reports, task_reports, is_on, device_queues=device_queues)

    def _device_queue(self, device: int, queue: int) -> DeviceQueue:
        """``queue``: the address of its ReadyQueue, 0 for none."""
        ready = self._field(lambda: self._engine.queued(queue)) if queue else None
        return DeviceQueue(device, None if ready is None else len(ready), self._references(ready or ()))

    @cached_property
    def _tids(self) -> dict[int, int]:
        """RecordFunction's number → tid of each thread that has one."""
        tids: dict[int, int] = {}
        for thread in self._session.target.memory.threads():
            number = self._field(partial(lambda thread: self._engine.thread_id(self._pointer(thread)), thread))
            if number:
                tids[number] = thread.tid
        return tids

    def _pointer(self, thread: TargetThread) -> int:
        return self._session.memory.architecture.thread_pointer(thread.registers())

    def thread(self, thread: TargetThread) -> AutogradThread:
        """What cannot be read is None, and one of the problems."""
        self._problems = []
        session, field = self._session, self._field
        running = field(lambda: self._engine.running(self._pointer(thread)))
        snapshot = field(lambda: session.threads.snapshot(thread))

        def node_report() -> AutogradNode | None:
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
            next_sequence_nr=field(lambda: self._engine.next_sequence_nr(self._pointer(thread))),
            graph_task=running.graph_task if running and running.graph_task else None,
            grad_mode=field(lambda: session.dispatch_states.read(self._pointer(thread)).autograd.grad_mode),
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
        try:
            return read()
        except GdbextError as error:
            self._problems.append(error.what)
            return None

    # --- graph tasks -----------------------------------------------------------------------------

    def _task(self, address: int, tids: tuple[int, ...]) -> GraphTask:
        """``tids``: the threads that run its nodes."""
        task, field = self._engine.task(address), self._field
        ready = field(lambda: self._engine.ready(address))
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
            selective=field(lambda: self._engine.is_selective(address)),
        )

    def _references(self, nodes: Sequence[int]) -> tuple[NodeReference, ...]:
        """The first 16 nodes of a queue, as far as they can be read; 0 is no node."""
        references = (self._field(partial(self.nodes.reference, node)) for node in nodes[:16] if node)
        return tuple(reference for reference in references if reference)


def _phase(running: RunningNode | None, snapshot: ThreadSnapshot | None) -> Phase:
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
    """The nodes that the engine's calls at ``levels`` run. Raises nothing: an unknown node is left out."""
    by_name = [_named(stack, inner + 1, outer) for inner, outer in zip((-1, *levels), levels)]
    nodes = list(by_name)
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
    """The node that the engine's call at level ``outer`` runs, which has started the call at level ``inner``; None if
    unknown.

    ``Engine::thread_main``, which makes both calls, keeps in its frame the node that it runs, and the node that ran
    before (engine.cpp, NodeGuard): the only node that both frames have is the one.
    """

    def is_node(word: int) -> bool:
        with suppress(GdbextError):
            return bool(word) and not word % 8 and reporter.nodes.is_node(word)
        return False

    def nodes_in_frame(level: int) -> set[int]:
        frame = stack.frames[level] if level < len(stack) else None
        if not frame or not 0 < frame.cfa - frame.sp <= 1 << 14:
            return set()
        try:
            words = set(reporter.nodes.memory.words(frame.sp, (frame.cfa - frame.sp) // 8))
        except GdbextError:
            return set()
        return {word for word in words if is_node(word)}

    both = nodes_in_frame(inner + 1) & nodes_in_frame(outer + 1)
    try:
        reference = reporter.reference(both.pop()) if len(both) == 1 else None
    except GdbextError:
        return None
    by_name = _named(stack, inner + 1, outer)
    if not reference or (by_name and by_name.name not in (reference.name.rpartition("::")[2], "PyNode")):
        return None
    return reference


def _named(stack: NativeStack, first: int, level: int) -> BackwardNode | None:
    """The node whose apply() is among the frames from ``first`` to the engine's call at ``level``, by its class."""
    for inner in range(level - 1, first - 1, -1):
        function = stack.function(inner)
        match = next(filter(None, map(_APPLY.match, function.demangled if function else ())), None)
        if match:
            return BackwardNode(level, match.group(1), None)
    return None
