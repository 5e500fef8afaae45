"""The keyset of a dispatch call among the words of its frames: what may be called verified."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.known_fallbacks import RecoveredCall
from gdbext.torch.stack.recovery import CallRecovery
from gdbext.torch.values.key_names import KeyNames

KEYS = KeyNames(store.load(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json"))
RUNNING, OTHER = KernelFunction(0x1C00A60, 0x1000, 0x2000, 0), KernelFunction(0x1C00B00, 0x3000, 0x4000, 0)
PYTHON = range(0x400000, 0x920000)
"""An executable that is not position independent, as Debian's python3.11."""
IN_CODE = 0x4FF028
"""The address of code in it; as a keyset it is DispatchKeySet(SparseCPU, …), the key of a table entry."""
AUTOGRAD, BACKEND, SELECT = (KEYS.bits_of(name) for name in ("AutogradCPU", "CPU", "BackendSelect"))


class Operator:
    """Its running kernel stands in the entries of these keys."""

    address = 0x5000

    def __init__(self, *keys: str) -> None:
        indices = {KEYS.index_of_key(key) for key in keys} if keys else set(range(KEYS.num_slots))
        self.table = tuple(RUNNING if index in indices else OTHER for index in range(KEYS.num_slots))

    def kernel(self, index: int) -> KernelFunction:
        return self.table[index]

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        index = KEYS.table_index(keyset)
        return index, self.table[index]


def recover(operator: Operator, words: list[int], caller: RecoveredCall | None = None) -> RecoveredCall:
    """What these words of the frame tell, with nothing known of the call's arguments."""
    made: Any = object.__new__(CallRecovery)
    made._dispatcher = SimpleNamespace(keys=KEYS)
    made._modules = SimpleNamespace(mapping_at=lambda address: "python3.11" if address in PYTHON else None)
    made._sites = SimpleNamespace(
        arguments=lambda *_: [None] * 4, site=lambda *_: SimpleNamespace(through_pointer=True), place=str
    )
    made._matcher = SimpleNamespace(
        words=lambda *_: [(f"stack word {number}", word) for number, word in enumerate(words)],
        matches_frame=lambda _stack, _level, kernel: kernel == RUNNING,
        entry_of_frame=lambda _stack, _level, kernel: kernel.unboxed,
        in_unboxed_call=lambda *_: lambda *_: False,
        indices=lambda *_: [index for index, kernel in enumerate(operator.table) if kernel == RUNNING],
    )
    result: Any = RecoveredCall(operator)  # type: ignore[arg-type]
    call = DispatchCall([3], "redispatch", kernel=2)
    made._find_keyset(SimpleNamespace(), call, result, operator, made._given(operator, caller))
    return result  # type: ignore[no-any-return]


def caller(operator: Any, keyset: int) -> RecoveredCall:
    found = RecoveredCall(operator)
    found.keyset, found.index, found.confidence = keyset, KEYS.table_index(keyset), Certainty.EXACT
    return found


def test_the_only_word_that_leads_to_the_kernel() -> None:
    found = recover(Operator("AutogradCPU"), [7, BACKEND, AUTOGRAD | BACKEND])
    assert (found.keyset, found.confidence, found.entry) == (AUTOGRAD | BACKEND, Certainty.VERIFIED, RUNNING.unboxed)


def test_an_address_of_code_is_no_keyset() -> None:
    """Whatever its bits would mean, and even where the kernel that runs is just the one that they lead to."""
    assert not IN_CODE & ~KEYS.known_bits
    alone = recover(Operator(KEYS.key_of_index(KEYS.table_index(IN_CODE))), [IN_CODE])
    assert (alone.keyset, alone.confidence) == (None, Certainty.INFERRED)


@pytest.mark.parametrize("word", [AUTOGRAD | BACKEND, IN_CODE, BACKEND])
def test_a_composite_kernel_proves_no_keyset(word: int) -> None:
    found = recover(Operator(), [word])
    assert (found.keyset, found.confidence) == (None, Certainty.INFERRED)
    assert any("nearly any leads to this kernel" in line for line in found.evidence)


def test_a_redispatch_has_no_key_that_its_caller_has_not() -> None:
    """Two words lead to the kernel that runs; only one of them can be the caller's keyset without its highest key."""
    operator = Operator("CPU", "QuantizedCPU")
    words = [BACKEND, KEYS.bits_of("QuantizedCPU")]
    assert recover(operator, words).confidence is Certainty.INFERRED
    found = recover(operator, words, caller(operator, AUTOGRAD | BACKEND))
    assert (found.keyset, found.confidence) == (BACKEND, Certainty.VERIFIED)
    other = recover(operator, [BACKEND], caller(operator, KEYS.bits_of("AutogradMeta") | KEYS.bits_of("Meta")))
    assert (other.keyset, other.confidence) == (None, Certainty.INFERRED)


def test_the_kernels_of_backend_select_make_keysets() -> None:
    operator = Operator("CPU")
    assert recover(operator, [BACKEND], caller(operator, SELECT)).keyset == BACKEND
