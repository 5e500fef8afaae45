"""Keysets as people write them, and back; what cannot be a keyset is refused."""

from __future__ import annotations

import random

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import BadData, UsageError
from gdbext.torch.values.key_names import KeyNames


@pytest.fixture(scope="module")
def keys() -> KeyNames:
    return KeyNames(store.load(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json"))


def random_bits(keys: KeyNames, count: int) -> list[int]:
    chosen = random.Random(7)
    return [chosen.getrandbits(64) & keys.known_bits & chosen.getrandbits(64) for _ in range(count)]


def test_text_can_be_parsed_back(keys: KeyNames) -> None:
    for bits in random_bits(keys, 500):
        names = keys.decode(bits)
        assert keys.decode(keys.parse(keys.text(bits))) == names
        assert keys.parse(f"{bits:#x}") == keys.parse(str(bits)) == bits


def test_a_functionality_without_backend_reads_the_first_backends_slot(keys: KeyNames) -> None:
    bits = keys.bits_of("AutogradFunctionality")
    assert keys.decode(bits) == ()
    assert keys.key_of_index(keys.table_index(bits)) == "AutogradCPU"
    assert keys.highest_key(bits) == "AutogradUndefined"
    assert keys.building_blocks(keys.parse("Meta,AutogradMeta")) == (("Dense", "AutogradFunctionality"), ("MetaBit",))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        *((text, ("Meta", "AutogradMeta")) for text in ("Meta | AutogradMeta", "AutogradMeta Meta", "0x1000018000")),
        ("DispatchKeySet(CPU, ADInplaceOrView, AutogradCPU)", ("CPU", "ADInplaceOrView", "AutogradCPU")),
        *((text, ("CPU",)) for text in ("c10::DispatchKeySet(CPU)", "torch._C.DispatchKeySet(DispatchKey.CPU)")),
        ("c10::DispatchKey::Sparse, c10::BackendComponent::CUDABit", ("SparseCUDA",)),
        *((text, ()) for text in ("DispatchKeySet()", "Undefined")),
        *(("0x8000, Dense", ("Meta",)), ("[CPU, CUDA]", ("CPU", "CUDA"))),
    ],
)
def test_what_people_write(keys: KeyNames, text: str, names: tuple[str, ...]) -> None:
    assert keys.decode(keys.parse(text)) == names


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *(("Metaa", "Meta"), ("autogradcpu", "AutogradCPU"), ("AutogradCPUs,CPU", "AutogradCPU"), ("cpubit", "CPUBit")),
        *((text, "0x") for text in ("", "  ", ",", "0x1ffffffffffffffff", "-1", "0xzz", "12ab")),
        *((text, "Meta,AutogradMeta") for text in ("qwertyuiop", "\x1b[31mCPU")),
        *((text, "dispatch-op") for text in ("CompositeImplicitAutograd", "Autograd")),
    ],
)
def test_malformed_keysets_are_refused_with_help(keys: KeyNames, text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        keys.parse(text)
    assert hint in caught.value.help


def test_bits_without_meaning_are_told_apart(keys: KeyNames) -> None:
    stray = 1 << 63
    assert keys.stray(stray | keys.bits_of("CPU")) == stray
    assert keys.stray(keys.known_bits) == 0
    assert keys.decode(stray | keys.bits_of("CPU")) == ("CPU",)
    for reader in (keys.table_index, keys.highest_key):
        with pytest.raises(BadData, match="bit 63"):
            reader(stray)
    for index in (keys.num_slots, -1):
        with pytest.raises(BadData):
            keys.key_of_index(index)


def test_what_selects_a_key_is_true_of_its_keysets_alone(keys: KeyNames) -> None:
    keysets = [*random_bits(keys, 300), 0, 1, keys.backend_mask, keys.known_bits, *(slot.bits for slot in keys.slots)]
    for index, slot in enumerate(keys.slots):
        assert (keys.table_index(slot.bits), keys.highest_key(slot.bits)) == (index, slot.name)
        assert (keys.index_of_key(slot.name), keys.key_of_index(index)) == (index, slot.name)
        tests = keys.selecting(slot.name)
        found = [all((bits & test.mask) >> test.shift == test.value for test in tests) for bits in keysets]
        assert found == [keys.table_index(bits) == index for bits in keysets], slot.name
    with pytest.raises(UsageError, match="no dispatch key"):
        keys.selecting("CPUU")


def test_a_renamed_backend(keys: KeyNames) -> None:
    """Keys are accepted by the name that the process gave, and shown with it behind their own."""
    layout = store.load(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json")
    renamed = KeyNames(layout.of_process(lambda: {"PrivateUse1": "npu"}))
    assert not layout.renamed, "another process of the same build has none"
    words = dict.fromkeys(("npu", "NPU", "PrivateUse1", "PrivateUse1 (npu)"), "PrivateUse1")
    for word, own in {**words, "AutogradNPU": "AutogradPrivateUse1", "npuBit": "PrivateUse1Bit"}.items():
        assert renamed.bits_of(word) == keys.bits_of(own)
    bits = keys.bits_of("AutogradPrivateUse1")
    assert renamed.text(bits) == "DispatchKeySet(AutogradPrivateUse1 (npu))"
    assert keys.text(bits) == "DispatchKeySet(AutogradPrivateUse1)"
    assert renamed.decode(bits) == keys.decode(bits), "JSON has PyTorch's own names"
    with pytest.raises(UsageError):
        keys.bits_of("npu")
