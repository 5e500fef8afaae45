"""The operators that the name of a generated kernel has, and which recorded compilations were not the first."""

from __future__ import annotations

import pytest

from gdbext.torch.compile.compile_section import Compilation, recompilations
from gdbext.torch.compile.dynamo_names import compared, is_known
from gdbext.torch.compile.generated_kernels import fused_operators

OPERATORS = frozenset({"add", "relu", "native_layer_norm", "native", "layer", "_softmax", "threshold_backward", "sum"})


@pytest.mark.parametrize(
    ("kernel", "fused"),
    [
        ("cpp_fused_add_relu_0", ("add", "relu")),
        ("cpp_fused_native_layer_norm_relu_12", ("native_layer_norm", "relu")),
        ("cpp_fused__softmax_1", ("_softmax",)),
        ("cpp_fused_add__softmax_threshold_backward_3", ("add", "_softmax", "threshold_backward")),
        ("triton_poi_fused_add_relu_0", ("add", "relu")),
        ("cpp_fused_add_unheard_of_0", ()),
        ("cpp_fused_0", ()),
        ("step", ()),
    ],
)
def test_the_operators_in_a_name(kernel: str, fused: tuple[str, ...]) -> None:
    assert fused_operators(kernel, OPERATORS) == fused


def compilation(number: str | None, reason: str | None = None) -> Compilation:
    return Compilation(number, "f", "f.py", 1, reason, None, None, None, True)


def test_what_was_compiled_again_without_a_recorded_reason() -> None:
    first = [compilation(each) for each in ("0/0", "10/0", "!0/2/0", "1/0_1", None)]
    again = [*(compilation(each) for each in ("0/1", "12/10", "!0/2/1", "1/2_3")), compilation(None, "0/0: n == 1")]
    assert recompilations((*first, *again)) == tuple(again)


def test_releases_that_were_compared() -> None:
    assert is_known(f"{compared()[0]}.0+cpu")
    assert not is_known("2.0.1")
    assert not is_known("unknown")
