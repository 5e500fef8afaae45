"""``dispatch-autograd``: forward or backward, the running node and the operator that it belongs to, the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import dispatcher_errors, make_report
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_arguments import find_thread
from gdbext.diagnosis.tool_mode import Mode
from gdbext.render import Style, counted, escape
from gdbext.tools.autograd import autograd_section
from gdbext.tools.autograd.autograd_graph import graph_from, node_of_tensor, running_node, saved_text, write
from gdbext.tools.autograd.autograd_report import AutogradReporter

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.tools.autograd.autograd_graph import AutogradGraph

_EPILOG = """\
A thread is in its forward pass inside of an operator or of a torch.nn.Module; in its backward pass while autograd's
engine runs in it, or while it waits for the engine. The node is named as grad_fn.name() names it, its sequence number
is that of grad_fn._sequence_nr(). The forward operator follows from the node's name: AddmmBackward0 is the derivative
of aten::addmm, and of its in-place form. The forward line is known where anomaly mode was on when the node was made
(torch.autograd.set_detect_anomaly(True)); of a torch.autograd.Function it is the line where its forward is defined.
Hooks are in the order in which the engine calls them. A saved tensor that has been modified in place since then is
named, also where the engine has yet to run its node: backward will raise an error for it, or has done so. --py loss
does that for the graph of a tensor, before backward() is called. Everything is read from memory, of a core as well.

--graph FILE writes the graph from the running node on, or from the grad_fn of the tensor that --py names, with shapes
and versions of what each node has saved: as DOT, with a picture beside it where graphviz is installed; as text if FILE
ends in .txt. At most 10,000 nodes.
"""


class AutogradTool(Tool):
    """The command ``dispatch-autograd`` as a tool."""

    name = "dispatch-autograd"
    summary = "Show forward or backward: the running node, its forward operator and line, hooks."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        parser.epilog = _EPILOG
        parser.add_argument("--thread", metavar="TID|N", help="show this thread only (default: all)")
        parser.add_argument("--graph", metavar="FILE", help="write the graph to FILE")
        parser.add_argument(
            "--py", metavar="NAME", help="show the graph from the grad_fn of this tensor, a Python variable"
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the threads; one that cannot be read costs that thread. Raises NotTorch, LayoutError, UsageError."""
        session, (section, graph) = session.settled(lambda each: _read(each, args))
        if graph:
            section = replace(section, graph=_written(graph, args.graph))
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _read(session: Session, args: Namespace) -> tuple[autograd_section.AutogradSection, AutogradGraph | None]:
    """Read what the threads do, and the graph if it is wanted."""
    target = session.target
    chosen = find_thread(target, args.thread) if args.thread is not None else None
    reporter = AutogradReporter(session)
    section = reporter.section([chosen] if chosen else target.memory.threads())
    if not args.graph and not args.py:
        return section, None
    thread = chosen or target.memory.selected_thread()
    start = node_of_tensor(session, args.py, thread) if args.py else running_node(section)
    return section, graph_from(reporter.nodes, start)


def _written(graph: AutogradGraph, path: str | None) -> autograd_section.GraphFile:
    """The graph as the report has it, after it was written to ``path``. Raises TargetError."""
    files = write(path, graph.nodes) if path else ()
    return autograd_section.GraphFile(
        graph.nodes[0].node, len(graph.nodes), graph.truncated, files, graph.stale, graph.saved_known
    )


_INDENT = "     "
_NO_NUMBER = (1 << 64) - 1
"""The sequence number of nodes that are run as soon as they are ready (AccumulateGrad)."""
_EDGES = 6
_STALE = 10


def render(report: Report, style: Style) -> Iterator[str]:
    """A block for each thread that does something, then the graph tasks."""
    section = report.section(autograd_section.AutogradSection)
    busy = [
        each
        for phase in (autograd_section.Phase.BACKWARD, autograd_section.Phase.FORWARD)
        for each in section.threads
        if each.phase is phase
    ]
    for thread in busy:
        yield from _thread_lines(thread, style)
    rest = len(section.threads) - len(busy)
    if rest:
        others = f"{rest} {'thread' if rest == 1 else 'threads'}"
        yield f"{others} in no operator, module or backward pass." if busy else f"{others}, none in autograd."
    for task in section.graph_tasks:
        yield from _task_lines(task, style)
    yield from map(_queue_line, section.device_queues)
    if section.anomaly_mode is not None:
        yield f"Anomaly mode is {'on' if section.anomaly_mode else 'off'}."
    if section.graph:
        yield from _graph_lines(section.graph, style)


def node_text(node: autograd_section.AutogradNode | autograd_section.NodeReference) -> str:
    """The node in one phrase: ``AddmmBackward0, sequence number 42``."""
    number = node.sequence_nr
    numbered = "" if number == _NO_NUMBER else f", sequence number {_known(number)}"
    variable = f" of {escape(node.variable)}" if node.variable else ""
    return f"{escape(node.name)}{variable}{numbered}"


def _thread_lines(thread: autograd_section.AutogradThread, style: Style) -> Iterator[str]:
    name = f' "{escape(thread.name)}"' if thread.name else ""
    node = f", {node_text(thread.node)}" if thread.node else ""
    yield style(f"Thread{name} (tid {thread.tid}): {thread.phase.value}{node}", "bold")
    for line in (*_node_lines(thread), *_outer_lines(thread), *_state_lines(thread)):
        yield f"{_INDENT} {line}"
    for problem in thread.problems:
        yield style(f"{_INDENT} unknown: {escape(problem)}", "yellow")


def _node_lines(thread: autograd_section.AutogradThread) -> Iterator[str]:
    node = thread.node
    if not node:
        return
    if node.forward_op:
        made_by = "" if node.made_by in (None, thread.tid) else f", made by thread {node.made_by}"
        yield f"forward operator {escape(node.forward_op)}{made_by}"
    if node.file:
        yield f"forward line {escape(node.file)}:{node.line or '?'} ({escape(node.function)})  [{node.line_known_by}]"
        if node.source:
            yield f"    {escape(node.source)}"
    yield from map(_hook_text, node.hooks)
    for saved in node.saved or ():
        yield f"saved {escape(saved_text(saved))}"
    if node.next_functions:
        shown = ", ".join(map(_edge_text, node.next_functions[:_EDGES]))
        more = f", … {len(node.next_functions) - _EDGES} more" if len(node.next_functions) > _EDGES else ""
        yield f"then {shown}{more}"


def _outer_lines(thread: autograd_section.AutogradThread) -> Iterator[str]:
    """Lines about the node whose backward started the pass."""
    for node in thread.outer:
        yield f"inside of the backward of {node_text(node)}"


def _hook_text(hook: autograd_section.NodeHook) -> str:
    place = f"  {escape(hook.file)}:{hook.line or '?'}" if hook.file else ""
    return f"hook {escape(hook.function)}{place}  [{hook.kind.value}]{', which runs' if hook.runs else ''}"


def _edge_text(edge: autograd_section.NextFunction) -> str:
    return _short(edge.node) if edge.node else "none"


def _short(node: autograd_section.NodeReference) -> str:
    number = "" if node.sequence_nr in (None, _NO_NUMBER) else f" {node.sequence_nr}"
    variable = f" of {escape(node.variable)}" if node.variable else ""
    return f"{escape(node.name.rpartition('::')[2])}{variable}{number}"


def _state_lines(thread: autograd_section.AutogradThread) -> Iterator[str]:
    if thread.operator:
        yield f"in operator {escape(thread.operator)}"
    if thread.line:
        yield f"at {escape(thread.line)}"
    if thread.next_sequence_nr is not None:
        off = (
            ", grad mode is off" if thread.grad_mode is False and thread.phase is autograd_section.Phase.FORWARD else ""
        )
        yield f"next sequence number {thread.next_sequence_nr}{off}"


def _task_lines(task: autograd_section.GraphTask, style: Style) -> Iterator[str]:
    threads = ", ".join(map(str, task.tids))
    plural = "threads" if len(task.tids) > 1 else "thread"
    yield f"Graph task {_known(task.id)}, run by {plural} {threads}:"
    yield (
        f"{_INDENT} {_waiting_text(task.waiting)} for gradients, {_known(task.outstanding)} run or are queued, "
        f"{_known(task.ready)} {'in its queue' if task.reentrant_depth else 'of them ready'} for the CPU"
        f"{_ready_text(task.ready_nodes)}"
    )
    depth = f", reentrant depth {task.reentrant_depth}" if task.reentrant_depth else ""
    kept = ", the graph is kept" if task.keep_graph else ""
    error = ", an error has occurred" if task.has_error else ""
    some = ", for the gradients of some inputs" if task.selective else ""
    yield f"{_INDENT} owner {_known(task.owner)}{depth}{kept}{some}{error}"
    yield from _stale_lines(task.stale, "backward raises an error when it runs that node", style)


def _waiting_text(nodes: int | None) -> str:
    return "1 node waits" if nodes == 1 else f"{_known(nodes)} nodes wait"


def _ready_text(nodes: Sequence[autograd_section.NodeReference]) -> str:
    names = ", ".join(_short(node) for node in nodes[:_EDGES])
    return f" ({names}{', …' if len(nodes) > _EDGES else ''})" if nodes else ""


def _stale_lines(tensors: Sequence[autograd_section.StaleTensor], then: str, style: Style) -> Iterator[str]:
    """Lines about saved tensors that were modified in place since, and what happens ``then``."""
    for stale in tensors[:_STALE]:
        text = f"{node_text(stale.node)}, saved {escape(saved_text(stale.saved))}; {then}"
        yield style(f"{_INDENT} {text}", "red")
    if len(tensors) > _STALE:
        yield f"{_INDENT} … {len(tensors) - _STALE} more (--json has all)"


def _queue_line(queue: autograd_section.DeviceQueue) -> str:
    return f"Queue of device {queue.device}: {_known(queue.ready)} ready{_ready_text(queue.ready_nodes)}"


def _known(value: int | str | None) -> str:
    return "unknown" if value is None else str(value)


def _graph_lines(graph: autograd_section.GraphFile, style: Style) -> Iterator[str]:
    more = " (truncated)" if graph.truncated else ""
    files = f" in {', '.join(map(escape, graph.files))}" if graph.files else ""
    yield f"Graph from {node_text(graph.root)}: {counted(graph.nodes, 'node')}{more}{files}"
    yield from _stale_lines(graph.stale, "backward through that node raises an error", style)
    if not graph.saved_known:
        yield style(f"{_INDENT} unknown: what the nodes of this release of torch save", "yellow")
