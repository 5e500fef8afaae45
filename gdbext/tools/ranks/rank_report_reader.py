"""Reads a report of one process (schema "gdbext/1") as the row that it is in the report on its job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gdbext.diagnosis.commands.diagnose_sections import KnownBugsSection
from gdbext.diagnosis.job.collectives_section import UNKNOWN_JOB_RANK, CollectivesSection
from gdbext.diagnosis.report import Report, TargetReport, json_report
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.device_wait import DeviceWait
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.thread_report import Frame, RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.slowness import ExplanationsSection
from gdbext.engine.rank_sets import fold
from gdbext.engine.vocabulary import ErrorReport
from gdbext.errors import BadData
from gdbext.render.json_reader import amount, count, optional
from gdbext.tools.ranks.job_report import MAX_PATH, MAX_RANK_GROUPS, GroupState, Issued, RankReport, Unreached
from gdbext.tools.ranks.report_parser import Members
from gdbext.torch.distributed.nccl_communicators import Communicator, ProxyTransfer, TransferWait
from gdbext.torch.distributed.process_groups import Collective, ProcessGroup
from gdbext.torch.stack import DispatchFrame
from gdbext.torch.torch_symbol import RPC_CALLS, RPC_SERVER

_ISSUED = 512
_TEXT = 2000
_count, _amount = optional(count), optional(amount)
MAX_KNOWN = 32
"""Known bugs of one process."""
MAX_COMMUNICATORS = 64
"""Lines about the communicators of one process."""
MAX_TRANSFERS = 1 << 12


def read(document: Any, where: str) -> RankReport | Unreached:
    """The row of one document; Unreached for the document of a failure. Raises BadData."""
    report = json_report.read(document, where, CollectivesSection, KnownBugsSection, ExplanationsSection)
    if not report.verdict or not report.target:
        return failure(report, where)
    return _row(report, report.target, report.verdict)


def failure(report: Report, where: str) -> Unreached:
    """The row of a process that could not be reported on. Raises BadData: the report says nothing of that."""
    if not report.errors:
        raise BadData(f"{where} has no verdict: make it with dispatch-diagnose --json")
    error = report.errors[0]
    return Unreached(where, _text(error.what), _text(error.help))


def _row(report: Report, target: TargetReport, verdict: Verdict) -> RankReport:
    section = report.find_section(CollectivesSection)
    identity = section.identity if section else UNKNOWN_JOB_RANK
    known, slowed = report.find_section(KnownBugsSection), report.find_section(ExplanationsSection)
    main = _main(report.threads, target.pid, verdict)
    thread = _for_ranks(report.threads, main, verdict) or main
    wait = thread.wait if thread else None
    found = section.groups if section else ()
    groups = tuple(_group(group) for group in found[:MAX_RANK_GROUPS])
    path = tuple(_path(thread))[:MAX_PATH] if thread else ()
    working = _working(report.threads)
    return RankReport(
        rank=_count(identity.rank, "rank"),
        host=_optional(identity.host),
        pid=count(target.pid, "pid"),
        job=_optional(identity.job),
        size=_count(identity.size, "size"),
        torch=_optional(target.torch.version) if target.torch else None,
        kind=_text(verdict.kind.value),
        summary=_text(verdict.summary),
        path=path,
        wait=_awaited(wait, report.threads, groups),
        running=bool(thread and _runs(thread, target.kind)),
        groups=groups,
        problem="" if path else _problem(report.errors),
        restart=_count(identity.restart, "restart"),
        paused_ms=_amount(target.paused_ms, "paused_ms"),
        entered_nccl=_entered_nccl(wait),
        answers=_answers(report.threads, working),
        serving=_serving(working),
        handling=_text(wait.detail.handling.text) if wait else "",
        slowed=next((_text(each.summary) for each in slowed.found), "") if slowed else "",
        nccl=tuple(_nccl(found))[:MAX_COMMUNICATORS],
        nccl_peers=_proxies_wait_for(found),
        device=_device(wait.detail.device) if wait else "",
        known=tuple(_text(bug.line) for bug in known.reports[:MAX_KNOWN]) if known else (),
        thread=None if thread is main or not thread else count(thread.tid, "tid"),
    )


def _nccl(groups: Sequence[ProcessGroup]) -> Iterator[str]:
    """``waits for data of rank 2 on channels 0-1 (all_reduce, group default_pg)``, by what NCCL keeps of transfers."""
    for group in groups[:MAX_RANK_GROUPS]:
        name = _text(group.description or group.name)
        for communicator in group.communicators:
            if communicator.error:
                yield f"has the error {_text(communicator.error)!r} (group {name})"
            yield from _transfers(communicator, group.ranks, name)


def _transfers(communicator: Communicator, members: Sequence[int], group: str) -> Iterator[str]:
    """The other ends that its transfers wait for, each with its channels."""
    channels: dict[tuple[int, bool, str], set[int]] = {}
    for peer, transfer in _waiting_for_peers(communicator):
        channels.setdefault((peer, transfer.is_send, _text(transfer.operation)), set()).add(transfer.channel)
    for (peer, is_send, operation), numbers in channels.items():
        what = f"until {_end(peer, members)} takes what was sent" if is_send else f"for data of {_end(peer, members)}"
        where = ", ".join(filter(None, (operation, f"group {group}")))
        yield f"waits {what} on channel{'s' if len(numbers) > 1 else ''} {fold(numbers)} ({where})"


def _waiting_for_peers(communicator: Communicator) -> Iterator[tuple[int, ProxyTransfer]]:
    """The transfers that wait for their other end, and that end's rank in the communicator."""
    for transfer in communicator.transfers[:MAX_TRANSFERS]:
        if transfer.waits_for is TransferWait.PEER and transfer.peer is not None:
            yield transfer.peer, transfer


def _proxies_wait_for(groups: Sequence[ProcessGroup]) -> tuple[int, ...]:
    """The ranks of the job that transfers of NCCL wait for, each once, in order."""
    waited_for: set[int] = set()
    for group in groups[:MAX_RANK_GROUPS]:
        peers = {peer for communicator in group.communicators for peer, _ in _waiting_for_peers(communicator)}
        ranks = sorted(group.ranks) if peers else ()
        waited_for.update(ranks[peer] for peer in peers if peer < len(ranks))
    return tuple(sorted(waited_for))[:MAX_TRANSFERS]


def _device(wait: DeviceWait | None) -> str:
    """``cudaStreamSynchronize of stream 35 of cuda:0``; "" without such a wait."""
    if not wait:
        return ""
    call = _text(wait.call or "a call of the driver")
    return f"{call} of {wait.object}" if wait.object else call


def _end(peer: int, members: Sequence[int]) -> str:
    """A rank of a communicator as a rank of the job: new_group of torch 2.4 sorts its members."""
    return f"rank {sorted(members)[peer]}" if peer < len(members) else f"rank {peer} of the group"


def _entered_nccl(wait: Wait | None) -> str:
    """The function of NCCL that the thread is inside of: around a call of the driver, or without one."""
    if not wait:
        return ""
    name = _text(wait.name).partition(",")[0]
    inside = wait.detail.device.nccl_call if wait.detail.device else ""
    return _text(inside) or (name if wait.kind is WaitKind.COLLECTIVE and name.startswith("nccl") else "")


def _runs(thread: ThreadReport, target_kind: str) -> bool:
    """It is in no wait. A core does not say so: where the stack cannot be followed, the wait may be out of sight."""
    return thread.state is RunState.RUNNING and (target_kind == "live" or thread.dispatch_doubt is None)


def _problem(errors: Sequence[ErrorReport]) -> str:
    """The first error of a file that the process has loaded, else the first."""
    error = next((each for each in errors if ".so" in each.where), next(iter(errors), None))
    return "; ".join(filter(None, (_text(error.what), _text(error.help)))) if error else ""


def _main(threads: Sequence[ThreadReport], pid: int, verdict: Verdict) -> ThreadReport | None:
    """The thread that the verdict is about where it crashed, else the one that runs the program."""
    by_tid = {thread.tid: thread for thread in threads}
    blamed = next((by_tid[tid] for tid in verdict.threads if tid in by_tid), None)
    if blamed and blamed.signal:
        return blamed
    named = next((thread for thread in threads if thread.python_name == "MainThread"), None)
    return by_tid.get(pid) or named or blamed or next(iter(threads), None)


def _for_ranks(threads: Sequence[ThreadReport], main: ThreadReport | None, verdict: Verdict) -> ThreadReport | None:
    """Another thread that waits for other ranks while the main one waits for something, or has nothing to do: that of
    an asynchronous checkpoint, or the training of an actor. None where the main thread says more."""
    if not main or main.state is RunState.RUNNING or verdict.kind.is_defect or _collective(main):
        return None
    waits = ((thread, _collective(thread)) for thread in threads)
    return next((thread for thread, wait in waits if wait and not wait.is_store), None)


def _collective(thread: ThreadReport) -> CollectiveWait | None:
    return thread.wait.detail.collective if thread.wait else None


def _path(thread: ThreadReport) -> Iterator[str]:
    """The path from the outermost frame on: Python lines and operators by their native levels, then the wait."""
    entries = [(frame.level, 1, _frame(frame)) for frame in thread.python_frames]
    entries += [(step.level, 0, _step(step)) for step in thread.dispatch]
    # Python frames of one native level come innermost first, and the sort keeps their order.
    entries.sort(key=lambda entry: entry[0])
    for _, _, text in reversed(entries):
        yield text
    if thread.wait:
        yield _wait_text(thread.wait)


def _frame(frame: Frame) -> str:
    file = _text(frame.file or "?")
    return f"{_text(frame.function)} ({'/'.join(file.split('/')[-2:])}:{frame.line})"


def _step(step: DispatchFrame) -> str:
    key = f" [{step.key}]" if step.key else ""
    return f"{step.op or '?'}{key}"


def _wait_text(wait: Wait) -> str:
    """The wait in words, without the addresses and numbers that are different in every process."""
    if wait.detail.collective:
        return _cut(wait.detail.collective)._replace(enqueued=None, completed=None, key="").phrase
    return f"waits: {wait.kind.value}"


def _cut(wait: CollectiveWait) -> CollectiveWait:
    """The wait with texts that are not longer than a row needs, and without what another sentence says."""
    return wait._replace(
        op=_text(wait.op),
        group=_text(wait.group),
        key=_text(wait.key),
        server=_text(wait.server),
        also_in=_text(wait.also_in),
        rank=None,
        size=None,
    )


def _working(threads: Sequence[ThreadReport]) -> list[ThreadReport]:
    """The threads that work on calls of other ranks."""
    return [thread for thread in threads if thread.name == RPC_SERVER and thread.state is not RunState.IDLE]


def _answers(threads: Sequence[ThreadReport], working: Sequence[ThreadReport]) -> bool:
    """There are threads that answer calls of other ranks; all are free, or one works on a call and waits for no other
    rank."""
    by_tid = {thread.tid: thread for thread in threads}
    if not any(thread.name == RPC_SERVER for thread in threads):
        return False
    return not working or not all(_ends_at_call(thread, by_tid) for thread in working)


def _ends_at_call(thread: ThreadReport, by_tid: Mapping[int, ThreadReport]) -> bool:
    """It waits for an answer of another rank, or for a thread that does."""
    for _ in range(len(by_tid)):
        wait = _collective(thread)
        if wait and wait.op in RPC_CALLS:
            return True
        following = by_tid.get(_owner(thread.wait))
        if not following or following is thread:
            return False
        thread = following
    return False


def _owner(wait: Wait | None) -> int:
    """The id of the thread of this process that has what is waited for; 0 where there is none."""
    return wait.owner.tid if wait and isinstance(wait.owner, OwnerThread) else 0


def _serving(working: Sequence[ThreadReport]) -> str:
    """``a call of another rank runs work (train.py:7) in thread 77, waits: condvar``; "" where none does."""
    for thread in working:
        if thread.user_frame:
            wait = f", {_wait_text(thread.wait)}" if thread.wait else ""
            return f"a call of another rank runs {_frame(thread.user_frame)} in thread {thread.tid}{wait}"
    return ""


def _awaited(wait: Wait | None, threads: Sequence[ThreadReport], groups: Sequence[GroupState]) -> CollectiveWait | None:
    """What the thread waits for of other ranks. Of a wait between two operations, or without a recorder, only the
    function is known."""
    if not wait:
        return None
    if wait.detail.collective:
        return _cut(wait.detail.collective)
    through_worker = _through_worker(wait, threads, groups)
    is_unnamed = wait.kind is WaitKind.COLLECTIVE and wait.name and not _entered_nccl(wait)
    return through_worker or (CollectiveWait(_text(wait.name).partition(",")[0]) if is_unnamed else None)


def _through_worker(wait: Wait, threads: Sequence[ThreadReport], groups: Sequence[GroupState]) -> CollectiveWait | None:
    """The pending operation of the backend's thread whose end is waited for, as destroy_process_group does."""
    owner = _owner(wait) if wait.kind is WaitKind.JOIN else 0
    worker = next((each for each in threads if owner and each.tid == owner), None)
    if not worker or not worker.wait or worker.wait.kind is not WaitKind.COLLECTIVE:
        return None
    pending = [(group, issued) for group in groups for issued in group.issued if issued.is_pending]
    if not pending:
        return None
    group, first = pending[0]
    return CollectiveWait(first.op, first.seq, group.label, group.enqueued, group.completed)


def _group(group: ProcessGroup) -> GroupState:
    numbered = [(collective, collective.state != "completed") for collective in group.recent[-_ISSUED:]]
    numbered += [(collective, True) for collective in group.pending[:_ISSUED]]
    issued = {
        collective.seq: _issued(collective, collective.seq, is_pending)
        for collective, is_pending in numbered
        if collective.seq is not None and not collective.is_p2p
    }
    return GroupState(
        _text(group.name),
        _text(group.description),
        _count(group.size, "size"),
        group.ranks.text if isinstance(group.ranks, Members) else _folded(group.ranks),
        group.last_enqueued,
        group.last_completed,
        tuple(issued[seq] for seq in sorted(issued)),
    )


@lru_cache(maxsize=64)
def _folded(ranks: tuple[int, ...]) -> str:
    """All ranks of a job list the same members."""
    return fold([count(rank, "ranks") for rank in ranks])


def _issued(collective: Collective, seq: int, is_pending: bool) -> Issued:
    return Issued(
        seq,
        _text(collective.op),
        collective.sizes,
        tuple(map(_text, collective.dtypes)),
        collective.output_sizes,
        tuple(map(_text, collective.output_dtypes)),
        is_pending,
    )


def _optional(value: str | None) -> str | None:
    return None if value is None else _text(value)


def _text(value: str) -> str:
    return value[:_TEXT]
