"""Keysets recovered from stacks: at least 98 % proven and none wrong, on 40 operators stopped in their kernels."""

from __future__ import annotations

import pytest

from support.truth import keyset_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


def test_keysets_operators_and_tensors_are_those_that_were_passed() -> None:
    result = keyset_truth.compare()
    counts, arguments = result["counts"], result["arguments"]
    assert (counts["wrong"], counts["missed"], arguments["wrong"]) == (0, 0, 0), result
    assert counts["stops"] >= 80, result
    assert counts["steps"] >= 120, result
    assert counts["proven"] >= 0.98 * counts["steps"], result
    assert arguments["tensors"] >= 150, result
    assert arguments["lists"] >= 2, result
    assert arguments["found"] >= 0.95 * arguments["tensors"], result
