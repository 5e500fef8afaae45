"""What the names of functions tell, the order in which waits are recognised, and what threads hold."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.wait import OwnerThread, Resource, Wait
from gdbext.diagnosis.report.wait_kind import Relation, WaitKind
from gdbext.diagnosis.waits import recognise
from gdbext.diagnosis.waits.function_tag import Functions, FunctionTag, tags_of
from gdbext.diagnosis.waits.pool_table import AUTOGRAD, NCCL, POOLS, Pool, PoolIndex, PoolPart
from gdbext.torch import assumed_symbols


def test_what_proves_more_comes_first():
    names = [f"{each.__module__.rpartition('.')[2]}.{each.__name__}" for each in recognise.RECOGNISERS]
    condvar = names.index("pthread_waits.condvar_wait")
    assert names.index("gil_waits.gil_wait") < condvar
    assert names.index("mutex_waits.mutex_wait") < names.index("torch_waits.classify") < condvar
    assert names.index("python_waits.classify") < condvar
    assert names[-1] == "syscall_waits.unknown_futex"


POP = "_ZN5torch8autograd10ReadyQueue3popEv"
REGISTRY = "_ZN10rayon_core8registry12WorkerThread15wait_until_cold17h0123456789abcdefE"


def test_a_name_inside_a_template_argument_is_no_tag():
    assert tags_of([f"_ZSt6invokeIM{POP[2:]}EvE"]) == frozenset()
    pools = PoolIndex()
    assert pools.functions_of([f"_ZSt6invokeIM{POP[2:]}EvE"]) == frozenset()
    assert [(each.pool, each.part) for each in pools.functions_of([POP])] == [(AUTOGRAD, PoolPart.WAITS)]
    assert tags_of(["_ZN2at4implL12metaFallbackERKN3c1014OperatorHandleE"]) == {FunctionTag.NO_KERNEL}


def test_a_row_of_somebody_else_is_asked_as_ours_are():
    """A pool of a Rust library, whose names are mangled as C++'s are."""
    rayon = Pool("rayon", native=Functions(qualified=("rayon_core::registry::WorkerThread::wait_until_cold",)))
    assert [each.pool for each in PoolIndex([rayon]).functions_of([REGISTRY])] == [rayon]
    assert PoolIndex([rayon]).functions_of(["wait_until_cold"]) == frozenset()


@pytest.mark.parametrize(
    "name", [*assumed_symbols.NCCL_WATCHDOG.examples, "_ZN4c10d5nccl216ProcessGroupNCCL15timeoutWatchdogEv"]
)
def test_a_name_whose_last_letter_looks_like_internal_linkage(name: str) -> None:
    (function,) = PoolIndex(POOLS).functions_of([name])
    assert function.pool is NCCL


HELD = [kind for kind in WaitKind if kind.traits.relation in (Relation.HOLDS, Relation.RUNS)]


@pytest.mark.parametrize("kind", WaitKind, ids=lambda kind: kind.value)
def test_who_owes_a_notification_or_its_own_end_holds_nothing(kind: WaitKind) -> None:
    resource = Resource(kind, 0x7F00, "")
    held = recognise.held_resources([Wait(resource, OwnerThread(7))], [])
    assert held == ({7: (resource,)} if kind in HELD else {})


def test_what_two_wait_for_is_held_once() -> None:
    wait = Wait(Resource(WaitKind.MUTEX, 0x7F00, "a"), OwnerThread(7))
    other = Wait(Resource(WaitKind.MUTEX, 0x7F80, "b"), OwnerThread(7))
    assert recognise.held_resources([wait, None, wait, other], []) == {7: (wait.resource, other.resource)}
    assert recognise.held_resources([wait._replace(being_released=True)], []) == {}
