"""dispatch-values: what operators were given and returned against what the program wrote down, and the first NaN."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import native_build
from support.programs.harness import DISPATCH, INFERIORS, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


def watched(*arguments: str | Path, program: str, words: tuple[str | Path, ...] = ()) -> str:
    outcome = run([DISPATCH, "dispatch-values", *arguments, "--", sys.executable, INFERIORS / program, *words])
    assert outcome.status == 0, outcome
    return outcome.stdout


def launches(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"op"')]


def read_file(path: Path) -> dict[str, Any]:
    """Tensors of a safetensors file as nested lists, float32 and int64 only."""
    import torch

    data, found = path.read_bytes(), {}
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = {"F32": torch.float32, "I64": torch.int64}[entry["dtype"]]
            raw = bytearray(data[begin + start : begin + end])
            found[name] = torch.frombuffer(raw, dtype=dtype).reshape(entry["shape"]).tolist()
    return found


def test_operators_that_are_registered_later() -> None:
    text = watched("print", "late::twice", "--when", "after", program="late_operators.py")
    assert "no operator 'late::twice' is registered in the target" in text
    results = text.split("[ after_launch - late::twice - result0 ]")[1:]
    found = [re.findall(r"Size: .*|Mean: .*", each)[:2] for each in results]
    assert found == [["Size: [2, 2]", "Mean: 2"], ["Size: [2, 2]"]]
    names = watched("names", "late::twice", program="late_operators.py")
    kernels = [re.sub(r" at .*|.*::", "", each) for each in re.findall(r"\[ before_launch: (.*) \]", names)]
    assert kernels == ["autograd_fallback", "<lambda>", "autograd_fallback", "empty_like"]


OPERATORS = ("aten::mm", "aten::add_.Tensor", "aten::max.dim", "aten::cat", "aten::split.Tensor", "aten::layer_norm")


def test_saved_values_are_the_program_s_own(tmp_path: Path) -> None:
    truth, folder = tmp_path / "truth.json", tmp_path / "values"
    words = ("operators", truth, "ordinarily")
    watched("save", *OPERATORS, "--dir", folder, program="value_calls.py", words=words)
    counts: dict[str, int] = {}
    for call in json.loads(truth.read_text()):
        number = counts[call["op"]] = counts.get(call["op"], -1) + 1
        overload = next(each for each in OPERATORS if each.partition(".")[0] == call["op"])
        name = overload.replace(":", "_").replace(".", "_")
        files = (folder / f"{when}_launch_{name}_{number}.safetensors" for when in ("before", "after"))
        before, after = map(read_file, files)
        assert before == call["before"], call["op"]
        assert {each: after[each] for each in call["after"]} == call["after"], call["op"]
    assert not list(folder.glob("*.partial"))


def test_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a line of Python and a function of C++ call as Inductor's do, and functions of AOTInductor."""
    model = shutil.copy(native_build.build("inductor_model"), tmp_path)
    shutil.copy(native_build.SOURCES / "inductor_model.cpp", Path(model).with_suffix(".cpp"))
    monkeypatch.setenv("GDBEXT_NATIVE", f"{tmp_path}:{native_build.build_for(INFERIORS / 'value_calls.py')}")
    truth, folder = tmp_path / "truth.json", tmp_path / "values"
    patterns = ("cpp_fused*", "aoti_torch_cpu_*")
    watched("save", *patterns, "--dir", folder, program="value_calls.py", words=("compiled", truth))
    calls = json.loads(truth.read_text())
    assert len(calls) == 4
    for call in calls:
        for when in ("before", "after"):
            found = read_file(folder / f"{when}_launch_{call['op']}_0.safetensors")
            assert found == call[when], (call["op"], when)
    for name, values in (("mul_add_0", [b'"s77":"6"']), ("scale_1", [b'"s77":"6"', b'"scale":"0.5"'])):
        header = (folder / f"before_launch_cpp_fused_{name}_0.safetensors").read_bytes().replace(b" ", b"")
        assert all(value in header for value in values), name


def test_numbers_in_vector_registers_and_beside_them(tmp_path: Path) -> None:
    operators = ("aten::nan_to_num", "aten::native_batch_norm")
    words = ("operators", tmp_path / "truth.json")
    said = watched("print", "--json", *operators, "--when", "before", program="value_calls.py", words=words)
    numbers, norm = ({each["name"]: each.get("value") for each in call["arguments"]} for call in launches(said))
    assert [numbers[name] for name in ("nan", "posinf", "neginf")] == ["0.5", "None", "-2.5"]
    values = [norm[name] for name in ("weight", "training", "momentum", "eps")]
    assert values == ["undefined", "True", "0.125", "0.0001"]


@pytest.mark.parametrize(
    ("place", "operator", "line"),
    [("forward", "log", "torch.log"), ("backward", "div", "loss.backward()"), ("update", "addcdiv_", ".addcdiv_")],
)
def test_the_first_nan_of_a_training_step(place: str, operator: str, line: str) -> None:
    find = launches(watched("nan", "--json", program="first_nan.py", words=(place,)))[0]
    assert (find["op"], find["certain"]) == (f"aten::{operator}", True)
    assert find["result"]["tensor"]["nan"] > 0
    assert find["file"].endswith("first_nan.py")
    assert len(find["history"]) == 20
    assert line in (INFERIORS / "first_nan.py").read_text().splitlines()[find["line"] - 1]
