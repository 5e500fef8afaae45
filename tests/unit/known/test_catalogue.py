"""Our entries: each recognizes the stack that its page shows, and nothing that is only alike."""

from __future__ import annotations

import pytest

from gdbext.known import Affected, own_entries
from gdbext.known.signatures import ProcessFacts, ThreadFacts, matches
from support.recorded.known_stacks import ALIKE, STACKS, Stuck

BUGS = own_entries()
BY_ID = {bug.id: bug for bug in BUGS}
each_stack = pytest.mark.parametrize("stuck", STACKS, ids=lambda stuck: stuck.bug)


def found(stuck: Stuck) -> list[str]:
    facts = ProcessFacts(
        stuck.threads,
        stuck.versions.get,
        lambda name: (name in stuck.environment, stuck.environment.get(name, "")),
        lambda word: word in stuck.relations,
        stuck.architecture,
    )
    return [match.id for match in matches(BUGS, facts)]


@pytest.mark.parametrize("stuck", [*STACKS, *ALIKE], ids=lambda stuck: stuck.bug)
def test_the_stack_of_its_page_is_recognized_and_what_is_only_alike_is_not(stuck: Stuck) -> None:
    assert found(stuck) == [stuck.bug] * (stuck in STACKS)


def test_each_entry_has_such_a_stack() -> None:
    assert {stuck.bug for stuck in STACKS} == {*BY_ID}


def _outside(affected: Affected) -> list[str]:
    """Versions beside the range: that of the cure, and one before the first that has the bug."""
    later = [affected.before] if affected.before else [f"{affected.until}.1"] if affected.until else []
    return [*later, *([f"{affected.since}rc1"] if affected.since else [])]


@each_stack
def test_a_version_outside_of_its_ranges_says_nothing(stuck: Stuck) -> None:
    affected = BY_ID[stuck.bug].affected
    for package, version in {(each.package, version) for each in affected for version in _outside(each)}:
        if not any(each.includes(version) for each in affected):
            assert found(stuck._replace(versions={**stuck.versions, package: version})) == [], version


@each_stack
def test_each_thread_of_it_is_needed(stuck: Stuck) -> None:
    """With any of them away nothing is said: the entry asks for no thread that may be anything."""
    bug = BY_ID[stuck.bug]
    for missing in range(len(stuck.threads)):
        rest = [each for number, each in enumerate(stuck.threads) if number != missing]
        needed = any(stuck.threads[missing].fits(pattern) for pattern in bug.threads)
        assert found(stuck._replace(threads=rest)) == ([] if needed else [stuck.bug])


def test_no_entry_is_shown_by_a_thread_of_which_nothing_is_known() -> None:
    for kind in {kind for bug in BUGS for pattern in bug.threads for kind in pattern.waits_for}:
        assert found(Stuck("", [ThreadFacts(f"t{n}", (), kind) for n in range(4)])) == []
