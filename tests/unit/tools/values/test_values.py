"""dispatch-values: what it watches, what it prints, and which launch produced the first NaN."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch import Passing, architectures
from gdbext.engine.arch.argument_places import CFA, SavedArgument
from gdbext.tools.values import launch as launches
from gdbext.tools.values.first_nan import FirstBad, find_lines, sought_numbers
from gdbext.tools.values.launch import AFTER, BEFORE, KernelLaunch, LaunchTensor, LaunchValue
from gdbext.tools.values.value_watch import ValueSite, WatchedOperators, lost_registers, registers_at
from gdbext.torch.values.value_text import Statistics


class Watch:
    def __init__(self) -> None:
        self.hooks = 0
        self.seen: list[str] = []

    def watch_function(self, function: str, *_: Any) -> None:
        self.seen.append(function)

    def watch_boxed_entries(self, entries: list[str], *_: Any) -> None:
        self.seen += entries

    def watch_boxed_calls(self, places: list[int], _operators: Any) -> None:
        self.seen.append("boxed calls")
        self.hooks += len(places)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.seen.append(name)


SHARED = ["boxed calls", "watch_extensions", "Python kernels"]


@pytest.mark.parametrize(
    ("own", "places", "watched"),
    [(["call"], [1], ["call", "CPU entry"]), ([], [1], SHARED), ([], [], [*SHARED, "CPU entry"])],
)
def test_operators_with_and_without_functions_of_their_own(own: list[str], places: list[int], watched: Any) -> None:
    """Autograd's fallback comes first where it has a place."""
    made: Any = object.__new__(WatchedOperators)
    made._watched, made._boxed, made._sees_boxed_calls, made._redispatches = set(), {}, False, True
    made._watch = Watch()
    made._all_calls = SimpleNamespace(boxed_calls=lambda: places, not_seen=list)
    found = {
        "functions": lambda _: own,
        "boxed_entries": lambda _: ["CPU entry"],
        "python_entries": lambda: ["Python kernels"],
    }
    made._functions = SimpleNamespace(**found)
    for _ in range(2):
        made._add(SimpleNamespace(address=0x5000))
    assert made._watch.seen == watched
    assert list(made._boxed) == ([] if own else [0x5000])


X86_64 = architectures.by_machine(62)
KINDS = ("at::Tensor const&", "long", "bool", "double", "long")
SLOTS = tuple(X86_64.place_arguments([Passing.WORD] * 3 + [Passing.FLOAT] + [Passing.WORD]))
PLACES = {
    "rdi": SavedArgument("rbx"),
    "rsi": SavedArgument(CFA, -0x20, 4),  # mov %esi, -0x20(cfa)
    "rdx": SavedArgument(CFA, -0x24, 4),
    "xmm0": SavedArgument(CFA, -0x30),
}


def test_a_number_of_which_four_bytes_are_kept_is_not_known() -> None:
    lost = frozenset(lost_registers(X86_64, KINDS, SLOTS, PLACES, uses_sret=False))
    assert lost == {"rsi", "rcx"}
    assert set(lost_registers(X86_64, KINDS, SLOTS, {"rsi": SavedArgument("r12")}, uses_sret=True)) >= {"rdi", "rdx"}
    site = ValueSite(("self", "dim", "keepdim", "p", "n"), KINDS, SLOTS, PLACES, False, 0x1000, lost)
    memory = {0x7000 - 0x20: 0xAAAA_0000_0007, 0x7000 - 0x24: 1, 0x7000 - 0x30: 0x3FF0_0000_0000_0000}
    control: Any = SimpleNamespace(register={"rbx": 0x5000, "rcx": 3}.__getitem__, float_register={}.__getitem__)
    passed = registers_at(X86_64, site, control, 0x7000, memory.get)
    assert passed.words == (0x5000, None, 1, None, None, None)
    assert passed.floats == (0x3FF0_0000_0000_0000,)


FINE = LaunchTensor("self", 0x1000, "f32[2] cpu", "float32", (2,), Statistics(2, -1.0, 3.0, 1.0, 2.5, 0, 0, 0))
BAD = LaunchTensor("result0", 0x2000, "f32[2] cpu", "float32", (2,), Statistics(2, None, None, None, None, 2, 0, 0))
META = LaunchTensor("out", 0x3000, "f32[2] meta", "float32", (2,), None)
VALUES = (
    LaunchValue("self", "f32[2] cpu", (FINE,), "Tensor"),
    LaunchValue("alpha", "2", (), "Scalar"),
    LaunchValue("result0", "f32[2] cpu", (BAD,)),
)
LAUNCH = KernelLaunch(AFTER, "aten::add", "Tensor", 4, "wrapper_CPU_add", "CPU", 7, VALUES, 1)


def test_what_is_printed_of_a_launch() -> None:
    lines = list(launches.launch_lines(LAUNCH))
    head = "[ after_launch - aten::add.Tensor - self ]\nNumber of elements: 2\nSize: [2]\nDtype: torch.float32"
    assert "\n".join(lines[:7]) == f"{head}\nMean: 1\nMin: -1\nMax: 3"
    assert "[ after_launch - aten::add.Tensor - alpha ] 2" in lines
    assert lines[-1] == "NaN: 2, Inf: 0"
    before = LAUNCH._replace(moment=BEFORE, values=())
    assert [*launches.launch_lines(before)] == [launches.kernel_line(before)] == ["[ before_launch: wrapper_CPU_add ]"]
    values = (LaunchValue("out", "", (META,)), LaunchValue("dim", ""))
    unread = list(launches.launch_lines(LAUNCH._replace(values=values)))
    assert "no elements to read" in unread
    assert unread[-1].endswith("- dim ] ?")


def test_a_launch_as_json_and_a_find() -> None:
    [line] = launches.json_lines(LAUNCH)
    document = json.loads(line)
    assert [document[name] for name in ("op", "overload", "when", "call")] == ["aten::add", "Tensor", "after", 4]
    first, alpha, result = document["arguments"]
    assert [each["name"] for each in (first, alpha, result)] == ["self", "alpha", "result0"]
    assert (first["tensor"]["max"], alpha["value"]) == (3.0, "2")
    find = launches.Find(LAUNCH, (LAUNCH._replace(op="aten::mm", overload=""),), False, "model.py", 8)
    lines = list(find_lines(find, "NaN"))
    assert lines[0] == "aten::add.Tensor produced the first NaN: call 4, key CPU"
    assert "  called at model.py:8" in lines
    assert any("not certain" in line for line in lines)
    assert lines[-1].split() == ["aten::mm", "-", "-", "2"]
    document = launches.find_document(find)
    assert (document["file"], document["line"], document["certain"]) == ("model.py", 8, False)
    assert document["result"]["tensor"]["nan"] == 2


def tensor(nan: int = 0, inf: int = 0, high: float = 1.0) -> LaunchTensor:
    return LaunchTensor("x", 1, "f32[2]", "float32", (2,), Statistics(2, 0.0, high, 0.0, 0.0, nan, inf, 0))


_, HAS_NAN = sought_numbers("nan", None)


def launch(when: str, op: str, call: int, *tensors: LaunchTensor, name: str = "self") -> KernelLaunch:
    values = tuple(LaunchValue(name, "f32[2]", (each,), "Tensor") for each in tensors)
    return KernelLaunch(when, op, "", call, "k", "CPU", 7, values, 1)


def finds(*seen: KernelLaunch) -> list[launches.Find]:
    found: list[launches.Find] = []
    seeker = FirstBad(HAS_NAN, found.append, False)
    for each in seen:
        assert not seeker.launch(each, None)  # type: ignore[arg-type]
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
    before = before._replace(values=(LaunchValue("self", "", (), "Tensor"),))
    [found] = finds(before, launch(AFTER, "aten::log", 0, tensor(nan=1)))
    assert not found.is_certain, "an argument is unknown"


def test_infinities_and_large_numbers_and_staying_there() -> None:
    assert [sought_numbers("inf", None)[1](each) for each in (tensor(inf=1), tensor(nan=1), tensor())] == [
        True,
        True,
        False,
    ]
    assert [sought_numbers("nan", 5.0)[1](tensor(high=high)) for high in (6.0, 4.0)] == [True, False]
    seeker: Any = FirstBad(HAS_NAN, lambda _: None, True)
    seeker.launch(launch(BEFORE, "aten::log", 0, tensor()), None)
    assert seeker.launch(launch(AFTER, "aten::log", 0, tensor(nan=1)), None)
