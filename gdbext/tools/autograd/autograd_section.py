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
    """It is inside an operator or a torch.nn.Module, and not in a backward pass."""
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
    """A ``torch::autograd::Node``, with the name of ``grad_fn.name()``. None: could not be read."""

    name: str
    address: Hexadecimal
    sequence_nr: int | None
    variable: str | None
    """For AccumulateGrad, the tensor whose gradient it adds to."""


class NextFunction(NamedTuple):
    """An element of ``next_functions``: input ``input_nr`` of a node, None if no gradient is passed on."""

    node: NodeReference | None
    input_nr: int


NOTHING_SAVED = "none"
"""SavedTensor.tensor of an input that backward does not need, which is not saved."""


class SavedTensor(NamedTuple):
    """A tensor that a node saved for its backward."""

    name: str
    """The name as in grad_fn._saved_NAME; with an index in a list."""
    tensor: str
    """``f32[2, 3] cpu``, or why there is none: "none", "released", "packed by saved-tensor hooks"."""
    saved_version: int | None
    """The tensor's version counter when it was saved; None if there is no tensor."""
    version: int | None
    """The version counter that the tensor has now."""

    @property
    def is_stale(self) -> bool:
        """True if it was modified in place since then: backward will raise an error, or has raised it."""
        saved, now = self.saved_version, self.version
        return saved is not None and now is not None and saved != now


class StaleTensor(NamedTuple):
    """A saved tensor that was modified in place since then: backward raises an error when it runs the node."""

    node: NodeReference
    saved: SavedTensor


class AutogradNode(NamedTuple):
    """Everything about a node; the first four members are NodeReference's. None: could not be read."""

    name: str
    address: Hexadecimal
    sequence_nr: int | None
    variable: str | None
    topological_nr: int | None = None
    """The length of the longest path from it to a leaf."""
    made_by: int | None = None
    """The tid of the thread that created it; None if that has exited."""
    forward_op: str | None = None
    """The operator whose derivative it is, without overload; its in-place form has the same node."""
    file: str | None = None
    """The Python file and line of the forward call."""
    line: int | None = None
    function: str = ""
    source: str = ""
    line_known_by: str = ""
    """The source of file and line: "anomaly mode", or "torch.autograd.Function" for the definition of its forward."""
    hooks: tuple[NodeHook, ...] = ()
    next_functions: tuple[NextFunction, ...] = ()
    """The first 16."""
    saved: tuple[SavedTensor, ...] | None = None
    """None if unknown for this release or class of nodes."""


class GraphTask(NamedTuple):
    """One execution of a backward pass: ``torch::autograd::GraphTask``. None: could not be read."""

    address: Hexadecimal
    id: int | None
    tids: tuple[int, ...]
    """The threads that run its nodes just now."""
    outstanding: int | None
    """Nodes that are queued or run."""
    waiting: int | None
    """Nodes that wait for the gradients of others."""
    nodes: int | None
    """Nodes of the graph when it began, without the root."""
    ready: int | None
    """Nodes in its queue for the CPU, which a reentrant pass shares with the pass that started it."""
    owner: str | None
    """The device of the thread that started it: "cpu", also for a thread of the program; "none" before it begins."""
    reentrant_depth: int | None
    keep_graph: bool | None
    has_error: bool | None
    ready_nodes: tuple[NodeReference, ...] = ()
    """The first 16 that are ready for the CPU."""
    stale: tuple[StaleTensor, ...] = ()
    """Saved tensors that were modified in place, of the nodes that it has yet to run."""
    selective: bool | None = None
    """Only the gradients of some inputs are computed, so that not every node is run."""


class DeviceQueue(NamedTuple):
    """The queue of a device that has a thread of its own. None: could not be read."""

    device: int
    ready: int | None
    """Nodes in the queue."""
    ready_nodes: tuple[NodeReference, ...]
    """The first 16 of them."""


class AutogradThread(NamedTuple):
    """The state of one thread in autograd. None: could not be read, or does not apply."""

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
    """The innermost line of the program's Python code: ``train.py:7``."""
    problems: tuple[str, ...] = ()
    outer: tuple[NodeReference, ...] = ()
    """For a reentrant pass, the nodes from whose backward it was started, the innermost first."""


class GraphNode(NamedTuple):
    """A node of a graph that is written to a file."""

    node: NodeReference
    next_functions: tuple[tuple[int, int], ...]
    """(address of a node, 0 for none; number of its input)."""
    saved: tuple[SavedTensor, ...] | None = None
    """None if unknown."""


class GraphFile(NamedTuple):
    """The graph that starts at ``root``: the number of its nodes, whether there are more, and the files with it."""

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
