"""The sentence of each verdict on a job; job_judge.py decides which verdict it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.engine.rank_sets import fold
from gdbext.tools.ranks.job_report import CollectiveMatch, RankReport, Unreached, ranks_of
from gdbext.tools.ranks.matching import Edges
from gdbext.torch.torch_symbol import RPC_CALLS

NAMED = 3
"""Ranks at fault whose own diagnosis is in the sentence."""
_CALLERS = 4
"""Lines of a program that are in a sentence."""
_LISTED = 100
"""Processes that are named one by one."""


# --- words ---------------------------------------------------------------------------------------


def ranks_text(ranks: Collection[int]) -> str:
    """The ranks in words: ``rank 5``, ``ranks 0-3,7``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {fold(ranks)}"


def labels_text(reports: Sequence[RankReport]) -> str:
    """``ranks 0-2``, ``rank 3 and pid 77 on node1``."""
    ranks = ranks_of(reports)
    parts = [ranks_text(ranks)] if ranks else []
    parts += [report.label for report in reports if report.rank is None][:NAMED]
    return " and ".join(parts)


def processes_text(reports: Sequence[RankReport], with_user: bool = False) -> str:
    """``pid 77 on node3, pid 78 on node3``; ``pid 77 of user 1001``."""
    texts = []
    for report in reports[:_LISTED]:
        user = f" of user {report.user}" if with_user else ""
        texts.append(f"pid {report.pid}{user}" + (f" on {report.host}" if report.host else ""))
    if len(reports) > _LISTED:
        texts.append(f"… and {len(reports) - _LISTED} more")
    return ", ".join(texts)


def _agree(subjects: Collection[object], verb: str) -> str:
    """``verb`` in the plural, with an s if there is one subject."""
    return f"{verb}s" if len(subjects) == 1 else verb


def _ranks_wait(ranks: Collection[int]) -> str:
    """``rank 5 waits``, ``ranks 0-3 wait``."""
    return f"{ranks_text(ranks)} {_agree(ranks, 'wait')}"


def _diagnosis(report: RankReport) -> str:
    """``rank 5: its own verdict``, without a full stop."""
    return f"{report.label}: {report.summary.rstrip('.')}"


def _wait_phrase(report: RankReport) -> str:
    """``waits in collective #1 all_reduce``."""
    return report.wait.phrase if report.wait else "waits"


def _operation(match: CollectiveMatch) -> str:
    """``#18 all_reduce f32[8, 2] of group default_pg``."""
    text = next((variant.op for variant in match.variants), "an operation")
    return f"#{match.seq} {text} of group {match.group}"


# --- sentences -----------------------------------------------------------------------------------


def same_rank(twins: Mapping[int, Sequence[RankReport]], missing: Collection[int]) -> str:
    """``pid 7 on a, pid 9 on a were all given rank 0: they wait for others, and no process is rank 1.``"""
    given = [f"{processes_text(claims)} were all given rank {rank}" for rank, claims in sorted(twins.items())]
    return f"{'; '.join(given)}: they wait for others, and no process is {ranks_text(missing)}."


def mismatch(match: CollectiveMatch) -> str:
    """``#4 of group default_pg: ranks 0,2 issued all_reduce …, rank 1 all_gather … (COLLECTIVE_TYPE_MISMATCH).``"""
    parts = [f"{ranks_text(variant.ranks)} issued {variant.op}" for variant in match.variants]
    return f"In collective #{match.seq} of group {match.group}, {'; '.join(parts)} ({match.state.words})."


def ring(reports: Sequence[RankReport]) -> str:
    """``rank 0 waits in collective #1 all_reduce of group 1 for rank 1, which waits …``."""
    parts, ops = [], set()
    for report, following in zip(reports, [*reports[1:], *reports[:1]]):
        is_transfer = bool(report.wait and (report.wait.peer is not None or report.wait.from_any))
        is_transfer = is_transfer or bool(report.wait and report.wait.group_peer is not None)
        ops.add((report.wait.transfer or report.wait.op) if report.wait and is_transfer else "")
        group = f" of group {report.wait.group}" if report.wait and report.wait.group and not report.wait.is_mpi else ""
        is_named = is_transfer or (report.wait and report.wait.owed_by == str(following.rank))
        missing = "" if is_named else f", for which {following.label} has not arrived"
        parts.append(f"{report.label} {_wait_phrase(report)}{group}{missing}")
    waits = [report.wait for report in reports if report.wait]
    if (
        len(reports) == 2
        and {wait.transfer for wait in waits} == {"send", "recv"}
        and all(wait.tag is not None for wait in waits)
    ):
        where = "in a transfer whose ends have different tags"  # else the two would have met
    elif ops <= {"send", "recv"}:
        where = "in a ring of transfers, of which none can be the first"
    elif ops <= RPC_CALLS:
        where = "in calls, and no rank is left to answer"
    else:
        where = "in different operations"
    return f"The ranks wait for each other {where}: {'; '.join(parts)}."


def dead(ranks: Collection[int], unreached: Sequence[Unreached], collectives: Sequence[CollectiveMatch]) -> str:
    """``rank 1 is gone: process 77 is a zombie; ranks 0,2 wait for it in #4 all_reduce of group default_pg.``"""
    reasons = "; ".join(f"{process.where}: {process.reason}" for process in unreached[:NAMED])
    text = f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} gone or out of reach"
    text += f" ({reasons})" if reasons else ""
    pending = (match for match in collectives if match.pending)
    match = next((match for match in pending if any(rank in ranks for rank in match.missing)), None)
    return f"{text}; {_ranks_wait(match.pending)} in {_operation(match)}." if match else f"{text}."


def inside_nccl(blamed: Sequence[RankReport], outside: Sequence[RankReport], match: CollectiveMatch | None) -> str:
    """``rank 5 entered ncclAllReduce and did not return: #18 all_reduce … is not enqueued, on which ranks 0-4 …``"""
    calls = sorted({report.entered_nccl for report in blamed})
    text = f"{labels_text(blamed)} entered {', '.join(calls)} and did not return"
    own = [_diagnosis(report) for report in blamed[:NAMED]]
    if match:
        text += f": {_operation(match)} is not enqueued, on which {_ranks_wait(match.pending)}"
    elif outside:
        verb = "is" if len(outside) == 1 else "are"
        own.append(f"{labels_text(outside)} {verb} in no call of NCCL ({_diagnosis(outside[0])})")
    return f"{text}; {'; '.join(own)}."


def late(
    reports: Sequence[RankReport],
    match: CollectiveMatch | None,
    waits: Edges,
    known: int,
    operation: str = "",
    servers: Collection[int] = (),
) -> str:
    """``rank 5 of 8 never enqueued #18 all_reduce of group default_pg, on which ranks 0-4,6-7 wait; rank 5: …``

    ``known``: how many ranks gave a report; ``operation``: where the others wait, if there is no number to match
    (`` in monitored_barrier``); ``servers``: ranks that have to answer calls.
    """
    ranks = ranks_of(reports)
    size = next((report.size for report in reports if report.size is not None), known)
    if match:
        text = (
            f"{ranks_text(ranks)} of {size} never enqueued {_operation(match)}, on which {_ranks_wait(match.pending)}"
        )
    else:
        waiting = sorted(rank for rank, targets in waits.items() if targets & set(ranks))
        text = f"{_ranks_wait(waiting)} for {ranks_text(ranks)} of {size}{operation}"
    return f"{text}; {'; '.join(_own_diagnoses(reports, servers))}."


def _own_diagnoses(reports: Sequence[RankReport], servers: Collection[int]) -> list[str]:
    """What each of the ranks that are late does itself."""
    own = []
    for report in reports[:NAMED]:
        words = _diagnosis(report)
        if report.rank in servers and report.serving:
            words = f"{report.label}: {report.serving}"
        elif report.slowed and report.slowed not in report.summary.rstrip("."):
            words += f" (what may slow it down: {report.slowed})"
        own.append(words)
    return own


def besides(reports: Sequence[RankReport], text: str) -> str:
    """Sentences on what the verdict ``text`` does not say yet: threads of a rank that use one group, exceptions that
    ranks handle while they wait, and what NCCL waits for in ranks that wait for others."""
    sentences = []
    for report in [report for report in reports if report.wait and report.wait.also_in][:NAMED]:
        group, also = (report.wait.group, report.wait.also_in) if report.wait else ("", "")
        if also not in text:
            thread = f"thread {report.thread}" if report.thread else "the main thread"
            both = f"{thread} and {also} use {f'group {group}' if group else 'one group'} at the same time"
            sentences.append(f"In {report.label}, {both}: their order is nondeterministic.")
    handling: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.handling and report.handling not in text:
            handling.setdefault(report.handling, []).append(report)
    for error, ranks in list(handling.items())[:NAMED]:
        sentences.append(f"{labels_text(ranks)} {_agree(ranks, 'handle')} {error} meanwhile.")
    sentences += _callers(reports, text)
    return "".join(f" {sentence}" for sentence in [*sentences, *_through_nccl(reports, text)])


def _callers(reports: Sequence[RankReport], text: str) -> list[str]:
    """``rank 0 called it at train.py:15 (log_weight), by full_tensor; rank 1 is at train.py:8 (step).`` if a rank waits
    for others: the line of each side that ``text`` does not have yet."""
    if not any(report.wait for report in reports):
        return []
    ops = {report.wait.op for report in reports if report.wait and not report.wait.is_store}
    by_caller = reports_by_caller(reports, "it" if len(ops) == 1 else "")
    parts = []
    for caller, ranks in by_caller.items():
        verb, _, rest = caller.partition(" ")
        plural = {"is": "are", "waits": "wait"}.get(verb, verb)
        is_known = ranks[0].line.rpartition("/")[2] in text or ranks[0].summary.rstrip(".") not in text
        if ranks[0].wait or not is_known:  # of ranks that wait for none those that are late
            parts.append(f"{labels_text(ranks)} {verb if len(ranks) == 1 else plural} {rest}")
    return [f"{'; '.join(parts[:_CALLERS])}."] if parts else []


def reports_by_caller(reports: Sequence[RankReport], operation: str = "") -> dict[str, list[RankReport]]:
    """Reports by the program's line and what it called there, those of ranks that wait first. ``operation`` replaces
    the name of the operation."""
    by_caller: dict[str, list[RankReport]] = {}
    for report in sorted(reports, key=lambda report: not report.wait):
        caller = report.caller(operation or (report.wait.op if report.wait else ""))
        if caller:
            by_caller.setdefault(caller, []).append(report)
    return by_caller


def _through_nccl(reports: Sequence[RankReport], text: str) -> list[str]:
    """``rank 3 launched #41 all_reduce of group tp and waits for it (cudaStreamSynchronize of stream 7); NCCL's
    communicator there waits for data of rank 2 on channel 1; rank 2: …`` for ranks that wait for others.

    The diagnosis of a rank at which such a chain ends is added once, and not if ``text`` has it already.
    """
    by_rank = {report.rank: report for report in reports}
    sentences: list[str] = []
    for report in [report for report in reports if report.waits_for_ranks and report.nccl][:NAMED]:
        wait = report.wait
        launched = _wait_phrase(report)
        if wait and wait.on_device:  # what the rank launched, rather than what it waits in
            number = f"#{wait.seq} " if wait.seq is not None else ""
            group = f" of group {wait.group}" if wait.group else ""
            launched = f"launched {number}{wait.op}{group} and waits for it"
            launched += f" ({report.device})" if report.device else ""
        parts = [f"{report.label} {launched}; NCCL's communicator there {'; '.join(report.nccl[:NAMED])}"]
        for peer in report.nccl_peers[:NAMED]:
            end = by_rank.get(peer)
            own = end.summary.rstrip(".") if end else "no report"
            is_link = end and end.nccl_peers  # it waits for another rank itself, and has a sentence of its own
            if not is_link and not any(own in sentence for sentence in (text, *sentences)):
                parts.append(f"{ranks_text([peer])}: {own}")
        sentences.append(f"{'; '.join(parts)}.")
    return sentences


def owed(
    reports: Sequence[RankReport], waiting: Sequence[RankReport], wait: CollectiveWait, servers: Collection[int] = ()
) -> str:
    """``rank 0 waits for rank 1's address for gloo, in new_group (the store's key '…'); rank 1: …``

    ``waiting``: ranks that wait for what ``reports`` owe, in the same way as ``wait``.
    """
    key = f"key '{wait.key}'" if not wait.last_key else f"keys '{wait.key}' to '{wait.last_key}'"
    text = f"{labels_text(waiting)} {_agree(waiting, 'wait')} for {wait.part} ({key} of the store)"
    if wait.owed_by != fold(ranks_of(reports)):
        text += f", and {labels_text(reports)} {'has' if len(reports) == 1 else 'have'} not arrived there"
    return f"{text}; {'; '.join(_own_diagnoses(reports, servers))}."


def late_transfers(reports: Sequence[RankReport], waiting: Sequence[RankReport], servers: Collection[int] = ()) -> str:
    """``rank 0 waits in MPI_Recv from rank 1 (tag 4) on MPI_COMM_WORLD; rank 1: …``"""
    parts = [f"{report.label} {_wait_phrase(report)}" for report in waiting[:NAMED]]
    if len(waiting) > NAMED:
        parts.append(
            f"{labels_text(waiting[NAMED:])} {_agree(waiting[NAMED:], 'wait')} for {labels_text(reports)}, too"
        )
    return f"{'; '.join([*parts, *_own_diagnoses(reports, servers)])}."


def store(at_store: Sequence[RankReport], absent: Sequence[RankReport], missing: Collection[int]) -> str:
    """``ranks 0-1 wait until all ranks have reached the store; rank 2 has not arrived there: …``, or ``rank 0 waits for
    the key 'ready' of the store; which rank sets it is unknown; rank 1 waits for no key of the store: …``"""
    keys: dict[str, list[RankReport]] = {}
    for report in at_store:
        words = f"for {report.wait.part}, " if report.wait and report.wait.part else "for "
        key = report.wait.key if report.wait else ""
        words = f"{words}the key '{key}' of the store" if key else "at the store"
        keys.setdefault(words, []).append(report)
    parts = [f"{labels_text(ranks)} {_agree(ranks, 'wait')} {words}" for words, ranks in list(keys.items())[:NAMED]]
    is_key = any(report.wait and report.wait.key for report in at_store)
    text = "; ".join(parts) + ("; which rank sets it is not known" if is_key else ", where ranks meet")
    if absent:
        have = "has" if len(absent) == 1 else "have"
        what = f"{_agree(absent, 'wait')} for no key of the store" if is_key else f"{have} not arrived there"
        text += f"; {labels_text(absent)} {what} ({_diagnosis(absent[0])})"
    return f"{text}; of {ranks_text(missing)} there is no report." if missing else f"{text}."


def unfinished(match: CollectiveMatch) -> str:
    """``Every rank of group default_pg issued #4 all_to_all; rank 1 has completed it, ranks 0,2 wait in it.``"""
    have = "has" if len(match.completed) == 1 else "have"
    done = f"{ranks_text(match.completed)} {have} completed it, " if match.completed else ""
    text = f"Every rank of group {match.group} issued #{match.seq} {match.variants[0].op}; {done}"
    text += f"{_ranks_wait(match.pending)} in it ({match.state.words})"
    return f"{text}: still in progress, or stuck in the network."


def unknown_peer(reports: Sequence[RankReport], waits: Edges) -> str:
    """``ranks 0-1 wait for rank 2, which waits in recv itself: for which rank is not recorded.``"""
    parts = []
    for report in reports:
        waiting = sorted(rank for rank, targets in waits.items() if report.rank in targets)
        parts.append(f"{_ranks_wait(waiting)} for {report.label}, which {_wait_phrase(report)} itself")
    return f"The ranks wait for each other in different operations: {'; '.join(parts)}; for which rank is not recorded."


def busy(reports: Sequence[RankReport], known: int) -> str:
    """``3 of 4 ranks run, and none waits for another for ever.``"""
    return f"{len(reports)} of {known} ranks run ({labels_text(reports)}); nothing shows that any of them hangs."


def idle(reports: Sequence[RankReport], unreached: Sequence[Unreached]) -> str:
    """The sentence if no rank is known to hold others up, and none runs."""
    if not reports:
        reasons = "; ".join(f"{process.where}: {process.reason}" for process in unreached[:NAMED])
        return f"There is no report of any rank{': ' if reasons else ''}{reasons}."
    if all(report.problem for report in reports):
        return f"What the ranks do cannot be read: {reports[0].label}: {reports[0].problem}."
    waiting = [report for report in reports if report.waits_for_ranks]
    if waiting:
        which = f"{labels_text(waiting)} {_agree(waiting, 'wait')} for others; none of these is known to hold them up"
        return f"{which}; no rank runs: {waiting[0].label}: {waiting[0].summary}"
    return f"No rank waits for another, and none runs: {reports[0].label}: {reports[0].summary}"
