"""docs/gdbext-1.schema.json: the documents of all commands are as it says, and its words are those of the code."""

from __future__ import annotations

import json
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.report import EndingKind
from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import FrameKind, Progress, RunState
from gdbext.diagnosis.report.wait import OwnerCertainty
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.shortages import ExplanationKind
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import TargetError
from gdbext.tools import table
from gdbext.tools.breaks.break_plan import PLACES
from gdbext.tools.info.info_report import SymbolStatus
from gdbext.torch.stack import DispatchEvent, DispatchStage, key_choice
from support.recorded.recordings import Replay
from support.source import contract_schema

DEFINITIONS: dict[str, Any] = contract_schema.schema()["$defs"]
CHAIN = ("lookup", "properties", "chain", "items", "properties")
GDBEXT = Path(table.__file__).parents[1]
RECORDED = (
    ("gil-mutex", "all-threads", "--stacks", "--why"),
    ("meta-mm", "dispatch-info"),
    ("meta-mm", "dispatch-op", "aten::mm", "--why"),
    ("meta-mm", "dispatch-tls"),
)


@pytest.mark.parametrize("words", RECORDED, ids=" ".join)
def test_a_recorded_process(words: tuple[str, ...]) -> None:
    name, *command = words
    contract_schema.check(Replay(name).document(*command))


def test_a_graph_that_was_written(tmp_path: Path) -> None:
    graph = tmp_path / "waits.dot"
    document = Replay("gil-mutex").document("all-threads", "--dot", str(graph))
    assert document["dot"] == {"files": [str(graph)], "svg": None}


def test_the_document_of_a_failure() -> None:
    def refuse() -> Any:
        raise TargetError("it ended", why="it was killed", help="use its core")

    contract_schema.check(json.loads(table.execute("dispatch-bt", ["--json"], refuse).output))


def words_of(enum: type[Enum]) -> list[str]:
    return [member.value for member in enum]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("wait_kind",), words_of(WaitKind)),
        (("finding_kind",), words_of(FindingKind)),
        (("explanation_kind",), words_of(ExplanationKind)),
        (("verdict", "properties", "kind"), [kind.value for kind in FindingKind if kind is not FindingKind.NOTE]),
        (("confidence",), words_of(Certainty)),
        (("wait", "properties", "certainty"), words_of(OwnerCertainty)),
        (("event",), words_of(DispatchEvent)),
        (("stage",), words_of(DispatchStage)),
        (("run_state",), words_of(RunState)),
        (("frame", "properties", "kind"), words_of(FrameKind)),
        (("progress",), words_of(Progress)),
        (("symbol", "properties", "status"), words_of(SymbolStatus)),
        (("ending", "properties", "kind"), words_of(EndingKind)),
        (("breaks", "properties", "requests", "items", "properties", "where"), list(PLACES)),
        ((*CHAIN, "certainty"), [key_choice.EXPECTED, key_choice.END, key_choice.UNKNOWN]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_the_words_are_those_of_the_code(place: tuple[str, ...], expected: list[str]) -> None:
    found: Any = DEFINITIONS
    for name in place:
        found = found[name]
    assert found["enum"] == expected


def test_every_section_of_the_code_is_a_member_of_the_report() -> None:
    named = re.compile(r'^    name: ClassVar\[str\] = "(\w+)"$', re.MULTILINE)
    sections = {name for file in GDBEXT.rglob("*.py") for name in named.findall(file.read_text())}
    report = contract_schema.schema()
    assert sections == set(report["properties"]) - set(report["required"])
