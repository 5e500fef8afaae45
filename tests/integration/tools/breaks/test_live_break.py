"""dispatch-break in gdb and in scripts/dispatch, and the live commands' manners in a user's gdb."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.programs.harness import DISPATCH, INFERIORS, NO_SYMBOLS, Inferior, Outcome, Start, run
from support.programs.user_debuggers import SOURCE, gdb

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

SCRIPT = INFERIORS / "traced_calls.py"
LATE = INFERIORS / "late_operators.py"
LINEAR = (SCRIPT, "linear")
BREAKPOINT = re.compile(r"^-\d+ +breakpoint", re.MULTILINE)
"""One of ours, in gdb's list of its internal ones."""


def in_gdb(commands: str, *options: str, program: Sequence[str | Path] = LINEAR, pid: int = 0) -> str:
    of = (sys.executable, *program)
    return gdb(SOURCE, *commands.split(" | "), options=options, pid=pid, of=of, timeout=300).stdout


def dispatch_break(*words: str, program: Sequence[str | Path] = LINEAR) -> Outcome:
    outcome = run([DISPATCH, *words[:-1], *words[-1].split(), "--", sys.executable, *program])
    assert outcome.status == 0, outcome
    return outcome


def test_pending_then_real_then_pending_again() -> None:
    text = in_gdb(
        "dispatch-break call aten::mm --key AutogradMeta --why | info breakpoints | run | info breakpoints | "
        "dispatch-break --list | continue | continue | info breakpoints | dispatch-break --delete | info breakpoints",
        *("-iex", "set debug-file-directory /nonexistent"),
    )
    assert re.search(r"key AutogradMeta, table index \d+, valid=1 boxed=1 unboxed=1", text)
    keyset = "keyset DispatchKeySet(Meta, AutogradMeta) 0x1000018000"
    for said in ("<PENDING>", keyset, "then expected: Meta:", "stop only if"):
        assert said in text, text
    assert text.count("dispatch-break: aten::mm at call") == 2  # with and without gradients
    assert re.search("exited with code 07.*getStepCallbacksUnlessEmpty.*No breakpoints", text, re.DOTALL)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("call", "arguments self=f32[4] cpu, other=f32[4] cpu"),
        ("redispatch", "key CPU, kernel at::(anonymous namespace)::wrapper_CPU_add_Tensor"),
        ("kernel", "arguments self=f32[4] cpu, other=f32[4] cpu"),
        ("lookup", f"\n  at {INFERIORS}/small_calls.py:"),
        ("meta", "at meta: at::meta::structured_add_Tensor::meta"),
        ("impl", "structured_ufunc_add_CPU::impl"),
        ("return", "aten::add.Tensor at return"),
    ],
)
def test_every_place_is_reached(small_calls: Inferior, where: str, said: str) -> None:
    outcome = run([DISPATCH, "-p", str(small_calls.pid), "dispatch-break", where, "aten::add.Tensor"])
    assert outcome.status == 0, outcome
    assert said in outcome.stdout


def test_the_computation_of_table_entries() -> None:
    """When mm gets another kernel: one stop for each entry that is computed anew, none when all are taken apart."""
    outcome = dispatch_break("dispatch-break register aten::mm.default --continue", program=(LATE, "ordinarily"))
    stops = outcome.stdout.count("aten::mm at register: computeDispatchTableEntryWithDebug")
    assert stops == 2, outcome  # CPU, and its autograd key; at the end of the program it would be 130
    assert "exited with status 7" in outcome.stdout


def test_kernels_of_triton_by_the_handle_that_the_driver_gets(inferior: Start) -> None:
    commands = (
        "dispatch-break kernel triton_* --why | continue | continue | dispatch-break --delete | "
        "dispatch-break kernel triton_unused_2 | detach"
    )
    text = in_gdb(commands, *NO_SYMBOLS, pid=inferior("triton-calls").pid)
    stops = re.findall(r"dispatch-break: (triton_\w+) at kernel: its launch, in (\w+)", text)
    launches = [("triton_poi_fused_add_0", "cuLaunchKernelEx"), ("triton_red_fused_sum_1", "cuLaunchKernel")]
    assert sorted(stops) == launches, text
    assert "if $rdi == 0x7200" in text
    assert "if $rsi == 0x7100" in text
    assert "no kernel triton_unused_2 is loaded" in text


def test_a_trace_in_the_users_gdb_leaves_nothing() -> None:
    """It starts the program by itself; afterwards only the user's own breakpoint is there."""
    text = in_gdb(
        "set breakpoint pending on | break no_such_function | dispatch-trace aten::mm --limit 2 | info breakpoints | "
        "maint info breakpoints | dispatch-trace aten::mm | info program",
        "--readnever",
        *NO_SYMBOLS,
    )
    listing = text.split("2 dispatches traced; ended: --limit 2")[1]
    assert not BREAKPOINT.search(listing), listing
    assert "catchpoint" not in listing
    assert re.search("no_such_function.*the process exited with status 7", listing, re.DOTALL)


def test_json_is_one_document_and_stops_are_told_beside_it() -> None:
    """One of the operators is never registered."""
    outcome = dispatch_break("--json", "dispatch-break lookup aten::mm aten::nothin --continue --why --has Meta")
    keysets = re.findall(r"keyset DispatchKeySet\(([\w, ]+)\)", outcome.stderr)
    assert keysets[-2:] == ["Meta, AutogradMeta", "Meta"]
    assert all("Meta" in keyset for keyset in keysets)
    assert "aten::mm at call: its lookup" in outcome.stderr
    breaks = outcome.document["breaks"]
    assert any("waiting until it is" in note for note in breaks["notes"])
    assert breaks["ending"]["status"] == 7


@pytest.mark.parametrize(
    ("arguments", "kernels"),
    [
        ("boxed late::twice", ["autograd_fallback", "<lambda>", "autograd_fallback", "empty_like"]),
        ("kernel aten::mm.default --key CPU", ["at::(anonymous namespace)::wrapper_CPU_mm", "<lambda>"]),
        ("meta late::twice", ["empty_like"]),
    ],
)
def test_kernels_that_are_registered_later(arguments: str, kernels: list[str]) -> None:
    """One replaces a kernel of libtorch's by one of Python's. An operator of one's own has no structured kernel: for
    ``meta`` its kernel for Meta is meant."""
    outcome = dispatch_break(f"dispatch-break {arguments} --continue", program=(LATE,))
    kernel = r"^  key \w+, kernel (?:\(anonymous namespace\)::)?(.*?)(?: at /.*|)$"
    assert re.findall(kernel, outcome.stdout, re.MULTILINE) == kernels, outcome
    assert "exited with status 7" in outcome.stdout
