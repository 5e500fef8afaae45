"""Keysets recovered from stacks: at least 98 % proven and none wrong, on 40 operators stopped in their kernels."""

from __future__ import annotations

from typing import Any

import pytest

from support.truth import keyset_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return keyset_truth.compare()


def test_no_keyset_and_no_operator_is_wrong(result: dict[str, Any]) -> None:
    assert result["counts"]["wrong"] == 0, result
    assert result["counts"]["missed"] == 0, result


def test_at_least_98_percent_are_proven(result: dict[str, Any]) -> None:
    counts = result["counts"]
    assert counts["stops"] >= 80, result
    assert counts["steps"] >= 120, result
    assert counts["proven"] >= 0.98 * counts["steps"], result
    print(counts)


def test_no_argument_is_wrong_and_95_percent_of_the_tensors_are_found(result: dict[str, Any]) -> None:
    counts = result["arguments"]
    assert counts["wrong"] == 0, result
    assert counts["tensors"] >= 150, result
    assert counts["lists"] >= 2, result
    assert counts["found"] >= 0.95 * counts["tensors"], result
    print(counts)
