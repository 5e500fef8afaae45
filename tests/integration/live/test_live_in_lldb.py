"""dispatch-trace and dispatch-break through LLDB: the same output as through gdb."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import lldbs
import pytest
from harness import DISPATCH, ROOT, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.parametrize("name", lldbs.parameters())]

PROGRAM = """\
import sys, torch
a = torch.ones(2, 2, requires_grad=True)
for _ in range(2): torch.mm(a, a)
sys.exit(7)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_the_same_trace(name: str, program: Path) -> None:
    words = ["dispatch-trace", "aten::mm.default", "--verbose", "--", sys.executable, program]
    through = run([DISPATCH, "--debugger", "lldb", *words], env={"LLDB": lldbs.executable(name)})
    by_gdb = run([DISPATCH, *words])
    assert through.status == by_gdb.status == 0, (through, by_gdb)
    assert through.stdout == by_gdb.stdout
    assert "the process exited with status 7" in through.stdout


def test_breakpoints_in_a_users_lldb(name: str, program: Path) -> None:
    """Pending, then real, with a condition; gone when they are deleted. Those that nobody asked about do not stop."""
    commands = [
        f"command script import {ROOT}/gdbext/lldb_init.py", "dispatch-break redispatch aten::mm.default --key CPU",
        "run", "dispatch-break --list", "continue", "dispatch-break --delete", "continue",
    ]  # fmt: skip
    words = [word for command in commands for word in ("-o", command)]
    settings = ["-O", "settings set target.preload-symbols false"]
    outcome = run([lldbs.executable(name), "--no-lldbinit", "-b", *settings, *words, "--", sys.executable, program])
    text = outcome.stdout
    assert "Traceback" not in text + outcome.stderr, outcome
    assert "pending: set when torch is loaded and used" in text, outcome
    assert text.count("dispatch-break: aten::mm at redispatch") == 2
    assert "keyset DispatchKeySet(CPU" in text
    assert re.search(r"breakpoint \d+ at 0x.*aten::mm redispatch.*, 1 hit\b", text)
    assert "1 breakpoints deleted" in text
    assert "exited with status = 7" in text
