"""Values of operators as text and as JSON lines."""

from __future__ import annotations

import json

from gdbext.tools.values.first_nan import find_lines
from gdbext.tools.values.launch import (
    AFTER,
    BEFORE,
    Find,
    KernelLaunch,
    LaunchTensor,
    LaunchValue,
    find_document,
    json_lines,
    kernel_line,
    launch_lines,
)
from gdbext.torch.values.value_text import Statistics

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
    lines = list(launch_lines(LAUNCH))
    assert lines[:7] == [
        "[ after_launch - aten::add.Tensor - self ]",
        "Number of elements: 2",
        "Size: [2]",
        "Dtype: torch.float32",
        "Mean: 1",
        "Min: -1",
        "Max: 3",
    ]
    assert "[ after_launch - aten::add.Tensor - alpha ] 2" in lines
    assert lines[-1] == "NaN: 2, Inf: 0"
    before = LAUNCH._replace(when=BEFORE, values=())
    assert [*launch_lines(before)] == [kernel_line(before)] == ["[ before_launch: wrapper_CPU_add ]"]
    unread = list(launch_lines(LAUNCH._replace(values=(LaunchValue("out", "", (META,)), LaunchValue("dim", "")))))
    assert "no elements to read" in unread
    assert unread[-1].endswith("- dim ] ?")


def test_a_launch_as_json() -> None:
    [line] = json_lines(LAUNCH)
    document = json.loads(line)
    assert (document["op"], document["overload"], document["when"]) == ("aten::add", "Tensor", "after")
    assert document["call"] == 4
    assert [each["name"] for each in document["arguments"]] == ["self", "alpha", "result0"]
    assert document["arguments"][0]["tensor"]["max"] == 3.0
    assert document["arguments"][1]["value"] == "2"


def test_a_find() -> None:
    find = Find(LAUNCH, (LAUNCH._replace(op="aten::mm", overload=""),), False, "model.py", 8)
    lines = list(find_lines(find, "NaN"))
    assert lines[0] == "aten::add.Tensor made the first NaN: call 4, key CPU"
    assert "  called at model.py:8" in lines
    assert any("not certain" in line for line in lines)
    assert lines[-1].split() == ["aten::mm", "-", "-", "2"]
    document = find_document(find)
    assert (document["file"], document["line"], document["certain"]) == ("model.py", 8, False)
    assert document["result"]["tensor"]["nan"] == 2
