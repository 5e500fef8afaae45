"""Python frames of every supported version against what the programs say of themselves, live and from cores."""

from __future__ import annotations

import pytest

from gdbext.cpython.abi.python_structures import PyFrameObject, PyInterpreterFrame
from gdbext.cpython.objects.code import CodeCache
from gdbext.cpython.threads.frame_reader import FrameReader
from gdbext.cpython.threads.frame_variables import locals_of
from gdbext.cpython.threads.runtime import read_thread_names
from support.programs.python_targets import View
from support.programs.work import lines_run

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]


PROGRAM = "python_stacks"
"""Of tests/inferiors, for the fixtures of conftest.py."""


def throws(thread: dict[str, object]) -> bool:
    return str(thread["name"]).startswith("through_throw")


def test_version_is_exact(view: View) -> None:
    assert view.runtime.version == view.truth["version"] + ("" if view.has_gil else "t")


def test_every_thread_has_its_state(view: View) -> None:
    for thread in view.truth["threads"]:
        assert [state.ident for state in view.states[thread["tid"]]] == [thread["ident"]]
    assert len(view.states) == len(view.truth["threads"])


def test_thread_names(view: View) -> None:
    expected = {thread["ident"]: thread["name"] for thread in view.truth["threads"]}
    assert read_thread_names(view.runtime) == expected


def test_stacks_are_those_of_the_interpreter(view: View) -> None:
    for thread in view.truth["threads"]:
        stack = view.runtime.frames.stack(view.state(thread["tid"]))
        found = [[frame.function, frame.file, frame.line] for frame in stack.frames]
        assert found == thread["stack"], thread["name"]
        if not (view.minor == (3, 9) and throws(thread)):
            assert stack.problem is None, thread["name"]


def test_each_evaluation_loop_has_its_frames(view: View) -> None:
    for thread in view.truth["threads"]:
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
    thread = next(filter(throws, view.truth["threads"]))
    names = [[frame.function for frame in group] for _, group in view.placed(thread["tid"])]
    assert names[0][0] == "block"
    inner = next(index for index, group in enumerate(names) if "cancelled_inner" in group)
    if view.minor == (3, 9):
        assert names[inner:] == [["cancelled_inner", "cancelled_middle"]]
        assert view.runtime.frames.stack(view.state(thread["tid"])).problem is not None
    elif view.minor >= (3, 10):
        assert names[inner][-1] == "cancelled_inner"
        assert names[inner + 1][0] == "cancelled_middle"
    else:
        assert names[inner] == ["cancelled_inner"]
        assert names[inner + 1] == ["_run"]  # 3.8 leaves cancelled_middle out of its own stack, too


def test_native_stack_between_the_frames(view: View) -> None:
    """What is called through C is between the right loops: the callback that ctypes calls."""
    thread = next(each for each in view.truth["threads"] if each["name"].startswith("through_ctypes"))
    placed = dict(view.placed(thread["tid"]))
    merged: list[str] = []
    for level, frame in enumerate(view.native(thread["tid"])):
        if level in placed:
            merged += [each.function.rpartition(".")[2] for each in placed[level]]
        elif frame.module is not None and "_ctypes" in frame.module.name:
            merged.append("ctypes")
    unique = [name for index, name in enumerate(merged) if not index or name != merged[index - 1]]
    assert unique[:7] == ["block", "recurse", "callback", "ctypes", "through_ctypes", "run", "_bootstrap_inner"]


def test_locals(view: View) -> None:
    thread = next(each for each in view.truth["threads"] if each["name"].startswith("deep"))
    stack = view.runtime.frames.stack(view.state(thread["tid"])).frames
    depths = [
        view.runtime.objects.integer(locals_of(view.runtime, frame)["depth"])
        for frame in stack
        if frame.function == "recurse"
    ]
    assert depths == list(range(301))
    run = next(frame for frame in stack if frame.function.endswith("run"))
    name = view.runtime.dicts.attribute(locals_of(view.runtime, run)["self"], "_name")
    assert name is not None
    assert view.runtime.objects.text(name) == thread["name"]


def test_damaged_frames_end_the_walk(view: View) -> None:
    """A chain of frames that leads nowhere, or in a circle, costs the rest of that stack only."""
    state = view.state(view.truth["threads"][1]["tid"])
    whole = view.runtime.frames.stack(state)
    minor = view.minor
    link = PyFrameObject.f_back if minor < (3, 11) else PyInterpreterFrame.previous
    at = whole.frames[2].address + link.offset(view.runtime.space)
    read_u64, read = view.memory.u64, view.memory.read
    try:
        for value in (0xDEAD0000, 8, whole.frames[0].address):
            patched = value.to_bytes(8, "little")
            Patched.apply(view, at, patched)
            broken = fresh_frames(view).stack(state)
            assert broken.problem
            assert broken.frames[:2] == whole.frames[:2]
            assert len(broken.frames) <= len(whole.frames)
    finally:
        Patched.undo(view)
    assert (view.memory.u64, view.memory.read) == (read_u64, read)
    assert fresh_frames(view).stack(state) == whole


def fresh_frames(view: View) -> FrameReader:
    """A reader that has read nothing yet."""
    return FrameReader(view.memory, view.runtime.layout, CodeCache(view.runtime.objects))


class Patched:
    """Overwrites our copy of one page, never the process."""

    saved: dict[int, bytes] = {}  # noqa: RUF012

    @classmethod
    def apply(cls, view: View, address: int, data: bytes) -> None:
        number, offset = address >> 12, address & 4095
        view.memory.u8(address)
        page = cls.saved.setdefault(number, view.memory._pages[number])
        view.memory._pages[number] = page[:offset] + data + page[offset + len(data) :]

    @classmethod
    def undo(cls, view: View) -> None:
        view.memory._pages.update(cls.saved)
        cls.saved.clear()


def test_cheap_enough(view: View) -> None:
    """A 300-frame stack and all others of this program, from scratch: some hundred lines a frame."""
    frames, read = fresh_frames(view), []
    lines = lines_run(lambda: read.extend(frames.stack(states[0]) for states in view.states.values()))
    assert lines < 500 * sum(len(stack.frames) for stack in read)
