"""The keyset of a dispatch call among the arguments that a frame passes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.recovery import CallRecovery, RecoveredCall

RESULT, FUNCTOR, KEYSET, SELF = 0x7FFC00001000, 0x1C00A60, 0x1000018000, 0x7FFC00002000
KERNEL = KernelFunction(FUNCTOR, 0x1000, 0x2000, 0)
INDICES = {FUNCTOR: 31, KEYSET: 111}
"""The kernel of a composite operator stands in the entries of most keys, also in that of any address in the heap."""


class Operator:
    address = 0x5000

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        return INDICES.get(keyset, 0), KERNEL


def recovery(values: list[int | None]) -> Any:
    """One that reads these arguments of every call, and finds the composite kernel in every frame."""
    made: Any = object.__new__(CallRecovery)
    made._sites = SimpleNamespace(
        arguments=lambda *_: values, site=lambda *_: SimpleNamespace(through_pointer=True), place=str
    )
    made._memory = SimpleNamespace(try_u64=lambda _: None)
    made._matcher = SimpleNamespace(matches_frame=lambda *_: True, entry_of_frame=lambda *_: KERNEL.unboxed)
    keys = SimpleNamespace(known_bits=(1 << 60) - 1, num_backends=15, table_index=lambda _: 0)
    made._dispatcher = SimpleNamespace(keys=keys)
    return made


@pytest.mark.parametrize(("values", "expected"), [
    ([RESULT, FUNCTOR, KEYSET, SELF], KEYSET),
    ([FUNCTOR, KEYSET, SELF, None], KEYSET),
    ([RESULT, None, KEYSET, SELF], KEYSET),
    ([RESULT, FUNCTOR, None, SELF], None),
])  # fmt: skip
def test_the_address_of_the_functor_is_no_keyset(values: list[int | None], expected: int | None) -> None:
    result = RecoveredCall(Operator())  # type: ignore[arg-type]
    call = DispatchCall([3], "call", kernel=2)
    exact = recovery(values)._exact(SimpleNamespace(), call, 3, result, Operator(), (1 << 60) - 1)
    assert exact is (expected is not None)
    assert result.keyset == expected
