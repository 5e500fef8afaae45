"""Clauses and longer sentences of the verdicts on a job; job_judge.py decides which verdict it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def agree(subjects: Collection[object], singular: str, plural: str) -> str:
    """The form of a verb for its subjects."""
    return singular if len(subjects) == 1 else plural


def ranks_text(ranks: Collection[int]) -> str:
    """The ranks in words: ``rank 5``, ``ranks 0-3,7``."""
    return f"{agree(ranks, 'rank', 'ranks')} {fold(ranks)}"


def ranks_wait(ranks: Collection[int]) -> str:
    """``rank 5 waits``, ``ranks 0-3 wait``."""
    return f"{ranks_text(ranks)} {agree(ranks, 'waits', 'wait')}"


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


def reasons_text(unreached: Sequence[Unreached]) -> str:
    """The first reasons why there is no report: ``pid 77: it is a zombie; node3: no answer within 60 s``."""
    return "; ".join(f"{process.where}: {process.reason}" for process in unreached[:NAMED])


def ring(reports: Sequence[RankReport]) -> str:
    """``The ranks wait for each other in different operations: rank 0 waits in collective #1 all_reduce of group 1,
    for which rank 1 has not arrived; rank 1 waits …`` for ranks that each wait for the next."""
    parts, ops = [], set()
    for report, following in zip(reports, [*reports[1:], *reports[:1]]):
        is_transfer = bool(report.wait and (report.wait.peer is not None or report.wait.from_any))
        wait = report.wait
        is_transfer = bool(wait and (wait.from_any or wait.peer is not None or wait.group_peer is not None))
        ops.add((wait.transfer or wait.op) if wait and is_transfer else "")
        group = f" of group {wait.group}" if wait and wait.group and not wait.is_mpi else ""
        is_named = is_transfer or (wait and wait.owed_by == str(following.rank))
        missing = "" if is_named else f", for which {following.label} has not arrived"
        parts.append(f"{report.label} {report.wait_phrase}{group}{missing}")
    waits = [report.wait for report in reports if report.wait]
    is_pair = len(reports) == 2 and {wait.transfer for wait in waits} == {"send", "recv"}
    if is_pair and all(wait.tag is not None for wait in waits):
        where = "in a send and a recv with different tags"  # else the two would have met
    elif ops <= {"send", "recv"}:
        where = "in a ring of transfers, none of which can be the first"
    elif ops <= RPC_CALLS:
        where = "in calls, and no rank is left to answer"
    else:
        where = "in different operations"
    return f"The ranks wait for each other {where}: {'; '.join(parts)}."


def late(
    blamed: Sequence[RankReport],
    reports: Sequence[RankReport],
    match: CollectiveMatch | None,
    waits: Edges,
    servers: Collection[int],
) -> str:
    """``rank 5 of 8 never enqueued #18 all_reduce of group default_pg, on which ranks 0-4,6-7 wait; rank 5: …``

    ``blamed``: the late ranks, among all ``reports``; ``match``: the operation in which others wait for them, None
    without a number to match; ``servers``: ranks that have to answer calls.
    """
    ranks = ranks_of(blamed)
    size = next((report.size for report in blamed if report.size is not None), len(reports))
    if match:
        text = f"{ranks_text(ranks)} of {size} never enqueued {match.text}, on which {ranks_wait(match.pending)}"
    else:
        waiting = sorted(rank for rank, targets in waits.items() if targets & set(ranks))
        # The operation that all others wait in, named only if it has no other end.
        own_waits = (report.wait for report in reports if report.rank in waiting)
        ops = {wait.op for wait in own_waits if wait and wait.peer is None}
        operation = f" in {ops.pop()}" if len(ops) == 1 else ""
        text = f"{ranks_wait(waiting)} for {ranks_text(ranks)} of {size}{operation}"
    return f"{text}; {_own_diagnoses(blamed, servers)}."


def _own_diagnoses(blamed: Sequence[RankReport], servers: Collection[int]) -> str:
    """``rank 5: its own verdict; rank 6: …``: what each of the late ranks does itself."""
    parts = []
    for report in blamed[:NAMED]:
        details = report.diagnosis
        if report.rank in servers and report.serving:
            details = f"{report.label}: {report.serving}"
        elif report.slowed and report.slowed not in report.summary.rstrip("."):
            details += f" (what may slow it down: {report.slowed})"
        parts.append(details)
    return "; ".join(parts)


def besides(reports: Sequence[RankReport], text: str) -> str:
    """Sentences on what the verdict ``text`` does not say yet: threads of a rank that use one group, exceptions that
    ranks handle while they wait, the program's lines, and what NCCL waits for in ranks that wait for others."""
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
        sentences.append(f"{labels_text(ranks)} {agree(ranks, 'handles', 'handle')} {error} meanwhile.")
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
        launched = report.wait_phrase
        if wait and wait.on_device:  # what the rank launched, rather than what it waits in
            number = f"#{wait.seq} " if wait.seq is not None else ""
            group = f" of group {wait.group}" if wait.group else ""
            device = f" ({report.device})" if report.device else ""
            launched = f"launched {number}{wait.op}{group} and waits for it{device}"
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
    blamed: Sequence[RankReport], waiting: Sequence[RankReport], wait: CollectiveWait, servers: Collection[int]
) -> str:
    """``rank 0 waits for rank 1's address for gloo, in new_group (key '…' of the store); rank 1: …``

    ``waiting``: ranks that wait for what the ranks ``blamed`` owe, all in the same way as ``wait``; ``servers``: ranks
    that have to answer calls.
    """
    key = f"key '{wait.key}'" if not wait.last_key else f"keys '{wait.key}' to '{wait.last_key}'"
    text = f"{labels_text(waiting)} {agree(waiting, 'waits', 'wait')} for {wait.part} ({key} of the store)"
    if wait.owed_by != fold(ranks_of(blamed)):
        text += f", and {labels_text(blamed)} {agree(blamed, 'has', 'have')} not arrived there"
    return f"{text}; {_own_diagnoses(blamed, servers)}."


def late_transfers(blamed: Sequence[RankReport], waiting: Sequence[RankReport], servers: Collection[int]) -> str:
    """``rank 0 waits in MPI_Recv from rank 1 (tag 4) on MPI_COMM_WORLD; rank 1: …`` for ``waiting`` ranks that each
    wait for one of ``blamed``; ``servers``: ranks that have to answer calls."""
    parts = [f"{report.label} {report.wait_phrase}" for report in waiting[:NAMED]]
    others = waiting[NAMED:]
    if others:
        parts.append(f"{labels_text(others)} {agree(others, 'waits', 'wait')} for {labels_text(blamed)}, too")
    return f"{'; '.join([*parts, _own_diagnoses(blamed, servers)])}."


def store(at_store: Sequence[RankReport], absent: Sequence[RankReport], missing: Collection[int]) -> str:
    """``ranks 0-1 wait at the store, where ranks meet; rank 2 has not arrived there (rank 2: …)``, or ``rank 0 waits
    for the key 'ready' of the store; which rank sets it is not known; rank 1 waits for no key of the store (…)``.

    ``absent``: ranks that are not at the store; ``missing``: ranks without a report.
    """
    by_key: dict[str, list[RankReport]] = {}
    for report in at_store:
        part, key = (report.wait.part, report.wait.key) if report.wait else ("", "")
        words = f"for {f'{part}, ' if part else ''}the key '{key}' of the store" if key else "at the store"
        by_key.setdefault(words, []).append(report)
    ways = list(by_key.items())[:NAMED]
    text = "; ".join(f"{labels_text(ranks)} {agree(ranks, 'waits', 'wait')} {words}" for words, ranks in ways)
    is_key = any(report.wait and report.wait.key for report in at_store)
    text += "; which rank sets it is not known" if is_key else ", where ranks meet"
    if absent:
        here = f"{agree(absent, 'waits', 'wait')} for no key of the store"
        here = here if is_key else f"{agree(absent, 'has', 'have')} not arrived there"
        text += f"; {labels_text(absent)} {here} ({absent[0].diagnosis})"
    return f"{text}; there is no report from {ranks_text(missing)}." if missing else f"{text}."
