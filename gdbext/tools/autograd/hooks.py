"""The hooks of a node with the Python functions behind them, and the tensors that a node has saved for its backward.

Hooks of Python are objects of C++ with a vtable and, behind it, a dict from handle to function
(torch/csrc/autograd/python_hook.h, 2.13.0; the same in all versions since 2.0). A word there that is not a dict is
ignored.

Saved tensors: torch/csrc/autograd/saved_variable.{h,cpp}, 2.13.0. ``SavedVariable::unpack`` compares the version that
it saved with the tensor's counter, which a detached copy shares with its original; if they differ, backward raises "one
of the variables needed for gradient computation has been modified by an inplace operation".
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
from gdbext.torch.values.containers import hash_entries, vector_span
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.cpython.objects.py_ref import PyRef

_HOOK_LIMIT = 1000
_VECTORS = {
    Node.tensor_pre_hooks_: HookKind.TENSOR,
    Node.pre_hooks_: HookKind.NODE_BEFORE,
    Node.post_hooks_: HookKind.NODE_AFTER,
}


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
        """All hooks of a node, in the engine's order. Raises LayoutError, BadData, MemoryFault."""
        node = self._nodes.node(address)
        for member, kind in _VECTORS.items():
            if kind is HookKind.NODE_AFTER:  # after an unordered_map from output number to hook
                table, layout = node.retains_grad_hooks_, self._nodes.layout
                for _output, hook in hash_entries(self._memory, layout, table, 2, _HOOK_LIMIT):
                    yield from self._functions(hook, HookKind.RETAINS_GRAD)
            for hook in self._vector(node.place(member)):
                yield from self._functions(hook, kind)

    def of_leaf(self, address: int, autograd_meta: int) -> Iterator[FoundHook]:
        """All hooks of an AccumulateGrad with its tensor's, whose ``AutogradMeta`` is given (0: none): before the node,
        and after the gradient was added (accumulate_grad.h). Raises as ``of_node``."""
        meta = AutogradMeta(self._nodes.space, autograd_meta)
        if autograd_meta:
            for hook in self._vector(meta.hooks_):
                yield from self._functions(hook, HookKind.TENSOR)
        yield from self.of_node(address)
        after = meta.post_acc_grad_hooks_ if autograd_meta else 0
        if after:
            yield from self._functions(after, HookKind.ACCUMULATED)

    def _vector(self, address: int) -> Iterator[int]:
        first, count = vector_span(self._memory, address, 8, _HOOK_LIMIT)
        yield from self._memory.words(first, count) if count else ()

    def _functions(self, hook: int, kind: HookKind) -> Iterator[FoundHook]:
        """The functions in the dict of a Python hook object, else the class of the C++ object."""
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
            yield FoundHook(NodeHook(kind, names[0]), 0)


def _python_hooks(value: PyRef, kind: HookKind) -> Iterator[FoundHook]:
    """The hook that is a Python function; if it is the function that calls a module's hooks, those."""
    function = value.function
    if not function:
        yield FoundHook(NodeHook(kind, f"the Python object at {value.address:#x}"), 0)
        return
    cells = value.closure if function.qualname == MODULE_HOOK else ()
    tables = (cell[MODULE_HOOKS].parts() for cell in cells)
    own = [hook.function for hook in next(filter(None, tables), ())]
    module_hooks = [hook for hook in own if hook]
    for hook in module_hooks or [function]:
        hook_kind = HookKind.MODULE if module_hooks else kind
        yield FoundHook(NodeHook(hook_kind, hook.qualname, hook.file, hook.line), hook.code)


PYTHON_FUNCTION = "THPFunction"
"""The object of a torch.autograd.Function (torch/csrc/autograd/python_function.h)."""
Members = Mapping[str, Mapping[str, int]]
"""Class → member → offset; the name of a vector ends in "[]"."""


class SavedTensorReader:
    """Reads the saved tensors of nodes whose class is in ``members``."""

    def __init__(self, nodes: NodeReader, members: Members, tensors: TensorReader, fields: TensorFields) -> None:
        """Prepare the reader. Raises LayoutError."""
        self._nodes = nodes
        self._members = members
        self._tensors = tensors
        self._fields = fields
        self._size = SavedVariable.size(nodes.space)

    def of(self, node: int) -> tuple[SavedTensor, ...] | None:
        """The tensors that the node has saved, None if unknown for its class. Raises BadData, MemoryFault,
        LayoutError."""
        places = self._places(node)
        return None if places is None else tuple(self._saved(name, address) for name, address in places)

    def stale(self, node: int) -> tuple[SavedTensor, ...]:
        """Those that were modified in place since. Raises as ``of``."""
        places = self._places(node) or ()
        return tuple(self._saved(name, address) for name, address in places if self._is_stale(address))

    def _places(self, node: int) -> Iterator[tuple[str, int]] | None:
        """(name, address of the SavedVariable) of each; None if unknown for the class."""
        name = self._nodes.name(node)
        if name != PYTHON_NODE:
            return self._variables(node, self._members.get(name, {}))
        members = self._members.get(PYTHON_FUNCTION)
        return None if members is None else self._variables(self._nodes.python_object(node), members)

    def _variables(self, base: int, members: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for member, offset in members.items():
            if not member.endswith("[]"):
                yield member.rstrip("_"), base + offset
                continue
            name = "saved_tensors" if member == "saved_variables[]" else member[:-2].rstrip("_")
            first, count = vector_span(self._nodes.memory, base + offset, self._size)
            for index in range(min(count, 64)):
                yield f"{name}[{index}]", first + index * self._size

    def _is_stale(self, address: int) -> bool:
        saved = SavedVariable(self._nodes.space, address)
        tensor = saved.data_
        if not tensor or saved.hooks_ or saved.was_default_constructed_:
            return False
        then, now = saved.saved_version_, self._version(tensor)
        return now is not None and now != then and self._saved("", address).is_stale

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
