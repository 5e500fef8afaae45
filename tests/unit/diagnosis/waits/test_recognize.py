"""What the names of functions tell, and what threads hold."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.wait import OwnerThread, Wait
from gdbext.diagnosis.report.wait_kind import Relation, Resource, WaitKind
from gdbext.diagnosis.waits import recognize
from gdbext.diagnosis.waits.function_tag import Functions, FunctionTag, tags_of
from gdbext.diagnosis.waits.pool_table import AUTOGRAD, NCCL, POOLS, Pool, PoolIndex, PoolPart
from gdbext.torch import assumed_symbols


def test_a_name_inside_a_template_argument_is_no_tag():
    pop = "_ZN5torch8autograd10ReadyQueue3popEv"
    inside, pools = [f"_ZSt6invokeIM{pop[2:]}EvE"], PoolIndex()
    assert tags_of(inside) == pools.functions_of(inside) == frozenset()
    assert [(each.pool, each.part) for each in pools.functions_of([pop])] == [(AUTOGRAD, PoolPart.WAITS)]
    assert tags_of(["_ZN2at4implL12metaFallbackERKN3c1014OperatorHandleE"]) == {FunctionTag.NO_KERNEL}


def test_a_row_of_somebody_else_is_asked_as_ours_are():
    """A pool of a Rust library, whose names are mangled as C++'s are; and names that end as those of internal ones."""
    rayon = Pool("rayon", native=Functions(qualified=("rayon_core::registry::WorkerThread::wait_until_cold",)))
    cold = "_ZN10rayon_core8registry12WorkerThread15wait_until_cold17h0123456789abcdefE"
    assert [each.pool for each in PoolIndex([rayon]).functions_of([cold])] == [rayon]
    assert PoolIndex([rayon]).functions_of(["wait_until_cold"]) == frozenset()
    for name in (*assumed_symbols.NCCL_WATCHDOG.examples, "_ZN4c10d5nccl216ProcessGroupNCCL15timeoutWatchdogEv"):
        assert [each.pool for each in PoolIndex(POOLS).functions_of([name])] == [NCCL]


HELD = [kind for kind in WaitKind if kind.traits.relation in (Relation.HOLDS, Relation.RUNS)]


@pytest.mark.parametrize("kind", WaitKind, ids=lambda kind: kind.value)
def test_who_owes_a_notification_or_its_own_end_holds_nothing(kind: WaitKind) -> None:
    resource = Resource(kind, 0x7F00, "")
    held = recognize.held_resources([Wait(resource, OwnerThread(7))], [])
    assert held == ({7: (resource,)} if kind in HELD else {})


def test_what_two_wait_for_is_held_once() -> None:
    wait = Wait(Resource(WaitKind.MUTEX, 0x7F00, "a"), OwnerThread(7))
    other = Wait(Resource(WaitKind.MUTEX, 0x7F80, "b"), OwnerThread(7))
    assert recognize.held_resources([wait, None, wait, other], []) == {7: (wait.resource, other.resource)}
    assert recognize.held_resources([wait._replace(being_released=True)], []) == {}
