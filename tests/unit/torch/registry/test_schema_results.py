"""Results of schemas."""

from __future__ import annotations

import pytest

from gdbext.torch.registry.schema import SchemaResult, aliased_arguments, schema_results


@pytest.mark.parametrize(
    ("text", "results"),
    [
        ("aten::mm(Tensor self, Tensor mat2) -> Tensor", [("Tensor", "result0", "")]),
        ("aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)", [("Tensor", "result0", "a")]),
        (
            "aten::max(Tensor self, int dim) -> (Tensor values, Tensor indices)",
            [("Tensor", "values", ""), ("Tensor", "indices", "")],
        ),
        ("aten::split(Tensor(a -> *) self, int n) -> Tensor(a)[]", [("Tensor[]", "result0", "a")]),
        ("aten::f(Tensor self) -> ()", []),
    ],
)
def test_results(text: str, results: list[tuple[str, str, str]]) -> None:
    assert schema_results(text) == tuple(SchemaResult(*each) for each in results)


def test_arguments_that_are_written_to() -> None:
    assert aliased_arguments("aten::add.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)") == {"a": "out"}
    assert aliased_arguments("aten::view(Tensor(a) self) -> Tensor(a)") == {}
