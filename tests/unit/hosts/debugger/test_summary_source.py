"""Summaries for a debugger's values: each object is read once for as long as the session lasts."""

from __future__ import annotations

from typing import Any

import pytest

from gdbext.errors import TargetError
from gdbext.hosts.debugger.frame_source import SummarySource
from gdbext.tools.tensor import cpp_summaries
from gdbext.tools.tensor.cpp_object import CppObject, TypeSummary

DEVICE = CppObject("c10::Device", 0x1000)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[CppObject]:
    """What was read, in its order."""
    found: list[CppObject] = []

    class Reader:
        def __init__(self, _: Any) -> None:
            """Of a session."""

        def of(self, each: CppObject) -> TypeSummary:
            found.append(each)
            return TypeSummary(str(len(found)))

    monkeypatch.setattr(cpp_summaries, "TypeSummaries", Reader)
    return found


def test_an_object_is_read_once_in_a_session(read: list[CppObject]) -> None:
    sessions: list[Any] = [object()]
    source = SummarySource(lambda: sessions[-1])
    assert [source.of(each) for each in (DEVICE, DEVICE)] == [TypeSummary("1")] * 2
    assert source.of(DEVICE._replace(address=0x2000)) == TypeSummary("2")
    sessions.append(object())
    assert source.of(DEVICE) == TypeSummary("3")

    def no_session() -> Any:
        raise TargetError("no process")

    assert SummarySource(no_session).of(DEVICE) is None
    assert len(read) == 3
