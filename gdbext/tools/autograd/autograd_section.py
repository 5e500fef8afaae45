"""The report of ``dispatch-autograd``: which threads run a backward pass, and which node each of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.engine.vocabulary import Section

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal


class Phase(Enum):
    """The phase of autograd that a thread is in."""

    FORWARD = "forward"
    """It is inside of an operator, or of a torch.nn.Module, and not in a backward pass."""
    BACKWARD = "backward"
    """It runs a backward pass, or waits for one that it started."""
    NONE = "none"


class HookKind(Enum):
    """The kind of a hook, by the name of PyTorch's function that registered it."""

    NODE_BEFORE = "Node.register_prehook"
    TENSOR = "Tensor.register_hook"
    RETAINS_GRAD = "Tensor.retain_grad"
    NODE_AFTER = "Node.register_hook"
    MODULE = "Module.register_full_backward_hook"
    ACCUMULATED = "Tensor.register_post_accumulate_grad_hook"


class NodeHook(NamedTuple):
    """A hook of a node. ``function`` is the Python function's qualified name, or the C++ class of the hook."""

    kind: HookKind
    function: str
    file: str | None = None
    line: int | None = None
    runs: bool = False
    """Its function is on the stack of the thread that runs the node."""


class NodeReference(NamedTuple):
    """A ``torch::autograd::Node``, named as ``grad_fn.name()`` names it. None is what could not be read."""

    name: str
    address: Hexadecimal
    sequence_nr: int | None
    variable: str | None
    """AccumulateGrad: the tensor whose gradient it adds to."""


class NextFunction(NamedTuple):
    """An element of ``next_functions``: the ``input_nr``-th input of a node; None where no gradient is passed on."""

    node: NodeReference | None
    input_nr: int


NOTHING_SAVED = "none"
"""``tensor`` of what was not needed, and not saved."""


class SavedTensor(NamedTuple):
    """A tensor that a node saved for its backward. ``tensor`` is what it is, ``f32[2, 3] cpu``, or why there is none:
    "none", "released", "packed by saved-tensor hooks"; versions are None then."""

    name: str
    """The name as in grad_fn._saved_NAME; with an index in a list."""
    tensor: str
    saved_version: int | None
    version: int | None
    """The version that the tensor itself has now."""

    @property
    def is_stale(self) -> bool:
        """It was modified in place since: backward will raise an error, or has raised it."""
        _name, _tensor, saved_counter, counter = self
        return saved_counter is not None and counter is not None and saved_counter != counter


class StaleTensor(NamedTuple):
    """A saved tensor that was modified in place since: backward raises an error when it runs that node."""

    node: NodeReference
    saved: SavedTensor


class AutogradNode(NamedTuple):
    """A node with all that is known of it. None is what could not be read."""

    name: str
    address: Hexadecimal
    sequence_nr: int | None
    variable: str | None
    topological_nr: int | None = None
    """The length of the longest path from it to a leaf."""
    made_by: int | None = None
    """The thread (tid) that made it; None for one that is gone."""
    forward_op: str | None = None
    """The operator whose derivative it is, without overload; its in-place form has the same node."""
    file: str | None = None
    line: int | None = None
    function: str = ""
    source: str = ""
    line_known_by: str = ""
    """The source of file and line: "anomaly mode", or "torch.autograd.Function" for where its forward is defined."""
    hooks: tuple[NodeHook, ...] = ()
    next_functions: tuple[NextFunction, ...] = ()
    """The first of its edges."""
    saved: tuple[SavedTensor, ...] | None = None
    """None where it is not known of this release, or of a node that Python defines."""


class GraphTask(NamedTuple):
    """One execution of a backward pass: ``torch::autograd::GraphTask``. None is what could not be read."""

    address: Hexadecimal
    id: int | None
    tids: tuple[int, ...]
    """The threads that run its nodes just now."""
    outstanding: int | None
    """Nodes that are queued or run."""
    waiting: int | None
    """Nodes that wait for the gradients of others."""
    nodes: int | None
    """Nodes of the graph when it began, without the one that it began with."""
    ready: int | None
    """Nodes in its queue for the CPU, which those of the passes that it was started from may share."""
    owner: str | None
    """The device of the thread that started it: "cpu", also for a thread of the program; "none" before it begins."""
    reentrant_depth: int | None
    keep_graph: bool | None
    has_error: bool | None
    ready_nodes: tuple[NodeReference, ...] = ()
    """The first of those that are ready for the CPU."""
    stale: tuple[StaleTensor, ...] = ()
    """Saved tensors of the nodes that it has yet to run, which were modified in place."""
    selective: bool | None = None
    """Gradients of some inputs only are wanted, so that not every node is run."""


class DeviceQueue(NamedTuple):
    """The queue of a device that has a thread of its own. None is what could not be read."""

    device: int
    ready: int | None
    ready_nodes: tuple[NodeReference, ...]
    """The first of the nodes that are ready."""


class AutogradThread(NamedTuple):
    """One thread as autograd sees it."""

    tid: int
    name: str | None
    phase: Phase
    node: AutogradNode | None
    """The node that it runs."""
    next_sequence_nr: int | None
    """The number that the next node made by this thread gets."""
    graph_task: Hexadecimal | None
    grad_mode: bool | None
    operator: str | None
    """The operator that it is in, the outermost since the node began."""
    line: str
    """The innermost line of Python of the program."""
    problems: tuple[str, ...] = ()
    outer: tuple[NodeReference, ...] = ()
    """The nodes from whose backward the pass was started, the innermost first, where it is reentrant."""


class GraphNode(NamedTuple):
    """A node of a graph; ``next_functions`` are addresses, 0 for none, with the number of the input. ``saved``: None
    where it is not known."""

    node: NodeReference
    next_functions: tuple[tuple[int, int], ...]
    saved: tuple[SavedTensor, ...] | None = None


class GraphFile(NamedTuple):
    """The graph from ``root`` on: the number of its nodes, whether there are more, and the files it was written to."""

    root: NodeReference
    nodes: int
    truncated: bool
    files: tuple[str, ...]
    stale: tuple[StaleTensor, ...] = ()
    saved_known: bool = True
    """True if it is known which members nodes of this release save."""


@dataclass(frozen=True)
class AutogradSection(Section):
    """The chosen threads; the text only counts threads in no phase."""

    name: ClassVar[str] = "autograd"
    threads: tuple[AutogradThread, ...]
    graph_tasks: tuple[GraphTask, ...]
    anomaly_mode: bool | None
    graph: GraphFile | None = None
    device_queues: tuple[DeviceQueue, ...] = ()
