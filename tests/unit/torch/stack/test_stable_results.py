"""The moments in which a wrapper of the stable ABI may have written its results over its arguments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gdbext.torch.stack.known_fallbacks import returns_from_stable


def _stack(*names: str | None) -> SimpleNamespace:
    functions = [None if name is None else SimpleNamespace(names=(name,)) for name in names]
    return SimpleNamespace(function=lambda level: functions[level])


@pytest.mark.parametrize(
    ("names", "returns"),
    [
        (("pause", "kernel_body", None, "StableIValueBoxedKernel"), False),
        (("pause", None, None, "StableIValueBoxedKernel"), False),
        (("free", "aoti_torch_delete_tensor_object", None, "StableIValueBoxedKernel"), True),
        (("malloc", "_Znwm", None, "StableIValueBoxedKernel"), True),
        ((None, "StableIValueBoxedKernel"), True),
    ],
)
def test_results_may_be_there(names: tuple[str | None, ...], returns: bool) -> None:
    assert returns_from_stable(_stack(*names), len(names) - 1) is returns  # type: ignore[arg-type]
