"""What dispatch-info says of the symbols that are assumed of torch."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report import Report
from gdbext.render import Style
from gdbext.tools.info import info_report
from gdbext.tools.info.info_report import SymbolCheck, SymbolChecks, SymbolStatus, TargetInfo, TorchInfo
from gdbext.torch import assumed_symbols

FOUND = SymbolCheck("alpha", ("_Zalpha",), "liba.so", "first", "the alphabet", "2.0", "2.9", SymbolStatus.FOUND)
MISSING = SymbolCheck("beta", ("_Zbeta", "_Zb"), "liba.so", "second", "order", "2.1", "2.9", SymbolStatus.MISSING)
ABSENT = SymbolCheck("gamma", ("_Zgamma",), "libb.so", "third", "shape", "2.0", "2.9", SymbolStatus.NOT_LOADED)


def info(*rows: SymbolCheck) -> TargetInfo:
    return TargetInfo(1, TorchInfo("2.9", None, None, SymbolChecks(rows)), None, None, (), {})


def lines(*rows: SymbolCheck, why: bool = False) -> list[str]:
    report = Report("dispatch-info", None, info_report.render, sections=(info(*rows),), why=why)
    text = list(info_report.render(report, Style()))
    return text[text.index("layout    none") + 1 : text.index("python    none that can be read")]


def test_what_is_missing_and_all_of_them_with_why() -> None:
    assert lines(FOUND, ABSENT) == ["symbols   1 of 1 assumed symbols found"]
    assert lines(FOUND, MISSING, ABSENT) == [
        "symbols   1 of 2 assumed symbols found",
        "          missing: _Zbeta  liba.so (known from 2.1 to 2.9)",
        "            second; lost without it: order",
    ]
    text = lines(FOUND, MISSING, ABSENT, why=True)
    assert [line.strip().partition(":")[0] for line in text[1::2]] == ["found", "missing", "library not loaded"]


def test_json_has_all_of_them() -> None:
    document = info_report.document(info(FOUND, MISSING, ABSENT), why=False)["torch"]["symbols"]
    assert (document["found"], document["assumed"]) == (1, 2)
    assert [row["status"] for row in document["rows"]] == ["found", "missing", "library not loaded"]
    names = {"id": "beta", "names": ["_Zbeta", "_Zb"], "library": "liba.so", "purpose": "second", "lost": "order"}
    assert document["rows"][1] == {**names, "first": "2.1", "last": "2.9", "status": "missing"}
    assert info_report.document(TargetInfo(1, None, None, None, (), {}), why=False)["torch"] is None


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.13.0+cpu", "OTHER_RELEASE"), ("2.15.0", "MISSING"), ("2.15.1a0+git1", "MISSING")],
)
def test_what_came_later_is_not_missed(version: str, status: str) -> None:
    row = assumed_symbols.FLIGHT_RECORDERS_OF_HOOKS
    assert info_report.in_release(row, SymbolStatus.MISSING, version) is SymbolStatus[status]
    assert info_report.in_release(row, SymbolStatus.FOUND, version) is SymbolStatus.FOUND
