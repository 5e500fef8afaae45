"""The straight road: snapshots of all threads → what each waits for and holds → reports → passes over them →
observations → verdict."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import GREENLET_HUBS
from gdbext.diagnosis.job import is_rank
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.report.finding import ProcessStop
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.repeated_arguments import RepeatedArguments
from gdbext.diagnosis.threads.thread_reporting import (
    all_frames,
    missing_kernels,
    native_place,
    report_thread,
    uncaught_exception,
)
from gdbext.diagnosis.verdict.crash import ABORTS, SignalStop, describe
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import Judgement, judge
from gdbext.diagnosis.verdict.known_bugs import known_bugs
from gdbext.diagnosis.verdict.progress import SamplePlace
from gdbext.diagnosis.verdict.recursion import Recursion, detect, never_the_same
from gdbext.diagnosis.waits import pool_workers
from gdbext.diagnosis.waits.event_loops import asks_itself, event_loops
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.gil_waits import is_of_two_moments
from gdbext.diagnosis.waits.recognise import State, follow_main_thread, held_resources, state_of
from gdbext.engine.targets.system.linux import signal_name
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Optional

    from gdbext.diagnosis.report.thread_report import EventLoop
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.verdict.crash import Crash
    from gdbext.diagnosis.verdict.recursion import SameArguments
    from gdbext.diagnosis.verdict.slowness import Slowness
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.base_target import MemoryMapping, Target
    from gdbext.engine.vocabulary import Section
    from gdbext.known.signatures import KnownBugReport
    from gdbext.torch.values.cpp_objects import CxxException

    MemoryMaps = Callable[[], Sequence[MemoryMapping]]
    Completed = tuple[Sequence[ThreadReport], Optional[Section]]
    RepeatedOf = Callable[[ThreadSnapshot], SameArguments]
    ReportPass = Callable[[Session, ProcessSnapshot, Sequence[ThreadReport]], Completed]
    ThrownBy = Callable[[ThreadSnapshot], Optional["CxxException"]]


_ABORTING = 16
"""Frames between a signal and the function that ended the program."""


def observe(
    process: ProcessSnapshot,
    threads: Sequence[ThreadReport],
    target: Target,
    thrown: ThrownBy = lambda _: None,
    repeated: RepeatedOf = lambda _: never_the_same,
    has_torch: bool = True,
    slowness: Slowness | None = None,
) -> Observations:
    """``threads`` are the reports of all of the process's snapshots; ``thrown`` is asked of threads that terminated,
    ``repeated`` of those that repeat themselves."""
    crashes = {each.tid: crash for each in process.threads if (crash := _crash(each, target.memory.maps, thrown))}
    loops = {}
    for each in process.threads:
        loop = _recursion(each, crashes, repeated(each))
        if loop:
            loops[each.tid] = loop
    return Observations(
        tuple(threads),
        process.pid,
        crashes,
        loops,
        _masters(process.threads, crashes),
        has_torch=has_torch,
        complete=len(threads) == len(process.tids),
        stop=_process_stop(process, target),
        slowness=slowness,
        has_run=target.moment.has_run,
        moved=target.moment.threads_that_ran,
    )


def _process_stop(process: ProcessSnapshot, target: Target) -> ProcessStop | None:
    """The stop that all threads were in before we came, None where they were in none."""
    tracer = target.origin.files.fact(f"tracer of {process.pid}", "", lambda: target.moment.holder)
    if tracer:
        return ProcessStop(tracer=tracer)
    if process.frozen_group:
        return ProcessStop(group=process.frozen_group)
    if not process.threads or any(each.kernel_state != "T" for each in process.threads):
        return None
    number = next((each.stop_signal for each in process.threads if each.stop_signal), 0)
    name = signal_name(number) if number else ""
    uses_terminal = name in ("SIGTTIN", "SIGTTOU")
    return ProcessStop(name, terminal=process.procfs.machine.terminal() if uses_terminal else "")


def _crash(snapshot: ThreadSnapshot, maps: MemoryMaps, thrown: ThrownBy) -> Crash | None:
    """The crash of the thread, None where it did not crash."""
    stop = _stop(snapshot)
    if not stop:
        return None
    if stop.aborted_by is FunctionTag.TERMINATE:
        stop = stop._replace(thrown=thrown(snapshot))
    return describe(snapshot.tid, stop, maps()) if stop.is_fatal else None


def _stop(snapshot: ThreadSnapshot) -> SignalStop | None:
    """The place and the signal by which the thread was stopped, None where no signal stopped it."""
    if not snapshot.signal:
        return None
    registers, memory = snapshot.registers, snapshot.process.memory
    architecture = memory.architecture
    return SignalStop(
        snapshot.signal,
        pc=registers.get(architecture.program_counter, 0),
        sp=registers.get(architecture.stack_pointer, 0),
        user_limit=architecture.user_limit,
        at_trap=architecture.stopped_at_trap(registers, memory.try_read),
        aborted_by=next((tag for tag in ABORTS if snapshot.first(tag, within=_ABORTING) is not None), None),
    )


def _recursion(
    snapshot: ThreadSnapshot, crashes: Mapping[int, Crash], same_arguments: SameArguments
) -> Recursion | None:
    """The runaway recursion that the thread is in."""
    crashed = crashes.get(snapshot.tid)
    overflown = crashed is not None and crashed.is_stack_overflow
    levels = sorted(frame.level for frame in snapshot.python)
    return detect(snapshot.dispatch, levels, overflown, same_arguments, complete=snapshot.unseen_dispatch is None)


def _masters(threads: Sequence[ThreadSnapshot], crashes: Mapping[int, Crash]) -> dict[int, int]:
    """The master of each crashed OpenMP worker: the thread inside an operator that has a team, where there is one such
    thread."""
    masters = [each.tid for each in threads if each.dispatch and pool_workers.is_in_a_team(each)] if crashes else []
    if len(masters) != 1:
        return {}
    return {each.tid: masters[0] for each in threads if each.tid in crashes and pool_workers.is_worker(each)}


_NAMED = 16
"""Innermost frames whose functions are named, of a thread that runs."""
_PLACED = 200
"""Outermost frames that tell where a thread is; deeper ones differ only in recursions."""


class Inspection(NamedTuple):
    """Everything that all-threads and dispatch-diagnose report."""

    threads: tuple[ThreadReport, ...]
    judgement: Judgement
    sections: tuple[Section, ...] = ()
    """What the passes found out besides: on the process's job, on the devices that threads wait for."""
    places: Mapping[int, SamplePlace] = MappingProxyType({})
    """The place of each thread, to compare several samples by; empty unless asked for."""
    known: tuple[KnownBugReport, ...] = ()
    """Bugs of other projects because of which the process may hang."""
    slowness: Slowness | None = None
    """The surroundings of the process, and what may slow it down; None where nothing had to be read."""


def inspect_threads(session: Session, frames: bool = False, placed: bool = False) -> Inspection:
    """Inspects every thread, ``frames``: with its whole stack, ``placed``: with what several samples are compared by.
    What cannot be read is in the session's errors."""
    process = session.threads.all()
    states = {thread.tid: _state(thread, session) for thread in process.threads}
    for thread in process.threads:
        tid, state = thread.tid, states[thread.tid]
        if state and (_lacks_owner(state) or is_of_two_moments(thread, state.wait)):
            session.target.moment.need_registers(tid)  # one that a function keeps may tell whose it is
    threads: Sequence[ThreadReport] = _report_threads(session, process, states, frames)
    sections: list[Section] = []
    for complete in PASSES:
        threads, section = complete(session, process, threads)
        sections += [section] if section else []
    seen = observe(
        process,
        threads,
        session.target,
        lambda each: uncaught_exception(session, each),
        lambda each: _repeated(session, each),
        session.has_torch,
        _slowness(session, process, threads),
    )
    judgement = judge(seen)
    notes = tuple(missing_kernels(session, process, threads))
    judgement = Judgement(judgement.findings + notes, judgement.verdict)
    places = _places(process) if placed else {}
    return Inspection(tuple(threads), judgement, tuple(sections), places, slowness=seen.slowness)


def _slowness(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness | None:
    """Find what may slow the process down; nothing is imported or read for one in which all threads wait."""
    if not session.procfs:
        return _slowness_of_core(session, process, threads)
    if not (session.target.origin.files.are_here or session.target.origin.files.kept("machine")):
        return None
    ordinary = all(not each.kernel_side and each.kernel_state != "R" for each in process.threads)
    is_whole = len(process.threads) == len(process.tids)  # else one had no turn in which to stop, perhaps
    rests = ordinary and is_whole and all(_waits_for_others(each) for each in threads)
    if rests and not (any(map(_takes_connections, threads)) and session.procfs.machine.lacks_descriptors()):
        return None
    from gdbext.diagnosis.verdict.slowness import slowness  # 11 ms, where something runs

    return slowness(session, process, threads)


def _slowness_of_core(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness | None:
    """The same of a core that was taken of a process which went on: what its memory alone tells."""
    stops = (_stop(each) for each in process.threads)
    if all(map(_waits_for_others, threads)) or any(stop and stop.is_fatal for stop in stops):
        return None
    from gdbext.diagnosis.verdict.slowness import slowness_of_core  # 11 ms

    return slowness_of_core(session, process, threads)


def _takes_connections(thread: ThreadReport) -> bool:
    """It waits for descriptors, and so may be one that wants to have more of them."""
    return thread.loop is not None or (thread.wait is not None and thread.wait.kind is WaitKind.IO)


def _waits_for_others(thread: ThreadReport) -> bool:
    """It neither runs nor tries again by itself, nor lacks workers."""
    wait = thread.wait
    if thread.state is RunState.IDLE:
        return True
    return wait is not None and wait.kind is not WaitKind.SLEEP and wait.detail.missing_workers is None


def with_known_bugs(session: Session, found: Inspection) -> Inspection:
    """The inspection with the bugs of other projects that fit. They are looked for where a thread waits for something,
    or the program crashed: healthy programs pay nothing for it."""
    crashed = found.judgement.verdict.kind is CRASH
    if not crashed and all(not thread.wait or thread.state is RunState.IDLE for thread in found.threads):
        return found
    return found._replace(known=known_bugs(session, session.threads.all(), found.threads, found.judgement.findings))


def _repeated(session: Session, snapshot: ThreadSnapshot) -> SameArguments:
    def same(positions: Sequence[int], period: int) -> bool:
        return RepeatedArguments(session, snapshot)(positions, period)

    return same


def _lacks_owner(state: State) -> bool:
    """The thread waits for what may be a lock, and nothing that was read tells who has it. Whose a Python lock is, only
    Python's objects and frames tell, and no register."""
    wait = state.wait
    if not wait or state.state is RunState.IDLE or wait.owners or wait.being_released:
        return False
    return (
        wait.detail.missing_workers is None and wait.kind.traits.may_be_lock and wait.kind is not WaitKind.PYTHON_LOCK
    )


def _report_threads(
    session: Session, process: ProcessSnapshot, states: Mapping[int, State | None], frames: bool
) -> tuple[ThreadReport, ...]:
    states = follow_main_thread(process, states)
    loops = _event_loops(process)
    if loops:
        states = {**states, **dict(asks_itself(process, states, loops))}
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


def _event_loops(process: ProcessSnapshot) -> Mapping[int, EventLoop]:
    """Thread id → its loop. A process without a frame of asyncio, trio or a hub of greenlets has none that runs."""
    users = [thread.tid for thread in process.threads if any(_runs_tasks(frame.file) for frame in thread.python)]
    if not users:
        return {}
    return event_loops(process, users)


def _runs_tasks(file: str) -> bool:
    return any(part in file for part in ("/asyncio/", "/trio/_core/", *GREENLET_HUBS))


def _state(thread: ThreadSnapshot, session: Session) -> State | None:
    """The state of a thread, None where its wait cannot be read. What its descriptors are belongs to it only where it
    still stands there after they were read: another file may have their numbers by now."""
    try:
        found = state_of(thread)
        is_io = found.wait is not None and found.wait.kind is WaitKind.IO
        return state_of(thread.alone()) if is_io and session.target.moment.has_moved_on(thread.tid) else found
    except GdbextError as error:
        session.errors.note(error, f"wait of thread {thread.tid}")
        return None


def _places(process: ProcessSnapshot) -> dict[int, SamplePlace]:
    return {thread.tid: _place(thread) for thread in process.threads}


def _place(thread: ThreadSnapshot) -> SamplePlace:
    addresses = tuple(frame.pc for frame in reversed(thread.frames[-_PLACED:]))
    lines = tuple((frame.function, frame.line) for frame in thread.python)
    instruction = thread.process.python.instruction(thread.tid) if thread.python else None
    inner = () if thread.syscall else range(min(len(thread.frames), _NAMED))
    return SamplePlace(addresses, lines, instruction, tuple(native_place(thread, level) for level in inner))


def _name_collectives(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    if not is_rank(session.target, process, threads):
        return threads, None
    from gdbext.diagnosis.job.collective_waits import name_collectives  # 9 ms, for ranks

    return name_collectives(session, process, threads)


def _name_devices(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    if not any(thread.wait and thread.wait.detail.device for thread in threads):
        return threads, None
    from gdbext.diagnosis.job.devices import name_devices  # 12 ms, where a device is waited for

    return name_devices(session, process, threads)


def _add_nodes(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Completed:
    """The nodes of autograd that run, of threads inside of a backward pass."""
    stacks = {each.tid: each.stack for each in process.threads if FunctionTag.AUTOGRAD_EVALUATE in each.inner_tags}
    if not session.has_torch or not stacks:
        return threads, None
    nodes = {
        thread.tid: session.extras.backward_nodes(session, thread, stack, session.dispatch_stacks.engine_calls(stack))
        for thread in session.target.memory.threads()
        if (stack := stacks.get(thread.tid))
    }
    return [thread._replace(backward=nodes.get(thread.tid, ())) for thread in threads], None


PASSES: tuple[ReportPass, ...] = (_name_devices, _name_collectives, _add_nodes)
"""Passes over the finished reports, in this order: each completes reports, and may add a section. Those that a process
does not need import nothing."""
