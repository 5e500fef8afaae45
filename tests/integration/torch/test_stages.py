"""Stages of the innermost pass, and the key that was never entered: stops made by gdb at known places."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE, ROOT, Inferior, start, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

VARIABLE_TYPE_SIN = "_ZN5torch8autograd12VariableType12_GLOBAL__N_13sinEN3c1014DispatchKeySetERKN2at6TensorE"
LOOKUP = "_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE"
SIN_CALL = "_ZN2at4_ops3sin4callERKNS_6TensorE"
CPU_SIN = "_ZN2at12_GLOBAL__N_115wrapper_CPU_sinERKNS_6TensorE"
CALLBACKS = "_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE"


@pytest.fixture
def operators() -> Iterator[Inferior]:
    inferior = start("ops40")
    yield inferior
    inferior.close()


def stop_at(inferior: Inferior, tmp_path: Path, place: str, *then: str) -> dict[str, Any]:
    """Attaches gdb, lets the inferior call sin with a gradient, stops at ``place`` and asks dispatch-bt there."""
    said, ready = tmp_path / "said", tmp_path / "ready"
    commands = [f"source {ROOT}/gdbext/init.py", f"break {place}", f"shell touch {ready}", "continue", *then]
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", "-p", str(inferior.pid)]
    for each in (*commands, f"pipe dispatch-bt --json --why | cat > {said}", "kill"):
        command += ["-ex", each]
    gdb = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: ready.exists() or gdb.poll() is not None, "gdb has set its breakpoint")
    os.write(inferior.process.stdin.fileno(), b"sin grad\n")  # type: ignore[union-attr]
    output, _ = gdb.communicate(timeout=PATIENCE)
    assert said.exists(), output.decode()
    document: dict[str, Any] = json.loads(said.read_text())
    (thread,) = document["threads"]
    return dict(thread["dispatch"][0]) if thread["dispatch"] else {}


def test_an_autograd_kernel_before_its_redispatch_names_the_key_it_did_not_reach(
    operators: Inferior, tmp_path: Path
) -> None:
    step = stop_at(operators, tmp_path, VARIABLE_TYPE_SIN)
    assert (step["op"], step["key"], step["stage"]) == ("aten::sin", "AutogradCPU", "in-kernel")
    assert step["never_entered"] == "CPU"


def test_a_backend_kernel_has_nothing_left_to_enter(operators: Inferior, tmp_path: Path) -> None:
    step = stop_at(operators, tmp_path, CPU_SIN)
    assert (step["op"], step["key"], step["stage"]) == ("aten::sin", "CPU", "in-kernel")
    assert "never_entered" not in step


def test_an_autograd_kernel_after_its_redispatch_makes_no_claim(operators: Inferior, tmp_path: Path) -> None:
    step = stop_at(operators, tmp_path, CPU_SIN, "up 2", "finish")
    assert (step["op"], step["key"]) == ("aten::sin", "AutogradCPU")
    assert "never_entered" not in step


def test_lookup_is_a_stage_and_its_keyset_is_exact(operators: Inferior, tmp_path: Path) -> None:
    step = stop_at(operators, tmp_path, LOOKUP)
    assert step["stage"] == "lookup"
    assert step["confidence"] == "exact"
    assert step["never_entered"] == step["key"]


def test_the_first_instruction_of_a_call_is_before_any_keyset(operators: Inferior, tmp_path: Path) -> None:
    step = stop_at(operators, tmp_path, f"*(char*)&{SIN_CALL}")
    assert (step["op"], step["event"], step["stage"]) == ("aten::sin", "call", "lookup")
    assert (step["keyset"], step["confidence"]) == (None, "unknown")


def test_what_comes_after_the_lookup_is_no_kernel(operators: Inferior, tmp_path: Path) -> None:
    step = stop_at(operators, tmp_path, CALLBACKS)
    assert step["event"] == "call"
    assert step["stage"] in ("lookup", "invoking")
    assert step["confidence"] in ("unknown", "verified", "exact")
