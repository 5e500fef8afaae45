"""One look at all threads: facts of each, its wait, what it holds, and the judgement over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, TargetGone
from gdbext.inspection.session import Session
from gdbext.inspection.wait_view import PythonWaitView
from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.thread import RunState, ThreadReport
from gdbext.model.wait import Resource
from gdbext.model.wait_kind import WaitKind
from gdbext.targets.base import Thread
from gdbext.targets.procfs import ProcFs
from gdbext.verdict import crash, recursion
from gdbext.verdict.crash import CrashKind
from gdbext.verdict.judge import Judgement, judge
from gdbext.verdict.observations import Observations
from gdbext.verdict.progress import Place
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.recognise import state_of
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.waits.torch import openmp

if TYPE_CHECKING:
    from gdbext.cpython.sync.gil import GilState

_ABORTING = 16
"""Frames between a signal and the function that ended the program."""
_KEYED = 200
"""Innermost frames that make two stacks equal; deeper ones differ only in recursions."""


@dataclass(frozen=True)
class Inspection:
    """Everything that all-threads and dispatch-diagnose report."""

    threads: tuple[ThreadReport, ...]
    judgement: Judgement
    places: Mapping[int, Place] = field(default_factory=dict)
    """Where each thread is, for comparing several looks; empty for a core."""


def inspect_threads(session: Session, frames: bool = False) -> Inspection:
    """Looks at every thread. One that cannot be read costs itself and is named in the session's errors."""
    pid = session.target.pid
    python = PythonWaitView(session)
    surroundings = None if session.target.is_core else ProcFs(pid, session.target.files, session.memory.architecture)
    process = ProcessSnapshot(
        session.memory, session.symbolizer, session.modules, pid,
        frozenset(thread.tid for thread in session.target.threads()),
        python=python, outside=surroundings,
    )  # fmt: skip
    known: list[tuple[Thread, ThreadReport, ThreadSnapshot]] = []
    for thread in session.target.threads():
        try:
            facts = session.thread_facts(thread, native=frames)
            look = ThreadSnapshot(process, thread.tid, thread.registers(), session.stack(thread),
                              thread.kernel_state, facts.python, facts.dispatch)  # fmt: skip
        except TargetGone:
            raise
        except GdbextError as error:
            session.note_error(error, f"thread {thread.tid}")
            continue
        process.threads.append(look)
        known.append((thread, facts, look))
    found = [_with_state(session, facts, look) for _, facts, look in known]
    found = with_holds(found, process.gils)
    case = replace(_case(session, known, found), complete=len(found) == len(process.tids))
    stopped = bool(known) and all(thread.kernel_state == "T" for thread, _, _ in known)
    judgement = judge(replace(case, stopped=stopped))
    notes = tuple(_missing_kernels(session, process, found))
    judgement = replace(judgement, findings=judgement.findings + notes)
    places = {} if surroundings is None else {look.tid: _place(surroundings, look) for look in process.threads}
    return Inspection(tuple(found), judgement, places)


def _place(surroundings: ProcFs, look: ThreadSnapshot) -> Place:
    addresses = tuple(frame.pc for frame in reversed(look.frames[-_KEYED:]))
    python = tuple((frame.function, frame.line) for frame in look.python)
    return Place(addresses, python, surroundings.processor_seconds(look.tid))


def _with_state(session: Session, facts: ThreadReport, look: ThreadSnapshot) -> ThreadReport:
    try:
        state = state_of(look)
    except GdbextError as error:
        session.note_error(error, f"wait of thread {facts.tid}")
        return replace(facts, state=RunState.WAITING if look.syscall else RunState.RUNNING)
    key = hash(tuple(frame.pc for frame in look.frames[:_KEYED])) if look.frames else 0
    return replace(facts, state=state.state, wait=state.wait, pool=state.pool, stack_key=key)


def with_holds(threads: Sequence[ThreadReport], gils: Sequence[GilState]) -> list[ThreadReport]:
    """Each thread with what it is known to hold: what others wait for, and the GIL."""
    held: dict[int, dict[tuple[WaitKind, int], Resource]] = {}
    for gil in gils:
        if gil.holder_tid is not None:
            name = f"interpreter {gil.interpreter}" if gil.interpreter else ""
            held.setdefault(gil.holder_tid, {})[WaitKind.GIL, gil.address] = Resource(WaitKind.GIL, gil.address, name)
    for thread in threads:
        wait = thread.wait
        if wait is None or wait.handover or not wait.kind.traits.may_be_held:
            continue
        for owner in wait.owners:
            held.setdefault(owner.tid, {}).setdefault((wait.kind, wait.resource.address), wait.resource)
    return [replace(thread, holds=tuple(held.get(thread.tid, {}).values())) for thread in threads]


def _case(
    session: Session, known: Sequence[tuple[Thread, ThreadReport, ThreadSnapshot]], found: Sequence[ThreadReport]
) -> Observations:
    crashes, recursions = {}, {}
    for (thread, _, look), facts in zip(known, found):
        trap = crash.is_trap(thread.signal, look.registers, session.memory)
        if thread.signal is not None and (trap or crash.is_fatal(thread.signal)):
            aborted = next((mark for mark in crash.ABORTS if look.first(mark, within=_ABORTING) is not None), None)
            maps = session.target.maps()
            crashes[facts.tid] = crash.describe(
                facts.tid, thread.signal, session.memory.architecture, look.registers, maps, aborted
            )
        overflown = facts.tid in crashes and crashes[facts.tid].kind is CrashKind.STACK_OVERFLOW
        levels = sorted(frame.level for frame in facts.python)
        endless = recursion.detect(facts.dispatch, levels, overflown)
        if endless is not None:
            recursions[facts.tid] = endless
    masters = _masters([look for _, _, look in known], crashes)
    return Observations(tuple(found), session.target.pid, crashes, recursions, masters)


def _masters(looks: Sequence[ThreadSnapshot], crashes: Mapping[int, crash.Crash]) -> dict[int, int]:
    """For crashed OpenMP workers: the thread inside an operator that has a team, where there is one such thread."""
    masters = [look.tid for look in looks if look.dispatch and openmp.is_in_a_team(look)] if crashes else []
    if len(masters) != 1:
        return {}
    return {look.tid: masters[0] for look in looks if look.tid in crashes and openmp.is_worker(look)}


def _missing_kernels(session: Session, process: ProcessSnapshot, found: Sequence[ThreadReport]) -> Iterator[Finding]:
    """Threads stopped where the dispatcher complains of a missing kernel: what is registered instead."""
    for thread in found:
        look = process.thread(thread.tid)
        level = look.first(FunctionTag.NO_KERNEL) if look is not None else None
        step = next((step for step in thread.dispatch if level is not None and step.level >= level), None)
        if step is None or step.op is None:
            continue
        for_key = f" for {step.key}" if step.key else ""
        text = f"{thread.label} is where the dispatcher finds no kernel{for_key} of {step.qualified}"
        keys = _registered(session, step.op, step.overload)
        yield Finding(FindingKind.NOTE, f"{text}; there are kernels for {', '.join(keys) or 'no key'}.", (thread.tid,))


def _registered(session: Session, op: str, overload: str) -> list[str]:
    """The keys that have a kernel of the operator."""
    from gdbext.torch.registry.dispatch_table import DispatchTables

    try:
        dispatcher = session.dispatcher
        for operator in dispatcher.find(op):
            if operator.overload == overload:
                return [each.key for each in DispatchTables(dispatcher).registrations(operator) if each.active]
    except GdbextError as error:
        session.note_error(error, f"registrations of {op}")
    return []
