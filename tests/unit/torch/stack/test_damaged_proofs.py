"""Recorded processes with some words changed: no operator, keyset or kernel is called exact or verified that is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from gdbext.engine.formats import symbol_cache
from gdbext.torch.registry import Dispatcher, Operator
from gdbext.torch.stack import kernel_match
from support.recorded.recording_damage import patched
from support.recorded.recordings import Replay, recording

META, RECURSION = "meta-mm", "boxed-recursion-kernel-300"
"""aten::mm called and redispatched by Autograd; a boxed kernel that calls itself."""
OPERATOR = "gdbext_test::gil_mutex"
Step = dict[str, Any]


def address_of(step: Step) -> int:
    found = re.search(r"OperatorDef (0x[0-9a-f]+)", step["evidence"][0])
    assert found is not None
    return int(found.group(1), 16)


@cache
def operator_of(name: str) -> Operator:
    """That of the innermost call, by the address in the report."""
    replay: Any = Replay(name)
    operator: Operator = replay.session.dispatcher.by_def(address_of(steps_of(replay)[0]))
    return operator


def steps(name: str, patches: Mapping[int, int]) -> list[Step]:
    return steps_of(Replay(name, patched(recording(name), patches)))


def steps_of(replay: Replay) -> list[Step]:
    threads = replay.document("dispatch-bt", "--why", "--all")["threads"]
    return [step for thread in threads for step in thread["dispatch"]]


def proven(found: list[Step]) -> list[Step]:
    return [step for step in found if step["confidence"] in ("exact", "verified")]


def name_of(operator: Operator) -> int:
    """Where the entry's name is: a std::string, its letters inside of it."""
    return operator.address + operator.dispatcher._name_at


ANOTHER = [int.from_bytes(text, "little") for text in (b"\x1b[31mm\x07\r", b"aten:mm\n", b"aten::mn")]


@pytest.mark.parametrize(("offset", "word"), [(8, 0), (8, 4), *((16, letters) for letters in ANOTHER)])
def test_an_operator_whose_name_is_not_its_own_is_unknown(offset: int, word: int) -> None:
    operator = operator_of(META)
    found = steps(META, {name_of(operator) + offset: word})
    own = [step for step in found if step["level"] in (14, 17)]
    assert len(own) == 2
    for step in own:
        assert (step["confidence"], step["keyset"]) == ("unknown", None)
        assert step["op"] == "aten::mm", "the symbol of at::_ops::mm says so"
        assert any("leads to" in line for line in step["evidence"])
    assert [step["op"] for step in proven(found)] == ["aten::matmul", "aten::linear"]


@pytest.mark.parametrize("letter", [0, 0x0A, 0x7E], ids=["empty", "control", "tilde"])
def test_an_operator_known_by_its_handle_only(letter: int) -> None:
    """No symbol says what it is called."""
    operator = operator_of(RECURSION)
    name = operator.dispatcher.memory.u64(name_of(operator))
    word = operator.dispatcher.memory.u64(name) & ~0xFF | letter
    found = steps(RECURSION, {name_of(operator) + 8: 0} if not letter else {name: word})
    assert not proven(found)
    assert {step["op"] for step in found} == {None}
    assert "its name" in found[0]["evidence"][-1]


def unboxed_of(name: str) -> int:
    operator = operator_of(name)
    return operator.dispatcher.table_entry(operator.address, 1) + 16


@pytest.mark.parametrize("wild", [0xDEAD000, 0x7FFF_FFFF_F000, 0x1234_5678_9ABC_DEF0])
def test_a_table_entry_with_a_wild_address_proves_nothing(wild: int) -> None:
    """The boxed function is the one that runs; of the unboxed one nothing is known."""
    found = [step for step in steps(RECURSION, {unboxed_of(RECURSION): wild}) if step["event"] == "redispatchBoxed"]
    assert found
    assert not proven(found)
    assert not any(f"{wild:x}" in (step["kernel"] or {}).get("function", "") for step in found)


def test_the_kernel_that_is_shown_is_the_one_that_runs() -> None:
    """The unboxed function is that of another kernel: code, but it is not what was proved."""
    replay = Replay(RECURSION)
    other = replay.recording.threads[0].registers[replay.target.architecture.program_counter]
    true = steps(RECURSION, {})
    found = steps(RECURSION, {unboxed_of(RECURSION): other})
    assert [step["kernel"]["function"] for step in found] == [step["kernel"]["function"] for step in true]


def entry_of(name: str, key: str) -> tuple[Dispatcher, int]:
    """Where the table entry is that the call of OPERATOR for ``key`` leads to."""
    step = next(step for step in steps(name, {}) if (step["op"], step["key"]) == (OPERATOR, key))
    assert step["confidence"] == "exact"
    dispatcher: Any = Replay(name).session.dispatcher
    return dispatcher, dispatcher.table_entry(address_of(step), step["table_index"])


def test_an_entry_without_functions_is_not_the_kernel_that_runs() -> None:
    """The call holds the entry's address; what it holds has been overwritten since."""
    name = "gil-mutex-debian"
    dispatcher, entry = entry_of(name, "AutogradCPU")
    words = range(entry, entry + dispatcher.kernels.size, 8)
    memory = recording(name).memory
    found = steps(name, {at: 0 for at in words if memory.read(at, 8) is not None})
    assert [each for each in proven(found) if (each["op"], each["key"]) == (OPERATOR, "AutogradCPU")] == []
    assert [each["op"] for each in found].count(OPERATOR) > 0


def test_a_python_kernel_without_its_functor_is_still_one() -> None:
    """Its boxed function says that it calls a Python function; which one was in the word that is gone."""
    name = "gil-mutex"
    dispatcher, entry = entry_of(name, "CPU")
    kernels = dispatcher.kernels
    raw = recording(name).memory.read(entry, kernels.size)
    functor = kernels.parse(raw, 0).functor.to_bytes(8, "little")
    at = next(at for at in range(entry, entry + 32, 8) if recording(name).memory.read(at, 8) == functor)
    file = 0x7F62AA43C2E0
    no_file = "<lambda>, a Python function whose file cannot be read"
    for place, text in ((at, "a Python function that cannot be read"), (file, no_file)):
        step = next(each for each in steps(name, {place: 0}) if each["key"] == "CPU")
        assert step["kernel"]["function"] == text


PASSED = 0x520
"""Where the frame of the boxed kernel keeps the keyset that it was called with, above the innermost stack pointer."""


@pytest.mark.parametrize("keyset", [0x18001, 0x18002, 0x18003])
def test_a_redispatch_with_a_key_that_its_caller_has_not(keyset: int) -> None:
    """The same kernel would run; one frame further out the keyset still is what it was."""
    sp = recording(META).threads[0].registers[Replay(META).target.architecture.stack_pointer]
    (step,) = [step for step in steps(META, {sp + PASSED: keyset}) if step["event"] == "redispatch"]
    assert (step["keyset"]["bits"], step["confidence"]) == ("0x18000", "exact")
    assert f"keyset {keyset:#x} has keys that its caller's keyset, 0x1000018000, lacks" in step["evidence"]


@pytest.mark.parametrize("number", [0, 1], ids=["zero", "backend"])
def test_a_small_number_is_no_keyset(number: int) -> None:
    """1 is the bit of a backend alone, of nothing that it does. The empty keyset is what any word of zeros is."""
    whole = recording(META)
    stack = whole.threads[0].registers[Replay(META).target.architecture.stack_pointer]
    keyset, reach = 0x1000018000, 1 << 14
    places = [at for at in range(stack, stack + reach, 8) if whole.memory.read(at, 8) == keyset.to_bytes(8, "little")]
    assert len(places) > 3
    for at in places:
        found = proven(steps(META, {at: number}))
        assert [step["keyset"]["bits"] for step in found if int(step["keyset"]["bits"], 16) < 1 << 12] == []


def test_code_with_the_same_checksum_has_jumps_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process writes its code as it likes, and a checksum of four bytes is soon met."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    met: dict[int, bytes] = {}
    for number in range(1 << 20):
        rest = (number * 0x9E3779B1 % (1 << 64)).to_bytes(8, "little")
        code = b"\xe9" + (1 + number).to_bytes(3, "little") + b"\0" + rest
        other = met.setdefault(crc32(code), code)
        if other[:5] != code[:5]:
            break
    assert crc32(other) == crc32(code)
    architecture = Replay(META).target.architecture
    for each in (other, code):
        kernel_match._jumps_in.cache_clear()
        symbol_cache.text_cache.cache_clear()
        found = kernel_match._jumps_in(architecture, each, 0x1000)
        assert found[0] == ("to", 5 + int.from_bytes(each[1:5], "little"))
