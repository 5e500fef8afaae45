"""dispatch-tensor against PyTorch: 500 tensors live and in a core, odd ones, variables by name, files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import GdbextError, UsageError
from gdbext.tools.tensor import tensor_section
from gdbext.tools.tensor.tensor_description import describe
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_tool import tensor_named
from support.programs.harness import Inferior

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]
_ROUNDED = ("mean", "std")
_UNCOMPARED = ("label", "address", "contiguous", *_ROUNDED)


@pytest.fixture(params=["live", "core"])
def target(inferior: GetInferior, request: pytest.FixtureRequest) -> Iterator[tuple[Inferior, Target]]:
    """The process with its tensors, and its core."""
    process = inferior("many-tensors")
    found: Target = ProcTarget(process.pid) if request.param == "live" else CoreTarget(str(process.core()))
    yield process, found
    found.close()


def close(read: Any, true: Any) -> bool:
    """Equal, up to the last bits of a double."""
    if isinstance(read, list) and isinstance(true, list):
        return len(read) == len(true) and all(map(close, read, true))
    if isinstance(read, (int, float)) and isinstance(true, (int, float)):
        return math.isclose(read, true, rel_tol=1e-12, abs_tol=1e-12)
    return bool(read == true)


def differences(document: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    found = {name: document[name] for name in truth if name not in _UNCOMPARED and document[name] != truth[name]}
    found.update({name: document[name] for name in _ROUNDED if not close(document[name], truth[name])})
    if ("contiguous" in document["contiguity"]) != truth["contiguous"]:
        found["contiguity"] = document["contiguity"]
    if document["problems"]:
        found["problems"] = document["problems"]
    return found


def test_500_tensors_and_the_odd_ones(target: tuple[Inferior, Target]) -> None:
    process, target_ = target
    session = Session(target_)
    reporter = TensorReporter(session)

    def document(address: int) -> dict[str, Any]:
        return tensor_section.document(describe(session, reporter, address, "x"), False)

    facts = process.truth["tensors"]
    assert len(facts) == 500
    wrong = {truth["label"]: differences(document(truth["address"]), truth) for truth in facts}
    assert {label: found for label, found in wrong.items() if found} == {}
    check_odd_ones({name: document(address) for name, address in process.truth["odd"].items()})
    with pytest.raises(GdbextError):
        describe(session, reporter, process.truth["freed"], "x")


def check_odd_ones(odd: dict[str, dict[str, Any]]) -> None:
    """Layouts, parts, wrapped tensors, and why there is nothing to read."""
    problems = {name: " ".join(found["problems"]) for name, found in odd.items() if found["problems"]}
    assert list(problems) == ["symbolic"]
    assert "the size of the storage" in problems["symbolic"]
    symbolic = odd["symbolic"]  # not contiguous, and its first element is not that of the storage
    assert (symbolic["sizes"], symbolic["storage_offset"], symbolic["contiguity"]) == ([None, None], None, [])
    assert any("lazy module" in note for note in odd["lazy"]["notes"])
    layouts = {name: odd[name]["layout"] for name in ("coo", "csr", "csc", "bsr", "nested", "mkldnn")}
    assert layouts == {
        "coo": "sparse_coo",
        "csr": "sparse_csr",
        "csc": "sparse_csc",
        "bsr": "sparse_bsr",
        "nested": "strided",
        "mkldnn": "_mkldnn",
    }
    for name in ("coo", "csr", "csc", "bsr"):
        values = next(part for part in odd[name]["parts"] if part["name"] == "values")
        assert (values["max"], odd[name]["sizes"], odd[name]["values"]) == (3.0, [2, 4], None), name
    assert (odd["nested"]["mean"], odd["nested"]["parts"][0]["name"]) == (1.0, "nested_sizes")
    assert odd["nested"]["parts"][0]["values"]
    assert [part["name"] for part in odd["csc"]["parts"]] == ["ccol_indices", "row_indices", "values"]
    assert [part["name"] for part in odd["bsr"]["parts"]] == ["crow_indices", "col_indices", "values"]
    assert odd["four_bits"]["values"][:3] == [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]]
    assert [part["name"] for part in odd["wrapper"]["wraps"]] == ["inner"]
    assert odd["wrapper"]["python_type"] == "Wrapper"
    distributed = odd["distributed"]
    assert (distributed["python_type"], distributed["sizes"]) == ("DTensor", [4, 3])
    assert [(part["name"], part["sizes"]) for part in distributed["wraps"]] == [("_local_tensor", [2, 3])]
    assert "placements: Shard, Replicate" in " ".join(distributed["notes"]).replace("(0)", "")
    assert "fake_device is cpu" in odd["fake"]["notes"]
    for name, why in {"meta": "no elements", "fake": "no elements", "zero": "zeros", "mkldnn": "oneDNN"}.items():
        assert any(why in note for note in odd[name]["notes"]), name
        assert odd[name]["min"] is None
    assert (odd["huge"]["numel"], odd["huge"]["zeros"], odd["huge"]["values"]) == (1 << 40, 1 << 40, None)


def test_variables_by_name(inferior: GetInferior) -> None:
    process = inferior("many-tensors")

    def named(name: str) -> Any:
        document = process.dispatch("dispatch-tensor", "--py", name, debugger="none", check=False).document
        return document["tensor"]["values"] if "tensor" in document else document["errors"][0]

    assert named("batch[0]") == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert named("batch[1]['label']") == [1, 2]
    assert named("self.scale") == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert named("product") == [[3.0] * 5, [12.0] * 5]
    missing = named("self.wieght")
    assert "weight" in missing["why"]
    assert "4 items" not in missing["what"]
    assert "not a tensor but a list" in named("batch")["what"]


def test_variables_in_all_kinds_of_places(inferior: GetInferior) -> None:
    process = inferior("many-tensors")
    target = ProcTarget(process.pid)
    try:
        session = Session(target)
        reporter = TensorReporter(session)
        thread = next(each for each in target.threads() if each.tid == process.pid)

        def named(name: str) -> Any:
            return reporter.contents(reporter.facts(tensor_named(session, reporter, name, thread)[0])).values()

        assert named("places.pair.first") == named("places.pair[0]") == named("places.queue[0]") == [0, 1, 2, 3]
        assert named("places.pair.second[-1]") == [1, 2, 3, 4]
        assert (named("places.top.values"), named("places.top.indices")) == ([1, 3], [1, 1])
        assert named("places.slotted.inside") == [2, 3, 4, 5]
        assert named("places.queue[-1]") == [3, 4, 5, 6]
        assert named("places.net['enc'][-1].weight") == named("places.net.enc.1.weight") == [[2, 2]]
        assert named("places.net.enc.1.weight.grad") == [[0.5, 0.5]]
        for name, said in (
            ("places.net.enc.0.weight.grad", "grad is None"),
            ("places.pair.frist", "'frist'"),
            ("places.net['encc']", "encc"),
            ("places.queue[2]", "item"),
            ("batch[1].label", "attribute 'label'"),
        ):
            with pytest.raises(UsageError, match=said) as caught:
                named(name)
        assert caught.value.help == "--py \"batch[1]['label']\""
    finally:
        target.close()


def test_a_saved_tensor_is_the_program_s_own(inferior: GetInferior, tmp_path: Path) -> None:
    import torch

    process = inferior("many-tensors")
    path = tmp_path / "scale.safetensors"
    process.dispatch("dispatch-tensor", "--py", "self.scale", "--save", str(path))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["tensor"]
    found = torch.frombuffer(bytearray(data[8 + length :]), dtype=torch.float32).reshape(entry["shape"])
    assert found.tolist() == list(range(6))
