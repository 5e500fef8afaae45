"""Schemas that releases declare, as dispatch-op tells them without a process, and the results that they name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gdbext.errors import LayoutError
from gdbext.hosts.cli import launcher
from gdbext.torch.registry.operator_names import declared_schemas
from gdbext.torch.registry.schema import SchemaResult, aliased_arguments, schema_results
from support.recorded.recordings import Replay
from support.source import contract_schema


@pytest.mark.parametrize(
    "data",
    [b"", b"2.0.1\n0-0 x", gzip.compress(b"2.0.1\n0-7 aten::mm(Tensor a) -> ()\n", mtime=0)],
    ids=["empty", "not-packed", "a-line-too-few"],
)
def test_a_damaged_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "schemas.txt.gz"
    path.write_bytes(data)
    with pytest.raises(LayoutError):
        declared_schemas(str(path))


def told(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = launcher.main(["op", *words])
    output = capfd.readouterr()
    return status, output.out + output.err


def test_schemas_without_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    status, text = told(capfd, "--torch", "2.13", "mm.dtype")
    assert status == 0
    assert text.splitlines() == [
        "aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        "  the same from 2.8.0 to 2.15.0",
        "1 schema of PyTorch 2.13.0; kernels are in a process: -p PID",
    ]
    document = json.loads(told(capfd, "--torch", "2.0.0", "aten::mm", "--json")[1])
    contract_schema.check(document)
    assert document["schemas"]["torch"] == "2.0.1"
    assert [each["overload"] for each in document["schemas"]["operators"]] == ["", "out"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["mm"], "dispatch-op needs a process, a core or a recording, or a release: --torch 2.13"),
        (["--torch", "1.9", "mm"], "the schemas of PyTorch 1.9 are not known"),
        (["--torch", "2.13"], "name one operator or pattern, or give --all"),
        (["--torch", "2.13", "mm", "--key", "CPU"], "keys and kernels are in a process only"),
        (["--torch", "2.0", "mm.dtype"], "PyTorch 2.0.1 declares no operator 'mm.dtype'"),
    ],
)
def test_what_is_not_known_without_a_process_is_said(
    words: list[str], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, text = told(capfd, *words)
    assert (status, text.splitlines()[0]) == (2, f"dispatch: {what}")


def test_a_filter_says_how_many_registrations_it_hides(replay: Callable[[str], Replay]) -> None:
    hung = replay("meta-mm")
    lines = hung.text("dispatch-op", "aten::mm", "--key", "CPU").splitlines()
    (whole,) = hung.document("dispatch-op", "aten::mm")["operators"]
    assert f"  1 registration, {len(whole['registrations']) - 1} under other keys" in lines


def test_results_and_arguments_that_are_written_to() -> None:
    for text, results in {
        "aten::mm(Tensor self, Tensor mat2) -> Tensor": [("Tensor", "result0", "")],
        "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)": [("Tensor", "result0", "a")],
        "aten::max(Tensor self) -> (Tensor values, Tensor at)": [("Tensor", "values", ""), ("Tensor", "at", "")],
        "aten::split(Tensor(a -> *) self, int n) -> Tensor(a)[]": [("Tensor[]", "result0", "a")],
        "aten::f(Tensor self) -> ()": [],
    }.items():
        assert schema_results(text) == tuple(SchemaResult(*each) for each in results)
    assert aliased_arguments("aten::add.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)") == {"a": "out"}
    assert aliased_arguments("aten::view(Tensor(a) self) -> Tensor(a)") == {}
