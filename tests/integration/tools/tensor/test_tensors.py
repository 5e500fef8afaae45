"""dispatch-tensor against PyTorch: 250 tensors live and in a core, odd ones, variables by name."""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import GdbextError, UsageError
from gdbext.render import plain_json
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_tool import describe, tensor_named
from support.programs.harness import Inferior, Start

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

_ROUNDED = ("mean", "std")
_UNCOMPARED = ("label", "address", "contiguous", *_ROUNDED)


@pytest.fixture
def process(inferior: Start) -> Inferior:
    return inferior("many-tensors")


def close(read: Any, true: Any) -> bool:
    if isinstance(read, list) and isinstance(true, list):
        return len(read) == len(true) and all(map(close, read, true))
    if isinstance(read, (int, float)) and isinstance(true, (int, float)):
        return math.isclose(read, true, rel_tol=1e-12, abs_tol=1e-12)
    return bool(read == true)


def differences(document: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    found = {name: document[name] for name in truth if name not in _UNCOMPARED and document[name] != truth[name]}
    found.update({name: document[name] for name in _ROUNDED if not close(document[name], truth[name])})
    differs = ("contiguous" in document["contiguity"]) != truth["contiguous"]
    faults = {"contiguity": differs, "problems": bool(document["problems"])}
    return found | {name: document[name] for name, is_wrong in faults.items() if is_wrong}


@pytest.mark.parametrize("kind", ["live", "core"])
def test_250_tensors_and_the_odd_ones(process: Inferior, kind: str) -> None:
    target: Target = ProcTarget(process.pid) if kind == "live" else CoreTarget(str(process.core()))
    with contextlib.closing(target):
        session = Session(target)
        reporter = TensorReporter(session)

        def document(address: int) -> dict[str, Any]:
            return plain_json.plain(describe(session, reporter, address, "x"))

        facts = process.truth["tensors"]
        assert len(facts) > 200
        wrong = {truth["label"]: differences(document(truth["address"]), truth) for truth in facts}
        assert {label: found for label, found in wrong.items() if found} == {}
        check_odd_ones({name: document(address) for name, address in process.truth["odd"].items()})
        with pytest.raises(GdbextError):
            describe(session, reporter, process.truth["freed"], "x")


def check_odd_ones(odd: dict[str, dict[str, Any]]) -> None:
    def parts(name: str, kind: str = "parts") -> list[str]:
        return [part["name"] for part in odd[name][kind]]

    problems = {name: " ".join(found["problems"]) for name, found in odd.items() if found["problems"]}
    assert list(problems) == ["symbolic"]
    assert "the size of the storage" in problems["symbolic"]
    found = [odd["symbolic"][name] for name in ("sizes", "storage_offset", "contiguity")]
    assert found == [[None, None], None, []], "not contiguous, and its first element is not that of the storage"
    for name in ("coo", "csr", "csc", "bsr"):
        values = odd[name]["parts"][parts(name).index("values")]
        found = (odd[name]["layout"], values["max"], odd[name]["sizes"], odd[name]["values"])
        assert found == (f"sparse_{name}", 3.0, [2, 4], None)
    assert parts("csc") == ["ccol_indices", "row_indices", "values"]
    assert parts("bsr") == ["crow_indices", "col_indices", "values"]
    assert (odd["nested"]["layout"], odd["mkldnn"]["layout"]) == ("strided", "_mkldnn")
    assert (odd["nested"]["mean"], parts("nested")[0]) == (1.0, "nested_sizes")
    assert odd["nested"]["parts"][0]["values"]
    assert odd["four_bits"]["values"][:3] == [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]]
    assert (odd["wrapper"]["python_type"], parts("wrapper", "wraps")) == ("Wrapper", ["inner"])
    distributed = odd["distributed"]
    assert (distributed["python_type"], distributed["sizes"]) == ("DTensor", [4, 3])
    assert (parts("distributed", "wraps"), distributed["wraps"][0]["sizes"]) == (["_local_tensor"], [2, 3])
    assert "placements: Shard, Replicate" in " ".join(distributed["notes"]).replace("(0)", "")
    assert "fake_device is cpu" in odd["fake"]["notes"]
    empty = {
        "lazy": "lazy module",
        "meta": "no elements",
        "fake": "no elements",
        "zero": "zero and not stored",
        "mkldnn": "oneDNN",
    }
    for name, why in empty.items():
        assert any(why in note for note in odd[name]["notes"]), name
        assert odd[name]["min"] is None
    assert (odd["huge"]["numel"], odd["huge"]["zeros"], odd["huge"]["values"]) == (1 << 40, 1 << 40, None)


def test_variables_by_name(process: Inferior) -> None:
    with contextlib.closing(ProcTarget(process.pid)) as target:
        session = Session(target)
        reporter = TensorReporter(session)
        thread = next(each for each in target.memory.threads() if each.tid == process.pid)

        def named(name: str) -> Any:
            return reporter.contents(reporter.facts(tensor_named(session, reporter, name, thread)[0])).values()

        numbers = [0, 1, 2, 3]
        assert named("batch[0]") == [[0, 1, 2], [3, 4, 5]]
        assert named("batch[1]['label']") == [1, 2]
        assert named("self.scale") == [0, 1, 2, 3, 4, 5]
        assert named("product") == [[3] * 5, [12] * 5]
        assert named("self.pair.first") == named("self.pair[0]") == named("self.queue[0]") == numbers
        assert named("self.pair.second[-1]") == [1, 2, 3, 4]
        assert (named("self.top.values"), named("self.top.indices")) == ([1, 3], [1, 1])
        assert named("self.inside") == [2, 3, 4, 5]
        assert named("self.queue[-1]") == [3, 4, 5, 6]
        assert named("self.net['enc'][-1].weight") == named("self.net.enc.1.weight") == [[2, 2]]
        assert named("self.net.enc.1.weight.grad") == [[0.5, 0.5]]
        for name, said in (
            ("self.net.enc.0.weight.grad", "grad is None"),
            ("self.pair.frist", "'frist'"),
            ("self.net['encc']", "encc"),
            ("self.queue[2]", "item"),
            ("self.wieght", "weight"),
            ("batch", "not a tensor but a list"),
            ("batch[1].label", "attribute 'label'"),
        ):
            with pytest.raises(UsageError) as caught:
                named(name)
            assert said in f"{caught.value} {caught.value.why} {caught.value.help}"
        assert caught.value.help == "--py \"batch[1]['label']\""


def test_a_saved_tensor_is_the_program_s_own(process: Inferior, tmp_path: Path) -> None:
    path = tmp_path / "scale.safetensors"
    process.dispatch("dispatch-tensor", "--py", "self.scale", "--save", str(path), debugger="none")
    assert path.read_bytes().endswith(struct.pack("<6f", *range(6)))
