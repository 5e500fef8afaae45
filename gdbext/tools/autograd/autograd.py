"""``dispatch-autograd``: forward or backward, the running node, its forward operator, and the graph, as text or DOT."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.dot_graph import draw, quoted, write_text
from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import dispatcher_errors, make_report
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.diagnosis.tool_arguments import find_thread
from gdbext.engine.vocabulary import or_unknown
from gdbext.errors import GdbextError, UsageError
from gdbext.render import Style, counted, escape
from gdbext.tools.autograd.autograd_report import AutogradReporter
from gdbext.tools.autograd.autograd_section import (
    NOTHING_SAVED,
    AutogradNode,
    AutogradSection,
    AutogradThread,
    GraphFile,
    GraphNode,
    GraphTask,
    NodeReference,
    Phase,
    SavedTensor,
    StaleTensor,
)
from gdbext.tools.autograd.node_reporter import NodeReporter
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_tool import tensor_named
from gdbext.torch.state.tensor import FoundEdge, NodeReader

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

NODE_LIMIT = 10_000


def reachable(nodes: NodeReader, root: int, limit: int = NODE_LIMIT) -> tuple[dict[int, tuple[FoundEdge, ...]], bool]:
    """Walk the graph from the node at address ``root``: (address of a node → its edges, breadth first; whether the walk
    stopped at ``limit`` nodes). A node that cannot be read has no edges."""
    edges_of: dict[int, tuple[FoundEdge, ...]] = {root: ()}
    waiting = deque([root])
    truncated = False
    while waiting:
        node = waiting.popleft()
        with suppress(GdbextError):
            edges_of[node] = nodes.edges(node)
        for edge in edges_of[node]:
            if not edge.node or edge.node in edges_of:
                continue
            if len(edges_of) >= limit:
                truncated = True
                continue
            edges_of[edge.node] = ()
            waiting.append(edge.node)
    return edges_of, truncated


def graph_from(reporter: NodeReporter, root: int) -> tuple[Sequence[GraphNode], GraphFile]:
    """(the nodes that can be reached from the node at address ``root``, itself first, at most NODE_LIMIT; the report on
    them, which names no file yet). Raises BadData if there is no node."""
    reporter.reference(root)
    edges_of, truncated = reachable(reporter.nodes, root)
    nodes = []
    for address, edges in edges_of.items():
        node, saved = NodeReference("unreadable", address, sequence_nr=None, variable=None), None
        with suppress(GdbextError):
            node = reporter.reference(address)
        with suppress(GdbextError):
            saved = reporter.saved(address) if reporter.saved_is_known else None
        nodes.append(GraphNode(node, edges, saved))
    saved_tensors = ((node.node, saved) for node in nodes for saved in node.saved or ())
    stale = tuple(StaleTensor(node, saved) for node, saved in saved_tensors if saved.is_stale)
    return nodes, GraphFile(nodes[0].node, len(nodes), truncated, (), stale, reporter.saved_is_known)


def start_of_graph(session: Session, section: AutogradSection, name: str | None, thread: TargetThread | None) -> int:
    """The address of the node from which the graph is shown: the grad_fn of the Python variable ``name`` in ``thread``,
    or without a name the node of the first thread that runs one. Raises UsageError."""
    if name:
        reporter = TensorReporter(session)
        node = reporter.fields.grad_node(tensor_named(session, reporter, name, thread)[0])
        if not node:
            raise UsageError(f"{name} has no grad_fn", why="it is a leaf, or was created while grad mode was off")
        return node
    for report in section.threads:
        if report.node:
            return report.node.address
    raise UsageError(
        "no thread runs a node, so the graph to show is unknown",
        help="name a tensor that the graph belongs to: dispatch-autograd --graph FILE --py loss",
    )


def write(path: str, nodes: Sequence[GraphNode]) -> tuple[str, ...]:
    """Write the graph to ``path``, as text if it ends in .txt, else as DOT with a picture beside it. Returns the names
    of the files. Raises UsageError."""
    is_text = path.endswith(".txt")
    text = "\n".join(text_lines(nodes) if is_text else dot_lines(nodes)) + "\n"
    write_text(path, text, "--graph")
    picture = draw(path, text) if not is_text and len(nodes) <= 1000 else None  # graphviz takes a second or two
    return (path, picture) if picture else (path,)


def dot_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """The graph as a digraph of DOT: leaves are ellipses, nodes whose saved tensors were modified in place are red, and
    an edge is labeled with the number of the input that it leads to, unless that is 0."""
    yield "digraph autograd {"
    yield '  node [fontname="monospace", fontsize=10, shape=box];'
    for graph_node in nodes:
        node = graph_node.node
        attributes = ", shape=ellipse" if node.variable else ""
        if any(saved.is_stale for saved in graph_node.saved or ()):
            attributes += ", color=red, fontcolor=red"
        suffix = node.variable or _number_text(node)
        label = "\n".join([node.name, *([suffix] if suffix else []), *_saved_texts(graph_node)])
        yield f"  n{node.address:x} [label={quoted(label)}{attributes}];"
    for graph_node in nodes:
        for address, number in graph_node.next_functions:
            if address:
                numbered = f' [label="{number}"]' if number else ""
                yield f"  n{graph_node.node.address:x} -> n{address:x}{numbered};"
    yield "}"


def text_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """A line for each node, with the nodes that it passes gradients to, and lines for the tensors it has saved."""
    names = {int(graph_node.node.address): _label(graph_node.node, graph_node.node.name) for graph_node in nodes}
    for graph_node in nodes:
        addresses = [address for address, _ in graph_node.next_functions]
        after = (names.get(address, f"{address:#x}") if address else "none" for address in addresses)
        yield f"{names[graph_node.node.address]} -> {', '.join(after) or 'nothing'}"
        yield from (f"    saved {text}" for text in _saved_texts(graph_node))


def _saved_texts(node: GraphNode) -> list[str]:
    """A text for each tensor that a node has saved, without members that hold none."""
    return [escape(saved_text(saved)) for saved in node.saved or () if saved.tensor != NOTHING_SAVED]


def saved_text(saved: SavedTensor) -> str:
    """``self: f32[2, 3] cpu, version 0``, and whether it was modified in place since then."""
    version = f", version {saved.saved_version}" if saved.saved_version is not None else ""
    stale = f": modified in place since then, now at version {saved.version}" if saved.is_stale else ""
    return f"{saved.name}: {saved.tensor}{version}{stale}"


def _number_text(node: NodeReference) -> str:
    """The node's sequence number, "" if it has none."""
    return "" if node.sequence_nr in (None, _NO_NUMBER) else str(node.sequence_nr)


def _label(node: NodeReference, name: str) -> str:
    """``AddmmBackward0 42``, ``AccumulateGrad of f32[4] cpu``, escaped; ``name``: the name, full or short."""
    return escape(f"{name} of {node.variable}" if node.variable else f"{name} {_number_text(node)}".rstrip())


_EPILOG = """\
A thread is in its forward pass inside an operator or a torch.nn.Module, and in its backward pass while it runs
autograd's engine or waits for it. Nodes have the names of grad_fn.name() and the numbers of grad_fn._sequence_nr().
The forward operator follows from the node's name: AddmmBackward0 is the derivative of aten::addmm and of its in-place
form. The forward line is known if anomaly mode was on when the node was created
(torch.autograd.set_detect_anomaly(True)); for a torch.autograd.Function it is the line that defines its forward.
Hooks are listed in the order in which the engine calls them. The report names each saved tensor that was modified in
place since then, because backward raises an error for it; --py loss checks the graph of a tensor before backward() is
called. Everything is read from memory, also from a core.

--graph FILE writes the graph that starts at the running node, or at the grad_fn of the tensor that --py names, with
shapes and versions of the saved tensors: as DOT, with a picture beside it if graphviz is installed, or as text if FILE
ends in .txt. It has at most 10,000 nodes.
"""


class AutogradTool(Tool):
    """The command ``dispatch-autograd`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        parser.add_argument("--thread", metavar="TID|N", help="show this thread only (default: all)")
        parser.add_argument("--graph", metavar="FILE", help="write the graph to FILE")
        py_help = "show the graph from the grad_fn of this tensor, a Python variable"
        parser.add_argument("--py", metavar="NAME", help=py_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """A thread that cannot be read costs only itself. Raises NotTorch, LayoutError, UsageError."""

        def read(session: Session) -> tuple[AutogradSection, tuple[Sequence[GraphNode], GraphFile] | None]:
            target = session.target
            chosen = find_thread(target, args.thread) if args.thread is not None else None
            reporter = AutogradReporter(session)
            section = reporter.section([chosen] if chosen else target.memory.threads())
            if not args.graph and not args.py:
                return section, None
            thread = chosen or target.memory.selected_thread()
            return section, graph_from(reporter.nodes, start_of_graph(session, section, args.py, thread))

        session, (section, graph) = session.read_at_one_moment(read)
        if graph:
            nodes, file = graph
            section = replace(section, graph=file._replace(files=write(args.graph, nodes)) if args.graph else file)
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """A block for each thread in a forward or backward pass, then graph tasks, queues of devices, and the graph."""
        section = report.section(AutogradSection)
        phases = (Phase.BACKWARD, Phase.FORWARD)
        busy = [thread for phase in phases for thread in section.threads if thread.phase is phase]
        for thread in busy:
            yield from _thread_lines(thread, style)
        rest = len(section.threads) - len(busy)
        if rest:
            others = counted(rest, "thread")
            yield f"{others} in no operator, module or backward pass." if busy else f"{others}, none in autograd."
        for task in section.graph_tasks:
            yield from _task_lines(task, style)
        for queue in section.device_queues:
            ready = or_unknown(queue.ready, _UNKNOWN)
            yield f"Queue of device {queue.device}: {ready} ready{_ready_text(queue.ready_nodes)}"
        if section.anomaly_mode is not None:
            yield f"Anomaly mode is {'on' if section.anomaly_mode else 'off'}."
        graph = section.graph
        if graph:
            more = " (truncated)" if graph.truncated else ""
            files = f" in {', '.join(map(escape, graph.files))}" if graph.files else ""
            yield f"Graph from {node_text(graph.root)}: {counted(graph.nodes, 'node')}{more}{files}"
            yield from _stale_lines(graph.stale, "backward through that node raises an error", style)
            if not graph.saved_known:
                yield style(f"{_INDENT} unknown: what the nodes of this release of torch save", "yellow")


_NO_NUMBER = (1 << 64) - 1
"""The sequence number of nodes that are run as soon as they are ready (AccumulateGrad)."""
_EDGES = 6
_STALE = 10
_INDENT = "     "
_UNKNOWN = "unknown"


def node_text(node: AutogradNode | NodeReference) -> str:
    """The node in one phrase: ``AddmmBackward0, sequence number 42``."""
    number = node.sequence_nr
    numbered = "" if number == _NO_NUMBER else f", sequence number {or_unknown(number, _UNKNOWN)}"
    variable = f" of {escape(node.variable)}" if node.variable else ""
    return f"{escape(node.name)}{variable}{numbered}"


def _thread_lines(thread: AutogradThread, style: Style) -> Iterator[str]:
    """The block of a thread: a heading, its node with hooks and saved tensors, its operator and Python line."""
    name = f' "{escape(thread.name)}"' if thread.name else ""
    node = f", {node_text(thread.node)}" if thread.node else ""
    yield style(f"Thread{name} (tid {thread.tid}): {thread.phase.value}{node}", "bold")
    lines = list(_node_lines(thread.node, thread.tid)) if thread.node else []
    lines += [f"inside the backward of {node_text(outer)}" for outer in thread.outer]
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
    """Lines on a node: forward operator and line, hooks, saved tensors, edges. ``tid``: the thread that runs it."""
    if node.forward_op:
        made_by = "" if node.made_by in (None, tid) else f", made by thread {node.made_by}"
        yield f"forward operator {escape(node.forward_op)}{made_by}"
    if node.file:
        yield f"forward line {escape(node.file)}:{node.line or '?'} ({escape(node.function)})  [{node.line_known_by}]"
        if node.source:
            yield f"    {escape(node.source)}"
    for hook in node.hooks:
        place = f"  {escape(hook.file)}:{hook.line or '?'}" if hook.file else ""
        yield f"hook {escape(hook.function)}{place}  [{hook.kind.value}]{', now running' if hook.runs else ''}"
    for saved in node.saved or ():
        yield f"saved {escape(saved_text(saved))}"
    if node.next_functions:
        shown = ", ".join(_short_name(edge.node) if edge.node else "none" for edge in node.next_functions[:_EDGES])
        more = f", … {len(node.next_functions) - _EDGES} more" if len(node.next_functions) > _EDGES else ""
        yield f"then {shown}{more}"


def _short_name(node: NodeReference) -> str:
    """``AddmmBackward0 42``, ``AccumulateGrad of f32[4] cpu``: without namespace, escaped."""
    return _label(node, node.name.rpartition("::")[2])


def _task_lines(task: GraphTask, style: Style) -> Iterator[str]:
    """The block of a graph task: its threads, the numbers of its nodes by state, and its flags."""
    plural = "threads" if len(task.tids) > 1 else "thread"
    yield f"Graph task {or_unknown(task.id, _UNKNOWN)}, run by {plural} {', '.join(map(str, task.tids))}:"
    waiting = "1 node waits" if task.waiting == 1 else f"{or_unknown(task.waiting, _UNKNOWN)} nodes wait"
    outstanding, ready = or_unknown(task.outstanding, _UNKNOWN), or_unknown(task.ready, _UNKNOWN)
    where = "in its queue" if task.reentrant_depth else "of them ready"
    yield (
        f"{_INDENT} {waiting} for gradients, {outstanding} run or are queued, "
        f"{ready} {where} for the CPU{_ready_text(task.ready_nodes)}"
    )
    depth = f", reentrant depth {task.reentrant_depth}" if task.reentrant_depth else ""
    keep_graph = ", the graph is kept" if task.keep_graph else ""
    error = ", an error has occurred" if task.has_error else ""
    selective = ", for the gradients of some inputs" if task.selective else ""
    yield f"{_INDENT} owner {or_unknown(task.owner, _UNKNOWN)}{depth}{keep_graph}{selective}{error}"
    yield from _stale_lines(task.stale, "backward raises an error when it runs that node", style)


def _ready_text(nodes: Sequence[NodeReference]) -> str:
    """`` (AddmmBackward0 42, TBackward0 41)``; "" for no nodes."""
    names = ", ".join(_short_name(node) for node in nodes[:_EDGES])
    return f" ({names}{', …' if len(nodes) > _EDGES else ''})" if nodes else ""


def _stale_lines(tensors: Sequence[StaleTensor], then: str, style: Style) -> Iterator[str]:
    """A line for each saved tensor that was modified in place since then; ``then`` says what follows from it."""
    for stale in tensors[:_STALE]:
        text = f"{node_text(stale.node)}, saved {escape(saved_text(stale.saved))}; {then}"
        yield style(f"{_INDENT} {text}", "red")
    if len(tensors) > _STALE:
        yield f"{_INDENT} … {len(tensors) - _STALE} more (--json has all)"
