"""The sentence of each verdict on a job. Pure text; what is worth one is decided in job_judge.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gdbext.engine.rank_sets import fold
from gdbext.tools.ranks.job_report import CollectiveMatch, RankReport, Unreached, ranks_of
from gdbext.tools.ranks.matching import Edges
from gdbext.torch.torch_symbol import RPC_CALLS

NAMED = 3
"""Ranks at fault whose own diagnosis is in the sentence."""
_LISTED = 100
"""Processes that are named one by one."""


def ranks_text(ranks: Collection[int]) -> str:
    """The ranks in words: ``rank 5``, ``ranks 0-3,7``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {fold(ranks)}"


def same_rank(twins: Mapping[int, Sequence[RankReport]], missing: Collection[int]) -> str:
    """``pid 7 on a, pid 9 on a were all given rank 0: they wait for others, and no process is rank 1.``"""
    given = [f"{processes(claims)} were all given rank {rank}" for rank, claims in sorted(twins.items())]
    return f"{'; '.join(given)}: they wait for others, and no process is {ranks_text(missing)}."


def mismatch(match: CollectiveMatch) -> str:
    """``#4 of group default_pg: ranks 0,2 issued all_reduce …, rank 1 all_gather … (COLLECTIVE_TYPE_MISMATCH).``"""
    parts = [f"{ranks_text(variant.ranks)} issued {variant.op}" for variant in match.variants]
    return f"Under #{match.seq} of group {match.group}, {'; '.join(parts)} ({match.state.words})."


def ring(reports: Sequence[RankReport]) -> str:
    """``rank 0 waits in #1 all_reduce of group 1 for rank 1, which waits …``."""
    parts = []
    for number, report in enumerate(reports):
        following = reports[(number + 1) % len(reports)]
        what = report.wait.phrase if report.wait else "waits"
        group = f" of group {report.wait.group}" if report.wait and report.wait.group else ""
        missing = "" if _is_transfer(report) else f", for which {following.label} has not come"
        parts.append(f"{report.label} {what}{group}{missing}")
    ops = {report.wait.op if report.wait and _is_transfer(report) else "" for report in reports}
    where = "in calls, and nobody is left to answer" if ops <= RPC_CALLS else "in different operations"
    where = "in a ring of transfers, of which none can be the first" if ops <= {"send", "recv"} else where
    where = "in a transfer whose ends have different tags" if _differ_in_tags(reports) else where
    return f"The ranks wait for each other {where}: {'; '.join(parts)}."


def _is_transfer(report: RankReport) -> bool:
    return bool(report.wait and (report.wait.peer is not None or report.wait.from_any))


def _differ_in_tags(reports: Sequence[RankReport]) -> bool:
    """One sends to the other, which receives from it, by another tag."""
    waits = [report.wait for report in reports if report.wait]
    return (
        len(reports) == 2
        and {wait.op for wait in waits} == {"send", "recv"}
        and not any(wait.tag is None for wait in waits)
    )


def dead(ranks: Collection[int], unreached: Sequence[Unreached], collectives: Sequence[CollectiveMatch]) -> str:
    """``rank 1 is gone: process 77 is a zombie; ranks 0,2 wait for it in #4 all_reduce of group default_pg.``"""
    reasons = [f"{each.where}: {each.reason}" for each in unreached[:NAMED]]
    verb = "is" if len(ranks) == 1 else "are"
    text = f"{ranks_text(ranks)} {verb} gone or out of reach"
    text += f" ({'; '.join(reasons)})" if reasons else ""
    match = next((each for each in collectives if each.pending and any(rank in ranks for rank in each.missing)), None)
    if match:
        text += f"; {ranks_text(match.pending)} {_verb(match.pending, 'wait')} in {_operation(match)}"
    return f"{text}."


def inside_nccl(blamed: Sequence[RankReport], outside: Sequence[RankReport], match: CollectiveMatch | None) -> str:
    """``rank 5 entered ncclAllReduce and did not return: #18 all_reduce … is not enqueued, on which ranks 0-4 …``"""
    calls = sorted({report.entered_nccl for report in blamed})
    text = f"{labels(blamed)} entered {', '.join(calls)} and did not return"
    if match:
        text += f": {_operation(match)} is not enqueued, on which {ranks_text(match.pending)} "
        text += _verb(match.pending, "wait")
    own = [f"{report.label}: {report.summary.rstrip('.')}" for report in blamed[:NAMED]]
    if outside and not match:
        own.append(
            f"{labels(outside)} {'is' if len(outside) == 1 else 'are'} in no call of NCCL "
            f"({outside[0].label}: {outside[0].summary.rstrip('.')})"
        )
    return f"{text}; {'; '.join(own)}."


def late(
    reports: Sequence[RankReport],
    match: CollectiveMatch | None,
    waits: Edges,
    known: int,
    doing: str = "",
    servers: Collection[int] = (),
) -> str:
    """``rank 5 of 8 never enqueued #18 all_reduce of group default_pg, on which ranks 0-4,6-7 wait; rank 5: …``

    ``doing``: what the others wait in, where no number is to be matched (`` in monitored_barrier``); ``servers``: ranks
    that have to answer calls.
    """
    ranks = ranks_of(reports)
    size = next((report.size for report in reports if report.size is not None), known)
    if match:
        text = f"{ranks_text(ranks)} of {size} never enqueued {_operation(match)}, on which "
        text += f"{ranks_text(match.pending)} {_verb(match.pending, 'wait')}"
    else:
        waiting = sorted(rank for rank, targets in waits.items() if targets & set(ranks))
        text = f"{ranks_text(waiting)} {_verb(waiting, 'wait')} for {ranks_text(ranks)} of {size}{doing}"
    own = [f"{report.label}: {_own_words(report, servers)}" for report in reports[:NAMED]]
    return f"{text}; {'; '.join(own)}."


def _own_words(report: RankReport, servers: Collection[int]) -> str:
    """Its own verdict; of one that has to answer calls, what it does for one."""
    if report.rank in servers and report.serving:
        return report.serving
    own = report.summary.rstrip(".")
    is_told = not report.slowed or report.slowed in own
    return own if is_told else f"{own} (what may slow it down: {report.slowed})"


def besides(reports: Sequence[RankReport], text: str) -> str:
    """The threads of a rank that use one group, exceptions that ranks handle while they wait for others, and what NCCL
    waits for in these: what the sentence ``text`` of the verdict does not say yet."""
    told = []
    for report in [each for each in reports if each.wait and each.wait.also_in][:NAMED]:
        group = f"group {report.wait.group}" if report.wait and report.wait.group else "one group"
        also = report.wait.also_in if report.wait else ""
        who = f"thread {report.thread}" if report.thread else "the main thread"
        if also not in text:
            both = f"{who} and {also} use {group} at the same time"
            told.append(f"In {report.label}, {both}: in which order is left to chance.")
    raised: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.handling and report.handling not in text:
            raised.setdefault(report.handling, []).append(report)
    for error, ranks in list(raised.items())[:NAMED]:
        told.append(f"{labels(ranks)} {_verb(ranks, 'handle')} {error} meanwhile.")
    told += _through_nccl(reports, text)
    return "".join(f" {each}" for each in told)


def _through_nccl(reports: Sequence[RankReport], text: str) -> list[str]:
    """``rank 3 launched #41 all_reduce of group tp and waits for it (cudaStreamSynchronize of stream 7); NCCL's
    communicator there waits for data of rank 2 on channel 1; rank 2: …`` for ranks that wait for others.

    The words of a rank at which such a chain ends are added once, and not where ``text`` has them already.
    """
    known = {report.rank: report for report in reports}
    told: list[str] = []
    for report in [each for each in reports if each.waits_for_ranks and each.nccl][:NAMED]:
        parts = [f"{report.label} {_launched(report)}; NCCL's communicator there {'; '.join(report.nccl[:NAMED])}"]
        for peer in report.nccl_peers[:NAMED]:
            end = known.get(peer)
            own = end.summary.rstrip(".") if end else "no report"
            is_link = end and end.nccl_peers  # it waits for another one itself, and says so
            if not is_link and not any(own in each for each in (text, *told)):
                parts.append(f"{ranks_text([peer])}: {own}")
        told.append(f"{'; '.join(parts)}.")
    return told


def _launched(report: RankReport) -> str:
    """The operation as what the rank launched, where it waits for its device; else as what it waits in."""
    wait = report.wait
    if not wait or not wait.on_device:
        return wait.phrase if wait else "waits"
    number = f"#{wait.seq} " if wait.seq is not None else ""
    group = f" of group {wait.group}" if wait.group else ""
    call = f" ({report.device})" if report.device else ""
    return f"launched {number}{wait.op}{group} and waits for it{call}"


def store(at_store: Sequence[RankReport], absent: Sequence[RankReport], missing: Collection[int]) -> str:
    """``ranks 0-1 wait at the store; rank 2 has not come there: …``"""
    text = f"{labels(at_store)} {_verb(at_store, 'wait')} for a key of the store, where ranks meet"
    if absent:
        have = "has" if len(absent) == 1 else "have"
        text += f"; {labels(absent)} {have} not come there ({absent[0].label}: {absent[0].summary.rstrip('.')})"
    if missing:
        text += f"; of {ranks_text(missing)} there is no report"
    return f"{text}."


def unfinished(match: CollectiveMatch) -> str:
    """``Every rank of group default_pg issued #4 all_to_all; rank 1 has completed it, ranks 0,2 wait in it.``"""
    have = "has" if len(match.completed) == 1 else "have"
    done = f"{ranks_text(match.completed)} {have} completed it, " if match.completed else ""
    text = f"Every rank of group {match.group} issued #{match.seq} {match.variants[0].op}; {done}"
    text += f"{ranks_text(match.pending)} {_verb(match.pending, 'wait')} in it ({match.state.words})"
    return f"{text}: either it goes on, or the network between them does not."


def unknown_peer(reports: Sequence[RankReport], waits: Edges) -> str:
    """``ranks 0-1 wait for rank 2, which waits in recv itself: for whom is not recorded.``"""
    parts = []
    for report in reports:
        waiting = sorted(rank for rank, targets in waits.items() if report.rank in targets)
        what = report.wait.phrase if report.wait else "waits"
        parts.append(f"{ranks_text(waiting)} {_verb(waiting, 'wait')} for {report.label}, which {what} itself")
    return f"The ranks wait for each other in different operations: {'; '.join(parts)}; for whom is not recorded."


def busy(reports: Sequence[RankReport], known: int) -> str:
    """``3 of 4 ranks run, and none waits for another for ever.``"""
    return f"{len(reports)} of {known} ranks run ({labels(reports)}); nothing shows that any of them hangs."


def idle(reports: Sequence[RankReport], unreached: Sequence[Unreached]) -> str:
    """Nobody waits for another rank, and nobody runs."""
    if not reports:
        reasons = "; ".join(f"{each.where}: {each.reason}" for each in unreached[:NAMED])
        return f"There is no report of any rank{': ' if reasons else ''}{reasons}."
    if all(report.problem for report in reports):
        return f"What the ranks do cannot be read: {reports[0].label}: {reports[0].problem}."
    waiting = [report for report in reports if report.waits_for_ranks]
    if waiting:
        which = f"{labels(waiting)} {_verb(waiting, 'wait')} for others, of which none is known to hold them up"
        return f"{which}; no rank runs: {waiting[0].label}: {waiting[0].summary}"
    return f"No rank waits for another, and none runs: {reports[0].label}: {reports[0].summary}"


def _operation(match: CollectiveMatch) -> str:
    text = next((variant.op for variant in match.variants), "an operation")
    return f"#{match.seq} {text} of group {match.group}"


def processes(reports: Sequence[RankReport], with_user: bool = False) -> str:
    """``pid 77 on node3, pid 78 on node3``; ``pid 77 of user 1001``."""
    texts = []
    for each in reports[:_LISTED]:
        user = f" of user {each.user}" if with_user else ""
        texts.append(f"pid {each.pid}{user}" + (f" on {each.host}" if each.host else ""))
    if len(reports) > _LISTED:
        texts.append(f"… and {len(reports) - _LISTED} more")
    return ", ".join(texts)


def labels(reports: Sequence[RankReport]) -> str:
    """``ranks 0-2``, ``rank 3 and pid 77 on node1``."""
    ranks = ranks_of(reports)
    parts = [ranks_text(ranks)] if ranks else []
    parts += [report.label for report in reports if report.rank is None][:NAMED]
    return " and ".join(parts)


def _verb(subjects: Collection[object], verb: str) -> str:
    return f"{verb}s" if len(subjects) == 1 else verb
