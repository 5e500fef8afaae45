"""The verdict on jobs that hung: recorded ones, and rows that are made up."""

from __future__ import annotations

import copy
import json

import pytest

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.device_wait import DeviceWait, DeviceWork
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import DeviceCall, OtherRanks
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.errors import BadData
from gdbext.tools.ranks import job_report
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import GroupState, Issued, JobReport, MatchState, RankReport, rows
from gdbext.tools.ranks.rank_report_reader import Members, _device_text, _entered_nccl, _rpc_server, read
from support.recorded import jobs
from support.source import contract_schema

LATE, MISMATCH = "late-rank", "mismatched-collective"
JOBS = {
    "late-sleep": (LATE, (1,), ""),
    "late-lock": (LATE, (1,), "threading.RLock"),
    "late-gil": (LATE, (1,), "waits for the GIL, which gil-keeper"),
    "late-import": (LATE, (1,), "import lock of a module"),
    "late-loader": (LATE, (1,), "DataLoader's worker process"),
    "long-save": (LATE, (1,), "waits in write on fd"),
    "stopped": (LATE, (1,), "is stopped"),
    "swallowed": (MISMATCH, (2,), "rank 2 issued broadcast"),
    "other-order": (MISMATCH, (1,), "rank 1 issued all_gather"),
    "other-type": (MISMATCH, (1,), ""),
    "other-size": (MISMATCH, (0,), "pass different sizes"),
    "other-dtype": (MISMATCH, (1,), "pass different types"),
    "crossing": (MISMATCH, (0, 1), ""),
    "pipeline": (MISMATCH, (0, 1), "waits in recv from rank 0"),
    "dead": ("dead-rank", (1,), "zombie"),
    "store-wait": ("store-wait", (), ""),
    "crossed-stages": (MISMATCH, (0, 1), ""),
    "forgotten-send": (MISMATCH, (2,), "which waits in recv itself; which rank it waits for is not recorded"),
    "monitored": (LATE, (1,), "wait for rank 1 of 3 in monitored_barrier; rank 1: No thread is in the"),
    "save-on-one": (MISMATCH, (0,), "ranks 1-2 issued barrier; rank 0 issued all_gather"),
    "no-pickle": (LATE, (0,), "never enqueued #4 broadcast int64[1]"),
    "objects": (MISMATCH, (1,), "rank 1 issued all_reduce"),
    "splits": (MISMATCH, (1,), "pass different sizes"),
    "destroyed": (LATE, (1,), "never enqueued #4 all_reduce float32[4] of group default_pg, on which ranks 0,2"),
    "in-a-thread": (MISMATCH, (1,), "rank 1 issued broadcast"),
    "uneven": (MISMATCH, (2,), "rank 2 issued barrier"),
    "versions": (LATE, (1,), ""),
    "nccl": (LATE, (1,), "rank 1 of 2 never enqueued #4 all_reduce float32[4] of group default_pg, on which rank 0"),
}
"""What tests/inferiors/job.py does in each: the verdict, who is at fault, and words of the summary; nobody has a rank
yet in store-wait. The ranks of nccl are those of nccl_late.py, which wait for a device."""


@pytest.mark.parametrize("name", jobs.NAMES)
def test_recorded_jobs(name: str) -> None:
    kind, ranks, reason = JOBS[name]
    found = judge(jobs.recorded_rows(name)).verdict
    assert (found.kind.value, tuple(found.ranks)) == (kind, ranks), found.summary
    assert reason in found.summary


def rank(
    number: int, wait: CollectiveWait | None = None, issued: tuple[Issued, ...] = (), **more: object
) -> RankReport:
    state = GroupState("0", "default_pg", 3, "0-2", len(issued) or None, None, issued)
    words = ("node1", 1000 + number, "job", 3, "2.13.0", "idle", "It sleeps.", ("main",), wait, False, (state,))
    return RankReport(number, *words)._replace(**more)


PENDING = (Issued(1, "all_reduce", is_pending=True),)
IN_FIRST = CollectiveWait("all_reduce", 1, "0")


def verdict(*reports: RankReport, unreached: tuple[job_report.Unreached, ...] = ()) -> JobReport:
    return judge(rows(reports, unreached))


def test_two_threads_of_a_rank_in_one_group_are_named() -> None:
    wait = IN_FIRST._replace(group="default_pg", also_in="saver (tid 7)")
    text = verdict(rank(0, wait, PENDING), rank(1), rank(2, wait._replace(also_in=""), PENDING)).verdict.summary
    names = "In rank 0, the main thread and saver (tid 7) use group default_pg at the same time"
    assert text.endswith(f"{names}: their order is nondeterministic.")


def waiting(kind: WaitKind, name: str = "") -> Wait:
    return Wait(Resource(kind, 0, name))


def transfer(peer: int | None, channel: int, is_send: bool = False, waits_for: str = "peer") -> dict[str, object]:
    steps = dict.fromkeys(("steps", "posted", "received", "flushed", "transmitted", "done"), 0)
    words = {"operation": "all_reduce", "waits_for": waits_for, "transport": "net"}
    return {**words, **steps, "is_send": is_send, "channel": channel, "peer": peer}


@pytest.mark.parametrize("as_set", [False, True])
def test_the_ranks_that_a_proxy_of_nccl_waits_for_are_ranks_of_the_job(as_set: bool) -> None:
    document = copy.deepcopy(jobs.documents("nccl")[0])
    group = document["collectives"]["groups"][0]
    group.update(ranks=Members([3, 5, 9, 10]) if as_set else [9, 3, 10, 5], description="tp")
    transfers = [transfer(2, 1), transfer(2, 0), transfer(0, 4, is_send=True), transfer(None, 7), transfer(7, 2)]
    transfers += [transfer(1, 3, waits_for="device")]
    numbers = {"address": "0x7f00", "rank": 0, "size": 4, "device": 0, "launches": 0}
    words = {"version": "2.27.3", "error": "remote error", "setup": "", "aborted": False, "finalized": False}
    group["communicators"] = [{**numbers, **words, "transfers": transfers}]
    row = read(document, "x.json")
    transfers[0]["peer"] = -1
    with pytest.raises(BadData):
        read(document, "x.json")
    assert isinstance(row, RankReport)
    assert row.nccl == (
        "has the error 'remote error' (group tp)",
        "waits for data of rank 9 on channels 0-1 (all_reduce, group tp)",
        "waits until rank 3 receives what was sent on channel 4 (all_reduce, group tp)",
        "waits for data of rank 7 of the group on channel 2 (all_reduce, group tp)",
    )
    assert row.nccl_peers == (3, 9)
    assert job_report.read_rows(job_report.document(judge(rows([row]))), "y.json")[0][0] == row


def test_what_a_rank_launched_what_its_proxy_waits_for_and_what_that_rank_does() -> None:
    """Rank 0 waits for the data of rank 2, that one for the data of rank 1: the chain ends there."""
    stream = DeviceWait("cudaStreamSynchronize", DeviceWork.STREAM, stream=0x7F00, stream_id=7, device=0)
    first, second = (f"waits for data of rank {peer} on channel 1 (all_reduce, group tp)" for peer in (2, 1))
    on_device = CollectiveWait("all_reduce", 1, "tp", on_device=True)
    gil = "MainThread (tid 9) waits for the device (cudaMalloc) while holding the GIL"
    end = rank(1, None, PENDING, kind="gil-in-device-call", summary=f"{gil}.")
    waiting = rank(0, on_device, PENDING, nccl=(first,), nccl_peers=(2,), device=_device_text(stream))
    text = verdict(waiting, end, rank(2, on_device, PENDING, nccl=(second,), nccl_peers=(1,))).verdict.summary
    launched = "launched #1 all_reduce of group tp and waits for it"
    of_stream = "cudaStreamSynchronize of stream 7 of cuda:0"
    assert f" rank 0 {launched} ({of_stream}); NCCL's communicator there {first}. rank 2 {launched}; " in text
    assert text.endswith(f"communicator there {second}; rank 1: {gil}.")


def test_a_missing_rank_is_dead_where_others_wait_for_it_and_was_perhaps_not_asked_for_elsewhere() -> None:
    found = verdict(rank(0, IN_FIRST, PENDING), rank(2, IN_FIRST, PENDING))
    assert (found.verdict.kind.value, found.verdict.ranks, tuple(found.missing)) == ("dead-rank", (1,), (1,))
    found = verdict(rank(0), rank(2))
    assert (found.verdict.kind.value, tuple(found.missing)) == ("all-idle", (1,))


WRONG = rank(1, kind="deadlock", summary="Two threads wait for each other.")


def test_one_rank_whose_own_verdict_explains_the_job() -> None:
    found = verdict(rank(0), WRONG, rank(2))
    assert (found.verdict.kind.value, found.verdict.ranks, found.odd[0].rank) == ("deadlock", (1,), 1)


def test_a_stopped_rank_does_not_run() -> None:
    stopped = rank(1, kind="stopped", running=True, summary="The process is stopped by SIGSTOP.")
    found = verdict(rank(0, running=True), stopped)
    assert (found.verdict.kind.value, found.verdict.ranks) == ("stopped", (1,))
    assert "stopped by SIGSTOP" in found.verdict.summary


def test_a_rank_that_entered_nccl_and_did_not_return() -> None:
    """It has enqueued nothing, and still is not late: NCCL's own function blocks."""
    stuck = rank(1, entered_nccl="ncclAllReduce", summary="It waits for the device (cudaMalloc, in ncclAllReduce).")
    found = verdict(rank(0, IN_FIRST, PENDING), stuck, rank(2, IN_FIRST, PENDING))
    assert (found.verdict.kind.value, found.verdict.ranks) == ("inside-nccl", (1,))
    assert found.verdict.summary.startswith("rank 1 entered ncclAllReduce and did not return: #1 all_reduce")
    assert "is not enqueued, on which ranks 0,2 wait; rank 1: It waits for the device" in found.verdict.summary
    late = verdict(rank(0, IN_FIRST, PENDING, entered_nccl="ncclGroupEnd"), rank(1), rank(2, IN_FIRST, PENDING)).verdict
    assert (late.kind.value, late.ranks) == ("late-rank", (1,)), "another one is inside of NCCL"


def test_ranks_that_make_a_communicator_and_the_function_of_nccl_in_a_report() -> None:
    inside = [rank(number, entered_nccl="ncclCommInitRankConfig") for number in (0, 2)]
    found = verdict(*inside, rank(1, summary="It reads a file."))
    assert (found.verdict.kind.value, found.verdict.ranks) == ("inside-nccl", (0, 2))
    assert "ranks 0,2 entered ncclCommInitRankConfig and did not return" in found.verdict.summary
    assert "rank 1 is in no call of NCCL (rank 1: It reads a file)" in found.verdict.summary
    assert verdict(*inside, WRONG).verdict.kind.value == "deadlock", "what is wrong outside of NCCL explains it"
    on_device = waiting(WaitKind.DEVICE, "cudaMalloc")
    in_send = DeviceWait("cudaMalloc", DeviceWork.MEMORY, nccl_call="ncclSend")
    assert _entered_nccl(on_device._replace(detail=DeviceCall(in_send))) == "ncclSend"
    assert _entered_nccl(waiting(WaitKind.COLLECTIVE, "ncclGroupEnd, during backward")) == "ncclGroupEnd"
    others = (
        on_device._replace(detail=DeviceCall(in_send._replace(nccl_call=""))),
        waiting(WaitKind.COLLECTIVE, "gloo::allreduce"),
    )
    for wait in (*others, waiting(WaitKind.IO, "ncclSend"), None):
        assert _entered_nccl(wait) == ""


def test_what_cannot_be_read_is_neither_idle_nor_busy() -> None:
    problem = "cannot open libc.so.6; give the files by --sysroot DIR"
    for kind in ("idle", "busy"):
        found = verdict(*(rank(number, kind=kind, path=(), problem=problem) for number in range(3)))
        assert found.verdict.kind.value == "all-idle"
        assert found.verdict.summary.startswith("Cannot read what the ranks are doing: rank 0: cannot open libc.so.6")
        assert found.notes == (f"cannot read where ranks 0-2 are: {problem}",)


def test_a_rank_that_was_given_to_two_processes_that_wait() -> None:
    at_store = CollectiveWait("c10d::TCPStore::wait", is_store=True)
    first, second = (rank(0, at_store, pid=pid, size=2, groups=()) for pid in (77, 78))
    found = verdict(first, second)
    assert (found.verdict.kind.value, found.verdict.ranks) == ("store-wait", (0,))
    waiting = "they wait for others, and no process is rank 1."
    assert found.verdict.summary == f"pid 77 on node1, pid 78 on node1 were all given rank 0: {waiting}"
    worker = rank(0, pid=79, size=2, groups=())
    assert "given rank 0" not in verdict(first, worker).verdict.summary, "a process of the rank, which waits for nobody"


def test_another_job_and_different_versions_are_said() -> None:
    found = verdict(rank(0), rank(1), rank(2, job="other"))
    assert [each.rank for each in found.reports] == [0, 1]
    assert found.notes == ("left out 1 report of another job (other)",)
    assert judge(rows([rank(0), rank(1), rank(2, job="other")]), pid=1002).job == "other"
    assert "2.13.0 (rank 0), 2.12.0 (rank 1)" in verdict(rank(0), rank(1, torch="2.12.0")).notes[0]


def test_a_collective_that_all_have_come_to() -> None:
    found = verdict(rank(0, IN_FIRST, PENDING), rank(1, IN_FIRST, PENDING), rank(2, None, (Issued(1, "all_reduce"),)))
    assert (found.verdict.kind.value, found.collectives[0].state) == ("all-idle", MatchState.COLLECTIVE_STATE_MISMATCH)
    words = "Every rank of group default_pg issued #1 all_reduce; rank 2 has completed it, ranks 0-1 wait in it"
    assert words in found.verdict.summary


def test_elements_that_get_lost() -> None:
    def exchange(number: int, sent: int, received: int) -> RankReport:
        issued = Issued(1, "all_to_all", ((sent,),), ("float32",), ((received,),), ("float32",), is_pending=True)
        return rank(number, CollectiveWait("all_to_all", 1, "0"), (issued,))

    uneven, lost = (verdict(exchange(0, 3, 6), exchange(1, 6, 3), exchange(2, sent, 3)) for sent in (3, 4))
    assert uneven.collectives[0].state is MatchState.UNDECIDED
    assert lost.collectives[0].state is MatchState.SIZE_OR_SYNTAX_MISMATCH
    assert lost.verdict.kind.value == "mismatched-collective"


def test_what_is_left_of_an_earlier_start_is_left_out() -> None:
    """Of one machine only: each machine's launcher counts for itself."""
    late = [each._replace(host="node1", restart=1) for each in jobs.recorded_rows("late-sleep").sorted()]
    old = late[2]._replace(pid=77, restart=0, wait=None, groups=())
    elsewhere = late[3]._replace(host="node2", restart=0)
    found = judge(rows([*late[:3], old, elsewhere]))
    assert (found.verdict.kind.value, found.verdict.ranks) == ("late-rank", (1,))
    assert found.notes == ("left out 1 process of an earlier start, since replaced by the launcher: pid 77 on node1",)
    assert old in found.reports


def test_a_send_and_its_recv_do_not_wait_for_each_other() -> None:
    """Nor is either late; with other tags they are two transfers, of which neither ends."""

    def transfer(number: int, op: str, peer: int, tag: int | None = None) -> RankReport:
        return rank(number, CollectiveWait(op, peer=peer, tag=tag, on_device=tag is None))

    assert verdict(transfer(0, "recv", 1), transfer(1, "send", 0), rank(2)).verdict.kind.value == "all-idle"
    crossed = verdict(transfer(0, "recv", 1), transfer(1, "recv", 0), rank(2))
    assert (crossed.verdict.kind.value, crossed.verdict.ranks) == ("mismatched-collective", (0, 1))
    other_tags = verdict(transfer(0, "recv", 1, tag=7), transfer(1, "send", 0, tag=8), rank(2)).verdict
    assert other_tags.kind.value == "mismatched-collective"
    assert "in a send and a recv with different tags: rank 0 waits in recv from rank 1 (tag" in other_tags.summary


def test_a_recv_from_any_rank_is_stuck_where_nobody_can_send() -> None:
    group = (GroupState("0", "default_pg", 3, "0-2", 1, 1),)
    first = rank(0, CollectiveWait("recv", group="default_pg", from_any=True), groups=group)
    others = [rank(number, CollectiveWait("recv", peer=0), groups=group) for number in (1, 2)]
    ring = verdict(first, *others).verdict
    assert (ring.kind.value, ring.ranks) == ("mismatched-collective", (0, 1))
    assert "rank 0 waits in recv from any rank of group default_pg; rank 1 waits in recv from rank 0" in ring.summary
    late = verdict(first, others[0], rank(2, groups=group)).verdict
    assert (late.kind.value, late.ranks) == ("late-rank", (2,)), "rank 2 may send"


def test_calls_of_ranks_that_answer_are_no_ring() -> None:
    """Both call each other; it is a ring only where nobody is left to answer."""

    def call(number: int, op: str = "rpc_sync", **more: object) -> RankReport:
        return rank(number, CollectiveWait(op, peer=1 - number), size=2, groups=(), **more)

    ring = verdict(call(0), call(1, "to_here")).verdict
    assert ring.kind.value == "mismatched-collective"
    ends = "rank 0 waits in rpc_sync to rank 1; rank 1 waits in to_here"
    assert f"in calls, and no rank is left to answer: {ends}" in ring.summary
    serving = "a call of another rank runs work (train.py:7) in thread 77, waits: condvar"
    late = verdict(call(0, "rpc_async"), call(1, answers=True, serving=serving)).verdict
    assert (late.kind.value, late.ranks) == ("late-rank", (1,))
    assert late.summary.endswith(f"rank 1: {serving}.")


def test_who_works_on_a_call_of_another_rank() -> None:
    """One whose owner waits for an answer itself is of no use; an idle one is free."""

    calls = waiting(WaitKind.COLLECTIVE)._replace(detail=OtherRanks(CollectiveWait("rpc_sync")))
    main = ThreadReport(1, name="python", state=RunState.WAITING, wait=calls)
    server = ThreadReport(0, name="pt_thread_pool", state=RunState.WAITING)
    held = server._replace(tid=2, wait=waiting(WaitKind.MUTEX)._replace(owner=OwnerThread(1)))
    free, busy = server._replace(tid=3, state=RunState.IDLE), server._replace(tid=4, state=RunState.RUNNING)
    for threads, answers in (([], False), ([free], True), ([held, free], False), ([held, busy], True)):
        assert _rpc_server([main, *threads])[0] is answers


@pytest.mark.parametrize("name", jobs.NAMES)
def test_documents_of_parts_make_the_document_of_the_whole(name: str) -> None:
    whole = jobs.recorded_rows(name)
    parts = [job_report.RankReports({key: report}, frozenset()) for key, report in whole.reports.items()]
    parts.append(job_report.RankReports({}, whole.unreached))
    again = rows()
    for part in reversed(parts):
        document = json.loads(job_report.render_json(judge(part)))
        contract_schema.check(document)
        again = job_report.merge(again, rows(*job_report.read_rows(document, "a part")))
    assert again == job_report.merge(whole, again) == job_report.merge(again, again) == whole
    assert job_report.document(judge(again)) == job_report.document(judge(whole))


def in_mpi(op: str, **more: object) -> CollectiveWait:
    return CollectiveWait(f"MPI_{op}", group="MPI_COMM_WORLD")._replace(**more)


ALL, ANY = {"owed_by": "0-2"}, {"from_any": True, "owed_by": "0-2"}


@pytest.mark.parametrize(
    ("waits", "kind", "ranks", "words"),
    [
        ([in_mpi("Barrier", **ALL), None, in_mpi("Barrier", **ALL)], LATE, (1,), "ranks 0,2 wait for rank 1 of 3"),
        ([in_mpi("Barrier", **ALL), in_mpi("Allreduce", **ALL), None], MISMATCH, (0, 1), ""),
        ([in_mpi("Barrier", **ALL), in_mpi("Allreduce", **ALL), in_mpi("Barrier", **ALL)], MISMATCH, (0, 1), ""),
        ([in_mpi("Send", peer=1, tag=3), in_mpi("Recv", peer=0, tag=3), None], "all-idle", (), ""),
        ([in_mpi("Send", peer=1, tag=3), in_mpi("Recv", peer=0), None], "all-idle", (), ""),
        ([in_mpi("Send", peer=1, tag=3), in_mpi("Recv", tag=3, **ANY), None], "all-idle", (), ""),
        ([in_mpi("Send", peer=1, tag=3), in_mpi("Recv", tag=4, **ANY), None], LATE, (2,), ""),
        ([None, in_mpi("Recv", **ANY), in_mpi("Barrier", **ALL)], LATE, (0,), "wait for rank 0 of 3"),
        ([in_mpi("Send", peer=1, tag=3), in_mpi("Recv", peer=0, tag=4), None], MISMATCH, (0, 1), "different tags"),
        ([in_mpi("Bcast", root=2), None, None], "all-idle", (), "none of these is known to hold them up"),
        ([in_mpi("Bcast", root=2), in_mpi("Bcast", root=2), None], LATE, (2,), "wait for rank 2 of 3 in MPI_Bcast"),
        ([in_mpi("Bcast", root=2), in_mpi("Wait", group=""), None], LATE, (2,), ""),
        ([in_mpi("Recv", group="communicator 0x84000001", group_peer=1), None, None], "all-idle", (), ""),
    ],
)
def test_calls_of_mpi(waits: list[CollectiveWait | None], kind: str, ranks: tuple[int, ...], words: str) -> None:
    """A rank is late only if its absence is proven: a transfer whose ends have met, and a collective that ranks may
    leave early, blame nobody."""
    found = verdict(*(rank(number, wait, groups=()) for number, wait in enumerate(waits))).verdict
    assert (found.kind.value, tuple(found.ranks)) == (kind, ranks), found.summary
    assert words in found.summary


def at_store(**more: object) -> CollectiveWait:
    return CollectiveWait("c10d::TCPStore::doWait", is_store=True)._replace(**more)


@pytest.mark.parametrize(
    ("waits", "kind", "ranks", "words"),
    [
        ([at_store(key="a/0/1", part="rank 1's address", owed_by="1"), None, None], LATE, (1,), "1's address (key"),
        ([at_store(key="b", part="all", owed_by="0-1"), None, None], LATE, (1,), "and rank 1 has not arrived there"),
        ([at_store(key="b", part="all", owed_by="0-1")] * 2 + [None],
         "store-wait", (), ""),
        ([at_store(key="ready"), None, None], "store-wait", (), "which rank sets it is not known"),
    ],
)  # fmt: skip
def test_keys_of_the_store(waits: list[CollectiveWait | None], kind: str, ranks: tuple[int, ...], words: str) -> None:
    found = verdict(*(rank(number, wait, groups=()) for number, wait in enumerate(waits))).verdict
    assert (found.kind.value, tuple(found.ranks)) == (kind, ranks), found.summary
    assert words in found.summary
