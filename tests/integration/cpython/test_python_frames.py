"""Python frames of every supported version against what the programs say of themselves, live and from cores."""

from __future__ import annotations

import pytest

from gdbext.cpython.threads.frame_variables import locals_of
from gdbext.cpython.threads.runtime import read_thread_names
from support.programs.harness import some
from support.programs.python_targets import View, look, running

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]
PROGRAM = "python_stacks"
"""Of tests/inferiors, for the fixtures of conftest.py."""


def throws(thread: dict[str, object]) -> bool:
    return str(thread["name"]).startswith("through_throw")


def test_version_threads_and_names(view: View) -> None:
    assert view.runtime.version == view.truth["python"] + ("" if view.has_gil else "t")
    for thread in view.truth["stacks"]:
        assert [state.ident for state in view.states[thread["tid"]]] == [thread["ident"]]
    assert len(view.states) == len(view.truth["stacks"])
    assert read_thread_names(view.runtime) == {each["ident"]: each["name"] for each in view.truth["stacks"]}


def assert_stacks(view: View) -> None:
    for thread in view.truth["stacks"]:
        stack = view.runtime.frames.stack(view.state(thread["tid"]))
        found = [[frame.function, frame.file, frame.line] for frame in stack.frames]
        assert found == thread["stack"], thread["name"]
        assert (stack.problem is None) == (view.minor != (3, 9) or not throws(thread)), thread["name"]


def test_stacks_are_those_of_the_interpreter(view: View) -> None:
    assert_stacks(view)


@pytest.mark.parametrize("python", ["3.8", "3.13"])
def test_stacks_from_a_core(python: str) -> None:
    with running(python, PROGRAM) as process, look(process, core=True) as view:
        assert_stacks(view)


def test_each_evaluation_loop_has_its_frames(view: View) -> None:
    for thread in view.truth["stacks"]:
        if view.minor == (3, 9) and throws(thread):
            continue  # test_generator_that_passes_throw_on
        groups = view.groups(thread["tid"])
        placed = view.placed(thread["tid"])
        assert all(groups), thread["name"]
        assert [group for _, group in placed] == groups, thread["name"]
        if view.has_loop_names:
            assert [level for level, _ in placed] == view.loops(thread["tid"]), thread["name"]
        assert all(group.anchor is not None for group in groups) == (view.minor >= (3, 10))


def test_generator_that_passes_throw_on(view: View) -> None:
    """The frame that throw() goes through has no loop of its own: it stands next to the one that it calls."""
    thread = next(filter(throws, view.truth["stacks"]))
    names = [[frame.function for frame in group] for _, group in view.placed(thread["tid"])]
    assert names[0][0] == "block"
    inner = next(index for index, group in enumerate(names) if "cancelled_inner" in group)
    if view.minor == (3, 9):
        assert names[inner:] == [["cancelled_inner", "cancelled_middle"]]
    elif view.minor >= (3, 10):
        assert names[inner][-1] == "cancelled_inner"
        assert names[inner + 1][0] == "cancelled_middle"
    else:  # 3.8 leaves cancelled_middle out of its own stack, too
        assert names[inner : inner + 2] == [["cancelled_inner"], ["_run"]]


def test_locals(view: View) -> None:
    thread = next(each for each in view.truth["stacks"] if each["name"].startswith("deep"))
    frames = view.runtime.frames.stack(view.state(thread["tid"])).frames
    depths = [locals_of(view.runtime, frame)["depth"] for frame in frames if frame.function == "recurse"]
    assert [view.runtime.objects.integer(depth) for depth in depths] == list(range(301))
    run = next(frame for frame in frames if frame.function.endswith("run"))
    name = some(view.runtime.dicts.attribute(locals_of(view.runtime, run)["self"], "_name"))
    assert view.runtime.objects.text(name) == thread["name"]
