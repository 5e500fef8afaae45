"""The report on a job: the reports on its ranks and how they merge, its verdict and tree of paths, as JSON and back.

A row is the report on one process, known by its job, rank, host and pid; of two that differ the greater one stays.
Everything else of a job's report is computed from all rows. Hence merging is associative, commutative and idempotent,
and reports can be merged at every level of a tree of machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.finding import FindingKind
from gdbext.engine.rank_sets import fold
from gdbext.engine.terminal import shown_json
from gdbext.engine.vocabulary import json_member
from gdbext.errors import BadData
from gdbext.render.json_reader import from_json
from gdbext.render.plain_json import plain

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Amount, Count, Internal, RankSet, Sparse


MAX_PATH = 64
"""Frames of a path that are kept, the outermost ones."""
MAX_RANK_GROUPS = 4096


class Issued(NamedTuple):
    """One operation that a rank issued in a group: what is compared between ranks."""

    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    is_pending: bool = False


class GroupState(NamedTuple):
    """The state of one process group on one rank."""

    name: str
    description: str
    size: Count | None
    ranks: str
    """The members, as a set of ranks (``0-3,7``); "" if unknown."""
    enqueued: int | None
    """The sequence number of the last operation that was enqueued."""
    completed: int | None
    issued: tuple[Issued, ...] = ()
    """The last operations and all pending ones, by sequence number."""

    @staticmethod
    def json_limits() -> dict[str, int]:
        return {"issued": 1024}

    @property
    def label(self) -> str:
        """The description, else the name: torch calls groups without a description "undefined"."""
        return self.name if self.description in ("", "undefined") else self.description


class RankReport(NamedTuple):
    """The report on one process of the job. None: unknown."""

    rank: Count | None
    host: str | None
    pid: Count
    job: str | None
    size: Count | None
    """Ranks of the whole job."""
    torch: str | None
    kind: str
    """The kind of the verdict on this process, as in gdbext-1.schema.json."""
    summary: str
    path: tuple[str, ...] = ()
    """The path from the outermost frame to the wait."""
    wait: CollectiveWait | None = None
    """The operation in which its thread waits for other ranks; None if it does not."""
    running: bool = False
    """The main thread does not wait."""
    groups: tuple[GroupState, ...] = ()
    problem: str = ""
    """The reason why its stack is unknown, and what to try; "" if it is known."""
    restart: Count | None = None
    """Number of times that the launcher has restarted the ranks of its machine."""
    paused_ms: Amount | None = None
    """Milliseconds that the process was stopped for its report; None if that was not measured."""
    user: Count | None = None
    """The uid of the process's user on its machine; None if unknown."""
    entered_nccl: str = ""
    """The function of NCCL that the main thread entered and that has not returned: ``ncclAllReduce``."""
    answers: bool = False
    """It has threads that answer calls of torch.distributed.rpc, and other ranks do not block all of them."""
    serving: str = ""
    """The thread that works on a call of another rank, where it is, and what it waits for, as text; "" for none."""
    handling: str = ""
    """The exception that the thread of ``path`` handles meanwhile, as text; "" for none."""
    slowed: str = ""
    """The likeliest reason why a running rank is slow; "" if none is known."""

    nccl: tuple[str, ...] = ()
    """The errors of NCCL's communicators, and the ranks that their proxies wait for, as text."""
    nccl_peers: tuple[Count, ...] = ()
    """The ranks of the job that the proxies of NCCL's communicators wait for."""
    device: str = ""
    """The call in which its thread waits for the device, with the stream or event, as text; "" for none."""
    known: tuple[str, ...] = ()
    """The known bugs that match it, each with versions, cure and link, as text."""
    thread: Count | None = None
    """The tid of the thread of ``path`` and ``wait``; None for the main thread."""

    line: Sparse[str] = ""
    """The program's innermost line in that thread: ``inferiors/train.py:15 (log_weight)``; "" if it has none."""
    called: Sparse[str] = ""
    """The function of a library that it called there: ``full_tensor``; "" for none."""
    called_by: Sparse[str] = ""
    """The same, with what it exchanges, if that is another operation than the one that it waits in: ``full_tensor``,
    ``DistributedDataParallel.forward (DDP's buffers)``."""

    @staticmethod
    def json_limits() -> dict[str, int]:
        return {"path": MAX_PATH + 1, "groups": MAX_RANK_GROUPS, "nccl": 64, "nccl_peers": 1 << 12, "known": 32}

    @property
    def label(self) -> str:
        """``rank 5``; ``pid 77 on node3`` if the rank is unknown."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"pid {self.pid}" + (f" on {self.host}" if self.host else "")

    def caller(self, operation: str = "it") -> str:
        """The program's line and what it called there: ``called it at train.py:15 (log_weight), by full_tensor``, or
        ``is at train.py:8 (step)`` of a rank that waits for none; "" if the line is unknown."""
        if not self.line:
            return ""
        if not self.wait or (self.wait.is_store and not self.called):
            return f"{'waits' if self.wait else 'is'} at {self.line}"
        if self.wait.is_store:
            return f"called {self.called} at {self.line}"
        return f"called {operation} at {self.line}" + (f", by {self.called_by}" if self.called_by else "")

    @property
    def own_frame(self) -> str:
        """The program's innermost line, as ``path`` has it: ``log_weight (inferiors/train.py:15)``."""
        place, _, function = self.line.partition(" (")
        return f"{function[:-1]} ({place})"

    @property
    def waits_for_ranks(self) -> bool:
        """True if its thread waits in a collective, a send or a recv."""
        return bool(self.wait and not self.wait.is_store)

    @property
    def wait_phrase(self) -> str:
        """``waits in collective #1 all_reduce``."""
        return self.wait.phrase if self.wait else "waits"

    @property
    def diagnosis(self) -> str:
        """``rank 5: its own verdict``, without a full stop."""
        return f"{self.label}: {self.summary.rstrip('.')}"


class Unreached(NamedTuple):
    """A process, machine or file (``where``) that gave no report."""

    where: str
    reason: str
    help: str = ""
    ended: bool = False
    """The process is dead: a zombie, or it exited while it was examined."""


def ranks_of(reports: Iterable[RankReport]) -> tuple[int, ...]:
    """The known ranks, in the order of the reports."""
    return tuple(report.rank for report in reports if report.rank is not None)


SCHEMA = "gdbext-ranks/1"


class _WordedEnum(Enum):
    """An enumeration whose members have a value for documents and ``words`` for people."""

    words: str

    def __new__(cls, value: str, words: str) -> _WordedEnum:
        member = object.__new__(cls)
        member._value_ = value
        member.words = words
        return member


class JobVerdictKind(_WordedEnum):
    """The verdict kinds of a job, strongest first. Before the last two come the kinds of a single rank's verdict."""

    MISMATCHED_COLLECTIVE = "mismatched-collective", "mismatched collectives"
    DEAD_RANK = "dead-rank", "{ranks} {is_or_are} gone"
    INSIDE_NCCL = "inside-nccl", "stuck inside NCCL"
    LATE_RANK = "late-rank", "{ranks} {is_or_are} late"
    STORE_WAIT = "store-wait", "ranks wait at the store"
    ALL_BUSY = "all-busy", "at work"
    ALL_IDLE = "all-idle", "no rank is known to be late"
    NO_REPORT = "no-report", "no report"
    """No rank gave one: nothing is known of the job."""


class MatchState(_WordedEnum):
    """Whether the ranks' operations match, in the words of torch/distributed/flight_recorder (2.13.0)."""

    FULLY_MATCHED = "FULLY_MATCHED", "all ranks do the same"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH", "the ranks call different operations"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH", "the ranks pass different sizes"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH", "not all ranks arrived"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH", "the ranks pass different types"
    UNDECIDED = "UNDECIDED", "no difference seen"

    @property
    def is_mismatch(self) -> bool:
        """True if the ranks do not call the same thing; a different state is only a matter of time."""
        return self.value.endswith("_MISMATCH") and self is not MatchState.COLLECTIVE_STATE_MISMATCH


class Variant(NamedTuple):
    """The operation that some of the ranks issued under one number."""

    op: str
    """The operation with its tensors: ``all_reduce f32[8, 2]``."""
    ranks: RankSet


class CollectiveMatch(NamedTuple):
    """One operation of one group, compared between its ranks."""

    group: str
    """The group's description, else its name."""
    name: str
    members: RankSet
    seq: int
    state: MatchState
    variants: tuple[Variant, ...]
    """Variants of the operation, the one of most ranks first."""
    pending: RankSet
    """Ranks on which it is pending."""
    completed: RankSet
    never_enqueued: RankSet
    """Members that have a report and have not issued it."""
    missing: RankSet
    """Members without a report."""

    @property
    def text(self) -> str:
        """``#18 all_reduce f32[8, 2] of group default_pg``."""
        return f"#{self.seq} {self.variants[0].op if self.variants else 'an operation'} of group {self.group}"


class TreeNode(NamedTuple):
    """A node of the tree of the ranks' stacks: a frame, and the ranks that share it and all frames above it."""

    frame: str
    ranks: RankSet
    unranked: Count
    """Processes with this frame whose rank is not known."""
    children: tuple[TreeNode, ...] = ()


class JobVerdict(NamedTuple):
    """The verdict on a job; ``kind`` is the kind of a single rank's verdict if that explains the job."""

    kind: JobVerdictKind | FindingKind
    summary: str
    ranks: RankSet = ()
    """The ranks that are at fault."""

    @property
    def heading(self) -> str:
        """The first words of the verdict: ``rank 1 is late``."""
        ranks = f"rank{'' if len(self.ranks) == 1 else 's'} {fold(self.ranks)}" if self.ranks else "a rank"
        return self.kind.words.format(ranks=ranks, is_or_are="are" if len(self.ranks) > 1 else "is")


class RasAnswer(NamedTuple):
    """The answer of NCCL's own service for reliability (RAS), a second opinion that does not affect the verdict."""

    address: str
    lines: tuple[str, ...] = ()
    """Its report, line by line."""
    problem: str = ""
    """The reason why there is no answer; "" if there is."""
    user: int | None = None
    """The uid of the process that answered; None if it is on another machine."""

    @property
    def says_ok(self) -> bool:
        """True if the table of communicators has rows, and the last column of each, the error state, is OK. The table
        has eight columns, the first of which is a number (src/ras/client_support.cc)."""
        table = [line.split() for line in self.lines if line[:8].strip().isdecimal()]
        return {row[-1] for row in table if len(row) >= 8} == {"OK"}


class JobReport(NamedTuple):
    """The report on a job; ``reports`` are sorted by rank, host and pid."""

    job: str | None
    """The launcher's run id, or the address where the ranks meet."""
    size: Count | None
    """Ranks of the whole job."""
    missing: RankSet
    """Ranks of the job without a report."""
    verdict: JobVerdict
    collectives: tuple[CollectiveMatch, ...]
    tree: tuple[TreeNode, ...]
    notes: tuple[str, ...]
    """Notes on contradictions between the reports: two of one rank, several jobs, several versions."""
    ras: Sparse[RasAnswer | None]
    """The answer of NCCL's RAS, if it was asked."""
    unreached: tuple[Unreached, ...]
    reports: tuple[RankReport, ...]
    odd: Internal[tuple[RankReport, ...]] = ()
    """The reports that explain the verdict."""

    @json_member(after="size")
    def ranks(self) -> RankSet:
        """The ranks that have a report."""
        return ranks_of(self.reports)


class RowsDocument(NamedTuple):
    """The part of a job's document that merging needs."""

    reports: tuple[RankReport, ...]
    unreached: tuple[Unreached, ...]


def document(report: JobReport) -> dict[str, Any]:
    """The report as plain JSON values (schema "gdbext-ranks/1")."""
    return {"schema": SCHEMA, **plain(report)}


def render_json(report: JobReport, pretty: bool = False) -> str:
    """The document as text, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def read_rows(value: Any, where: str) -> RowsDocument:
    """The rows of a document, which another machine may have made. Raises BadData."""
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise BadData(f"{where} is not a report of ranks (schema {SCHEMA})")
    return from_json(RowsDocument, value, where)


ProcessKey = tuple[str, int, str, int]
"""Job, rank (-1: unknown), host and pid."""


class RankReports(NamedTuple):
    """The reports collected so far, by process, and what could not be reached."""

    reports: dict[ProcessKey, RankReport]
    unreached: frozenset[Unreached]

    def sorted(self) -> tuple[RankReport, ...]:
        """The reports by rank (unknown ones last), host and pid."""
        return tuple(self.reports[key] for key in sorted(self.reports, key=lambda key: (key[1] < 0, key[1:], key[0])))


def rows(reports: Iterable[RankReport] = (), unreached: Iterable[Unreached] = ()) -> RankReports:
    """Reports by process. Of two on one process the one with the greater repr stays, whatever their order."""
    by_process: dict[ProcessKey, RankReport] = {}
    for report in reports:
        key = (report.job or "", -1 if report.rank is None else report.rank, report.host or "", report.pid)
        other = by_process.get(key)
        if not other or repr(other) < repr(report):
            by_process[key] = report
    return RankReports(by_process, frozenset(unreached))


def merge(*parts: RankReports) -> RankReports:
    """The reports of all parts, by the rule of rows()."""
    reports = chain.from_iterable(part.reports.values() for part in parts)
    return rows(reports, chain.from_iterable(part.unreached for part in parts))


def frame_tree(reports: Sequence[RankReport], level: int = 0) -> tuple[TreeNode, ...]:
    """The tree of the reports' paths below ``level`` shared frames, nodes with most processes first."""
    by_frame: dict[str, list[RankReport]] = {}
    for report in reports:
        if level < len(report.path):
            by_frame.setdefault(report.path[level], []).append(report)
    nodes = []
    for frame, sharing in by_frame.items():
        ranks, children = ranks_of(sharing), frame_tree(sharing, level + 1)
        nodes.append(TreeNode(frame, tuple(sorted(set(ranks))), len(sharing) - len(ranks), children))
    return tuple(sorted(nodes, key=lambda node: (-len(node.ranks) - node.unranked, node.ranks, node.frame)))


def stretches(nodes: Sequence[TreeNode], depth: int = 0) -> Iterator[tuple[int, tuple[str, ...], TreeNode]]:
    """(depth, frames, last node) of each stretch of the tree without a branch, in order, for one line of text each."""
    for node in nodes:
        frames, last = [node.frame], node
        while len(last.children) == 1 and last.children[0][1:3] == last[1:3]:  # the same ranks and unranked
            last = last.children[0]
            frames.append(last.frame)
        yield depth, tuple(frames), last
        yield from stretches(last.children, depth + 1)
