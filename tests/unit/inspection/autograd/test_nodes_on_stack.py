"""Which nodes run on a stack: the innermost by the engine's own word, the others by their methods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdbext.errors import LayoutError
from gdbext.inspection.autograd.nodes_on_stack import nodes_on_stack
from gdbext.model.threads.backward_node import BackwardNode
from gdbext.torch.stack.roles import engine_calls

EVALUATE = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE"


class Stack:
    """Functions innermost first: (mangled, demangled)."""

    def __init__(self, *functions: tuple[str, str]) -> None:
        self._functions = functions

    def __len__(self) -> int:
        return len(self._functions)

    def function(self, level: int) -> Any:
        mangled, demangled = self._functions[level]
        return SimpleNamespace(name=mangled, demangled=(demangled,)) if mangled else None


def apply(name: str) -> tuple[str, str]:
    return "_Zapply", f"torch::autograd::{name}::apply(std::vector<at::Tensor>&&)"


REENTRANT: Any = Stack(
    ("", ""),
    apply("generated::MmBackward0"),
    (EVALUATE, ""),
    ("_ZN5torch8autograd6Engine11thread_mainEv", ""),
    apply("PyNode"),
    (EVALUATE, ""),
    (EVALUATE, ""),
)


def test_the_engine_s_calls() -> None:
    assert engine_calls(REENTRANT) == [2, 5, 6]


class UnknownRelease:
    """A session without a layout."""

    memory = symbolizer = None

    @property
    def layout(self) -> Any:
        raise LayoutError("there is no layout for this release")


def test_names_alone_where_the_engine_s_state_cannot_be_read() -> None:
    session: Any = UnknownRelease()
    found = nodes_on_stack(session, session, REENTRANT, [2, 5, 6])
    assert found == (BackwardNode(2, "MmBackward0", None), BackwardNode(5, "PyNode", None))
