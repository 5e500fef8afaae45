"""``dispatch-autograd``: forward or backward, the running node and the operator that it belongs to, the graph."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.commands.reporting import dispatcher_errors, make_report

if TYPE_CHECKING:
    from gdbext.inspection.autograd.autograd_report import AutogradReporter
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.model.sections.autograd_section import AutogradSection
    from gdbext.targets.base import Thread

NAME = "dispatch-autograd"
_EPILOG = """\
A thread is in its forward pass inside of an operator or of a torch.nn.Module; in its backward pass while autograd's
engine runs in it, or while it waits for the engine. The node is named as grad_fn.name() names it, its sequence number
is that of grad_fn._sequence_nr(). The forward operator follows from the node's name: AddmmBackward0 is the derivative
of aten::addmm, and of its in-place form. The forward line is known where anomaly mode was on when the node was made
(torch.autograd.set_detect_anomaly(True)); of a torch.autograd.Function it is the line where its forward is defined.
Hooks are in the order in which the engine calls them. A saved tensor that was modified in place since is named, also
that of a node which the engine has yet to run: backward will raise an error for it, or has. --py loss does that for
the graph of a tensor, before backward() is called. Everything is read from memory, of a core as well.

--graph FILE writes the graph from the running node on, or from the grad_fn of the tensor that --py names, with shapes
and versions of what each node has saved: as DOT, with a picture beside it where graphviz is installed; as text if FILE
ends in .txt. At most 10,000 nodes.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG
    parser.add_argument("--thread", metavar="TID|N", help="this thread only (default: all)")
    parser.add_argument("--graph", metavar="FILE", help="write the graph to FILE")
    parser.add_argument("--py", metavar="NAME", help="the graph from the grad_fn of this tensor, a Python variable")


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads the threads; one that cannot be read costs that thread. Raises NotTorch, LayoutError, UsageError."""
    from gdbext.inspection.autograd.autograd_report import AutogradReporter
    from gdbext.inspection.threads.thread_choice import find_thread

    target = session.target
    chosen = find_thread(target, args.thread) if args.thread is not None else None
    reporter = AutogradReporter(session)
    section = reporter.section([chosen] if chosen is not None else target.threads())
    if args.graph or args.py:
        section = _with_graph(session, reporter, section, args, chosen or target.selected_thread())
    return make_report(session, args, NAME, "autograd", errors=dispatcher_errors(session), sections=(section,))


def _with_graph(
    session: Session,
    reporter: AutogradReporter,
    section: AutogradSection,
    args: argparse.Namespace,
    thread: Thread | None,
) -> AutogradSection:
    from gdbext.inspection.autograd.graph_report import graph_from, node_of_tensor, running_node
    from gdbext.model.sections.autograd_section import GraphFile
    from gdbext.render import autograd_graph

    graph = graph_from(reporter.nodes, node_of_tensor(session, args.py, thread) if args.py else running_node(section))
    files = autograd_graph.write(args.graph, graph.nodes) if args.graph else ()
    root = graph.nodes[0].node
    written = GraphFile(root, len(graph.nodes), graph.truncated, files, graph.stale, graph.saved_known)
    return replace(section, graph=written)
