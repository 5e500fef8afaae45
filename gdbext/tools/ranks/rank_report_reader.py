"""Reads reports on one process (schema "gdbext/1"), each as a row of the report on its job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Optional, TypeVar

from gdbext.diagnosis.commands.diagnose_sections import KnownBugsSection
from gdbext.diagnosis.job.callers import NO_CALL, library_call
from gdbext.diagnosis.job.collectives_section import UNKNOWN_JOB_RANK, CollectivesSection
from gdbext.diagnosis.report import Report, TargetReport, json_report
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.device_wait import DeviceWait
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.thread_report import Frame, RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.slowness import ExplanationsSection
from gdbext.engine.formats import parse_json
from gdbext.engine.rank_sets import fold
from gdbext.errors import BadData
from gdbext.render.json_reader import amount, array, count, optional
from gdbext.tools.ranks.job_report import MAX_PATH, MAX_RANK_GROUPS, GroupState, Issued, RankReport, Unreached
from gdbext.torch.distributed.nccl_communicators import Communicator, ProxyTransfer, TransferWait
from gdbext.torch.distributed.process_groups import ProcessGroup
from gdbext.torch.torch_symbol import RPC_CALLS, RPC_SERVER

_NAME = b'"ranks":'
"""A member's name: it cannot occur in a JSON string, where each quote has a backslash before it."""
_GAP = 8
"""White space between a name and its list, at most."""
_LIST = re.compile(rb"\[[0-9,\s]{200,}\]")
"""Lists that are long enough to be cached."""


class Members(tuple[int, ...]):
    """The members of a group, parsed and checked."""

    @cached_property
    def text(self) -> str:
        """The members as a set of ranks: ``0-3,7``."""
        return fold(self)


class ReportParser:
    """Parses reports like json.loads, but parses equal long lists of a group's members only once, to Members: each of
    10,000 ranks lists the 10,000 members of its group, three quarters of its report and of the time to parse it."""

    def __init__(self) -> None:
        self._members: dict[bytes, Members] = {}  # text of a list → its members; 64 at most

    def parse(self, data: bytes) -> Any:
        """The value of a JSON document. Raises BadData."""
        # Parse the document with a number in the place of each long list, then replace the numbers by the lists.
        pieces: list[bytes] = []
        lists: list[Members] = []
        done, name = 0, data.find(_NAME)
        while name >= 0:
            start = name + len(_NAME)
            opening = data.find(b"[", start, start + _GAP)
            members = self._parse_members(data[opening : data.find(b"]", opening) + 1]) if opening >= 0 else None
            if members is not None:
                pieces += (data[done:opening], b"%d" % len(lists))
                lists.append(members)
                done = start = data.find(b"]", opening) + 1
            name = data.find(_NAME, start)
        value = parse_json(b"".join((*pieces, data[done:])))
        if lists:
            _put_back(value, lists)
        return value

    def _parse_members(self, text: bytes) -> Members | None:
        """The members in a list; None if it is short or no list of numbers. Raises BadData."""
        members = self._members.get(text)
        if members is None and _LIST.fullmatch(text):
            if len(self._members) >= 64:
                self._members.clear()
            try:
                members = self._members[text] = Members(array(count)(json.loads(text), "ranks"))
            except ValueError as error:
                raise BadData(f"a list of ranks is malformed: {error}") from error
        return members


def _put_back(document: Any, lists: list[Members]) -> None:
    """In each group of a document, replace the index under "ranks" by the list it stands for. Raises BadData."""

    def member(value: Any, name: str) -> Any:
        return value.get(name) if isinstance(value, dict) else None

    groups = member(member(document, "collectives"), "groups")
    for group in groups if isinstance(groups, list) else ():
        index = member(group, "ranks")
        if isinstance(index, int):
            if not 0 <= index < len(lists):
                raise BadData(f"{index} is not a list of ranks")
            group["ranks"] = lists[index]


_OptionalText = TypeVar("_OptionalText", str, Optional[str])
_ISSUED = 512
"""Finished operations of a group that are kept, and pending ones."""
_count, _amount = optional(count), optional(amount)
MAX_TRANSFERS = 1 << 12


def read(document: Any, where: str) -> RankReport | Unreached:
    """The row of one document, which comes from ``where``; Unreached if it reports a failure. Raises BadData."""
    report = json_report.read(document, where, CollectivesSection, KnownBugsSection, ExplanationsSection)
    if not report.verdict or not report.target:
        return failure(report, where)
    return _row(report, report.target, report.verdict)


def failure(report: Report, where: str) -> Unreached:
    """The row of a process that could not be reported on. Raises BadData if the report does not say why."""
    if not report.errors:
        raise BadData(f"{where} has no verdict: make it with dispatch-diagnose --json")
    error = report.errors[0]
    return Unreached(where, _text(error.what), _text(error.help))


def _row(report: Report, target: TargetReport, verdict: Verdict) -> RankReport:
    """The row of a report that has a target and a verdict. Raises BadData."""
    section = report.find_section(CollectivesSection)
    identity = section.identity if section else UNKNOWN_JOB_RANK
    bugs, slowed = report.find_section(KnownBugsSection), report.find_section(ExplanationsSection)
    main = _main_thread(report.threads, target.pid, verdict)
    thread = _waiting_for_ranks(report.threads, main, verdict) or main
    wait = thread.wait if thread else None
    process_groups = section.groups[:MAX_RANK_GROUPS] if section else ()
    groups = tuple(map(_group_state, process_groups))
    path = tuple(_path(thread))[:MAX_PATH] if thread else ()
    problem = ""
    if not path and report.errors:  # a file that the process has loaded explains most
        error = next((error for error in report.errors if ".so" in error.where), report.errors[0])
        problem = "; ".join(filter(None, (_text(error.what), _text(error.help))))
    answers, serving = _rpc_server(report.threads)
    call = library_call(thread.python_frames) if thread else NO_CALL
    own = thread.python_frames[call.own] if thread and call.own is not None else None
    rank_wait = _rank_wait(wait, report.threads, groups)
    # A core does not prove that a thread runs: if its stack cannot be unwound, the thread may wait.
    running = thread and thread.state is RunState.RUNNING and (target.kind == "live" or thread.dispatch_doubt is None)
    return RankReport(
        rank=_count(identity.rank, "rank"),
        host=_text(identity.host),
        pid=count(target.pid, "pid"),
        job=_text(identity.job),
        size=_count(identity.size, "size"),
        torch=_text(target.torch.version) if target.torch else None,
        kind=_text(verdict.kind.value),
        summary=_text(verdict.summary),
        path=path,
        wait=rank_wait,
        running=bool(running),
        groups=groups,
        problem=problem,
        restart=_count(identity.restart, "restart"),
        paused_ms=_amount(target.paused_ms, "paused_ms"),
        entered_nccl=_entered_nccl(wait),
        answers=answers,
        serving=serving,
        handling=_text(wait.detail.handling.text) if wait else "",
        slowed=next((_text(reason.summary) for reason in slowed.found), "") if slowed else "",
        nccl=tuple(_communicator_lines(process_groups))[:64],
        nccl_peers=_proxies_wait_for(process_groups),
        device=_device_text(wait.detail.device) if wait else "",
        known=tuple(_text(bug.line) for bug in bugs.reports[:32]) if bugs else (),
        thread=None if thread is main or not thread else count(thread.tid, "tid"),
        line=f"{_place(own)} ({_text(own.function)})" if own else "",
        called=_text(call.function) if own else "",
        called_by=_text(call.text(rank_wait.op if rank_wait else "")) if own else "",
    )


def _communicator_lines(groups: Sequence[ProcessGroup]) -> Iterator[str]:
    """A line for each error of a communicator, and for each rank that its transfers wait for: ``waits for data of rank
    2 on channels 0-1 (all_reduce, group default_pg)``."""
    for group in groups:
        name = _text(group.description or group.name)
        for communicator in group.communicators:
            if communicator.error:
                yield f"has the error {_text(communicator.error)!r} (group {name})"
            channels: dict[tuple[int, bool, str], set[int]] = {}
            for peer, transfer in _waiting_for_peers(communicator):
                channels.setdefault((peer, transfer.is_send, _text(transfer.operation)), set()).add(transfer.channel)
            members = sorted(group.ranks) if channels else []  # new_group of torch 2.4 sorts its members
            for (peer, is_send, operation), numbers in channels.items():
                other = f"rank {members[peer]}" if peer < len(members) else f"rank {peer} of the group"
                what = f"until {other} receives what was sent" if is_send else f"for data of {other}"
                where = ", ".join(filter(None, (operation, f"group {name}")))
                yield f"waits {what} on channel{'s' if len(numbers) > 1 else ''} {fold(numbers)} ({where})"


def _waiting_for_peers(communicator: Communicator) -> Iterator[tuple[int, ProxyTransfer]]:
    """(rank of the peer within the communicator, transfer) of each transfer that waits for its peer."""
    for transfer in communicator.transfers[:MAX_TRANSFERS]:
        if transfer.waits_for is TransferWait.PEER and transfer.peer is not None:
            yield transfer.peer, transfer


def _proxies_wait_for(groups: Sequence[ProcessGroup]) -> tuple[int, ...]:
    """The ranks of the job that transfers of NCCL wait for, each once, in order."""
    awaited: set[int] = set()
    for group in groups:
        peers = {peer for communicator in group.communicators for peer, _ in _waiting_for_peers(communicator)}
        ranks = sorted(group.ranks) if peers else ()
        awaited.update(ranks[peer] for peer in peers if peer < len(ranks))
    return tuple(sorted(awaited))[:MAX_TRANSFERS]


def _device_text(wait: DeviceWait | None) -> str:
    """``cudaStreamSynchronize of stream 35 of cuda:0``; "" for None."""
    if not wait:
        return ""
    call = _text(wait.call or "a call of the driver")
    return f"{call} of {wait.object}" if wait.object else call


def _entered_nccl(wait: Wait | None) -> str:
    """The NCCL function that a thread is in (``ncclAllReduce``), also below a driver's call; "" for none."""
    if not wait:
        return ""
    name = _text(wait.name).partition(",")[0]
    inside = wait.detail.device.nccl_call if wait.detail.device else ""
    return _text(inside) or (name if wait.kind is WaitKind.COLLECTIVE and name.startswith("nccl") else "")


def _main_thread(threads: Sequence[ThreadReport], pid: int, verdict: Verdict) -> ThreadReport | None:
    """The thread that crashed, if the verdict is a crash, else the one that runs the program; None without threads."""
    by_tid = {thread.tid: thread for thread in threads}
    blamed = next((by_tid[tid] for tid in verdict.threads if tid in by_tid), None)
    if blamed and blamed.signal:
        return blamed
    named = next((thread for thread in threads if thread.python_name == "MainThread"), None)
    return by_tid.get(pid) or named or blamed or next(iter(threads), None)


def _waiting_for_ranks(
    threads: Sequence[ThreadReport], main: ThreadReport | None, verdict: Verdict
) -> ThreadReport | None:
    """Another thread that waits for other ranks while the main thread waits for something else or is idle: it may write
    an asynchronous checkpoint, or train an actor. None if the main thread explains more."""
    if not main or main.state is RunState.RUNNING or verdict.kind.is_defect:
        return None
    if main.wait and main.wait.detail.collective:
        return None
    waits = ((thread, thread.wait.detail.collective) for thread in threads if thread.wait)
    return next((thread for thread, wait in waits if wait and not wait.is_store), None)


def _path(thread: ThreadReport) -> Iterator[str]:
    """The lines of RankReport.path, outermost frame first: Python lines and operators, merged by the levels of their
    native frames, then the wait."""
    entries = [(frame.level, 1, _frame_text(frame)) for frame in thread.python_frames]
    entries += [(step.level, 0, f"{step.op or '?'}{f' [{step.key}]' if step.key else ''}") for step in thread.dispatch]
    # Python frames of one native level come innermost first, and the sort keeps their order.
    entries.sort(key=lambda entry: entry[0])
    for _, _, text in reversed(entries):
        yield text
    if thread.wait:
        yield _wait_text(thread.wait)


def _frame_text(frame: Frame) -> str:
    """``step (train/loop.py:7)``."""
    return f"{_text(frame.function)} ({_place(frame)})"


def _place(frame: Frame) -> str:
    """``inferiors/train.py:15``."""
    return f"{'/'.join(_text(frame.file or '?').split('/')[-2:])}:{frame.line}"


def _wait_text(wait: Wait) -> str:
    """The wait in words, without addresses and numbers that differ between processes, so that equal stacks fold."""
    if wait.detail.collective:
        return _shortened(wait.detail.collective)._replace(enqueued=None, completed=None, key="", last_key="").phrase
    return f"waits: {wait.kind.value}"


def _shortened(wait: CollectiveWait) -> CollectiveWait:
    """The wait with its texts cut, and without rank and size, which the row has itself."""
    texts = {name: _text(getattr(wait, name)) for name in _COLLECTIVE_TEXTS}
    return wait._replace(**texts, rank=None, size=None)


_COLLECTIVE_TEXTS = ("op", "group", "key", "server", "also_in", "part", "last_key", "owed_by")


def _rpc_server(threads: Sequence[ThreadReport]) -> tuple[bool, str]:
    """(RankReport.answers, RankReport.serving).

    A rank answers calls of torch.distributed.rpc if it has threads for that, and all are free, or one works on a call
    and waits for no other rank. The second is ``a call of another rank runs work (train.py:7) in thread 77, waits:
    condvar``, "" if there is none.
    """
    by_tid = {thread.tid: thread for thread in threads}
    servers = [thread for thread in threads if thread.name == RPC_SERVER]
    working = [thread for thread in servers if thread.state is not RunState.IDLE]
    answers = bool(servers) and (not working or not all(_ends_at_call(thread, by_tid) for thread in working))
    for thread in working:
        if thread.user_frame:
            wait = f", {_wait_text(thread.wait)}" if thread.wait else ""
            return answers, f"a call of another rank runs {_frame_text(thread.user_frame)} in thread {thread.tid}{wait}"
    return answers, ""


def _ends_at_call(thread: ThreadReport, by_tid: Mapping[int, ThreadReport]) -> bool:
    """True if the thread waits for an answer of another rank, or for a thread that does. ``by_tid``: all threads."""
    for _ in by_tid:
        wait = thread.wait
        if wait and wait.detail.collective and wait.detail.collective.op in RPC_CALLS:
            return True
        owner = by_tid.get(wait.owner.tid) if wait and isinstance(wait.owner, OwnerThread) else None
        if not owner or owner is thread:
            return False
        thread = owner
    return False


def _rank_wait(
    wait: Wait | None, threads: Sequence[ThreadReport], groups: Sequence[GroupState]
) -> CollectiveWait | None:
    """The operation in which a thread with this wait waits for other ranks, None for none. Between two operations, or
    without a flight recorder, only the function is known."""
    if not wait:
        return None
    if wait.detail.collective:
        return _shortened(wait.detail.collective)
    pending = _pending_of_joined(wait, threads, groups)
    is_unnamed = wait.kind is WaitKind.COLLECTIVE and wait.name and not _entered_nccl(wait)
    return pending or (CollectiveWait(_text(wait.name).partition(",")[0]) if is_unnamed else None)


def _pending_of_joined(
    wait: Wait, threads: Sequence[ThreadReport], groups: Sequence[GroupState]
) -> CollectiveWait | None:
    """The pending operation of a backend's thread that is being joined, as in destroy_process_group()."""
    owner = wait.owner.tid if wait.kind is WaitKind.JOIN and isinstance(wait.owner, OwnerThread) else 0
    worker = next((thread for thread in threads if owner and thread.tid == owner), None)
    if not worker or not worker.wait or worker.wait.kind is not WaitKind.COLLECTIVE:
        return None
    pending = ((group, issued) for group in groups for issued in group.issued if issued.is_pending)
    group, first = next(pending, (None, None))
    if not group or not first:
        return None
    return CollectiveWait(first.op, first.seq, group.label, group.enqueued, group.completed)


def _group_state(group: ProcessGroup) -> GroupState:
    """The state of the rank in the group, with its last and pending collectives."""
    numbered = [(collective, collective.state != "completed") for collective in group.recent[-_ISSUED:]]
    numbered += [(collective, True) for collective in group.pending[:_ISSUED]]
    issued = {
        collective.seq: Issued(
            collective.seq,
            _text(collective.op),
            collective.sizes,
            tuple(map(_text, collective.dtypes)),
            collective.output_sizes,
            tuple(map(_text, collective.output_dtypes)),
            is_pending,
        )
        for collective, is_pending in numbered
        if collective.seq is not None and not collective.is_p2p
    }
    return GroupState(
        _text(group.name),
        _text(group.description),
        _count(group.size, "size"),
        group.ranks.text if isinstance(group.ranks, Members) else _ranks_text(group.ranks),
        group.last_enqueued,
        group.last_completed,
        tuple(issued[seq] for seq in sorted(issued)),
    )


@lru_cache(maxsize=64)
def _ranks_text(ranks: tuple[int, ...]) -> str:
    """The members as a set of ranks (``0-3,7``); cached, since all ranks of a job list the same members."""
    return fold([count(rank, "ranks") for rank in ranks])


def _text(value: _OptionalText) -> _OptionalText:
    """The first 2000 characters of a text, which another machine may have sent; None as it is."""
    return value and value[:2000]
