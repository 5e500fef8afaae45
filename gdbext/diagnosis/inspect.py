"""One inspection: snapshots of all threads → waits → reports → passes over the reports → observations → verdict."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import GREENLET_HUBS
from gdbext.diagnosis.job import is_rank
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.report.finding import NOTE, ProcessStop
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.thread_reporting import (
    all_frames,
    have_same_arguments,
    missing_kernels,
    native_place,
    report_thread,
    with_nodes,
)
from gdbext.diagnosis.verdict.crash import describe
from gdbext.diagnosis.verdict.crash_reading import signal_stop, with_reasons
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import Judgement, judge
from gdbext.diagnosis.verdict.known_bugs import known_bugs
from gdbext.diagnosis.verdict.progress import SamplePlace
from gdbext.diagnosis.verdict.recursion import detect
from gdbext.diagnosis.verdict.taken_pools import taken_pools
from gdbext.diagnosis.waits import pool_workers
from gdbext.diagnosis.waits.event_loops import event_loops, own_server_states
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.python_waits import is_of_two_moments
from gdbext.diagnosis.waits.recognize import State, follow_main_thread, held_resources, state_of
from gdbext.engine.targets.system.linux import signal_name
from gdbext.engine.targets.system.peer import ProcessState
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Optional

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.verdict.crash import Crash
    from gdbext.diagnosis.verdict.recursion import Recursion
    from gdbext.diagnosis.verdict.slowness import Slowness
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.vocabulary import Section
    from gdbext.known.signatures import KnownBugReport

    Completed = tuple[Sequence[ThreadReport], Optional[Section]]

    ReportPass = Callable[[Session, ProcessSnapshot, Sequence[ThreadReport]], Completed]


def _process_stop(process: ProcessSnapshot, target: Target) -> ProcessStop | None:
    """The stop that all threads were in before the debugger attached, None if there was none."""
    tracer = target.origin.files.fact(f"tracer of {process.pid}", "", lambda: target.moment.holder)
    if tracer:
        return ProcessStop(tracer=tracer)
    if process.frozen_group:
        return ProcessStop(group=process.frozen_group)
    if not process.threads or any(thread.kernel_state != "T" for thread in process.threads):
        return None
    number = next((thread.stop_signal for thread in process.threads if thread.stop_signal), 0)
    name = signal_name(number) if number else ""
    uses_terminal = name in ("SIGTTIN", "SIGTTOU")
    return ProcessStop(name, terminal=process.procfs.machine.terminal() if uses_terminal else "")


def _observe(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Observations:
    """The input of the verdict: the reports with crashes, recursions, stops and reasons for slowness."""
    target = session.target
    crashes: dict[int, Crash] = {}
    recursions: dict[int, Recursion] = {}
    for snapshot in process.threads:
        stop, crash = signal_stop(snapshot), None
        if stop and stop.is_fatal:
            crash = describe(snapshot.tid, with_reasons(session, snapshot, stop), target.memory.maps())
            crashes[snapshot.tid] = crash
        recursion = detect(
            snapshot.dispatch,
            sorted(frame.level for frame in snapshot.python),
            overflown=crash is not None and crash.is_stack_overflow,
            same_arguments=partial(have_same_arguments, session, snapshot),
            complete=snapshot.unseen_dispatch is None,
        )
        if recursion:
            recursions[snapshot.tid] = recursion
    snapshots = process.threads if crashes else ()
    teams = [snapshot.tid for snapshot in snapshots if snapshot.dispatch and pool_workers.is_in_a_team(snapshot)]
    workers = [snapshot.tid for snapshot in snapshots if snapshot.tid in crashes and pool_workers.is_worker(snapshot)]
    return Observations(
        tuple(threads),
        process.pid,
        crashes,
        recursions,
        dict.fromkeys(workers, teams[0]) if len(teams) == 1 else {},
        has_torch=session.has_torch,
        complete=len(threads) == len(process.tids),
        lives=not target.origin.is_core,
        main_has_exited=process.pid not in process.tids and _is_zombie(process),
        stop=_process_stop(process, target),
        slowness=_slowness(session, process, threads, has_crashed=bool(crashes)),
        taken_pools=taken_pools(process, threads),
        has_run=target.moment.has_run,
        moved=target.moment.threads_that_ran,
    )


def _is_zombie(process: ProcessSnapshot) -> bool:
    """The main thread's state in /proc/PID/stat is Z: it has exited, and was not reaped while other threads live."""
    return process.procfs.process(process.pid).state is ProcessState.ENDED


class Inspection(NamedTuple):
    """Everything that all-threads and dispatch-diagnose report."""

    threads: tuple[ThreadReport, ...]
    judgement: Judgement
    sections: tuple[Section, ...] = ()
    """The results of the passes: on the process's job, on the devices that threads wait for."""
    places: Mapping[int, SamplePlace] = MappingProxyType({})
    """Thread id → its place, to compare several samples; empty unless asked for."""
    known: tuple[KnownBugReport, ...] = ()
    """Known bugs that may be the reason for the hang."""
    slowness: Slowness | None = None
    """The surroundings of the process, and what may slow it down; None if nothing had to be read."""
    observations: Observations | None = None
    """The input of the judgement."""


def inspect_threads(session: Session, frames: bool = False, placed: bool = False) -> Inspection:
    """Inspect every thread and judge; errors of reading go to the session's error log. ``frames``: with whole stacks;
    ``placed``: with each thread's place, to compare several samples."""
    process = session.threads.all()
    states = {thread.tid: _state(thread, session) for thread in process.threads}
    for thread in process.threads:
        state = states[thread.tid]
        wait = state.wait if state and state.state is not RunState.IDLE else None
        # A wait for what may be a lock without a known owner: a callee-saved register may show it. The owner of a
        # Python lock is known from Python's objects and frames only.
        lacks_owner = (
            wait is not None
            and not (wait.owners or wait.being_released or wait.detail.missing_workers is not None)
            and wait.kind.traits.may_be_lock
            and wait.kind is not WaitKind.PYTHON_LOCK
        )
        if state and (lacks_owner or is_of_two_moments(thread, state.wait)):
            session.target.moment.need_registers(thread.tid)
    threads: Sequence[ThreadReport] = _report_threads(session, process, states, frames)
    sections: list[Section] = []
    for complete in PASSES:
        threads, section = complete(session, process, threads)
        sections += [section] if section else []
    observations = _observe(session, process, threads)
    judgement = judge(observations)
    notes = tuple(missing_kernels(session, process, threads))
    judgement = Judgement(judgement.findings + notes, judgement.verdict)
    places = {thread.tid: _sample_place(thread) for thread in process.threads} if placed else {}
    return Inspection(tuple(threads), judgement, tuple(sections), places, (), observations.slowness, observations)


def judged_again(inspection: Inspection, slowness: Slowness | None) -> Inspection:
    """The inspection with other reasons for slowness; judged again if a reason is proven that was not."""
    proven = [reason.kind for reason in slowness.explanations if reason.proven] if slowness else []
    before = (
        [reason.kind for reason in inspection.slowness.explanations if reason.proven] if inspection.slowness else []
    )
    if proven != before and inspection.observations:
        inspection = _judged_by(inspection, inspection.observations._replace(slowness=slowness))
    return inspection._replace(slowness=slowness)


def with_ended_waits(inspection: Inspection, tids: Collection[int]) -> Inspection:
    """The last of several samples, given that the threads ``tids`` moved in between: their waits end. Judged again."""

    def with_ended(thread: ThreadReport) -> ThreadReport:
        return thread._replace(wait=thread.wait._replace(was_ended=True)) if thread.wait else thread

    if not inspection.observations or not any(thread.wait and thread.tid in tids for thread in inspection.threads):
        return inspection
    threads = tuple(with_ended(thread) if thread.tid in tids else thread for thread in inspection.threads)
    observations = inspection.observations._replace(threads=threads)
    return _judged_by(inspection._replace(threads=threads), observations)


def _judged_by(inspection: Inspection, observations: Observations) -> Inspection:
    """The inspection, judged again by other observations; notes that do not follow from observations stay."""
    judgement = judge(observations)
    notes = (finding for finding in inspection.judgement.findings if finding.kind is NOTE)
    findings = tuple(dict.fromkeys((*judgement.findings, *notes)))
    return inspection._replace(judgement=Judgement(findings, judgement.verdict), observations=observations)


def _sample_place(thread: ThreadSnapshot) -> SamplePlace:
    """The thread's place, to compare with other samples: frames, Python lines and, if it runs, native functions."""
    # The 200 outermost frames: deeper ones differ only in recursions.
    addresses = tuple(frame.pc for frame in reversed(thread.frames[-200:]))
    lines = tuple((frame.function, frame.line) for frame in thread.python)
    instruction = thread.process.python.instruction(thread.tid) if thread.python else None
    inner = () if thread.syscall else range(min(len(thread.frames), 16))
    return SamplePlace(addresses, lines, instruction, tuple(native_place(thread, level) for level in inner))


def _slowness(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], has_crashed: bool
) -> Slowness | None:
    """The reasons for slowness; None, and nothing is imported or read, if all threads wait."""
    # A thread rests if it neither runs nor retries by itself, nor lacks workers.
    waits = (thread.wait for thread in threads if thread.state is not RunState.IDLE)
    rests = all(wait and wait.kind is not WaitKind.SLEEP and wait.detail.missing_workers is None for wait in waits)
    if not session.procfs:  # a core of a process that ran on: what its memory shows
        if rests or has_crashed:
            return None
        from gdbext.diagnosis.verdict.slowness import slowness_of_core  # 11 ms

        return slowness_of_core(session, process, threads)
    if not (session.target.origin.files.are_here or session.target.origin.files.stored_text("machine")):
        return None
    ordinary = all(not thread.kernel_side and thread.kernel_state != "R" for thread in process.threads)
    is_whole = len(process.threads) == len(process.tids)  # else a thread had no turn in which to stop, perhaps
    # A thread that waits for file descriptors may be one that wants more of them.
    accepts = any(thread.loop or (thread.wait and thread.wait.kind is WaitKind.IO) for thread in threads)
    if rests and ordinary and is_whole and not (accepts and session.procfs.machine.lacks_descriptors()):
        return None
    from gdbext.diagnosis.verdict.slowness import slowness  # 11 ms, where something runs

    return slowness(session, process, threads)


def with_known_bugs(session: Session, inspection: Inspection) -> Inspection:
    """The inspection with the known bugs that fit; searched only if a thread waits or the program crashed."""
    threads, judgement = inspection.threads, inspection.judgement
    crashed = judgement.verdict.kind is CRASH
    if not crashed and all(not thread.wait or thread.state is RunState.IDLE for thread in threads):
        return inspection
    return inspection._replace(known=known_bugs(session, session.threads.all(), threads, judgement.findings))


def _report_threads(
    session: Session, process: ProcessSnapshot, states: Mapping[int, State | None], frames: bool
) -> tuple[ThreadReport, ...]:
    """The reports of all threads; ``states``: by thread id, None if a wait could not be read."""
    states = follow_main_thread(process, states)
    # A process without a frame of asyncio, trio or a hub of greenlets has no event loop that runs.
    files = ("/asyncio/", "/trio/_core/", *GREENLET_HUBS)
    users = [
        thread.tid for thread in process.threads if any(part in frame.file for frame in thread.python for part in files)
    ]
    loops = event_loops(process, users) if users else {}
    if loops:
        states = {**states, **dict(own_server_states(process, states, loops))}
    held = held_resources((state.wait for state in states.values() if state), process.gils)
    return tuple(
        report_thread(
            thread,
            states[thread.tid],
            held.get(thread.tid, ()),
            all_frames(session, thread) if frames else (),
            loop=loops.get(thread.tid),
        )
        for thread in process.threads
    )


def _state(thread: ThreadSnapshot, session: Session) -> State | None:
    """The state of a thread; None if unreadable. If it ran since its stop, its fds may be others: they are not used."""
    try:
        state = state_of(thread)
        is_io = state.wait is not None and state.wait.kind is WaitKind.IO
        return state_of(thread.without_procfs()) if is_io and session.target.moment.may_have_left(thread.tid) else state
    except GdbextError as error:
        session.errors.note(error, f"wait of thread {thread.tid}")
        return None


def _name_collectives(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    """For ranks: name the collective for which each thread waits; with the section about the process's job."""
    if not is_rank(session.target, process, threads):
        return threads, None
    from gdbext.diagnosis.job.collective_waits import name_collectives  # 9 ms, for ranks

    return name_collectives(session, process, threads)


def _name_devices(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    """In waits for a device: name the stream or event; with the section about the devices."""
    if not any(thread.wait and thread.wait.detail.device for thread in threads):
        return threads, None
    from gdbext.diagnosis.job.devices import name_devices  # 12 ms, where a device is waited for

    return name_devices(session, process, threads)


def _add_nodes(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    """Add the running autograd nodes to threads inside a backward pass; no section."""
    tids = {thread.tid for thread in process.threads if FunctionTag.AUTOGRAD_EVALUATE in thread.inner_tags}
    targets = {thread.tid: thread for thread in session.target.memory.threads()} if tids else {}
    return [with_nodes(session, targets[row.tid], row) if row.tid in tids else row for row in threads], None


PASSES: tuple[ReportPass, ...] = (_name_devices, _name_collectives, _add_nodes)
"""Passes over the finished reports, in this order: each completes reports and may add a section."""
