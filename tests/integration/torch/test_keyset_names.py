"""Keysets against the PyTorch that is installed here: every key, every table slot, ten thousand random sets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.torch.values.key_names import KeyNames
from support.installed.machine import need_module

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def torch() -> Any:
    """Imported by the worker that runs these tests, and not by each that collects them (2 s)."""
    return need_module("torch")


@pytest.fixture(scope="module")
def keys(torch: Any) -> KeyNames:
    layouts = sorted(Path(store.DATA).glob(f"torch-{torch.__version__}-*.json"))
    assert layouts, f"no layout for torch {torch.__version__} in {store.DATA}"
    return KeyNames(store.load(layouts[0]))


def test_every_key_and_functionality_has_the_bits_and_the_text_of_pytorch(keys: KeyNames, torch: Any) -> None:
    values = {slot.name: slot.value for slot in keys.slots}
    values.update({keys.key_names[value]: value for value in range(1, keys.num_functionalities)})
    for name, value in values.items():
        theirs = torch._C.DispatchKeySet(torch._C.DispatchKey(value))
        assert keys.bits_of(name) == theirs.raw_repr(), name
        assert keys.text(theirs.raw_repr()) == str(theirs), name
    for slot in keys.slots[1:]:
        theirs = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey(slot.value))
        assert keys.full_after(slot.name) == theirs.raw_repr(), slot.name


def test_ten_thousand_random_sets_and_the_full_one(keys: KeyNames, torch: Any) -> None:
    full = torch._C._dispatch_keyset_full()
    assert keys.known_bits == full.raw_repr()
    runtime = set(str(full)[len("DispatchKeySet(") : -1].split(", "))
    previous = torch._C.DispatchKeySet.from_raw_repr(0)
    chosen = random.Random(20260)
    samples = [keys.known_bits, *(chosen.getrandbits(64) & keys.known_bits for _ in range(3_000))]
    samples += [bits & chosen.getrandbits(64) for bits in samples]
    samples += [bits & chosen.getrandbits(64) & chosen.getrandbits(64) for bits in samples]
    for bits in samples:
        theirs = torch._C.DispatchKeySet.from_raw_repr(bits)
        assert keys.text(bits) == str(theirs)
        highest = torch._C._dispatch_key_name(theirs.highestPriorityTypeId())
        assert keys.highest_key(bits) == highest
        if highest in runtime:
            assert keys.key_of_index(keys.table_index(bits)) == highest
        assert keys.minus(bits, previous.raw_repr()) == (theirs - previous).raw_repr()
        previous = theirs
