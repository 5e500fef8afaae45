"""What a verdict is made from, gathered from the snapshots and reports of all threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from gdbext.model.threads.thread_report import ThreadReport
from gdbext.targets.base import MemoryMapping, Target
from gdbext.verdict.crash import ABORTS, Crash, CrashKind, Stop, describe
from gdbext.verdict.observations import Observations
from gdbext.verdict.recursion import Recursion, detect
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.waits.torch import openmp

if TYPE_CHECKING:
    from gdbext.torch.values.cxx_exception import CxxException

MemoryMaps = Callable[[], Sequence[MemoryMapping]]
ThrownBy = Callable[[ThreadSnapshot], Optional["CxxException"]]

_ABORTING = 16
"""Frames between a signal and the function that ended the program."""


def observe(
    process: ProcessSnapshot, threads: Sequence[ThreadReport], target: Target, thrown: ThrownBy = lambda _: None
) -> Observations:
    """``threads`` are the reports of all of the process's snapshots; ``thrown`` is asked of threads that terminated."""
    crashes = {each.tid: crash for each in process.threads if (crash := _crash(each, target.maps, thrown)) is not None}
    loops = {each.tid: loop for each in process.threads if (loop := _recursion(each, crashes)) is not None}
    return Observations(
        tuple(threads),
        process.pid,
        crashes,
        loops,
        _masters(process.threads, crashes),
        complete=len(threads) == len(process.tids),
        stopped=bool(threads) and all(each.kernel_state == "T" for each in process.threads),
        ran_on=target.ran_on,
    )


def _crash(snapshot: ThreadSnapshot, maps: MemoryMaps, thrown: ThrownBy) -> Crash | None:
    """How the thread crashed, None where it did not."""
    stop = _stop(snapshot)
    if stop is not None and stop.aborted_by is FunctionTag.TERMINATE:
        stop = stop._replace(thrown=thrown(snapshot))
    return describe(snapshot.tid, stop, maps()) if stop is not None and stop.is_fatal else None


def _stop(snapshot: ThreadSnapshot) -> Stop | None:
    """Where and by which signal the thread was stopped, None where no signal stopped it."""
    if snapshot.signal is None:
        return None
    registers, memory = snapshot.registers, snapshot.process.memory
    architecture = memory.architecture
    return Stop(
        snapshot.signal,
        pc=registers.get(architecture.program_counter, 0),
        sp=registers.get(architecture.stack_pointer, 0),
        user_limit=architecture.user_limit,
        at_trap=architecture.stopped_at_trap(registers, memory.try_read),
        aborted_by=next((tag for tag in ABORTS if snapshot.first(tag, within=_ABORTING) is not None), None),
    )


def _recursion(snapshot: ThreadSnapshot, crashes: Mapping[int, Crash]) -> Recursion | None:
    """The runaway recursion that the thread is in."""
    crashed = crashes.get(snapshot.tid)
    overflown = crashed is not None and crashed.kind is CrashKind.STACK_OVERFLOW
    levels = sorted(frame.level for frame in snapshot.python)
    return detect(snapshot.dispatch, levels, overflown)


def _masters(threads: Sequence[ThreadSnapshot], crashes: Mapping[int, Crash]) -> dict[int, int]:
    """For crashed OpenMP workers: the thread inside an operator that has a team, where there is one such thread."""
    masters = [each.tid for each in threads if each.dispatch and openmp.is_in_a_team(each)] if crashes else []
    if len(masters) != 1:
        return {}
    return {each.tid: masters[0] for each in threads if each.tid in crashes and openmp.is_worker(each)}
