"""The variables of a Python kernel that have an operator's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.objects import FLAG_TUPLE
from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.diagnosis.threads import frame_locals
from gdbext.diagnosis.threads.frame_locals import FrameLocals, _with_kernel_values, argument_variables
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.stack import Argument, DispatchEvent

KEYSET, TENSOR, REST = 0x100, 0x200, 0x300
ITEMS = {REST: (0x41, 0x42, 0x43)}


def python() -> Any:
    """An interpreter with objects by their addresses."""
    names_of_types = {KEYSET: "torch._C.DispatchKeySet"}
    objects = SimpleNamespace(
        type_of=lambda at: SimpleNamespace(name=names_of_types.get(at, "Tensor"), flags=FLAG_TUPLE),
        tuple_items=lambda at, most: ITEMS[at][:most],
    )
    return SimpleNamespace(objects=objects)


@pytest.mark.parametrize(
    ("count", "keywords", "names", "values", "found"),
    [
        (3, 0, "a n t result", {}, ["a", "n", "t"]),
        (3, 0, "x k word", {"x": TENSOR}, ["x", "k", "word"]),
        (4, 0, "keys x k word", {"keys": KEYSET}, ["x", "k", "word"]),
        (3, 0, "a t n", {}, []),  # the schema may have both for keywords alone: then they are given by name
        (2, 1, "x k t", {}, ["x", "k", "t"]),
        (1, 1, "x t", {}, ["x", "", "t"]),
        (0, 0, "args kwargs", {"args": REST}, ["args[0]", "args[1]", "args[2]"]),
        (1, 0, "keyset args more", {"keyset": KEYSET, "args": REST}, ["args[0]", "args[1]", "args[2]"]),
        (1, 1, "x t args", {"x": TENSOR, "args": REST}, ["x", "args[0]", "t"]),
        (0, 0, "args", {}, ["", "", ""]),  # the function has deleted it
    ],
)
def test_the_variable_of_each_argument(
    count: int, keywords: int, names: str, values: dict[str, int], found: list[str]
) -> None:
    code: Any = SimpleNamespace(
        argument_count=count, keyword_count=keywords, takes_more="args" in names, local_names=names.split
    )
    known = PyVariables(python())
    known.update({name: PyRef(known.python, address) for name, address in values.items()})
    assert argument_variables(code, ("a", "n", "t"), known) == found
    assert ("args[1]" in known) == ("args" in values)


class Placed:
    """Counts how often the level of a frame is asked for."""

    asked = 0

    def __init__(self, level: int, arguments: Sequence[Argument] = ()) -> None:
        self._level = level
        self.arguments = arguments

    @property
    def level(self) -> int:
        Placed.asked += 1
        return self._level


def test_a_stack_is_walked_once_for_all_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Argument("n", "int", "", Certainty.UNKNOWN)
    known = Argument("n", "int", "7", Certainty.INFERRED)
    count = 1_000
    steps = [Placed(10 * at + 9, (known,) if at % 2 else (lacking,)) for at in range(count)]
    frames = [Placed(10 * at + inner) for at in range(count) for inner in (3, 3, 9)]
    thread: Any = SimpleNamespace(tid=1, dispatch=steps, python_frames=frames)
    thread._replace = lambda dispatch: dispatch
    monkeypatch.setattr(FrameLocals, "interpreter_frames", lambda _, __, shown: dict(enumerate(shown)))
    monkeypatch.setattr(FrameLocals, "_with_arguments", lambda _, step, kernel: (step, kernel))
    monkeypatch.setattr(frame_locals, "_with_kernel_values", lambda step, _: step)
    monkeypatch.setattr(Placed, "asked", 0)
    session: Any = SimpleNamespace(python=None)
    found: Any = FrameLocals(session).with_kernel_arguments(thread)
    assert list(found) == [step if at % 2 else (step, frames[3 * at + 1]) for at, step in enumerate(steps)]
    assert Placed.asked <= 2 * (len(steps) + len(frames))


def test_autograds_fallback_hands_its_stack_on() -> None:
    known = Argument("n", "int", "7", Certainty.INFERRED, (), "args[0]")
    lacking = Argument("n", "int", "", Certainty.UNKNOWN)
    fallback, boxed = "(anonymous namespace)::autograd_fallback", DispatchEvent.REDISPATCH_BOXED
    calls = ((fallback, boxed, "7"), (fallback, DispatchEvent.CALL_BOXED, ""), ("mine::kernel", boxed, ""))
    for function, event, text in calls:
        inside: Any = SimpleNamespace(qualified="my::op", event=event, arguments=(known,))
        step: Any = SimpleNamespace(qualified="my::op", kernel=SimpleNamespace(function=function), arguments=(lacking,))
        step._replace = lambda arguments: SimpleNamespace(arguments=arguments)
        assert _with_kernel_values(step, inside).arguments[0].text == text
