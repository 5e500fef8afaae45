"""Recorded jobs that hang: the reports (dispatch-diagnose --json) of all of their ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gdbext.tools.ranks.job_report import RankReport, RankReports, Unreached, rows
from gdbext.tools.ranks.rank_report_reader import read

JOBS = Path(__file__).resolve().parents[2] / "recordings" / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.json"))


def documents(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((JOBS / f"{name}.json").read_text())
    return found


def recorded_rows(name: str) -> RankReports:
    """They as rows; a process without a report was a zombie."""
    found = [read(document, f"rank {number}") for number, document in enumerate(documents(name))]
    unreached = [each._replace(ended=True) for each in found if isinstance(each, Unreached)]
    return rows((each for each in found if isinstance(each, RankReport)), unreached)


def varied(name: str, count: int) -> list[dict[str, Any]]:
    """Reports of ``count`` ranks, made of those of a recorded job: all but rank 1 are copies of rank 0's."""
    first, late = documents(name)[:2]
    texts = json.dumps(first), json.dumps(late)
    found = []
    for rank in range(count):
        document = json.loads(texts[rank == 1])
        document["target"]["pid"] = 100_000 + rank
        document["threads"][0]["tid"] = 100_000 + rank
        document["collectives"]["identity"].update(rank=rank, size=count, host=f"node{rank // 8}")
        for group in document["collectives"]["groups"]:
            group.update(rank=rank, size=count, ranks=list(range(count)))
        found.append(document)
    return found
