"""Merging is associative, commutative and idempotent, whatever the rows: so a tree of machines may fold them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdbext.tools.ranks import ranks_document
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import RankReport, RankReports, Unreached, merge, rows
from support.recorded import jobs
from support.source import contract_schema

REPORTS = [
    RankReport(rank, host, pid, job, 4, None, "idle", summary)
    for rank in (None, 0, 1)
    for host in (None, "a")
    for pid in (1, 2)
    for job in (None, "j")
    for summary in ("x", "y")
]
UNREACHED = [Unreached("n1", "silent"), Unreached("n2", "silent")]
ROWS = st.builds(rows, st.lists(st.sampled_from(REPORTS), max_size=5), st.lists(st.sampled_from(UNREACHED), max_size=2))


@settings(max_examples=50, deadline=None)
@given(ROWS, ROWS, ROWS)
def test_the_order_and_the_groups_do_not_matter(one: RankReports, two: RankReports, three: RankReports) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, two) == merge(two, one)
    assert merge(one, one) == one


@pytest.mark.parametrize("name", jobs.NAMES)
def test_documents_of_parts_make_the_document_of_the_whole(name: str) -> None:
    whole = jobs.recorded_rows(name)
    parts = [RankReports({key: report}, frozenset()) for key, report in whole.reports.items()]
    parts.append(RankReports({}, whole.unreached))
    again = rows()
    for part in reversed(parts):
        document = json.loads(ranks_document.render(judge(part)))
        contract_schema.check(document)
        again = merge(again, rows(*ranks_document.read_rows(document, "a part")))
    assert again == whole
    assert ranks_document.document(judge(again)) == ranks_document.document(judge(whole))
