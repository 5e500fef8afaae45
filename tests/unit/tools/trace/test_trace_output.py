"""Where a trace goes: pages appear when they are whole, text as it happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.errors import TargetError
from gdbext.tools.trace.trace_output import TraceOutput
from support.fakes.made_pages import DISPATCHES


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def test_a_page_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.html"
    with TraceOutput(str(path), False, False, print) as output:
        sink = output.batches(lambda: 200.0, 4)
        sink.dispatch(DISPATCHES[0])
        output.flush()
        assert not path.exists()
        sink.close()
        output.flush()
        output.finish(Ending(EndingKind.INTERRUPTED, ""))
    assert path.read_text().endswith("</html>\n")
    assert names(tmp_path) == ["t.html"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_page_that_is_not_whole_is_not_there(tmp_path: Path, fails: bool) -> None:
    output = TraceOutput(str(tmp_path / "t.html"), False, False, print)
    output.sink(lambda: 200.0, 4).dispatch(DISPATCHES[0])
    with output:
        output.finish(Ending(EndingKind.FAILED, "")) if fails else None
    assert names(tmp_path) == []


def test_text_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    with TraceOutput(str(path), False, False, print) as output:
        output.sink(lambda: 200.0, 4).dispatch(DISPATCHES[0])
        assert path.read_text() == " [call] op=[aten::mm], key=[AutogradCPU], at=[0.000000 s]\n"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No such file"):
        TraceOutput(str(tmp_path / "none" / "t.html"), False, False, print)
