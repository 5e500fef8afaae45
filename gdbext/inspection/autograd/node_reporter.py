"""One node of autograd's graph, as reports have it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from gdbext.errors import GdbextError, LayoutError
from gdbext.inspection.target_reporting import torch_version
from gdbext.layouts import store
from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.sections.autograd_section import (
    AutogradNode,
    Hook,
    NextFunction,
    NodeReference,
    SavedTensor,
    StaleTensor,
)
from gdbext.torch.autograd.forward_lines import ForwardLine, ForwardLineReader
from gdbext.torch.autograd.forward_operators import ForwardOperators
from gdbext.torch.autograd.hooks import HookReader
from gdbext.torch.autograd.nodes import ACCUMULATE_GRAD, PYTHON_NODE, NodeReader
from gdbext.torch.autograd.saved_tensors import SavedTensorReader
from gdbext.torch.tensors.tensor_fields import TensorFields
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.values.containers import has_cxx11_abi

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

_NEXT_FUNCTIONS = 16
"""Of a node that stacks tensors there are as many as tensors."""
T = TypeVar("T")


class NodeReporter:
    """Describes the nodes of one session; ``made_by``: RecordFunction's number of a thread to its tid."""

    def __init__(self, session: Session, made_by: Callable[[int], int | None] = lambda _: None) -> None:
        """Raises NotTorch, LayoutError."""
        self._session = session
        self._made_by = made_by
        self.classes = classes = ClassNames(session.memory, session.symbolizer)
        self.nodes = NodeReader(session.memory, session.layout, classes)
        self.hooks = HookReader(self.nodes, classes, session.python)
        self._fields = TensorFields(session.memory, session.layout, classes)
        self._lines = ForwardLineReader(self.nodes, classes, session.python) if session.python is not None else None
        self._problems: list[str] = []
        self._stale: dict[int, tuple[StaleTensor, ...]] = {}

    def take_problems(self) -> tuple[str, ...]:
        """What could not be read since this was last asked."""
        found, self._problems = tuple(dict.fromkeys(self._problems)), []
        return found

    @cached_property
    def _operators(self) -> ForwardOperators | None:
        return ForwardOperators(self._session.dispatcher) if self._session.dispatcher_error is None else None

    def reference(self, address: int) -> NodeReference:
        """Name and sequence number. Raises BadData where there is no node, MemoryFault."""
        return NodeReference(
            self.name(address),
            Hexadecimal(address),
            self._field("sequence number", lambda: self.nodes.sequence_nr(address)),
            self._field("variable", lambda: self._variable(address)),
        )

    def full(self, address: int, codes: Collection[int] = ()) -> AutogradNode:
        """All of it; ``codes`` are the code objects that run since the node began. Raises as ``reference``."""
        reference = self.reference(address)
        line = self._field("forward line", lambda: self._forward_line(address))
        return AutogradNode(
            *reference,
            topological_nr=self._field("topological number", lambda: self.nodes.topological_nr(address)),
            made_by=self._field("thread", lambda: self._made_by(self.nodes.thread_id(address))),
            forward_op=self._field("forward operator", lambda: self._forward_operator(address, reference.name)),
            file=line.file if line is not None else None,
            line=line.line if line is not None else None,
            function=line.function if line is not None else "",
            source=line.source if line is not None else "",
            line_known_by=line.known_by if line is not None else "",
            hooks=self._field("hooks", lambda: self._hooks(address, codes)) or (),
            next_functions=self._next_functions(address),
            saved=self._field("saved tensors", lambda: self.saved(address)),
        )

    @cached_property
    def _saved_reader(self) -> SavedTensorReader | None:
        """None where nobody measured what the nodes of this release save."""
        members = store.saved_members(self._version, has_cxx11_abi(self._session.layout))
        if not members:
            return None
        return SavedTensorReader(self.nodes, members, self._session.tensors, self._fields)

    @property
    def _version(self) -> str:
        return torch_version(self._session) or "unknown"

    @property
    def saved_is_known(self) -> bool:
        """What the nodes of this release save was measured."""
        return self._saved_reader is not None

    def saved(self, address: int) -> tuple[SavedTensor, ...] | None:
        """What a node has saved, None where that is not known of its class. Raises LayoutError where it is not known of
        this release, BadData, MemoryFault."""
        if self._saved_reader is None:
            raise LayoutError(f"what the nodes of torch {self._version} save is not known")
        return self._saved_reader.of(address)

    def stale(self, nodes: Iterable[int]) -> Iterator[StaleTensor]:
        """Saved tensors of these nodes that were modified in place since. Raises nothing."""
        for address in nodes:
            if address not in self._stale:
                self._stale[address] = self._stale_of(address)
            yield from self._stale[address]

    def _stale_of(self, address: int) -> tuple[StaleTensor, ...]:
        try:
            found = self._saved_reader.stale(address) if self._saved_reader is not None else ()
            node = self.reference(address) if found else None
        except GdbextError:  # of one node of many: what cannot be read is not accused
            return ()
        return tuple(StaleTensor(node, each) for each in found) if node is not None else ()

    def _forward_operator(self, address: int, name: str) -> str | None:
        """Of a torch.autograd.Function its name, by that of its ``forward``."""
        function = self._lines.of_function(address) if self._lines is not None else None
        if function is not None:
            return function.function.rpartition(".")[0]
        return self._operators.of(name) if self._operators is not None else None

    def _next_functions(self, address: int) -> tuple[NextFunction, ...]:
        edges = self._field("next functions", lambda: self.nodes.edges(address)) or ()
        return tuple(NextFunction(self._referenced(edge.node), edge.input_nr) for edge in edges[:_NEXT_FUNCTIONS])

    def _referenced(self, node: int) -> NodeReference | None:
        return self._field("next function", lambda: self.reference(node)) if node else None

    def name(self, address: int) -> str:
        """As ``grad_fn.name()``. Raises BadData, MemoryFault."""
        if self._lines is not None and self.nodes.class_of(address) == PYTHON_NODE:
            return self._lines.python_class(address)
        return self.nodes.name(address)

    def _field(self, what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def _forward_line(self, address: int) -> ForwardLine | None:
        return self._lines.of(address) if self._lines is not None else None

    def _leaf(self, address: int) -> int:
        """The TensorImpl of AccumulateGrad's variable; 0 for any other node."""
        return self.nodes.variable(address) if self.nodes.class_of(address) == ACCUMULATE_GRAD else 0

    def _variable(self, address: int) -> str | None:
        leaf = self._leaf(address)
        return self._session.tensors.read(leaf).short if leaf else None

    def _hooks(self, address: int, codes: Collection[int]) -> tuple[Hook, ...]:
        leaf = self._leaf(address)
        found = self.hooks.of_leaf(address, self._fields.autograd(leaf)) if leaf else self.hooks.of_node(address)
        return tuple(each.hook._replace(runs=each.code in codes) for each in found)
