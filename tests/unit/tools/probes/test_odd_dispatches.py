"""What dispatch-top marks as odd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import BadData
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.summary import Anomalies
from gdbext.torch.stack import DispatchEvent

KEYS = {1: ("CPU",), 2: ("CUDA", "AutogradCUDA"), 3: ("CPU", "CUDA"), 4: ("AutogradCPU", "CPU")}
CALL, AGAIN = DispatchEvent.CALL, DispatchEvent.REDISPATCH


def operator(kernel: str = "kernel", reason: str = "kernel") -> Any:
    """``kernel``: "none", "fallthrough", "unreadable" or another; ``reason``: how the table's entry was chosen."""

    def kernel_for(_: int) -> Any:
        if kernel == "unreadable":
            raise BadData("gone")
        return 0, SimpleNamespace(valid=kernel != "none", name=kernel)

    return SimpleNamespace(address=7, kernel_for=kernel_for, reason=reason)


def mark(of: Any, counts: list[tuple[DispatchEvent, int, int]], event: DispatchEvent = CALL, keyset: int = 1) -> str:
    """``counts``: event, keyset and times of operator 7."""
    kernels = SimpleNamespace(fallthrough=lambda kernel: kernel.name == "fallthrough")
    session: Any = SimpleNamespace(
        dispatcher=SimpleNamespace(keys=SimpleNamespace(decode=KEYS.__getitem__), kernels=kernels),
        tables=SimpleNamespace(entry=lambda one, _: SimpleNamespace(reason=one.reason)),
    )
    odd = Anomalies(session, [DispatchCount(7, number, 0, each, times) for each, number, times in counts])
    return odd.mark(of, event.value, keyset)


@pytest.mark.parametrize(
    ("of", "marked"),
    [
        (operator("none"), "no kernel"),
        (operator("fallthrough"), "falls through"),
        (operator(reason="math kernel"), "decomposes"),
        (operator(reason="backend fallback"), "boxed fallback"),
        (operator(), ""),
        (operator("unreadable"), ""),
    ],
)
def test_how_the_entry_was_chosen(of: Any, marked: str) -> None:
    assert mark(of, [(CALL, 1, 5), (AGAIN, 1, 10)]) == marked


@pytest.mark.parametrize(
    ("calls", "redispatches", "marked"),
    [(5, 100, "redispatched 20 times a call"), (5, 40, ""), (0, 9, "redispatched 9 times a call"), (0, 8, "")],
)
def test_an_operator_that_redispatches_to_itself(calls: int, redispatches: int, marked: str) -> None:
    counts = [(CALL, 1, calls)] if calls else []
    counts.append((AGAIN, 1, redispatches))
    assert mark(operator(), counts, AGAIN) == marked
    assert mark(operator(), counts, CALL) == ""


@pytest.mark.parametrize(
    ("on_device", "keyset", "marked"), [(6, 1, "on the CPU"), (6, 4, "on the CPU"), (6, 3, ""), (5, 1, "")]
)
def test_the_processor_in_a_job_that_runs_on_an_accelerator(on_device: int, keyset: int, marked: str) -> None:
    assert mark(operator(), [(CALL, 1, 5), (CALL, 2, on_device)], keyset=keyset) == marked
