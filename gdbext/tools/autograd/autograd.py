"""``dispatch-autograd``: forward or backward, the running node, its forward operator, and the graph."""

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
from gdbext.tools.autograd.autograd_graph import graph_from, node_of_tensor, running_node, saved_text, write
from gdbext.tools.autograd.autograd_report import AutogradReporter
from gdbext.tools.autograd.autograd_section import (
    AutogradNode,
    AutogradSection,
    AutogradThread,
    GraphFile,
    GraphTask,
    NodeReference,
    Phase,
    StaleTensor,
)

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
        parser.epilog = _EPILOG
        parser.add_argument("--thread", metavar="TID|N", help="show this thread only (default: all)")
        parser.add_argument("--graph", metavar="FILE", help="write the graph to FILE")
        py_help = "show the graph from the grad_fn of this tensor, a Python variable"
        parser.add_argument("--py", metavar="NAME", help=py_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """A thread that cannot be read costs only itself. Raises NotTorch, LayoutError, UsageError."""

        def read(session: Session) -> tuple[AutogradSection, AutogradGraph | None]:
            target = session.target
            chosen = find_thread(target, args.thread) if args.thread is not None else None
            reporter = AutogradReporter(session)
            section = reporter.section([chosen] if chosen else target.memory.threads())
            if not args.graph and not args.py:
                return section, None
            thread = chosen or target.memory.selected_thread()
            start = node_of_tensor(session, args.py, thread) if args.py else running_node(section)
            return section, graph_from(reporter.nodes, start)

        session, (section, graph) = session.read_consistently(read)
        if graph:
            files = write(args.graph, graph.nodes) if args.graph else ()
            root, stale = graph.nodes[0].node, graph.stale
            file = GraphFile(root, len(graph.nodes), graph.truncated, files, stale, graph.saved_known)
            section = replace(section, graph=file)
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


_NO_NUMBER = (1 << 64) - 1
"""The sequence number of nodes that are run as soon as they are ready (AccumulateGrad)."""
_EDGES = 6
_STALE = 10
_INDENT = "     "


def render(report: Report, style: Style) -> Iterator[str]:
    """A block for each thread that does something, then the graph tasks."""
    section = report.section(AutogradSection)
    phases = (Phase.BACKWARD, Phase.FORWARD)
    busy = [thread for phase in phases for thread in section.threads if thread.phase is phase]
    for thread in busy:
        yield from _thread_lines(thread, style)
    rest = len(section.threads) - len(busy)
    if rest:
        others = f"{rest} {'thread' if rest == 1 else 'threads'}"
        yield f"{others} in no operator, module or backward pass." if busy else f"{others}, none in autograd."
    for task in section.graph_tasks:
        yield from _task_lines(task, style)
    for queue in section.device_queues:
        yield f"Queue of device {queue.device}: {_or_unknown(queue.ready)} ready{_ready_text(queue.ready_nodes)}"
    if section.anomaly_mode is not None:
        yield f"Anomaly mode is {'on' if section.anomaly_mode else 'off'}."
    if section.graph:
        yield from _graph_lines(section.graph, style)


def node_text(node: AutogradNode | NodeReference) -> str:
    """The node in one phrase: ``AddmmBackward0, sequence number 42``."""
    number = node.sequence_nr
    numbered = "" if number == _NO_NUMBER else f", sequence number {_or_unknown(number)}"
    variable = f" of {escape(node.variable)}" if node.variable else ""
    return f"{escape(node.name)}{variable}{numbered}"


def _thread_lines(thread: AutogradThread, style: Style) -> Iterator[str]:
    name = f' "{escape(thread.name)}"' if thread.name else ""
    node = f", {node_text(thread.node)}" if thread.node else ""
    yield style(f"Thread{name} (tid {thread.tid}): {thread.phase.value}{node}", "bold")
    lines = list(_node_lines(thread.node, thread.tid)) if thread.node else []
    lines += [f"inside of the backward of {node_text(outer)}" for outer in thread.outer]
    if thread.operator:
        lines.append(f"in operator {escape(thread.operator)}")
    if thread.line:
        lines.append(f"at {escape(thread.line)}")
    if thread.next_sequence_nr is not None:
        is_off = thread.grad_mode is False and thread.phase is Phase.FORWARD
        lines.append(f"next sequence number {thread.next_sequence_nr}{', grad mode is off' if is_off else ''}")
    yield from (f"{_INDENT} {line}" for line in lines)
    yield from (style(f"{_INDENT} unknown: {escape(problem)}", "yellow") for problem in thread.problems)


def _node_lines(node: AutogradNode, tid: int) -> Iterator[str]:
    """``tid``: the thread that runs the node."""
    if node.forward_op:
        made_by = "" if node.made_by in (None, tid) else f", made by thread {node.made_by}"
        yield f"forward operator {escape(node.forward_op)}{made_by}"
    if node.file:
        yield f"forward line {escape(node.file)}:{node.line or '?'} ({escape(node.function)})  [{node.line_known_by}]"
        if node.source:
            yield f"    {escape(node.source)}"
    for hook in node.hooks:
        place = f"  {escape(hook.file)}:{hook.line or '?'}" if hook.file else ""
        yield f"hook {escape(hook.function)}{place}  [{hook.kind.value}]{', which runs' if hook.runs else ''}"
    for saved in node.saved or ():
        yield f"saved {escape(saved_text(saved))}"
    if node.next_functions:
        shown = ", ".join(_short(edge.node) if edge.node else "none" for edge in node.next_functions[:_EDGES])
        more = f", … {len(node.next_functions) - _EDGES} more" if len(node.next_functions) > _EDGES else ""
        yield f"then {shown}{more}"


def _short(node: NodeReference) -> str:
    number = "" if node.sequence_nr in (None, _NO_NUMBER) else f" {node.sequence_nr}"
    variable = f" of {escape(node.variable)}" if node.variable else ""
    return f"{escape(node.name.rpartition('::')[2])}{variable}{number}"


def _task_lines(task: GraphTask, style: Style) -> Iterator[str]:
    plural = "threads" if len(task.tids) > 1 else "thread"
    yield f"Graph task {_or_unknown(task.id)}, run by {plural} {', '.join(map(str, task.tids))}:"
    waiting = "1 node waits" if task.waiting == 1 else f"{_or_unknown(task.waiting)} nodes wait"
    yield (
        f"{_INDENT} {waiting} for gradients, {_or_unknown(task.outstanding)} run or are queued, "
        f"{_or_unknown(task.ready)} {'in its queue' if task.reentrant_depth else 'of them ready'} for the CPU"
        f"{_ready_text(task.ready_nodes)}"
    )
    depth = f", reentrant depth {task.reentrant_depth}" if task.reentrant_depth else ""
    kept = ", the graph is kept" if task.keep_graph else ""
    error = ", an error has occurred" if task.has_error else ""
    some = ", for the gradients of some inputs" if task.selective else ""
    yield f"{_INDENT} owner {_or_unknown(task.owner)}{depth}{kept}{some}{error}"
    yield from _stale_lines(task.stale, "backward raises an error when it runs that node", style)


def _ready_text(nodes: Sequence[NodeReference]) -> str:
    names = ", ".join(_short(node) for node in nodes[:_EDGES])
    return f" ({names}{', …' if len(nodes) > _EDGES else ''})" if nodes else ""


def _stale_lines(tensors: Sequence[StaleTensor], then: str, style: Style) -> Iterator[str]:
    """Lines about saved tensors that were modified in place since; ``then`` says what happens."""
    for stale in tensors[:_STALE]:
        text = f"{node_text(stale.node)}, saved {escape(saved_text(stale.saved))}; {then}"
        yield style(f"{_INDENT} {text}", "red")
    if len(tensors) > _STALE:
        yield f"{_INDENT} … {len(tensors) - _STALE} more (--json has all)"


def _or_unknown(value: int | str | None) -> str:
    return "unknown" if value is None else str(value)


def _graph_lines(graph: GraphFile, style: Style) -> Iterator[str]:
    more = " (truncated)" if graph.truncated else ""
    files = f" in {', '.join(map(escape, graph.files))}" if graph.files else ""
    yield f"Graph from {node_text(graph.root)}: {counted(graph.nodes, 'node')}{more}{files}"
    yield from _stale_lines(graph.stale, "backward through that node raises an error", style)
    if not graph.saved_known:
        yield style(f"{_INDENT} unknown: what the nodes of this release of torch save", "yellow")
