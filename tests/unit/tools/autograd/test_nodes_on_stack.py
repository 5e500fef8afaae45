"""Which nodes run on a stack: the innermost by the engine's own word, the others by their methods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdbext.diagnosis.report.thread_report import BackwardNode
from gdbext.errors import LayoutError
from gdbext.tools.autograd.autograd_report import nodes_on_stack, outer_node
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


INNER, OUTER = 0x1000, 0x2000
"""Where the frames of ``Engine::thread_main`` begin."""


def reported(inner: list[int], outer: list[int], names: dict[int, str]) -> Any:
    """What is reported of the node that the outer call runs, by the words in both frames and the names of nodes."""
    stack: Any = Stack(apply("PyNode"), (EVALUATE, ""), ("_main", ""), apply("PyNode"), (EVALUATE, ""), ("_main", ""))
    empty = SimpleNamespace(sp=0, cfa=0)
    frames = [empty, empty, SimpleNamespace(sp=INNER, cfa=INNER + 8 * len(inner))]
    stack.frames = [*frames, empty, empty, SimpleNamespace(sp=OUTER, cfa=OUTER + 8 * len(outer))]
    words = {INNER: inner, OUTER: outer}
    nodes = SimpleNamespace(memory=SimpleNamespace(words=lambda at, _: words[at]), is_node=names.__contains__)
    reporter: Any = SimpleNamespace(nodes=nodes, reference=lambda node: SimpleNamespace(name=names[node]))
    found = outer_node(reporter, stack, 1, 4)
    return found.name if found is not None else None


def test_the_node_that_both_frames_have_is_the_outer_one() -> None:
    a, b, c = 0x100, 0x200, 0x300
    names = {a: "TwiceBackward", b: "TwiceBackward", c: "TwiceBackward"}
    assert reported([7, a, b], [b, 8, c], names) == "TwiceBackward"
    assert reported([a, b], [a, b], names) is None
    assert reported([a], [c], names) is None


def test_a_node_with_another_method_than_the_one_on_the_stack_is_not_believed() -> None:
    stack: Any = Stack(("", ""), (EVALUATE, ""), ("", ""), apply("generated::MmBackward0"), (EVALUATE, ""), ("", ""))
    stack.frames = [SimpleNamespace(sp=INNER, cfa=INNER + 8)] * 6
    nodes = SimpleNamespace(memory=SimpleNamespace(words=lambda *_: [8]), is_node=lambda _: True)
    for name, expected in (("MmBackward0", "MmBackward0"), ("AddBackward0", None)):
        reporter: Any = SimpleNamespace(nodes=nodes, reference=lambda _, name=name: SimpleNamespace(name=name))
        found = outer_node(reporter, stack, 1, 4)
        assert (found.name if found is not None else None) == expected


class UnknownRelease:
    """A session without a layout."""

    memory = symbolizer = None

    @property
    def layout(self) -> Any:
        raise LayoutError("there is no layout for this release")


def test_names_alone_where_the_engine_s_state_cannot_be_read() -> None:
    session: Any = UnknownRelease()
    assert engine_calls(REENTRANT) == [2, 5, 6]
    found = nodes_on_stack(session, session, REENTRANT, [2, 5, 6])
    assert found == (BackwardNode(2, "MmBackward0", None), BackwardNode(5, "PyNode", None))
