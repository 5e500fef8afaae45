"""dispatch-values: what operators were given and returned against what the program wrote down, and the first NaN."""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import native_build
from support.programs.harness import DISPATCH, INFERIORS, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


def watched(*arguments: str, program: str, words: tuple[str, ...] = ()) -> str:
    """What dispatch-values says of a program that it starts."""
    outcome = run([DISPATCH, "dispatch-values", *arguments, "--", sys.executable, str(INFERIORS / program), *words])
    assert outcome.status == 0, str(outcome)
    return outcome.stdout


def read_file(path: Path) -> dict[str, Any]:
    """Tensors of a safetensors file as nested lists, float32 and int64 only."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            raw = data[8 + length + start : 8 + length + end]
            code = {"F32": "f", "I64": "q"}[entry["dtype"]]
            numbers = list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
            found[name] = nested(numbers, entry["shape"])
    return found


def nested(numbers: list[Any], shape: list[int]) -> Any:
    if not shape:
        return numbers[0]
    size = len(numbers) // shape[0]
    return [nested(numbers[at * size : (at + 1) * size], shape[1:]) for at in range(shape[0])]


def test_operators_that_are_registered_later() -> None:
    text = watched("names", "late::twice", program="late_operators.py")
    assert "no operator 'late::twice' is registered in the target" in text
    kernels = re.findall(r"\[ before_launch: (.*) \]", text)
    assert [re.sub(r" at .*|.*::", "", each) for each in kernels] == [
        "autograd_fallback",
        "<lambda>",
        "autograd_fallback",
        "empty_like",
    ]


def test_operators_with_python_kernels_only() -> None:
    text = watched("print", "late::twice", "--when", "after", program="late_operators.py")
    results = text.split("[ after_launch - late::twice - result0 ]")[1:]
    assert [re.findall(r"Size: .*|Mean: .*", each)[:2] for each in results] == [
        ["Size: [2, 2]", "Mean: 2"],
        ["Size: [2, 2]"],
    ]


OPERATORS = ("aten::mm", "aten::add_.Tensor", "aten::max.dim", "aten::cat", "aten::split.Tensor", "aten::layer_norm")


def test_saved_values_are_the_program_s_own(tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    folder = tmp_path / "values"
    watched("save", *OPERATORS, "--dir", str(folder), program="value_calls.py", words=(str(truth), "ordinarily"))
    counts: dict[str, int] = {}
    for call in json.loads(truth.read_text()):
        number = counts[call["op"]] = counts.get(call["op"], -1) + 1
        overload = next(each for each in OPERATORS if each.partition(".")[0] == call["op"])
        name = overload.replace(":", "_").replace(".", "_")
        before = read_file(folder / f"before_launch_{name}_{number}.safetensors")
        after = read_file(folder / f"after_launch_{name}_{number}.safetensors")
        assert before == call["before"], call["op"]
        assert {each: after[each] for each in call["after"]} == call["after"], call["op"]
    assert not list(folder.glob("*.partial"))


def test_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a line of Python and a function of C++ call as Inductor's do, and functions of AOTInductor."""
    model = shutil.copy(native_build.build("inductor_model"), tmp_path)
    shutil.copy(native_build.SOURCES / "inductor_model.cpp", Path(model).with_suffix(".cpp"))
    folders = f"{tmp_path}:{native_build.build_for(INFERIORS / 'compiled_calls.py')}"
    monkeypatch.setenv("GDBEXT_NATIVE", folders)
    truth, folder = tmp_path / "truth.json", tmp_path / "values"
    patterns = ("cpp_fused*", "aoti_torch_cpu_*")
    watched("save", *patterns, "--dir", str(folder), program="compiled_calls.py", words=(str(truth),))
    calls = json.loads(truth.read_text())
    assert len(calls) == 4
    for call in calls:
        for when in ("before", "after"):
            found = read_file(folder / f"{when}_launch_{call['op']}_0.safetensors")
            assert found == call[when], (call["op"], when)
    header = (folder / "before_launch_cpp_fused_mul_add_0_0.safetensors").read_bytes()
    assert b'"s77":"6"' in header.replace(b" ", b"")
    header = (folder / "before_launch_cpp_fused_scale_1_0.safetensors").read_bytes().replace(b" ", b"")
    assert b'"s77":"6"' in header
    assert b'"scale":"0.5"' in header


def test_names_and_numbers_are_printed_as_they_happen(tmp_path: Path) -> None:
    words = (str(tmp_path / "truth.json"),)
    names = watched("names", "aten::mm", "--limit", "1", program="value_calls.py", words=words)
    assert names.splitlines()[0].startswith("[ before_launch: ")
    said = watched("print", "--json", "aten::add_.Tensor", program="value_calls.py", words=words)
    before, after = (json.loads(line) for line in said.splitlines() if line.startswith('{"op"'))
    assert (before["when"], after["when"], before["call"]) == ("before", "after", 0)
    arguments = {each["name"]: each for each in before["arguments"]}
    assert arguments["alpha"]["value"] == "2"
    assert arguments["self"]["tensor"]["sizes"] == [3, 4]


def test_numbers_in_vector_registers_and_beside_them(tmp_path: Path) -> None:
    operators = ("aten::nan_to_num", "aten::native_batch_norm")
    words = (str(tmp_path / "truth.json"),)
    said = watched("print", "--json", *operators, "--when", "before", program="value_calls.py", words=words)
    calls = [json.loads(line) for line in said.splitlines() if line.startswith('{"op"')]
    assert [call["op"] for call in calls] == list(operators)
    numbers, norm = ({each["name"]: each.get("value") for each in call["arguments"]} for call in calls)
    assert {name: numbers[name] for name in ("nan", "posinf", "neginf")} == {
        "nan": "0.5",
        "posinf": "None",
        "neginf": "-2.5",
    }
    assert {name: norm[name] for name in ("weight", "training", "momentum", "eps")} == {
        "weight": "undefined",
        "training": "True",
        "momentum": "0.125",
        "eps": "0.0001",
    }


@pytest.mark.parametrize(("place", "operator"), [("forward", "log"), ("backward", "div"), ("optimiser", "addcdiv_")])
def test_the_first_nan_of_a_training_step(place: str, operator: str) -> None:
    said = watched("nan", "--json", program="first_nan.py", words=(place,))
    find = json.loads(next(line for line in said.splitlines() if line.startswith('{"op"')))
    assert (find["op"], find["certain"]) == (f"aten::{operator}", True)
    assert find["result"]["tensor"]["nan"] > 0
    assert find["file"].endswith("first_nan.py")
    assert len(find["history"]) == 20
    source = (INFERIORS / "first_nan.py").read_text().splitlines()[find["line"] - 1]
    assert {"forward": "torch.log", "backward": "loss.backward()", "optimiser": "optimiser.step()"}[place] in source
