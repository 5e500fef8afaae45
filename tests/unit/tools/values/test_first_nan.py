"""Which launch made the first NaN, of launches made up here."""

from __future__ import annotations

from typing import Any

from gdbext.tools.values.first_nan import FirstBad, above, has_infinity, has_nan
from gdbext.tools.values.launch import AFTER, BEFORE, Find, KernelLaunch, LaunchTensor, LaunchValue
from gdbext.torch.values.value_text import Statistics

NO_REPORTER: Any = None


def tensor(nan: int = 0, inf: int = 0, high: float = 1.0) -> LaunchTensor:
    return LaunchTensor("x", 1, "f32[2]", "float32", (2,), Statistics(2, 0.0, high, 0.0, 0.0, nan, inf, 0))


def launch(when: str, op: str, call: int, *tensors: LaunchTensor, name: str = "self") -> KernelLaunch:
    values = tuple(LaunchValue(name, "f32[2]", (each,), "Tensor") for each in tensors)
    return KernelLaunch(when, op, "", call, "k", "CPU", 7, values, 1)


def finds(*launches: KernelLaunch, is_bad: Any = has_nan) -> list[Find]:
    found: list[Find] = []
    seeker = FirstBad(is_bad, found.append, False)
    for each in launches:
        assert not seeker.launch(each, NO_REPORTER)
    return found


def test_the_operator_between_clean_and_not() -> None:
    [found] = finds(
        launch(BEFORE, "aten::mm", 0, tensor()),
        launch(AFTER, "aten::mm", 0, tensor(), tensor()),
        launch(BEFORE, "aten::log", 0, tensor()),
        launch(AFTER, "aten::log", 0, tensor(), tensor(nan=1)),
        launch(BEFORE, "aten::add", 0, tensor(nan=1)),
        launch(AFTER, "aten::add", 0, tensor(nan=1), tensor(nan=1)),
    )
    assert (found.launch.op, [each.op for each in found.history], found.is_certain) == ("aten::log", ["aten::mm"], True)


def test_memory_that_was_never_written_and_what_is_in_an_out_argument_do_not_count() -> None:
    assert finds(launch(BEFORE, "aten::empty", 0), launch(AFTER, "aten::empty", 0, tensor(nan=1))) == []
    before = launch(BEFORE, "aten::log", 0, tensor(nan=1), name="out")
    assert len(finds(before, launch(AFTER, "aten::log", 0, tensor(nan=1)))) == 1


def test_an_argument_that_is_unknown_is_a_doubt() -> None:
    before = launch(BEFORE, "aten::log", 0)._replace(values=(LaunchValue("self", "", (), "Tensor"),))
    [found] = finds(before, launch(AFTER, "aten::log", 0, tensor(nan=1)))
    assert not found.is_certain


def test_infinities_and_large_numbers() -> None:
    assert has_infinity(tensor(inf=1))
    assert has_infinity(tensor(nan=1))
    assert above(5.0)(tensor(high=6.0))
    assert not above(5.0)(tensor(high=4.0))


def test_it_stays_where_it_is_told_to() -> None:
    seeker = FirstBad(has_nan, lambda _: None, True)
    seeker.launch(launch(BEFORE, "aten::log", 0, tensor()), NO_REPORTER)
    assert seeker.launch(launch(AFTER, "aten::log", 0, tensor(nan=1)), NO_REPORTER)
