"""What threads hold: what they have until they let go, not what they owe."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.wait import OwnerThread, Resource, Wait
from gdbext.diagnosis.report.wait_kind import Relation, WaitKind
from gdbext.diagnosis.waits.recognise import held_resources

HELD = [kind for kind in WaitKind if kind.traits.relation in (Relation.HOLDS, Relation.RUNS)]


@pytest.mark.parametrize("kind", WaitKind, ids=lambda kind: kind.value)
def test_who_owes_a_notification_or_its_own_end_holds_nothing(kind: WaitKind) -> None:
    resource = Resource(kind, 0x7F00, "")
    held = held_resources([Wait(resource, OwnerThread(7))], [])
    assert held == ({7: (resource,)} if kind in HELD else {})


def test_what_two_wait_for_is_held_once() -> None:
    wait = Wait(Resource(WaitKind.MUTEX, 0x7F00, "a"), OwnerThread(7))
    other = Wait(Resource(WaitKind.MUTEX, 0x7F80, "b"), OwnerThread(7))
    assert held_resources([wait, None, wait, other], []) == {7: (wait.resource, other.resource)}
    assert held_resources([wait._replace(being_released=True)], []) == {}
