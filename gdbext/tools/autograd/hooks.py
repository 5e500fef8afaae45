"""The hooks of a node, and the Python functions behind them.

Hooks of Python are objects of C++ with a vtable and, behind it, a dict from handle to function
(torch/csrc/autograd/python_hook.h, 2.13.0; the same in all versions since 2.0). A word there that is not a dict is not
believed.

The tensors that a node has saved for its backward: what they are, and whether they were changed since.

Source: torch/csrc/autograd/saved_variable.{h,cpp}, 2.13.0. ``SavedVariable::unpack`` compares the version that it kept
with the tensor's counter, which a detached copy shares with the tensor that it was made of; where they differ, backward
will raise "one of the variables needed for gradient computation has been modified by an inplace operation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData, GdbextError
from gdbext.tools.autograd.autograd_section import NOTHING_SAVED, HookKind, NodeHook, SavedTensor
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.state.tensor import PYTHON_NODE, NodeReader, TensorReader
from gdbext.torch.structures import AutogradMeta, Node, SavedVariable
from gdbext.torch.torch_symbol import MODULE_HOOK, MODULE_HOOKS
from gdbext.torch.values.containers import hash_entries, hash_table, vector_span
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.objects.py_ref import PyRef

_POINTER = 8
_HOOK_LIMIT = 1000
_VECTORS = {
    Node.tensor_pre_hooks_: HookKind.TENSOR,
    Node.pre_hooks_: HookKind.NODE_BEFORE,
    Node.post_hooks_: HookKind.NODE_AFTER,
}
_PYTHON_HOOKS = "torch::autograd::PyFunction"
"""The beginning of the names of those classes."""


class FoundHook(NamedTuple):
    """A hook, and the code object of its function, 0 for one in C++."""

    hook: NodeHook
    code: int


class HookReader:
    """Reads the hooks of nodes and tensors; ``object_at`` gives the Python object at an address."""

    def __init__(self, nodes: NodeReader, classes: ClassNames, object_at: Callable[[int], PyRef]) -> None:
        self._nodes = nodes
        self._memory = nodes.memory
        self._classes = classes
        self._object_at = object_at

    def of_node(self, address: int) -> Iterator[FoundHook]:
        """All hooks of a node, as the engine calls them. Raises LayoutError, BadData, MemoryFault."""
        for member, kind in _VECTORS.items():
            if kind is HookKind.NODE_AFTER:
                for hook in self._retaining(address):
                    yield from self._functions(hook, HookKind.RETAINS_GRAD)
            for hook in self._vector(self._nodes.node(address).place(member)):
                yield from self._functions(hook, kind)

    def of_leaf(self, address: int, autograd_meta: int) -> Iterator[FoundHook]:
        """The same of an AccumulateGrad with those of its tensor, which has this ``AutogradMeta``: before the node, and
        once the gradient was added to (accumulate_grad.h). Raises as ``of_node``."""
        meta = AutogradMeta(self._nodes.space, autograd_meta)
        if autograd_meta:
            for hook in self._vector(meta.hooks_):
                yield from self._functions(hook, HookKind.TENSOR)
        yield from self.of_node(address)
        after = meta.post_acc_grad_hooks_ if autograd_meta else 0
        if after:
            yield from self._functions(after, HookKind.ACCUMULATED)

    def _vector(self, address: int) -> Iterator[int]:
        first, count = vector_span(self._memory, address, _POINTER, _HOOK_LIMIT)
        yield from self._memory.words(first, count) if count else ()

    def _retaining(self, address: int) -> Iterator[int]:
        """Values of ``retains_grad_hooks_``, an unordered_map from output number to hook."""
        table, shape = self._nodes.node(address).retains_grad_hooks_, hash_table(self._nodes.layout)
        yield from (hook for _output, hook in hash_entries(self._memory, table, shape, 2, _HOOK_LIMIT))

    def _functions(self, hook: int, kind: HookKind) -> Iterator[FoundHook]:
        """The functions of one hook object: those in its dict, else the object's class."""
        try:
            names = self._classes.of(hook)
            functions = self._python_functions(hook) if names and names[0].startswith(_PYTHON_HOOKS) else []
        except GdbextError:
            return
        for function in functions:
            yield from _described(function, kind)
        if not functions and names:
            yield FoundHook(NodeHook(kind, names[0]), 0)

    def _python_functions(self, hook: int) -> list[PyRef]:
        held = self._object_at(self._memory.u64(hook + _POINTER))
        return [value for _, value in held.items(_HOOK_LIMIT).checked()] if held.is_dict else []


def _described(value: PyRef, kind: HookKind) -> Iterator[FoundHook]:
    """The function; of one that calls the hooks of a module, those."""
    found = value.function
    if not found:
        yield FoundHook(NodeHook(kind, f"the Python object at {value.address:#x}"), 0)
        return
    own = _of_module(value) if found.qualname == MODULE_HOOK else ()
    if own:
        yield from (_found(each, HookKind.MODULE) for each in own)
    else:
        yield _found(found, kind)


def _of_module(value: PyRef) -> list[PythonFunction]:
    """The hooks of a module, which a function calls; none where they cannot be read."""
    for each in value.closure:
        functions = each[MODULE_HOOKS].parts()
        if functions:
            return [found for function in functions if (found := function.function)]
    return []


def _found(function: PythonFunction, kind: HookKind) -> FoundHook:
    return FoundHook(NodeHook(kind, function.qualname, function.file, function.line), function.code)


PYTHON_FUNCTION = "THPFunction"
"""The object of a torch.autograd.Function (torch/csrc/autograd/python_function.h)."""
_NAMES = {"saved_variables[]": "saved_tensors"}
_LIST = "[]"
_LIST_LIMIT = 64
Members = Mapping[str, Mapping[str, int]]
"""Class → member → offset; the name of a vector ends in "[]"."""


class SavedTensorReader:
    """Reads them where ``members`` has the node's class."""

    def __init__(self, nodes: NodeReader, members: Members, tensors: TensorReader, fields: TensorFields) -> None:
        """Prepare the reader. Raises LayoutError."""
        self._nodes = nodes
        self._members = members
        self._tensors = tensors
        self._fields = fields
        self._size = SavedVariable.size(nodes.space)

    def of(self, node: int) -> tuple[SavedTensor, ...] | None:
        """The tensors that the node has saved, None where that is not known of its class. Raises BadData, MemoryFault,
        LayoutError."""
        members = self._members_of(node)
        return tuple(self._saved(name, at) for name, at in self._places(*members)) if members else None

    def stale(self, node: int) -> tuple[SavedTensor, ...]:
        """Those that were modified in place since. Raises as ``of``."""
        members = self._members_of(node)
        places = self._places(*members) if members else ()
        return tuple(self._saved(name, at) for name, at in places if self._is_stale(at))

    def _members_of(self, node: int) -> tuple[int, Mapping[str, int]] | None:
        """The members that are saved tensors: the object, and their offsets in it."""
        name = self._nodes.name(node)
        if name == PYTHON_NODE:
            members = self._members.get(PYTHON_FUNCTION)
            return (self._nodes.python_object(node), members) if members is not None else None
        return node, self._members.get(name, {})

    def _places(self, base: int, members: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Name and address of each."""
        for member, offset in members.items():
            name = _NAMES.get(member, member.removesuffix(_LIST).rstrip("_"))
            if not member.endswith(_LIST):
                yield name, base + offset
                continue
            first, count = vector_span(self._nodes.memory, base + offset, self._size)
            for index in range(min(count, _LIST_LIMIT)):
                yield f"{name}[{index}]", first + index * self._size

    def _is_stale(self, address: int) -> bool:
        saved = SavedVariable(self._nodes.space, address)
        tensor = saved.data_
        if not tensor or saved.hooks_ or saved.was_default_constructed_:
            return False
        kept, now = saved.saved_version_, self._version(tensor)
        return now is not None and now != kept and self._saved("", address).is_stale

    def _saved(self, name: str, address: int) -> SavedTensor:
        saved = SavedVariable(self._nodes.space, address)
        if saved.was_default_constructed_ > 1 or saved.saved_original_ > 1:
            raise BadData(f"there is no SavedVariable at {address:#x}")
        if saved.hooks_:
            return SavedTensor(name, "packed by saved-tensor hooks", None, None)
        if saved.was_default_constructed_:
            return SavedTensor(name, NOTHING_SAVED, None, None)
        tensor = self._tensors.read(saved.data_)
        if tensor.implementation == UNDEFINED_TENSOR:
            return SavedTensor(name, "released", None, None)
        return SavedTensor(name, tensor.short, saved.saved_version_, self._version(tensor.address))

    def _version(self, tensor: int) -> int | None:
        try:
            return self._fields.version(tensor)
        except GdbextError:
            return None
