"""hosts/hanging_tests.py without a test run: where it keeps what it saw."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gdbext.hosts.hang_board import SIZE, TestBoard
from gdbext.hosts.hanging_tests import HangingTests


def test_a_folder_that_cannot_be_written_to_costs_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    board = os.memfd_create("board")
    os.truncate(board, SIZE)
    (tmp_path / "file").touch()
    for folder, is_kept in ((tmp_path / "new", True), (tmp_path / "file" / "x", False), (Path("/proc/none"), False)):
        tests = HangingTests(os.getpid(), TestBoard(board), 1.0, str(folder))
        place = Path(tests._writable_folder())
        assert (place == folder) is is_kept
        assert place.is_dir()
        assert (f"kept in {place}" in capfd.readouterr().err) is not is_kept
    os.close(board)
