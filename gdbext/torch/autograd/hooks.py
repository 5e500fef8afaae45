"""The hooks of a node, and the Python functions behind them.

Hooks of Python are objects of C++ with a vtable and, behind it, a dict from handle to function
(torch/csrc/autograd/python_hook.h, 2.13.0; the same in all versions since 2.0). A word there that is not a dict is not
believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.threads.namespaces import attributes, closure_of, items
from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.model.sections.autograd_section import Hook, HookKind
from gdbext.torch.autograd.nodes import NodeReader
from gdbext.torch.python_names import MODULE_HOOK, MODULE_HOOKS
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.values.containers import hash_entries, hash_table, vector_span

if TYPE_CHECKING:
    from gdbext.cpython.objects.functions import PythonFunction
    from gdbext.cpython.threads.runtime import PythonRuntime

_POINTER = 8
_HOOK_LIMIT = 1000
_VECTORS = {
    "tensor_pre_hooks_": HookKind.TENSOR,
    "pre_hooks_": HookKind.NODE_BEFORE,
    "post_hooks_": HookKind.NODE_AFTER,
}
_PYTHON_HOOKS = "torch::autograd::PyFunction"
"""What the names of those classes begin with."""


class FoundHook(Record):
    """A hook, and the code object of its function, 0 for one in C++."""

    hook: Hook
    code: int


class HookReader:
    """Reads the hooks of nodes and tensors; ``python``: None where Python cannot be read."""

    def __init__(self, nodes: NodeReader, classes: ClassNames, python: PythonRuntime | None) -> None:
        self._nodes = nodes
        self._memory = nodes.memory
        self._classes = classes
        self._python = python

    def of_node(self, address: int) -> Iterator[FoundHook]:
        """All hooks of a node, as the engine calls them. Raises LayoutError, BadData, MemoryFault."""
        for member, kind in _VECTORS.items():
            if kind is HookKind.NODE_AFTER:
                for hook in self._retaining(address):
                    yield from self._functions(hook, HookKind.RETAINS_GRAD)
            for hook in self._vector(self._nodes.member(address, member)):
                yield from self._functions(hook, kind)

    def of_leaf(self, address: int, autograd_meta: int) -> Iterator[FoundHook]:
        """The same of an AccumulateGrad with those of its tensor, which has this ``AutogradMeta``: before the node, and
        once the gradient was added to (accumulate_grad.h). Raises as ``of_node``."""
        shape = self._nodes.layout.struct("torch::autograd::AutogradMeta")
        if autograd_meta:
            for hook in self._vector(autograd_meta + shape.offset("hooks_")):
                yield from self._functions(hook, HookKind.TENSOR)
        yield from self.of_node(address)
        after = self._memory.u64(autograd_meta + shape.offset("post_acc_grad_hooks_")) if autograd_meta else 0
        if after:
            yield from self._functions(after, HookKind.ACCUMULATED)

    def _vector(self, address: int) -> Iterator[int]:
        first, count = vector_span(self._memory, address, _POINTER, _HOOK_LIMIT)
        yield from self._memory.words(first, count) if count else ()

    def _retaining(self, address: int) -> Iterator[int]:
        """Values of ``retains_grad_hooks_``, an unordered_map from output number to hook."""
        table, shape = self._nodes.member(address, "retains_grad_hooks_"), hash_table(self._nodes.layout)
        yield from (hook for _output, hook in hash_entries(self._memory, table, shape, 2, _HOOK_LIMIT))

    def _functions(self, hook: int, kind: HookKind) -> Iterator[FoundHook]:
        """The functions of one hook object: those in its dict, else the object's class."""
        try:
            names = self._classes.of(hook)
            functions = list(self._python_functions(hook)) if names and names[0].startswith(_PYTHON_HOOKS) else []
        except GdbextError:
            return
        for address in functions:
            yield from self._described(address, kind)
        if not functions and names:
            yield FoundHook(Hook(kind, names[0]), 0)

    def _python_functions(self, hook: int) -> Iterator[int]:
        held = self._memory.u64(hook + _POINTER)
        if self._python is not None and self._python.objects.is_dict(held):
            yield from (value for _key, value in self._python.dicts.items(held, _HOOK_LIMIT))

    def _described(self, address: int, kind: HookKind) -> Iterator[FoundHook]:
        """The function; of one that calls the hooks of a module, those."""
        assert self._python is not None
        found = self._python.functions.source(address)
        if found is None:
            yield FoundHook(Hook(kind, f"the Python object at {address:#x}"), 0)
            return
        own = self._of_module(address) if found.qualname == MODULE_HOOK else ()
        if own:
            yield from (_found(each, HookKind.MODULE) for each in own)
        else:
            yield _found(found, kind)

    def _of_module(self, address: int) -> list[PythonFunction]:
        """The hooks of a module, which the function at ``address`` calls; none where they cannot be read."""
        assert self._python is not None
        python = self._python
        for each in closure_of(python, address):
            functions = items(python, attributes(python, each).get(MODULE_HOOKS, 0))
            if functions:
                return [found for found in map(python.functions.source, functions) if found is not None]
        return []


def _found(function: PythonFunction, kind: HookKind) -> FoundHook:
    return FoundHook(Hook(kind, function.qualname, function.file, function.line), function.code)
