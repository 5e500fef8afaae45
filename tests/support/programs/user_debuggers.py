"""What users run: a gdb of their own with our commands, and what they are told by those and by scripts/dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.programs.harness import ROOT, Inferior, Outcome, run, wait_until

GDB_INIT = f"{ROOT}/gdbext/init.py"
SOURCE = f"source {GDB_INIT}"
IMPORT = f"command script import {ROOT}/gdbext/lldb_init.py"


def gdb(
    *commands: str,
    options: Sequence[str] = (),
    pid: int = 0,
    of: Sequence[str | Path] = (),
    first: Sequence[str] = ("-nx",),
    **more: Any,
) -> Outcome:
    words = [word for command in commands for word in ("-ex", command)]
    what = ["-p", str(pid)] if pid else ["--args", *of] if of else []
    quiet = ("-q", "-batch", "-iex", "set debuginfod enabled off")
    outcome = run(["gdb", *first, *quiet, *options, *words, *what], **more)
    assert "Traceback" not in outcome.stderr, outcome
    assert "internal error" not in outcome.stderr, outcome
    return outcome


def goes_on(small_calls: Inferior) -> None:
    turns = Path(small_calls.truth["turns"])
    before = turns.read_text()
    wait_until(lambda: turns.read_text() not in ("", before), "the program goes on")


def error_of(outcome: Outcome, words: str, status: int = 1) -> dict[str, Any]:
    """The one error of a document without anything else."""
    assert outcome.status == status, outcome
    assert "Traceback" not in outcome.stderr
    document = outcome.document
    assert document["schema"] == "gdbext/1"
    assert (document["threads"], document["findings"], document["verdict"]) == ([], [], None)
    error: dict[str, Any]
    (error,) = document["errors"]
    assert words in error["what"], outcome
    assert set(error) >= {"what", "where", "help"}
    return error
