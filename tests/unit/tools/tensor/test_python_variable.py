"""Paths of Python variables."""

from __future__ import annotations

from typing import Any

import pytest

from gdbext.errors import UsageError
from gdbext.tools.tensor.python_variable import Step, VariableFinder, chosen_frames, parse
from support.recorded.recordings import Replay


@pytest.mark.parametrize(
    ("path", "name", "steps"),
    [
        ("x", "x", ()),
        ("größe[-1].T", "größe", (Step("index", "-1"), Step("attribute", "T"))),
        ("""state["a b"]['c'].d""", "state", (Step("key", "a b"), Step("key", "c"), Step("attribute", "d"))),
        ("layers.0.weight", "layers", (Step("attribute", "0"), Step("attribute", "weight"))),
        ("state[exp avg].d", "state", (Step("key", "exp avg"), Step("attribute", "d"))),
    ],
)
def test_paths(path: str, name: str, steps: tuple[Step, ...]) -> None:
    assert parse(path) == (name, steps)
    assert "".join(map(str, parse("""a.b[0]["c"]""")[1])) == ".b[0]['c']"


@pytest.mark.parametrize("path", ["", "1x", "x.", "x[", "x[a + 1]", "x()", "x + y", ".x", "x[1:2]"])
def test_what_would_need_the_program_to_run(path: str) -> None:
    with pytest.raises(UsageError, match="not the name of a variable") as caught:
        parse(path)
    assert "--py self.weight" in caught.value.help


class Frames(VariableFinder):
    """Of frames that are dicts of their variables; an object is its attributes' dict, by address."""

    def __init__(self, frames: list[dict[str, int]], objects: dict[int, dict[str, int]]) -> None:
        self._frames: list[Any] = list(frames)
        self._objects = objects

    def _locals(self, frame: Any) -> dict[str, int]:
        return dict(frame)

    def _globals(self, frame: Any) -> dict[str, int]:
        return {"torch": 9} if frame else {}

    def _follow(self, address: int, step: Step) -> int | None:
        return self._objects[address].get(step.text)

    def _no_step(self, address: int, done: str, step: Step) -> UsageError:
        return UsageError(f"{done} at {address} has no {step.text}")


def test_the_innermost_frame_that_has_the_whole_path() -> None:
    objects = {1: {"op": 4}, 2: {"w": 6}, 3: {"w": 7}}
    frames = Frames([{"self": 1}, {"self": 1, "x": 5}, {"self": 2}, {"self": 3}], objects)
    assert [frames.find(path).address for path in ("self", "self.op", "self.w", "x", "torch")] == [1, 4, 6, 5, 9]
    with pytest.raises(UsageError, match=r"^self at 1 has no b$"):
        frames.find("self.b")


def test_the_frame_that_is_selected_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` in a debugger selects a native frame; the Python code that it runs, and its callers, are looked in first.
    A frame by its number or function is the only one."""
    session = Replay("meta-mm").session
    main = next(each for each in session.target.threads() if each.tid == session.target.pid)
    snapshot = session.threads.of(main)
    assert [frame.function for frame in snapshot.python][-1] == "<module>"

    def functions(wanted: str | None = None) -> list[str] | None:
        frames = chosen_frames(session, main, wanted)
        return None if frames is None else [frame.function for frame in frames]

    assert functions() is None
    outer = snapshot.stack.frames[snapshot.python[-1].level].sp
    monkeypatch.setattr(session.target, "selected_stack_pointer", lambda: outer)
    assert functions() == ["<module>", *(frame.function for frame in snapshot.python[:-1])]
    assert (functions("0"), functions("wait")) == (["Condition.wait"], ["Condition.wait", "Event.wait"])
    with pytest.raises(UsageError, match="no Python frame 99"):
        functions("99")
