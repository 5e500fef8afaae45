"""Describes nodes of autograd's graph: forward operator and line, hooks, saved tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.layouts import store
from gdbext.engine.numbers import number
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.tools.autograd import autograd_section
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch import assumed_symbols, torch_symbol
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.registry import Dispatcher, Operator
from gdbext.torch.state.tensor import ACCUMULATE_GRAD, PYTHON_NODE, NodeReader, TensorReader
from gdbext.torch.structures import AnomalyMetadata, AutogradMeta, Node, SavedVariable
from gdbext.torch.values.containers import has_cxx11_abi, hash_entries, vector_span
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

_HOOK_LIMIT = 1000


class FoundHook(NamedTuple):
    """A hook, and the address of the code object of its function, 0 for one in C++."""

    hook: autograd_section.NodeHook
    code: int


class HookReader:
    """Reads the hooks of nodes and tensors; ``object_at`` gives the Python object at an address.

    A Python hook is a C++ object with a vtable and, behind it, a dict from handle to function
    (torch/csrc/autograd/python_hook.h, 2.13.0; the same in all versions since 2.0).
    """

    def __init__(self, nodes: NodeReader, classes: ClassNames, object_at: Callable[[int], PyRef]) -> None:
        self._nodes = nodes
        self._memory = nodes.memory
        self._classes = classes
        self._object_at = object_at

    def node_hooks(self, address: int) -> Iterator[FoundHook]:
        """All hooks of a node, in the engine's order. Raises LayoutError, BadData, MemoryFault."""
        node = self._nodes.node(address)
        yield from self._vector_hooks(node.place(Node.tensor_pre_hooks_), autograd_section.HookKind.TENSOR)
        yield from self._vector_hooks(node.place(Node.pre_hooks_), autograd_section.HookKind.NODE_BEFORE)
        table = node.retains_grad_hooks_  # an unordered_map from output number to hook
        for _output, hook in hash_entries(self._memory, self._nodes.layout, table, 2, _HOOK_LIMIT):
            yield from self._functions(hook, autograd_section.HookKind.RETAINS_GRAD)
        yield from self._vector_hooks(node.place(Node.post_hooks_), autograd_section.HookKind.NODE_AFTER)

    def leaf_hooks(self, address: int, autograd_meta: int) -> Iterator[FoundHook]:
        """All hooks of an AccumulateGrad and of its tensor, whose AutogradMeta is at ``autograd_meta`` (0: none), in
        the engine's order (accumulate_grad.h). Raises as ``node_hooks``."""
        meta = AutogradMeta(self._nodes.space, autograd_meta)
        if autograd_meta:
            yield from self._vector_hooks(meta.hooks_, autograd_section.HookKind.TENSOR)
        yield from self.node_hooks(address)
        after = meta.post_acc_grad_hooks_ if autograd_meta else 0
        if after:
            yield from self._functions(after, autograd_section.HookKind.ACCUMULATED)

    def _vector_hooks(self, address: int, kind: autograd_section.HookKind) -> Iterator[FoundHook]:
        """The hooks that the std::vector at ``address`` points to."""
        first, count = vector_span(self._memory, address, 8, _HOOK_LIMIT)
        for hook in self._memory.words(first, count) if count else ():
            yield from self._functions(hook, kind)

    def _functions(self, hook: int, kind: autograd_section.HookKind) -> Iterator[FoundHook]:
        """The functions of the hook object at ``hook``: those in the dict of a Python hook, else its C++ class."""
        functions: list[PyRef] = []
        try:
            names = self._classes.of(hook)
            if names and names[0].startswith("torch::autograd::PyFunction"):
                table = self._object_at(self._memory.u64(hook + 8))
                functions = [value for _, value in table.items(_HOOK_LIMIT).checked()] if table.is_dict else []
        except GdbextError:
            return
        for value in functions:
            yield from _python_hooks(value, kind)
        if not functions and names:
            yield FoundHook(autograd_section.NodeHook(kind, names[0]), 0)


def _python_hooks(value: PyRef, kind: autograd_section.HookKind) -> Iterator[FoundHook]:
    """The hook with the Python function ``value``; the module's hooks if that is torch.nn.Module's function that calls
    them, which has them in its closure."""
    function = value.function
    if not function:
        yield FoundHook(autograd_section.NodeHook(kind, f"the Python object at {value.address:#x}"), 0)
        return
    cells = value.closure if function.qualname == torch_symbol.MODULE_HOOK else ()
    tables = (cell[torch_symbol.MODULE_HOOKS].parts() for cell in cells)
    own = [hook.function for hook in next(filter(None, tables), ())]
    module_hooks = [hook for hook in own if hook]
    for hook in module_hooks or [function]:
        hook_kind = autograd_section.HookKind.MODULE if module_hooks else kind
        yield FoundHook(autograd_section.NodeHook(hook_kind, hook.qualname, hook.file, hook.line), hook.code)


Members = Mapping[str, Mapping[str, int]]
"""Class → member → offset; the name of a vector ends in "[]"."""


class SavedTensorReader:
    """Reads the saved tensors of nodes whose class is in ``members``.

    ``SavedVariable::unpack`` (torch/csrc/autograd/saved_variable.cpp, 2.13.0) compares the version that it saved with
    the tensor's counter, which a detached copy shares with its original; if they differ, backward raises "one of the
    variables needed for gradient computation has been modified by an inplace operation".
    """

    def __init__(self, nodes: NodeReader, members: Members, tensors: TensorReader, fields: TensorFields) -> None:
        """Prepare the reader. Raises LayoutError."""
        self._nodes = nodes
        self._members = members
        self._tensors = tensors
        self._fields = fields
        self._size = SavedVariable.size(nodes.space)

    def saved_tensors(self, node: int) -> tuple[autograd_section.SavedTensor, ...] | None:
        """The tensors that the node saved, None if unknown for its class. Raises BadData, MemoryFault, LayoutError."""
        variables = self._variables(node)
        return None if variables is None else tuple(self._saved(name, address) for name, address in variables)

    def stale(self, node: int) -> tuple[autograd_section.SavedTensor, ...]:
        """The saved tensors of a node that were modified in place since then. Raises as ``saved_tensors``."""
        variables = self._variables(node) or ()
        return tuple(self._saved(name, address) for name, address in variables if self._is_stale(address))

    def _variables(self, node: int) -> Iterator[tuple[str, int]] | None:
        """(name, address) of each SavedVariable of a node; None if unknown for its class."""
        name = self._nodes.name(node)
        if name != PYTHON_NODE:
            return self._members_at(node, self._members.get(name, {}))
        members = self._members.get("THPFunction")  # of torch.autograd.Function (autograd/python_function.h)
        return None if members is None else self._members_at(self._nodes.python_object(node), members)

    def _members_at(self, base: int, members: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """(name, address) of each SavedVariable of the object at ``base``; ``members``: member → offset."""
        for member, offset in members.items():
            if not member.endswith("[]"):
                yield member.rstrip("_"), base + offset
                continue
            name = "saved_tensors" if member == "saved_variables[]" else member[:-2].rstrip("_")
            first, count = vector_span(self._nodes.memory, base + offset, self._size)
            for index in range(min(count, 64)):
                yield f"{name}[{index}]", first + index * self._size

    def _is_stale(self, address: int) -> bool:
        """True if the tensor of the SavedVariable at ``address`` has another version now than when it was saved. Reads
        less than _saved(), which confirms it."""
        saved = SavedVariable(self._nodes.space, address)
        tensor = saved.data_
        if not tensor or saved.hooks_ or saved.was_default_constructed_:
            return False
        saved_counter, counter = saved.saved_version_, self._version(tensor)
        return counter is not None and counter != saved_counter and self._saved("", address).is_stale

    def _saved(self, name: str, address: int) -> autograd_section.SavedTensor:
        """The report on the SavedVariable at ``address``. Raises BadData if there is none, MemoryFault."""
        saved = SavedVariable(self._nodes.space, address)
        if saved.was_default_constructed_ > 1 or saved.saved_original_ > 1:
            raise BadData(f"there is no SavedVariable at {address:#x}")
        if saved.hooks_:
            return autograd_section.SavedTensor(name, "packed by saved-tensor hooks", saved_version=None, version=None)
        if saved.was_default_constructed_:
            return autograd_section.SavedTensor(name, autograd_section.NOTHING_SAVED, saved_version=None, version=None)
        tensor = self._tensors.read(saved.data_)
        if tensor.implementation == UNDEFINED_TENSOR:
            return autograd_section.SavedTensor(name, "released", saved_version=None, version=None)
        return autograd_section.SavedTensor(name, tensor.short, saved.saved_version_, self._version(tensor.address))

    def _version(self, tensor: int) -> int | None:
        """The version of the TensorImpl at ``tensor`` now; None if it cannot be read."""
        with suppress(GdbextError):
            return self._fields.version(tensor)
        return None


T = TypeVar("T")


class NodeReporter:
    """Describes the nodes of one session."""

    def __init__(self, session: Session, made_by: Callable[[int], int | None] = lambda _: None) -> None:
        """``made_by``: RecordFunction's number of a thread → its tid. Raises NotTorch, LayoutError."""
        self._session = session
        self._made_by = made_by
        self.classes = classes = ClassNames(session.memory, session.symbolizer)
        self.nodes = NodeReader(session.memory, session.layout, classes)
        self.hooks = HookReader(self.nodes, classes, session.python_object)
        self._fields = TensorFields(session.memory, session.layout, classes)
        has_python = bool(session.python)
        self._lines = ForwardLineReader(self.nodes, classes, session.python_object) if has_python else None
        self._version = torch_version(session) or "unknown"
        self._problems: list[str] = []
        self._stale: dict[int, tuple[autograd_section.StaleTensor, ...]] = {}

    def take_problems(self) -> tuple[str, ...]:
        """Remove and return the problems that occurred since the last call."""
        problems, self._problems = tuple(dict.fromkeys(self._problems)), []
        return problems

    @cached_property
    def _operators(self) -> ForwardOperators | None:
        return None if self._session.dispatcher_error else ForwardOperators(self._session.dispatcher)

    def reference(self, address: int) -> autograd_section.NodeReference:
        """The node at ``address`` by name and sequence number. Raises BadData if there is no node, MemoryFault."""

        def variable() -> str | None:
            leaf = self._leaf(address)
            return self._session.tensors.read(leaf).short if leaf else None

        number = self._field("sequence number", lambda: self.nodes.node(address).sequence_nr_)
        return autograd_section.NodeReference(self.name(address), address, number, self._field("variable", variable))

    def node_report(self, address: int, running_codes: Collection[int] = ()) -> autograd_section.AutogradNode:
        """Everything about the node at ``address``. ``running_codes``: addresses of the code objects that the thread
        runs since the node began; they mark the hook that runs. Raises as ``reference``."""
        reference, field = self.reference(address), self._field

        def forward_operator() -> str | None:  # of a torch.autograd.Function its name, by that of its ``forward``
            function = self._lines.function_line(address) if self._lines else None
            if function:
                return function.function.rpartition(".")[0]
            return self._operators.operator_of(reference.name) if self._operators else None

        line = self._forward_line(address)
        edges = field("next functions", lambda: self.nodes.edges(address)) or ()
        next_functions = []
        for edge in edges[:16]:  # a node that stacks tensors has as many edges as tensors
            node = field("next function", partial(self.reference, edge.node)) if edge.node else None
            next_functions.append(autograd_section.NextFunction(node, edge.input_nr))
        return autograd_section.AutogradNode(
            *reference,
            topological_nr=field("topological number", lambda: self.nodes.node(address).topological_nr_),
            made_by=field("thread", lambda: self._made_by(self.nodes.node(address).thread_id_)),
            forward_op=field("forward operator", forward_operator),
            file=line.file if line else None,
            line=line.line if line else None,
            function=line.function if line else "",
            source=line.source if line else "",
            line_known_by=line.known_by if line else "",
            hooks=field("hooks", lambda: self._hooks(address, running_codes)) or (),
            next_functions=tuple(next_functions),
            saved=field("saved tensors", lambda: self.saved(address)),
        )

    @cached_property
    def _saved_reader(self) -> SavedTensorReader | None:
        """The reader of saved tensors; None for a release whose nodes were not measured."""
        session = self._session
        data = store.data_of(session.memory.architecture.name)
        members = store.member_offsets("saved-members", self._version, has_cxx11_abi(session.layout), data)
        return SavedTensorReader(self.nodes, members, session.tensors, self._fields) if members else None

    @property
    def saved_is_known(self) -> bool:
        """True if it is known which tensors the nodes of this release save."""
        return bool(self._saved_reader)

    def saved(self, address: int) -> tuple[autograd_section.SavedTensor, ...] | None:
        """The tensors that a node has saved, None if unknown for its class. Raises LayoutError if unknown for this
        release, BadData, MemoryFault.
        """
        if not self._saved_reader:
            raise LayoutError(f"it is unknown what the nodes of torch {self._version} save")
        return self._saved_reader.saved_tensors(address)

    def stale(self, nodes: Iterable[int]) -> Iterator[autograd_section.StaleTensor]:
        """Saved tensors of these nodes that were modified in place since then. A node that cannot be read has none."""
        for address in nodes:
            if address not in self._stale:
                self._stale[address] = ()
                with suppress(GdbextError):
                    saved = self._saved_reader.stale(address) if self._saved_reader else ()
                    if saved:
                        node = self.reference(address)
                        self._stale[address] = tuple(autograd_section.StaleTensor(node, tensor) for tensor in saved)
            yield from self._stale[address]

    def name(self, address: int) -> str:
        """The name, like ``grad_fn.name()``. Raises BadData, MemoryFault."""
        if self._lines and self.nodes.class_of(address) == PYTHON_NODE:
            return self._session.python_object(self.nodes.python_object(address)).read(type_name)
        return self.nodes.name(address)

    def _field(self, what: str, read: Callable[[], T]) -> T | None:
        """The result of ``read``; None if it raises GdbextError, which becomes a problem with ``what``."""
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def made_at(self, address: int) -> str:
        """``train.py:7 (step)``, the forward line of a node; "" if it was not recorded."""
        line = self._forward_line(address)
        return f"{line.file}:{line.line} ({line.function})" if line else ""

    def _forward_line(self, address: int) -> ForwardLine | None:
        return self._field("forward line", lambda: self._lines.forward_line(address) if self._lines else None)

    def _leaf(self, address: int) -> int:
        """The TensorImpl of AccumulateGrad's variable; 0 for any other node."""
        return self.nodes.variable(address) if self.nodes.class_of(address) == ACCUMULATE_GRAD else 0

    def _hooks(self, address: int, running_codes: Collection[int]) -> tuple[autograd_section.NodeHook, ...]:
        """The hooks of the node at ``address``, of a leaf's tensor as well; ``running_codes`` as of ``node_report``."""
        leaf = self._leaf(address)
        if leaf:
            hooks = self.hooks.leaf_hooks(address, self._fields.tensor(leaf).autograd_meta_.address)
        else:
            hooks = self.hooks.node_hooks(address)
        return tuple(hook._replace(runs=code in running_codes) for hook, code in hooks)


_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>[^\n]*)\n?(?P<source>[^\n]*)')


class ForwardLine(NamedTuple):
    """The Python line that created a node, in ``function``. ``source``: its text, "" if unknown; ``known_by``: as of
    AutogradNode.line_known_by."""

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

    def forward_line(self, node: int) -> ForwardLine | None:
        """The line that anomaly mode recorded, the innermost outside of libraries; else as ``function_line``. Raises
        BadData, MemoryFault, LayoutError.

        Anomaly mode keeps the lines of ``traceback.format_stack()`` in a dict, which is the first member of a
        PyAnomalyMetadata behind those of AnomalyMetadata (torch/csrc/autograd/python_anomaly_mode.h, 2.13.0).
        """
        metadata = self._nodes.node(node).anomaly_metadata_
        if not metadata or "torch::autograd::PyAnomalyMetadata" not in self._classes.of(metadata):
            return self.function_line(node)
        record = self._nodes.memory.u64(metadata + AnomalyMetadata.size(self._nodes.space))
        lines = self._object_at(record)[torch_symbol.ANOMALY_TRACEBACK].elements(10_000)
        matches = [match for line in lines[::-1] if (match := _LINE.match(line.str()))]
        if not matches:
            return self.function_line(node)
        own = [match for match in matches if not any(part in match["file"] for part in ("/torch/", "/lib/python3"))]
        return _forward_line((own or matches)[0])

    def function_line(self, node: int) -> ForwardLine | None:
        """The definition of an autograd.Function's ``forward``; None for another node. Raises as ``forward_line``."""
        if self._nodes.class_of(node) != PYTHON_NODE:
            return None
        value = self._object_at(self._nodes.python_object(node))
        forward = value.checked().of_class[torch_symbol.FUNCTION_FORWARD_CLASS][torch_symbol.FUNCTION_FORWARD]
        function = (forward["__func__"] or forward).function
        if not function or not function.file:
            return None
        return ForwardLine(function.file, function.line, function.qualname, "", "torch.autograd.Function")


def _forward_line(match: re.Match[str]) -> ForwardLine:
    """The line in a match of _LINE."""
    file, line, function, source = match.groups()
    return ForwardLine(file, number(line) or 0, function, source.strip(), "anomaly mode")


_NODE = re.compile(r"(\w+?Backward)(?:Autograd[A-Za-z]+)?\d+(_copy)?(?:[A-Z]\w*)?$")
"""A node's name; ``ForeachAddBackward1Scalar`` is for one overload, ``SumBackwardAutogradNestedTensor0`` a key."""


class ForwardOperators:
    """Finds operators by the names of their nodes.

    tools/autograd/load_derivatives.py (2.13.0) makes the name of a node of its operator's name: the words between
    underscores, each with a capital, then "Backward" and a number for each further formula. If two operators give the
    same name, it belongs to the one that has a kernel for autograd (``_softmax``, ``softmax``); if both have one, to
    the public one, whose kernels call the other one (``convolution``, ``_convolution``).
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._operators: dict[str, str | None] = {}  # results of operator_of()

    def operator_of(self, node: str) -> str | None:
        """``aten::addmm`` for ``AddmmBackward0``; None if no operator, or more than one, has that node."""
        if node not in self._operators:
            self._operators[node] = None
            match = _NODE.match(node)
            with suppress(GdbextError):
                self._operators[node] = self._unique_operator(match.group(1), match.group(2) or "") if match else None
        return self._operators[node]

    @cached_property
    def _overloads(self) -> dict[str, list[Operator]]:
        """Base name → overloads of the operators of ``aten``, without ``out`` variants."""
        overloads: dict[str, list[Operator]] = {}
        for operator in self._dispatcher.operators():
            namespace, _, base = operator.name.partition("::")
            if namespace == "aten" and not operator.overload.endswith("out"):
                overloads.setdefault(base, []).append(operator)
        return overloads

    @cached_property
    def _bases_by_prefix(self) -> dict[str, set[str]]:
        """Prefix of a node's name (``AddmmBackward``) → base names (``addmm``)."""
        bases: dict[str, set[str]] = {}
        for base in self._overloads:
            titled = "".join(word.title() for word in base.split("_"))
            prefix = f"{titled}Backward".replace("ForwardBackward", "Backward")
            bases.setdefault(prefix, set()).add(base)
        return bases

    def _unique_operator(self, prefix: str, suffix: str) -> str | None:
        """The only operator with that prefix, ``suffix`` ("_copy" or "") and a kernel for autograd; None if none."""
        index = self._dispatcher.keys.index_of_key("AutogradCPU")

        def has_autograd_kernel(base: str) -> bool:  # generated code differentiates one of the overloads
            for operator in self._overloads.get(base, ()):
                kernel = self._dispatcher.kernels.name(operator.kernel(index))
                if any(assumed_symbols.VARIABLE_TYPE in name for name in (kernel.function, *kernel.aliases)):
                    return True
            return False

        bases = {f"{base}{suffix}" for base in self._bases_by_prefix.get(prefix, ())}
        candidates = {base for base in bases if has_autograd_kernel(base)}
        for shadowed in ("{}_", "_{}"):  # the in-place form, the implementation
            candidates -= {shadowed.format(base) for base in candidates}
        return f"aten::{candidates.pop()}" if len(candidates) == 1 else None
