"""The keyset of a dispatch call among the arguments that a frame passes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import Certainty
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.schema import SchemaText
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.kernel_match import KernelMatcher
from gdbext.torch.stack.known_fallbacks import RecoveredCall
from gdbext.torch.stack.recovery import CallRecovery
from gdbext.torch.values.key_names import KeyNames

KEYS = KeyNames(store.load(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json"))
Places = Sequence[Collection[str | int]]
RESULT, FUNCTOR, KEYSET, SELF = 0x7FFC00001000, 0x1C00A60, 0x1000018000, 0x7FFC00002000
KERNEL = KernelFunction(FUNCTOR, 0x1000, 0x2000, 0)
INDICES = {FUNCTOR: 31, KEYSET: 111}
"""The kernel of a composite operator stands in the entries of most keys, also in that of any address in the heap."""


class Operator:
    address = 0x5000

    extractor = SimpleNamespace(reverse_arguments=0b1, mask=lambda *_: 0)
    """A tensor is among its arguments; what a thread includes to begin with falls through."""

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        return INDICES.get(keyset, 0), KERNEL


class Matcher(KernelMatcher):
    """Finds the composite kernel in every frame."""

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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([RESULT, FUNCTOR, KEYSET, SELF], KEYSET),
        ([FUNCTOR, KEYSET, SELF, None], KEYSET),
        ([RESULT, None, KEYSET, SELF], KEYSET),
        ([RESULT, FUNCTOR, None, SELF], None),
    ],
)
def test_the_address_of_the_functor_is_no_keyset(values: list[int | None], expected: int | None) -> None:
    result = RecoveredCall(Operator())  # type: ignore[arg-type]
    call = DispatchCall([3], "call", kernel=2)
    made = recovery(values)
    exact = made._exact(SimpleNamespace(), call, 3, result, Operator(), made._given(Operator(), None))
    assert exact is (expected is not None)
    assert result.keyset == expected


NO_TENSOR = SchemaText("ones(int n) -> Tensor", ("n",), 1, ())
A_TENSOR = SchemaText("mm(Tensor self) -> Tensor", ("self",), 1, ())


def empty(
    places: Places,
    caller: int | None = None,
    is_call: bool = False,
    tensors: int = 0b1,
    schema: SchemaText | None = NO_TENSOR,
) -> RecoveredCall:
    """What is made of zeros in the place of the keyset; in as many frames as there are ``places``."""
    operator: Any = Operator()
    operator.schema = schema
    operator.extractor = SimpleNamespace(reverse_arguments=tensors, mask=lambda *_: 0)
    result = RecoveredCall(operator)
    outer = RecoveredCall(operator) if caller is not None else None
    if outer is not None:
        outer.keyset, outer.index = caller, 1
    call = DispatchCall(list(range(3, 3 + len(places))), kernel=2)
    made = recovery([RESULT, FUNCTOR, 0, SELF], places)
    made._exact(SimpleNamespace(), call, 3, result, operator, made._given(operator, outer, is_call))
    return result


@pytest.mark.parametrize(
    "places", [[{"rbx"}], [{0x7FFC00002000}], [{"rbx"}, {"rbx"}], [{0x7FFC00002000, "rbx"}, {"rbx"}]]
)
def test_a_word_of_zeros_is_no_keyset(places: Places) -> None:
    result = empty(places)
    assert result.keyset is None
    assert "nothing else says so" in result.evidence[-1]
    assert empty(places, caller=KEYSET).keyset is None
    assert empty(places, is_call=True).keyset is None, "it has a tensor among its arguments"
    for schema in (A_TENSOR, None):
        no_bits = empty(places, is_call=True, tensors=0, schema=schema)
        assert no_bits.keyset is None, "its schema, or that there is none, says that the word without bits is damaged"


def test_an_empty_keyset_that_something_else_says() -> None:
    found = [
        empty([{"rbx"}], caller=0),
        empty([{"rbx"}], is_call=True, tensors=0),
        empty([{"rbx"}, {0x7FFC00002000}]),
        empty([()]),
    ]
    assert [(each.keyset, each.confidence) for each in found] == [(0, Certainty.EXACT)] * len(found)
