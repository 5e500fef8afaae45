"""docs/gdbext-1.schema.json: the documents of all commands are as it says, and its words are those of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdbext.errors import TargetError
from gdbext.tools import running, table
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

    contract_schema.check(json.loads(running.execute("dispatch-bt", ["--json"], refuse).output))
