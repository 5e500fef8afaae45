"""Reports are parsed as json.loads does it, but for long lists of members, which become sets."""

from __future__ import annotations

import json

import pytest

from gdbext.diagnosis.job import fold
from gdbext.errors import BadData
from gdbext.tools.ranks.report_shapes import Members, ReportParser
from support.recorded import jobs

MANY = list(range(200))


@pytest.mark.parametrize("indent", [None, 2])
def test_many_members_become_a_set(indent: int | None) -> None:
    parser = ReportParser()
    for document in jobs.varied("crossing", 300)[:3]:
        found = parser.parse(json.dumps(document, indent=indent).encode())
        for group in document["collectives"]["groups"]:
            group["ranks"] = fold(group["ranks"])
        assert found == document
        assert all(isinstance(group["ranks"], Members) for group in found["collectives"]["groups"])


def test_reports_with_few_members_stay_as_they_are() -> None:
    for document in jobs.documents("crossing"):
        assert ReportParser().parse(json.dumps(document).encode()) == document


def test_text_that_looks_like_a_list_stays_text() -> None:
    text = {"summary": f'"ranks": {MANY}', "path": [f'\\"ranks":{MANY}', '"ranks":[']}
    assert ReportParser().parse(json.dumps(text).encode()) == text


@pytest.mark.parametrize(
    "text",
    [
        b'{"collectives": {"groups": [{"ranks": 7}, {"ranks": %s}]}}' % str(MANY).encode(),
        b'{"collectives": {"groups": [{"ranks": %s' % str(MANY).encode(),
        b'"ranks":[',
        b'{"ranks":' + b"[" * 100_000,
    ],
)
def test_damage_is_an_error(text: bytes) -> None:
    with pytest.raises((ValueError, BadData, RecursionError)):
        ReportParser().parse(text)
