"""Reports are parsed as json.loads does it, but for long lists of members, which become sets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdbext.diagnosis.job import fold
from gdbext.errors import BadData
from gdbext.tools.ranks.report_shapes import Members, ReportParser
from support.recorded import jobs

MANY = list(range(200))


def with_sets(document: Any) -> Any:
    for group in document["collectives"]["groups"]:
        group["ranks"] = fold(group["ranks"])
    return document


@pytest.mark.parametrize("indent", [None, 2])
def test_many_members_become_a_set(indent: int | None) -> None:
    parser, documents = ReportParser(), jobs.varied("crossing", 300)[:3]
    for document in documents:
        text = json.dumps(document, indent=indent).encode()
        found = parser.parse(text)
        assert found == with_sets(document)
        assert all(isinstance(group["ranks"], Members) for group in found["collectives"]["groups"])


@pytest.mark.parametrize("name", jobs.NAMES)
def test_reports_with_few_members_stay_as_they_are(name: str) -> None:
    for document in jobs.documents(name):
        assert ReportParser().parse(json.dumps(document).encode()) == document


def test_text_that_looks_like_a_list_stays_text() -> None:
    text = {"summary": f'"ranks": {MANY}', "path": [f'\\"ranks":{MANY}', '"ranks":[']}
    assert ReportParser().parse(json.dumps(text).encode()) == text


@pytest.mark.parametrize(
    "text",
    [
        b'{"collectives": {"groups": [{"ranks": 7}, {"ranks": %s}]}}' % str(MANY).encode(),
        b'{"collectives": {"groups": [{"ranks": %s' % str(MANY).encode(),
        b'{"ranks": [' + b"1, " * 100 + b"]}",
        b'"ranks":[',
        b'{"ranks":' + b"[" * 100_000,
        str(MANY).encode() + b'"ranks":' + str(MANY).encode(),
    ],
)
def test_damage_is_an_error(text: bytes) -> None:
    with pytest.raises((ValueError, BadData, RecursionError)):
        ReportParser().parse(text)


@pytest.mark.parametrize(
    "shape", ["[%s]", '{"collectives": null, "ranks": %s}', '{"collectives": {"groups": {"ranks": %s}}}']
)
def test_other_documents_with_such_lists(shape: str) -> None:
    ReportParser().parse((shape % MANY).encode())
