"""The keyset of a dispatch call, among arguments and words of frames: what may be called exact or verified."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.schema import SchemaText
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall
from gdbext.torch.stack.kernel_match import KernelMatcher
from gdbext.torch.stack.recovery import CallRecovery, _OperatorCall
from gdbext.torch.values.key_names import KeyNames

KEYS = KeyNames(store.load(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json"))
Places = Sequence[Collection[str | int]]
RESULT, FUNCTOR, KEYSET, SELF = 0x7FFC00001000, 0x1C00A60, 0x1000018000, 0x7FFC00002000
KERNEL, OTHER = KernelFunction(FUNCTOR, 0x1000, 0x2000, 0), KernelFunction(0x1C00B00, 0x3000, 0x4000, 0)


class Matcher(KernelMatcher):
    def __init__(self, sites: Any) -> None:
        self._sites = sites

    def entry_of_frame(self, *_: object) -> int:
        return KERNEL.unboxed


def recovery(values: list[int | None], places: Places = ()) -> Any:
    """One that reads these arguments of every call, each in the places given, and finds the composite kernel."""
    made: Any = object.__new__(CallRecovery)
    made._sites = SimpleNamespace(
        arguments=lambda *_: values,
        site=lambda *_: SimpleNamespace(through_pointer=True),
        place=str,
        places=lambda _stack, level, _position: frozenset(places[level - 3]),
    )
    made._memory = SimpleNamespace(try_u64=lambda _: None)
    made._matcher = Matcher(made._sites)
    made._dispatcher = SimpleNamespace(keys=KEYS)
    return made


NO_TENSOR = SchemaText("ones(int n) -> Tensor", ("n",), 1, ())
A_TENSOR = SchemaText("mm(Tensor self) -> Tensor", ("self",), 1, ())


def empty(
    places: Places, outer: int | None = None, tensors: int = 0b1, schema: SchemaText | None = NO_TENSOR, **more: bool
) -> RecoveredCall:
    """What is made of zeros in the place of the keyset; in as many frames as there are ``places``. What a thread
    includes to begin with falls through."""
    extractor = SimpleNamespace(reverse_arguments=tensors, mask=lambda *_: 0)
    operator: Any = SimpleNamespace(
        address=0x5000, kernel_for=lambda _: (0, KERNEL), schema=schema, extractor=extractor
    )
    result = RecoveredCall(operator)
    stack: Any = SimpleNamespace()
    call = DispatchCall(list(range(3, 3 + len(places))), kernel=2)
    made = recovery([RESULT, FUNCTOR, 0, SELF], places)
    given = made._limits(operator, None if outer is None else caller(operator, outer, 1), **more)
    made._accept_passed_keyset(_OperatorCall(stack, call, operator, result), 3, given)
    return result


def caller(operator: Any, keyset: int, index: int | None = None) -> RecoveredCall:
    found = RecoveredCall(operator)
    found.keyset, found.confidence = keyset, Certainty.EXACT
    found.index = KEYS.table_index(keyset) if index is None else index
    return found


@pytest.mark.parametrize(
    "places", [[{"rbx"}], [{0x7FFC00002000}], [{"rbx"}, {"rbx"}], [{0x7FFC00002000, "rbx"}, {"rbx"}]]
)
def test_a_word_of_zeros_is_no_keyset(places: Places) -> None:
    result = empty(places)
    assert result.keyset is None
    assert "any zero word looks like one" in result.evidence[-1]
    assert empty(places, outer=KEYSET).keyset is None
    assert empty(places, is_call=True).keyset is None, "it has a tensor among its arguments"
    for schema in (A_TENSOR, None):
        no_bits = empty(places, is_call=True, tensors=0, schema=schema)
        assert no_bits.keyset is None, "its schema, or that there is none, says that the word without bits is damaged"


def test_an_empty_keyset_that_something_else_says() -> None:
    found = [empty([{"rbx"}], outer=0), empty([{"rbx"}], is_call=True, tensors=0)]
    found += [empty([{"rbx"}, {0x7FFC00002000}]), empty([()])]
    assert [(each.keyset, each.confidence) for each in found] == [(0, Certainty.EXACT)] * len(found)


PYTHON = range(0x400000, 0x920000)
"""An executable that is not position independent, as Debian's python3.11."""
IN_CODE = 0x4FF028
"""The address of code in it; as a keyset it is DispatchKeySet(SparseCPU, …), the key of a table entry."""
AUTOGRAD, BACKEND, SELECT, QUANTIZED = map(KEYS.bits_of, ("AutogradCPU", "CPU", "BackendSelect", "QuantizedCPU"))


class Operator:
    """Its running kernel stands in the entries of these keys, or of all."""

    address = 0x5000

    def __init__(self, *keys: str) -> None:
        indices = {KEYS.index_of_key(key) for key in keys} if keys else set(range(KEYS.num_slots))
        self.table = tuple(KERNEL if index in indices else OTHER for index in range(KEYS.num_slots))

    def kernel(self, index: int) -> KernelFunction:
        return self.table[index]

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        index = KEYS.table_index(keyset)
        return index, self.table[index]


def recover(operator: Operator, words: list[int], outer: int | None = None) -> RecoveredCall:
    """What these words of the frame tell, with nothing known of the call's arguments."""
    made = recovery([None] * 4)
    made._modules = SimpleNamespace(mapping_at=lambda address: "python3.11" if address in PYTHON else None)
    made._matcher = SimpleNamespace(
        words=lambda *_: [(f"stack word {number}", word) for number, word in enumerate(words)],
        matches_frame=lambda _stack, _level, kernel: kernel == KERNEL,
        entry_of_frame=lambda _stack, _level, kernel: kernel.unboxed,
        indices=lambda *_: [index for index, kernel in enumerate(operator.table) if kernel == KERNEL],
    )
    result: Any = RecoveredCall(operator)  # type: ignore[arg-type]
    given = made._limits(operator, None if outer is None else caller(operator, outer))
    call = DispatchCall([3], "redispatch", kernel=2)
    work: Any = (SimpleNamespace(), call, operator, result)
    made._find_keyset(_OperatorCall(*work), given)
    return result  # type: ignore[no-any-return]


def test_the_only_word_that_leads_to_the_kernel_and_an_address_of_code_that_is_no_keyset() -> None:
    """Whatever its bits would mean, and even where the kernel that runs is just the one that they lead to."""
    found = recover(Operator("AutogradCPU"), [7, BACKEND, AUTOGRAD | BACKEND])
    assert (found.keyset, found.confidence, found.entry) == (AUTOGRAD | BACKEND, Certainty.VERIFIED, KERNEL.unboxed)
    assert not IN_CODE & ~KEYS.known_bits
    alone = recover(Operator(KEYS.key_of_index(KEYS.table_index(IN_CODE))), [IN_CODE])
    assert (alone.keyset, alone.confidence) == (None, Certainty.INFERRED)


@pytest.mark.parametrize("word", [AUTOGRAD | BACKEND, IN_CODE, BACKEND])
def test_a_composite_kernel_proves_no_keyset(word: int) -> None:
    found = recover(Operator(), [word])
    assert (found.keyset, found.confidence) == (None, Certainty.INFERRED)
    assert any("no word of a frame can prove a keyset" in line for line in found.evidence)


def test_a_redispatch_has_no_key_that_its_caller_has_not() -> None:
    """Two words lead to the kernel that runs; only one of them can be the caller's keyset without its highest key."""
    operator = Operator("CPU", "QuantizedCPU")
    assert recover(operator, [BACKEND, QUANTIZED]).confidence is Certainty.INFERRED
    found = recover(operator, [BACKEND, QUANTIZED], outer=AUTOGRAD | BACKEND)
    assert (found.keyset, found.confidence) == (BACKEND, Certainty.VERIFIED)
    other = recover(operator, [BACKEND], outer=KEYS.bits_of("AutogradMeta") | KEYS.bits_of("Meta"))
    assert (other.keyset, other.confidence) == (None, Certainty.INFERRED)
    assert recover(Operator("CPU"), [BACKEND], outer=SELECT).keyset == BACKEND, "BackendSelect's kernels make keysets"
