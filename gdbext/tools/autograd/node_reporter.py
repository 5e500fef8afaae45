"""One node of autograd's graph, as reports have it.

Leads from the name of a node to the operator whose derivative it is.

tools/autograd/load_derivatives.py (2.13.0) makes the name of a node of that of its operator: the words between
underscores, each with a capital, then "Backward" and a number for each further formula. Two operators may give the
same name: ``_softmax``, ``softmax``. The one meant has a kernel of its own for autograd; where both have one, it is the
public one, which has the formula, while the other is what its kernels call (``convolution``, ``_convolution``).

The line of Python that made a node, where Python knows it.

Anomaly mode keeps a dict for each node with the lines of ``traceback.format_stack()`` in a PyAnomalyMetadata, as its
first member behind those of AnomalyMetadata (torch/csrc/autograd/python_anomaly_mode.{h,cpp}, 2.13.0). A node of
torch.autograd.Function knows its class (torch/autograd/function.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.layouts import store
from gdbext.engine.numbers import number
from gdbext.errors import GdbextError, LayoutError
from gdbext.tools.autograd import autograd_section
from gdbext.tools.autograd.hooks import HookReader, SavedTensorReader
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch import assumed_symbols
from gdbext.torch.registry import Dispatcher, Operator
from gdbext.torch.state.tensor import ACCUMULATE_GRAD, PYTHON_NODE, NodeReader
from gdbext.torch.structures import AnomalyMetadata
from gdbext.torch.torch_symbol import ANOMALY_TRACEBACK, FUNCTION_FORWARD, FUNCTION_FORWARD_CLASS
from gdbext.torch.values.containers import has_cxx11_abi
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

_NEXT_FUNCTIONS = 16
"""Most edges that are listed: of a node that stacks tensors there are as many as tensors."""
T = TypeVar("T")


class NodeReporter:
    """Describes the nodes of one session; ``made_by``: RecordFunction's number of a thread to its tid."""

    def __init__(self, session: Session, made_by: Callable[[int], int | None] = lambda _: None) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._made_by = made_by
        self.classes = classes = ClassNames(session.memory, session.symbolizer)
        self.nodes = NodeReader(session.memory, session.layout, classes)
        self.hooks = HookReader(self.nodes, classes, session.python_object)
        self._fields = TensorFields(session.memory, session.layout, classes)
        has_python = bool(session.python)
        self._lines = ForwardLineReader(self.nodes, classes, session.python_object) if has_python else None
        self._problems: list[str] = []
        self._stale: dict[int, tuple[autograd_section.StaleTensor, ...]] = {}

    def take_problems(self) -> tuple[str, ...]:
        """The problems since this was last asked: what could not be read."""
        found, self._problems = tuple(dict.fromkeys(self._problems)), []
        return found

    @cached_property
    def _operators(self) -> ForwardOperators | None:
        return None if self._session.dispatcher_error else ForwardOperators(self._session.dispatcher)

    def reference(self, address: int) -> autograd_section.NodeReference:
        """Name and sequence number. Raises BadData where there is no node, MemoryFault."""
        return autograd_section.NodeReference(
            self.name(address),
            address,
            self._field("sequence number", lambda: self.nodes.sequence_nr(address)),
            self._field("variable", lambda: self._variable(address)),
        )

    def full(self, address: int, codes: Collection[int] = ()) -> autograd_section.AutogradNode:
        """All of it; ``codes`` are the code objects that run since the node began. Raises as ``reference``."""
        reference = self.reference(address)
        line = self._field("forward line", lambda: self._forward_line(address))
        return autograd_section.AutogradNode(
            *reference,
            topological_nr=self._field("topological number", lambda: self.nodes.topological_nr(address)),
            made_by=self._field("thread", lambda: self._made_by(self.nodes.thread_id(address))),
            forward_op=self._field("forward operator", lambda: self._forward_operator(address, reference.name)),
            file=line.file if line else None,
            line=line.line if line else None,
            function=line.function if line else "",
            source=line.source if line else "",
            line_known_by=line.known_by if line else "",
            hooks=self._field("hooks", lambda: self._hooks(address, codes)) or (),
            next_functions=self._next_functions(address),
            saved=self._field("saved tensors", lambda: self.saved(address)),
        )

    @cached_property
    def _saved_reader(self) -> SavedTensorReader | None:
        """None where nobody measured what the nodes of this release save."""
        members = store.saved_members(
            self._version, has_cxx11_abi(self._session.layout), store.data_of(self._session.memory.architecture.name)
        )
        if not members:
            return None
        return SavedTensorReader(self.nodes, members, self._session.tensors, self._fields)

    @property
    def _version(self) -> str:
        return torch_version(self._session) or "unknown"

    @property
    def saved_is_known(self) -> bool:
        """True if it was measured what the nodes of this release save."""
        return bool(self._saved_reader)

    def saved(self, address: int) -> tuple[autograd_section.SavedTensor, ...] | None:
        """The tensors that a node has saved, None where that is not known of its class. Raises LayoutError where it is
        not known of this release, BadData, MemoryFault."""
        if not self._saved_reader:
            raise LayoutError(f"what the nodes of torch {self._version} save is not known")
        return self._saved_reader.of(address)

    def stale(self, nodes: Iterable[int]) -> Iterator[autograd_section.StaleTensor]:
        """Saved tensors of these nodes that were modified in place since. Raises nothing."""
        for address in nodes:
            if address not in self._stale:
                self._stale[address] = self._stale_of(address)
            yield from self._stale[address]

    def _stale_of(self, address: int) -> tuple[autograd_section.StaleTensor, ...]:
        try:
            found = self._saved_reader.stale(address) if self._saved_reader else ()
            node = self.reference(address) if found else None
        except GdbextError:  # of one node of many: what cannot be read is not accused
            return ()
        return tuple(autograd_section.StaleTensor(node, each) for each in found) if node else ()

    def _forward_operator(self, address: int, name: str) -> str | None:
        """The operator of a node; of a torch.autograd.Function its name, by that of its ``forward``."""
        function = self._lines.of_function(address) if self._lines else None
        if function:
            return function.function.rpartition(".")[0]
        return self._operators.of(name) if self._operators else None

    def _next_functions(self, address: int) -> tuple[autograd_section.NextFunction, ...]:
        edges = self._field("next functions", lambda: self.nodes.edges(address)) or ()
        return tuple(
            autograd_section.NextFunction(self._referenced(edge.node), edge.input_nr)
            for edge in edges[:_NEXT_FUNCTIONS]
        )

    def _referenced(self, node: int) -> autograd_section.NodeReference | None:
        return self._field("next function", lambda: self.reference(node)) if node else None

    def name(self, address: int) -> str:
        """The name as ``grad_fn.name()`` has it. Raises BadData, MemoryFault."""
        if self._lines and self.nodes.class_of(address) == PYTHON_NODE:
            return self._lines.python_class(address)
        return self.nodes.name(address)

    def _field(self, what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def made_at(self, address: int) -> str:
        """The forward line of a node in short, "" where nobody wrote it down."""
        line = self._field("forward line", lambda: self._forward_line(address))
        return f"{line.file}:{line.line} ({line.function})" if line else ""

    def _forward_line(self, address: int) -> ForwardLine | None:
        return self._lines.of(address) if self._lines else None

    def _leaf(self, address: int) -> int:
        """The TensorImpl of AccumulateGrad's variable; 0 for any other node."""
        return self.nodes.variable(address) if self.nodes.class_of(address) == ACCUMULATE_GRAD else 0

    def _variable(self, address: int) -> str | None:
        leaf = self._leaf(address)
        return self._session.tensors.read(leaf).short if leaf else None

    def _hooks(self, address: int, codes: Collection[int]) -> tuple[autograd_section.NodeHook, ...]:
        leaf = self._leaf(address)
        found = (
            self.hooks.of_leaf(address, self._fields.tensor(leaf).autograd_meta_.address)
            if leaf
            else self.hooks.of_node(address)
        )
        return tuple(each.hook._replace(runs=each.code in codes) for each in found)


_ANOMALY = "torch::autograd::PyAnomalyMetadata"
FUNCTION, ANOMALY_MODE = "torch.autograd.Function", "anomaly mode"
"""Words for how a line is known."""
_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>[^\n]*)\n?(?P<source>[^\n]*)')
_LIBRARY = ("/torch/", "/lib/python3")
_LINES_LIMIT = 10_000


class ForwardLine(NamedTuple):
    """``function`` is the one that the line is in, ``source`` its text, "" if unknown; ``known_by`` says how."""

    file: str
    line: int | None
    function: str
    source: str
    known_by: str


class ForwardLineReader:
    """Reads forward lines with the help of one Python."""

    def __init__(self, nodes: NodeReader, classes: ClassNames, object_at: Callable[[int], PyRef]) -> None:
        self._nodes = nodes
        self._classes = classes
        self._object_at = object_at

    def of(self, node: int) -> ForwardLine | None:
        """The line, None where nobody wrote it down. Raises BadData, MemoryFault, LayoutError."""
        return self._from_anomaly_mode(node) or self.of_function(node)

    def python_class(self, node: int) -> str:
        """The name of a node that Python defines. Raises BadData, MemoryFault."""
        return self._object_at(self._nodes.python_object(node)).read(type_name)

    def _from_anomaly_mode(self, node: int) -> ForwardLine | None:
        metadata = self._nodes.anomaly_metadata(node)
        if not metadata or _ANOMALY not in self._classes.of(metadata):
            return None
        kept = self._nodes.memory.u64(metadata + AnomalyMetadata.size(self._nodes.space))
        lines = self._object_at(kept)[ANOMALY_TRACEBACK].elements(_LINES_LIMIT)
        found = [match for line in lines[::-1] if (match := _LINE.match(line.str()))]
        own = [match for match in found if not any(part in match["file"] for part in _LIBRARY)]
        return _forward_line((own or found)[0]) if found else None

    def of_function(self, node: int) -> ForwardLine | None:
        """The place where the ``forward`` of a torch.autograd.Function is defined; None for another node. Raises as
        ``of``."""
        if self._nodes.class_of(node) != PYTHON_NODE:
            return None
        value = self._object_at(self._nodes.python_object(node))
        forward = value.checked().of_class[FUNCTION_FORWARD_CLASS][FUNCTION_FORWARD]
        found = (forward["__func__"] or forward).function
        if not found or not found.file:
            return None
        return ForwardLine(found.file, found.line, found.qualname, "", FUNCTION)


def _forward_line(match: re.Match[str]) -> ForwardLine:
    line = number(match["line"]) or 0
    return ForwardLine(match["file"], line, match["function"], match["source"].strip(), ANOMALY_MODE)


_NODE = re.compile(r"(\w+?Backward)(?:Autograd[A-Za-z]+)?\d+(_copy)?(?:[A-Z]\w*)?$")
"""``SumBackwardAutogradNestedTensor0`` is for one dispatch key, ``ForeachAddBackward1Scalar`` for one overload."""
_NAMESPACE = "aten::"
_OUT = "out"
_KEY = "AutogradCPU"


def node_prefix(operator: str) -> str:
    """``AddmmBackward`` of ``addmm``; ``operator`` has neither namespace nor overload."""
    titled = "".join(word.title() for word in operator.split("_"))
    return (titled + "Backward").replace("ForwardBackward", "Backward")


class ForwardOperators:
    """The operators of one dispatcher, by the names of their nodes."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._known: dict[str, str | None] = {}

    def of(self, node: str) -> str | None:
        """``aten::addmm`` of ``AddmmBackward0``; None where no operator, or more than one, can be meant."""
        if node not in self._known:
            found = _NODE.match(node)
            try:
                self._known[node] = self._meant(found.group(1), found.group(2) or "") if found else None
            except GdbextError:
                self._known[node] = None
        return self._known[node]

    @cached_property
    def _overloads(self) -> dict[str, list[Operator]]:
        """All but those with ``out``, by name without namespace."""
        found: dict[str, list[Operator]] = {}
        for operator in self._dispatcher.operators():
            if operator.name.startswith(_NAMESPACE) and not operator.overload.endswith(_OUT):
                found.setdefault(operator.name[len(_NAMESPACE) :], []).append(operator)
        return found

    @cached_property
    def _by_prefix(self) -> dict[str, set[str]]:
        """Names of operators without namespace and overload."""
        found: dict[str, set[str]] = {}
        for base in self._overloads:
            found.setdefault(node_prefix(base), set()).add(base)
        return found

    def _meant(self, prefix: str, suffix: str) -> str | None:
        if suffix:
            return self._one({f"{base}{suffix}" for base in self._by_prefix.get(prefix, ())})
        return self._one(self._by_prefix.get(prefix, set()))

    def _one(self, bases: set[str]) -> str | None:
        candidates = {base for base in bases if self._has_autograd_kernel(base)}
        for shadowed in ("{}_", "_{}"):  # the in-place form, the implementation
            candidates -= {shadowed.format(base) for base in candidates}
        return _NAMESPACE + candidates.pop() if len(candidates) == 1 else None

    def _has_autograd_kernel(self, base: str) -> bool:
        """One of the overloads is differentiated by generated code; those with ``out`` never are."""
        index = self._dispatcher.keys.index_of_key(_KEY)
        for operator in self._overloads.get(base, ()):
            kernel = operator.kernel(index)
            functions = self._dispatcher.kernels.name(kernel)
            if any(assumed_symbols.AUTOGRAD_KERNELS[0] in name for name in (functions.function, *functions.aliases)):
                return True
        return False
