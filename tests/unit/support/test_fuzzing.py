"""The damage campaign's own judgement: what it takes for a false statement, and what it excuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.tools.table import Outcome
from support.fuzzing import judge
from support.fuzzing.look import Change, Look, Result
from support.fuzzing.memory_damage import Hole, Memory, Register
from support.fuzzing.statements import Statement, evidence_of, impossible, is_excused

OWNER = Statement("owner", (8, 9, "alive"))
LOCK = 0x7F942FDFF420
MEMORY = Memory(SparseBytes([LOCK - 4096, 0x1000], [bytes(8192), b"aten::mm".ljust(64, b"\0")]), [LOCK, 0x1000])
WAIT = {
    "kind": "mutex",
    "address": f"{LOCK:#x}",
    "certainty": "recorded",
    "owner": {"tid": 9, "state": "alive"},
    "evidence": [f"normal mutex {LOCK:#x}: lock word 0x2, owner 9 at +8"],
}
KEY, KEYSET = Statement("key", (8, "aten::mm", "0x18000", "Meta")), evidence_of("keyset 0x18000 passed in rdx")


@pytest.mark.parametrize(
    ("changes", "truth", "failures", "excused"),
    [
        ([Register(8, "rax", 77)], {}, ["false statement"], []),
        ([Register(8, "rax", 77)], {OWNER: evidence_of()}, [], []),
        ([Hole(0), MEMORY.put(LOCK + 8, 9)], {}, [], [str(OWNER)]),
    ],
)
def test_an_owner_is_a_false_one_unless_the_lock_says_so(
    changes: Sequence[Change], truth: dict[Statement, Any], failures: list[str], excused: list[str]
) -> None:
    output = json.dumps({"threads": [{"tid": 8, "wait": WAIT}]})
    result = Result("made-up", 1, "")
    made = Look("made up", ("dispatch-bt",), changes, lambda kept: Outcome(0, output if kept else "{}"), truth)
    judge.judged(made, result, shrink=False)
    assert ([what for what, _ in result.failures], result.excused) == (failures, excused)


def test_damage_excuses_what_it_says_itself() -> None:
    assert not is_excused(OWNER, evidence_of("lock 0x1000"), [Hole(0x1000)])
    assert is_excused(KEY, KEYSET, [Register(8, "rdx", 0x18000)])
    assert not is_excused(KEY, KEYSET, [Register(8, "rdx", 0x18001)])
    operator = Statement("operator", (8, "aten::mx"))
    assert is_excused(operator, evidence_of(), [MEMORY.patch(0x1007, b"x")])
    assert not is_excused(operator, evidence_of(), [MEMORY.patch(0x1017, b"x")])
    wrong = [Statement("operator", (8, "mm")), Statement("owner", (8, LOCK, "gone"))]
    assert list(impossible([*wrong, OWNER, operator])) == wrong
