"""A report that is read back from its document says the same: it makes that document again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, KnownBugsSection
from gdbext.diagnosis.job.collectives_section import CollectivesSection
from gdbext.diagnosis.kinds import KINDS
from gdbext.diagnosis.report import json_report
from gdbext.diagnosis.verdict.slowness import ExplanationsSection
from gdbext.errors import BadData
from gdbext.tools.known import report_facts
from gdbext.tools.ranks.rank_report_reader import read
from support.recorded import jobs
from support.recorded.recordings import Replay

SECTIONS = (CollectivesSection, KnownBugsSection, ChildrenSection, ExplanationsSection)
MEMBERS = {"schema", "command", "target", "threads", "verdict", "findings", "errors"}
NAMES = ["gloo-mismatch", "device-waits-2.15.0", "asyncio-waits-3.14", "fork-openmp", "mutex-abba", "dataloader"]


def readable(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what internal fields are needed for: a cycle's waits, operators' arguments, peers."""
    if document["verdict"] is not None:
        document["verdict"]["cycle"] = []
    for thread in document["threads"]:
        for step in thread["dispatch"]:
            step.pop("arguments", None)
        peer = (thread["wait"] or {}).get("peer")
        if peer is not None:
            peer["pids"] = []
    return {name: value for name, value in document.items() if name in MEMBERS | {each.name for each in SECTIONS}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "words", [("dispatch-diagnose",), ("all-threads", "--stacks", "--tasks")], ids=lambda it: it[0]
)
def test_the_same_document(name: str, words: tuple[str, ...]) -> None:
    document = Replay(name).document(*words)
    report = json_report.read(document, name, *SECTIONS)
    assert json_report.document(report) == readable(document)


def test_words_of_a_later_version_and_members_of_another_type() -> None:
    document = Replay("mutex-abba").diagnosis
    document["verdict"]["kind"] = "livelock"
    document["threads"][0]["later"] = [1]
    report = json_report.read(document, "it")
    assert report.verdict is not None
    assert report.verdict.kind.value == "livelock"
    assert report.verdict.kind not in KINDS
    document["threads"][0]["wait"]["address"] = "0xyz"
    with pytest.raises(BadData, match=r"'address' is '0xyz', and must be a number in hexadecimal"):
        json_report.read(document, "it")


WRONG = [None, True, -1, 1 << 70, 1.5, "", "x", "0x" + "f" * 40, [], {}, [[1]], [None], {"a": 1}]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each object and array of a document, with a name or a place in it."""
    for key, item in [*value.items()] if isinstance(value, dict) else [*enumerate(value[:6])]:
        yield value, key
        if isinstance(item, (dict, list)):
            yield from places(item)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_wrong_in_a_document_is_refused_or_costs_nothing(seed: int) -> None:
    chance = random.Random(seed)
    document = jobs.documents(jobs.NAMES[seed % len(jobs.NAMES)])[0]
    owner, key = chance.choice([*places(document)])
    owner[key] = chance.choice(WRONG)
    with suppress(BadData):
        read(document, "it")
    with suppress(BadData):
        report_facts(json_report.read(document, "it", *SECTIONS))
