"""The hooks of a node, and the Python functions behind them.

Hooks of Python are objects of C++ with a vtable and, behind it, a dict from handle to function
(torch/csrc/autograd/python_hook.h, 2.13.0; the same in all versions since 2.0). A word there that is not a dict is not
believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.sections.autograd_section import Hook, HookKind
from gdbext.torch.autograd.nodes import NodeReader
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.values.containers import vector_span

if TYPE_CHECKING:
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


class HookReader:
    """Reads the hooks of nodes and tensors; ``python``: None where Python cannot be read."""

    def __init__(self, nodes: NodeReader, classes: ClassNames, python: PythonRuntime | None) -> None:
        self._nodes = nodes
        self._memory = nodes.memory
        self._classes = classes
        self._python = python

    def of_node(self, address: int) -> Iterator[Hook]:
        """All hooks of a node, as the engine calls them. Raises LayoutError, BadData, MemoryFault."""
        for member, kind in _VECTORS.items():
            if kind is HookKind.NODE_AFTER:
                for hook in self._retaining(address):
                    yield from self._functions(hook, HookKind.RETAINS_GRAD)
            for hook in self._vector(self._nodes.member(address, member)):
                yield from self._functions(hook, kind)

    def after_accumulation(self, autograd_meta: int) -> Iterator[Hook]:
        """Those that run once a leaf's gradient was added to. Raises LayoutError, BadData, MemoryFault."""
        member = self._nodes.layout.struct("torch::autograd::AutogradMeta").offset("post_acc_grad_hooks_")
        hook = self._memory.u64(autograd_meta + member)
        if hook:
            yield from self._functions(hook, HookKind.ACCUMULATED)

    def _vector(self, address: int) -> Iterator[int]:
        first, count = vector_span(self._memory, address, _POINTER, _HOOK_LIMIT)
        yield from self._memory.words(first, count) if count else ()

    def _retaining(self, address: int) -> Iterator[int]:
        """Values of ``retains_grad_hooks_``, an unordered_map from output number to hook: its nodes are a link, key and
        value (bits/hashtable_policy.h), without a hash where keys are integers."""
        table = self._nodes.member(address, "retains_grad_hooks_")
        shape = self._nodes.layout.struct("std::unordered_map")
        count = min(self._memory.u64(table + shape.offset("_M_h._M_element_count")), _HOOK_LIMIT)
        node = self._memory.u64(table + shape.offset("_M_h._M_before_begin"))
        while node and count:
            link, _output, hook = self._memory.words(node, 3)
            yield hook
            node, count = link, count - 1

    def _functions(self, hook: int, kind: HookKind) -> Iterator[Hook]:
        """The functions of one hook object: those in its dict, else the object's class."""
        try:
            names = self._classes.of(hook)
            functions = list(self._python_functions(hook)) if names and names[0].startswith(_PYTHON_HOOKS) else []
        except GdbextError:
            return
        for address in functions:
            yield self._described(address, kind)
        if not functions and names:
            yield Hook(kind, names[0])

    def _python_functions(self, hook: int) -> Iterator[int]:
        held = self._memory.u64(hook + _POINTER)
        if self._python is not None and self._python.objects.is_dict(held):
            yield from (value for _key, value in self._python.dicts.items(held, _HOOK_LIMIT))

    def _described(self, address: int, kind: HookKind) -> Hook:
        assert self._python is not None
        found = self._python.functions.source(address)
        if found is None:
            return Hook(kind, f"the Python object at {address:#x}")
        return Hook(kind, found.qualname, found.file, found.line)
