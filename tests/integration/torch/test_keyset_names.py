"""Keysets against the PyTorch that is installed here: every key, every table slot, ten thousand random sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import BadData
from gdbext.torch.values.key_names import KeyNames
from support.installed.machine import need_torch
from support.truth.keyset_samples import random_bits

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def torch() -> Any:
    """Imported by the worker that runs these tests, and not by each that collects them (2 s)."""
    return need_torch()


@pytest.fixture(scope="module")
def keys(torch: Any) -> KeyNames:
    layouts = sorted(Path(store.DATA).glob(f"torch-{torch.__version__}-*.json"))
    assert layouts, f"no layout for torch {torch.__version__} in {store.DATA}"
    return KeyNames(store.load(layouts[0]))


def test_every_single_key_has_the_bits_and_the_text_of_pytorch(keys: KeyNames, torch: Any) -> None:
    for slot in keys.slots:
        theirs = torch._C.DispatchKeySet(torch._C.DispatchKey(slot.value))
        assert slot.bits == theirs.raw_repr(), slot
        assert keys.text(slot.bits) == str(theirs), slot
        assert keys.bits_of(slot.name) == slot.bits


def test_functionalities_alone_have_pytorchs_bits(keys: KeyNames, torch: Any) -> None:
    for value in range(1, keys.num_functionalities):
        theirs = torch._C.DispatchKeySet(torch._C.DispatchKey(value))
        assert keys.bits_of(keys.key_names[value]) == theirs.raw_repr()
        assert keys.text(theirs.raw_repr()) == str(theirs)


def test_the_table_has_one_slot_for_each_runtime_key(keys: KeyNames) -> None:
    assert keys.num_slots == len({slot.name for slot in keys.slots})
    assert keys.slots[0].name == "Undefined"
    for index, slot in enumerate(keys.slots):
        assert keys.table_index(slot.bits) == index
        assert keys.key_of_index(index) == slot.name
        assert keys.index_of_key(slot.name) == index
        assert keys.highest_key(slot.bits) == slot.name
    with pytest.raises(BadData):
        keys.key_of_index(keys.num_slots)
    with pytest.raises(BadData):
        keys.key_of_index(-1)


def test_full_set_is_pytorchs(keys: KeyNames, torch: Any) -> None:
    full = torch._C._dispatch_keyset_full()
    assert keys.known_bits == full.raw_repr()
    assert keys.text(keys.known_bits) == str(full)


def test_ten_thousand_random_sets(keys: KeyNames, torch: Any) -> None:
    runtime = set(str(torch._C._dispatch_keyset_full())[len("DispatchKeySet(") : -1].split(", "))
    for bits in random_bits(keys, 10_000):
        theirs = torch._C.DispatchKeySet.from_raw_repr(bits)
        assert keys.text(bits) == str(theirs)
        highest = torch._C._dispatch_key_name(theirs.highestPriorityTypeId())
        assert keys.highest_key(bits) == highest
        if highest in runtime:
            assert keys.key_of_index(keys.table_index(bits)) == highest


def test_set_arithmetic_is_pytorchs(keys: KeyNames, torch: Any) -> None:
    pairs = random_bits(keys, 400)
    for one, other in zip(pairs[::2], pairs[1::2]):
        theirs = (torch._C.DispatchKeySet.from_raw_repr(one) - torch._C.DispatchKeySet.from_raw_repr(other)).raw_repr()
        assert keys.minus(one, other) == theirs


def test_full_after_is_pytorchs(keys: KeyNames, torch: Any) -> None:
    for slot in keys.slots[1:]:
        theirs = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey(slot.value))
        assert keys.full_after(slot.name) == theirs.raw_repr(), slot.name


def test_real_tensors(keys: KeyNames, torch: Any) -> None:
    tensors = [
        torch.empty(2),
        torch.empty(2, requires_grad=True),
        torch.empty(2, device="meta", requires_grad=True),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.nested.nested_tensor([torch.ones(1)]),
    ]
    for tensor in tensors:
        theirs = torch._C._dispatch_keys(tensor)
        assert keys.text(theirs.raw_repr()) == str(theirs)
        assert keys.highest_key(theirs.raw_repr()) == torch._C._dispatch_key_name(theirs.highestPriorityTypeId())
