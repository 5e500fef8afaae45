"""LLDB's own frame variable on C++ types of PyTorch, in an extension that has debug information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.installed import lldbs
from support.programs.harness import ROOT, Inferior, run

pytestmark = [pytest.mark.compiler, pytest.mark.torch, pytest.mark.parametrize("name", lldbs.parameters())]

SELECT = """
import lldb
def select():
    process = lldb.debugger.GetSelectedTarget().process
    for thread in process:
        for frame in thread:
            if "::types(" in (frame.GetFunctionName() or ""):
                process.SetSelectedThread(thread)
                thread.SetSelectedFrame(frame.GetFrameID())
                return
"""


def test_values_in_lldb(inferior: Callable[..., Inferior], name: str, tmp_path: Path) -> None:
    process = inferior("printed-types")
    (tmp_path / "selecting.py").write_text(SELECT)
    commands = [
        "settings set plugin.jit-loader.gdb.enable off",
        f"process attach --pid {process.pid}",
        f"command script import {ROOT}/gdbext/lldb_init.py",
        f"command script import {tmp_path}/selecting.py",
        "script selecting.select()",
        "frame variable",
        "type category disable gdbext",
        "frame variable device",
        "detach",
    ]
    outcome = run(lldbs.batch(name, *commands))
    shown, disabled = outcome.stdout.partition("type category disable")[::2]
    schema, keys = process.truth["schema"], process.truth["keyset"]
    for text in EXPECTED:
        assert f"{text}\n" in shown, (text, outcome)
    tensor = f'f32[2, 2] cpu requires_grad {{\n  keys = "{keys}"\n  strides = "[2, 1]"\n{VALUES}\n}}\n'
    for each in ("kept", "pointer"):
        assert f") {each} = {tensor}" in shown
    assert f'typed = aten::add.Tensor {{\n  schema = "{schema}"\n}}' in shown
    assert f" schema = {schema}\n" in shown
    assert "(at::Tensor) undefined = undefined\n" in shown
    assert "Traceback" not in outcome.stdout + outcome.stderr
    assert "cuda:1" not in disabled


VALUES = '  values = "[[0.5, -1], [2, 3.25]]"'
EXPECTED = (
    "key = AutogradCPU",
    "whole = -42",
    "device = cuda:1",
    "no_storage = no storage",
    "sizes = 2 elements {\n  [0] = 2\n  [1] = 3\n}",
    "small = 3 elements {\n  [0] = 4\n  [1] = 5\n  [2] = 6\n}",
    "null = nullptr",
    "list = 2 elements {\n  [0] = Tensor f32[2, 2] cpu\n  [1] = Tensor i64[2, 3] cpu\n}",
    'dict = 2 elements {\n  [String "one"] = Int 1\n  [String "two"] = Int 2\n}',
    'nested = Tuple of 2 elements {\n  [0] = Int 1\n  [1] = String "two"\n}',
)
