"""The damage campaign's own judgement: what it takes for a false statement, what it excuses, what it leaves out."""

from __future__ import annotations

import gc
import json
import random
from typing import Any

import pytest

from gdbext.engine.targets.recording.recording import SparseBytes
from gdbext.tools.table import Outcome
from support.fuzzing import campaign, json_damage, judge, kinds, memory_damage, subjects, worker
from support.fuzzing.byte_damage import Bytes, Cut, damage_bytes, with_bytes
from support.fuzzing.look import Change, Kind, Look, Result
from support.fuzzing.memory_damage import Hole, Memory, Register
from support.fuzzing.statements import Statement, evidence_of, impossible, is_excused, statements
from support.programs import procfs
from support.recorded.recordings import recording

OWNER = Statement("owner", (8, 9, "alive"))
LOCK = 0x7F942FDFF420
MEMORY = Memory(SparseBytes([LOCK - 4096, 0x1000], [bytes(8192), b"aten::mm".ljust(64, b"\0")]), [LOCK, 0x1000])


def look(changes: list[Change], output: str, truth: dict[Statement, Any] | None = None) -> Result:
    result = Result("made-up", 1, "")
    made = Look("made up", ("dispatch-bt",), changes, lambda kept: Outcome(0, output if kept else "{}"), truth)
    judge.judged(made, result, shrink=False)
    return result


WAIT = json.dumps(
    {
        "threads": [
            {
                "tid": 8,
                "wait": {
                    "kind": "mutex",
                    "address": f"{LOCK:#x}",
                    "certainty": "recorded",
                    "owner": {"tid": 9, "state": "alive"},
                    "evidence": [f"normal mutex {LOCK:#x}: lock word 0x2, owner 9 at +8"],
                },
            }
        ]
    }
)


def test_an_owner_that_the_target_does_not_name_is_a_failure() -> None:
    result = look([Register(8, "rax", 77)], WAIT, truth={})
    assert [what for what, _ in result.failures] == ["false statement"]
    assert result.smallest == ["rax of thread 8 is 0x4d"]
    assert not look([Register(8, "rax", 77)], WAIT, truth={OWNER: evidence_of()}).failures


def test_the_locks_own_word_excuses_it() -> None:
    result = look([Hole(0), MEMORY.put(LOCK + 8, 9)], WAIT, truth={})
    assert not result.failures
    assert result.excused == ["owner 8 9 alive"]


def test_what_cannot_be_read_excuses_nothing() -> None:
    assert not is_excused(OWNER, evidence_of("lock 0x1000"), [Hole(0x1000)])


def test_values_excuse_where_the_evidence_names_them() -> None:
    key = Statement("key", (8, "aten::mm", "0x18000", "Meta"))
    evidence = evidence_of("keyset 0x18000 passed in rdx by the call in frame #3")
    assert is_excused(key, evidence, [Register(8, "rdx", 0x18000)])
    assert not is_excused(key, evidence, [Register(8, "rdx", 0x18001)])
    assert not is_excused(key, evidence, [Register(8, "rdx", 3)]), "small numbers stand everywhere"


def test_the_text_that_was_put_there_excuses_a_name() -> None:
    operator = Statement("operator", (8, "aten::mx"))
    assert is_excused(operator, evidence_of(), [MEMORY.patch(0x1007, b"x")])
    assert not is_excused(operator, evidence_of(), [MEMORY.patch(0x1017, b"x")])


def test_the_last_letter_of_a_text_stands_alone_in_its_word() -> None:
    memory = Memory(SparseBytes([0x1000], [b"a::wait_unboxed".rjust(17, b"\xff").ljust(64, b"\0")]), [0x1010])
    changes = [memory.put(0x1010, 0x65)]
    assert changes[0].texts == ["t_unboxee"]
    assert is_excused(Statement("operator", (8, "a::wait_unboxee")), evidence_of(), changes)
    assert not is_excused(Statement("operator", (8, "a::other")), evidence_of(), changes)


def test_the_name_of_a_python_kernel_may_be_lost() -> None:
    def of(function: str) -> set[Statement]:
        kernel = {"function": function, "valid": True}
        step = {"op": "aten::mm", "overload": "", "key": "CPU", "keyset": None, "kernel": kernel, "confidence": "exact"}
        return set(statements({"threads": [{"tid": 8, "dispatch": [step]}]}))

    named = of("meta_mm at /x/meta_mm.py:25")
    assert named == of("a Python function that cannot be read") == of("the Python object at 0x7fcd5278f7e0")
    assert named == of("kernel at /tmp/fi\r\nle.py:7"), "the name of its file was damaged"
    assert named != of("at::native::mm")
    assert [each.what for each in of("(function pointer)")] == ["operator"], "of no function it is said that it runs"


def test_what_can_never_be_true() -> None:
    wrong = [Statement("operator", (8, name)) for name in ("", "mm", "aten::m\0m", None)]
    wrong.append(Statement("owner", (8, 0x7F942FDFF420, "gone")))
    assert list(impossible([*wrong, OWNER, Statement("operator", (8, "aten::add.Tensor"))])) == wrong


def test_statements_are_those_without_a_reservation() -> None:
    finding = {"kind": "deadlock", "summary": "a waits for b, which b seems to hold", "threads": [1, 2], "evidence": []}
    assert not statements({"findings": [finding]})
    finding["summary"] = "a waits for b, which b holds"
    assert list(statements({"findings": [finding]})) == [Statement("cycle", ("deadlock", 1, 2))]


def test_looks_are_the_same_each_time() -> None:
    for kind in kinds.available():
        if kind.name in ("memory-pointers", "registers", "recording-facts"):
            assert [str(each) for each in kind.look(3).changes] == [str(each) for each in kind.look(3).changes]


def test_the_undamaged_recording_says_what_is_true() -> None:
    found = subjects.subject("python-lock-abba")
    assert found.truth
    command = subjects.JUDGED[1]
    undamaged = subjects.look_at(found, command, [], lambda _: subjects.execute(command, found.recording))
    result = Result("none", 0, "")
    judge.judged(undamaged, result, shrink=False)
    assert not result.failures


def test_damage_to_memory_is_where_it_says() -> None:
    whole = recording("python-lock-abba")
    start = whole.memory.starts[0]
    page = start + 4096 & -4096
    memory = Memory(whole.memory, [start])
    found = memory_damage.damaged(whole, [memory.put(start, 0x1234), Hole(page)])
    assert found.memory.read(start, 8) == (0x1234).to_bytes(8, "little")
    assert found.memory.read(page, 1) is None
    assert page in found.unreadable
    assert whole.memory.read(start, 8) != found.memory.read(start, 8), "the recording itself stays as it is"


def test_damage_to_bytes_and_documents_leaves_the_original_alone() -> None:
    data, chance = bytes(range(256)), random.Random(1)
    for _ in range(50):
        assert len(with_bytes(data, damage_bytes(chance, 0, 256, 256))) <= 256 + 4096
    assert with_bytes(data, [Bytes(1, b"xy"), Cut(4)]) == b"\0xy\3"
    document = {"a": [{"b": 1}, {"c": [1, 2]}]}
    for seed in range(200):
        json_damage.with_changes(document, json_damage.damage_json(document, random.Random(seed)))
    assert document == {"a": [{"b": 1}, {"c": [1, 2]}]}


PAUSE = "34"
"""arch/x86/entry/syscalls/syscall_64.tbl"""


class Broken(Kind):
    """Does what its seed says."""

    name = "broken"

    def look(self, seed: int) -> Look:
        def run(_: object) -> Outcome:
            if seed == 1:
                raise SystemExit(3)
            if seed == 2:
                worker.os.kill(worker.os.getpid(), 9)
            if seed == 3:
                while True:
                    worker.signal.pause()
            if seed == 4:
                return Outcome(1, "", f"internal error: {len(bytearray(3 << 30))}")
            return Outcome(0, "ok")

        return Look("nothing", ("dispatch-bt",), [], run)


def test_what_a_look_leaves_behind_is_a_failure() -> None:
    class Careless(Kind):
        name = "careless"

        def look(self, seed: int) -> Look:  # noqa: ARG002
            return Look("nothing", ("dispatch-bt",), [], lambda _: gc.disable() or Outcome(0, "ok"))

    try:
        result = worker.run(Careless(), 1)
    finally:
        gc.enable()
    assert [(what, how.partition(":")[0]) for what, how in result.failures] == [("left behind", "garbage collection")]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_look_costs_no_more_than_itself(monkeypatch: Any, jobs: int) -> None:
    pauses = property(lambda self: procfs.syscall(self._pid, self._pid)[0] == PAUSE)
    monkeypatch.setattr(worker.Worker, "is_late", pauses)
    results: list[Result] = []
    rows = campaign.run([Broken()], 0, campaign.Limits(looks=6), jobs, results.append)
    assert sorted((result.seed, [what for what, _ in result.failures]) for result in results) == [
        (0, []),
        (1, ["uncaught"]),
        (2, ["died"]),
        (3, ["hung"]),
        (4, ["uncaught"]),
        (5, []),
    ]
    assert rows["broken"].looks == 6
    assert "broken" in campaign.table(rows)
