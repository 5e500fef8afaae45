"""Paths of Python variables."""

from __future__ import annotations

import pytest

from gdbext.errors import UsageError
from gdbext.inspection.tensors.python_variable import Step, parse


@pytest.mark.parametrize(
    ("path", "name", "steps"),
    [
        ("x", "x", ()),
        ("self.weight", "self", (Step("attribute", "weight"),)),
        ("batch[0]", "batch", (Step("index", "0"),)),
        ("größe[-1].T", "größe", (Step("index", "-1"), Step("attribute", "T"))),
        ("""state["a b"]['c'].d""", "state", (Step("key", "a b"), Step("key", "c"), Step("attribute", "d"))),
        ("layers.0.weight", "layers", (Step("attribute", "0"), Step("attribute", "weight"))),
        ("state[exp avg].d", "state", (Step("key", "exp avg"), Step("attribute", "d"))),
    ],
)
def test_paths(path: str, name: str, steps: tuple[Step, ...]) -> None:
    assert parse(path) == (name, steps)


@pytest.mark.parametrize("path", ["", "1x", "x.", "x[", "x[a + 1]", "x()", "x + y", ".x", "x[1:2]"])
def test_what_would_need_the_program_to_run(path: str) -> None:
    with pytest.raises(UsageError, match="not the name of a variable") as caught:
        parse(path)
    assert "--py self.weight" in caught.value.help


def test_steps_are_shown_as_they_are_written() -> None:
    assert "".join(map(str, parse("""a.b[0]["c"]""")[1])) == ".b[0]['c']"
