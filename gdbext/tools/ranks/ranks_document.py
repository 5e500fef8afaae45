"""The report on a job as JSON (schema "gdbext-ranks/1"), and back: its rows are all that merging needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gdbext.diagnosis.job import fold
from gdbext.diagnosis.report.wait import CollectiveWait
from gdbext.engine.terminal import shown_json
from gdbext.errors import BadData
from gdbext.render.plain_json import plain
from gdbext.tools.ranks import job_report
from gdbext.tools.ranks.report_shapes import RANKS_DOCUMENT


def render(report: job_report.JobReport, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def document(report: job_report.JobReport) -> dict[str, Any]:
    """The document as plain JSON values."""
    return {
        "schema": job_report.SCHEMA,
        "job": report.job,
        "size": report.size,
        "ranks": fold(each.rank for each in report.reports if each.rank is not None),
        "missing": fold(report.missing),
        "verdict": {
            "kind": report.verdict.kind.value,
            "summary": report.verdict.summary,
            "ranks": fold(report.verdict.ranks),
        },
        "collectives": [_match(match) for match in report.collectives],
        "tree": [_node(node) for node in report.tree],
        "notes": list(report.notes),
        **({"ras": plain(report.ras)} if report.ras is not None else {}),
        "unreached": [plain(each) for each in report.unreached],
        "reports": [row(each) for each in report.reports],
    }


def _match(match: job_report.CollectiveMatch) -> dict[str, Any]:
    return {
        "group": match.group,
        "name": match.name,
        "members": fold(match.members),
        "seq": match.seq,
        "state": match.state.value,
        "variants": [{"op": variant.text, "ranks": fold(variant.ranks)} for variant in match.variants],
        "pending": fold(match.waiting),
        "completed": fold(match.completed),
        "never_enqueued": fold(match.never),
        "missing": fold(match.missing),
    }


def _node(node: job_report.TreeNode) -> dict[str, Any]:
    return {
        "frame": node.frame,
        "ranks": fold(node.ranks),
        "unranked": node.unranked,
        "children": [_node(child) for child in node.children],
    }


def row(report: job_report.RankReport) -> dict[str, Any]:
    """The row of one process."""
    value: dict[str, Any] = plain(report)
    return value


def read_rows(value: Any, where: str) -> tuple[list[job_report.RankReport], list[job_report.Unreached]]:
    """The rows of a document that was made elsewhere. Raises BadData."""
    if not isinstance(value, Mapping) or value.get("schema") != job_report.SCHEMA:
        raise BadData(f"{where} is not a report of ranks (schema {job_report.SCHEMA})")
    RANKS_DOCUMENT(value, where)
    try:
        return [_row(each) for each in value["reports"]], [_unreached(each) for each in value["unreached"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(
            f"{where} is not as the schema {job_report.SCHEMA} has it: {type(error).__name__}: {error}"
        ) from error


def _row(value: Mapping[str, Any]) -> job_report.RankReport:
    wait = value["wait"]
    return job_report.RankReport(
        rank=_number(value["rank"]),
        host=_text(value["host"]),
        pid=int(value["pid"]),
        job=_text(value["job"]),
        size=_number(value["size"]),
        torch=_text(value["torch"]),
        kind=str(value["kind"]),
        summary=str(value["summary"]),
        path=tuple(map(str, value["path"])),
        wait=_wait(wait) if wait is not None else None,
        running=bool(value["running"]),
        groups=tuple(_group(each) for each in value["groups"]),
        problem=str(value.get("problem") or ""),
        restart=_number(value.get("restart")),
        paused_ms=None if value.get("paused_ms") is None else float(value["paused_ms"]),
        user=_number(value.get("user")),
        entered_nccl=str(value.get("entered_nccl") or ""),
        answers=bool(value.get("answers", False)),
        serving=str(value.get("serving") or ""),
        handling=str(value.get("handling") or ""),
        slowed=str(value.get("slowed") or ""),
        nccl=tuple(map(str, value.get("nccl") or ())),
        nccl_peers=tuple(map(int, value.get("nccl_peers") or ())),
        device=str(value.get("device") or ""),
        known=tuple(map(str, value.get("known") or ())),
        thread=_number(value.get("thread")),
    )


def _wait(value: Mapping[str, Any]) -> CollectiveWait:
    """The wait without members that came later than the program that made it."""
    return CollectiveWait(**{name: value[name] for name in CollectiveWait._fields if name in value})


def _group(value: Mapping[str, Any]) -> job_report.GroupState:
    return job_report.GroupState(
        str(value["name"]),
        str(value["description"]),
        _number(value["size"]),
        str(value["ranks"]),
        _number(value["enqueued"]),
        _number(value["completed"]),
        tuple(_issued(each) for each in value["issued"]),
    )


def _issued(value: Mapping[str, Any]) -> job_report.Issued:
    return job_report.Issued(
        int(value["seq"]),
        str(value["op"]),
        _sizes(value["sizes"]),
        tuple(map(str, value["dtypes"])),
        _sizes(value["output_sizes"]),
        tuple(map(str, value["output_dtypes"])),
        bool(value["is_pending"]),
    )


def _sizes(value: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, sizes)) for sizes in value)


def _unreached(value: Mapping[str, Any]) -> job_report.Unreached:
    return job_report.Unreached(str(value["where"]), str(value["reason"]), str(value["help"]), bool(value["ended"]))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
