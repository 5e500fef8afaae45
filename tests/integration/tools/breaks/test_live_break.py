"""dispatch-break in gdb and in scripts/dispatch, and the live commands' manners in a user's gdb."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support.programs.harness import (
    BRISK,
    DISPATCH,
    INFERIORS,
    NO_SYMBOLS,
    ROOT,
    UNDEMANGLED,
    Inferior,
    Outcome,
    run,
    started,
)

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

SCRIPT = INFERIORS / "traced_calls.py"
LATE = INFERIORS / "late_operators.py"


def gdb(commands: Sequence[str], program: str = "linear", *options: str, script: Path = SCRIPT) -> Outcome:
    """A user's gdb on the script: init.py sourced, then the commands."""
    settings = ["-iex", "set debuginfod enabled off", "-iex", "set debug-file-directory /nonexistent"]
    words = ["gdb", "-nx", "-q", "-batch", *settings, *options]
    for command in (f"source {ROOT}/gdbext/init.py", *commands):
        words += ["-ex", command]
    return run([*words, "--args", sys.executable, script, program], timeout=300)


def test_pending_then_real_then_pending_again() -> None:
    outcome = gdb(
        [
            "dispatch-break call aten::mm --key AutogradMeta --why",
            "info breakpoints",
            "run",
            "info breakpoints",
            "dispatch-break --list",
            "continue",
            "continue",
            "info breakpoints",
            "dispatch-break --delete",
            "info breakpoints",
        ]
    )
    text = outcome.stdout
    assert "<PENDING>" in text, outcome
    assert "aten::mm at call" in text
    assert "keyset DispatchKeySet(Meta, AutogradMeta) 0x1000018000" in text
    assert re.search(r"key AutogradMeta, table index \d+, valid=1 boxed=1 unboxed=1", text)
    assert "expected then: Meta:" in text
    assert "stop only if" in text
    assert text.count("dispatch-break: aten::mm at call") == 2  # with and without gradients
    assert "exited with code 07" in text
    after = text[text.index("exited with code 07") :]
    assert "getStepCallbacksUnlessEmpty" in after
    assert "No breakpoints" in after


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("meta", "aten::mm at meta: at::meta::structured_mm::meta"),
        ("impl", "structured_mm_out_cpu::impl"),
        ("return", "aten::mm at return"),
    ],
)
def test_every_place_is_reached(where: str, said: str) -> None:
    outcome = run([DISPATCH, "dispatch-break", where, "aten::mm.default", "--", sys.executable, SCRIPT, "linear"])
    assert outcome.status == 0, outcome
    assert said in outcome.stdout


@pytest.fixture(scope="module")
def calls() -> Iterator[Inferior]:
    """A program that goes on calling."""
    with started("small_calls") as running:
        yield running


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("call", "arguments self=f32[4] cpu, other=f32[4] cpu"),
        ("redispatch", "key CPU, kernel at::(anonymous namespace)::wrapper_CPU_add_Tensor"),
        ("kernel", "arguments self=f32[4] cpu, other=f32[4] cpu"),
        ("lookup", f"\n  at {INFERIORS}/small_calls.py:"),
    ],
)
def test_places_in_a_program_that_runs(calls: Inferior, where: str, said: str) -> None:
    """The others of those; in a program that gdb starts they are reached below."""
    outcome = run([DISPATCH, "-p", str(calls.pid), "dispatch-break", where, "aten::add.Tensor"])
    assert outcome.status == 0, outcome
    assert said in outcome.stdout


def test_the_computation_of_table_entries() -> None:
    """When mm gets another kernel: one stop for each entry that is computed anew, none when all are taken apart."""
    program = [sys.executable, LATE, "ordinarily"]
    outcome = run([DISPATCH, "dispatch-break", "register", "aten::mm.default", "--continue", "--", *program])
    assert outcome.status == 0, outcome
    stops = outcome.stdout.count("aten::mm at register: computeDispatchTableEntryWithDebug")
    assert stops == 2, outcome  # CPU, and its autograd key; at the end of the program it would be 130
    assert "exited with status 7" in outcome.stdout


def test_continue_tells_and_goes_on() -> None:
    outcome = run(
        [
            DISPATCH,
            "dispatch-break",
            "lookup",
            "aten::mm.default",
            "--continue",
            "--why",
            "--has",
            "Meta",
            "--",
            sys.executable,
            SCRIPT,
            "linear",
        ]
    )
    assert outcome.status == 0, outcome
    keysets = re.findall(r"keyset DispatchKeySet\(([\w, ]+)\)", outcome.stdout)
    assert keysets[-2:] == ["Meta, AutogradMeta", "Meta"]
    assert all("Meta" in keyset for keyset in keysets)
    assert "exited with status 7" in outcome.stdout


def test_kernels_of_triton_by_the_handle_that_the_driver_gets(inferior: Callable[..., Inferior]) -> None:
    process = inferior("triton-calls")
    words = ["gdb", "-nx", "-q", "-batch", *NO_SYMBOLS]
    for command in (
        f"source {ROOT}/gdbext/init.py",
        "dispatch-break kernel triton_* --why",
        "continue",
        "continue",
        "dispatch-break --delete",
        "dispatch-break kernel triton_unused_2",
        "detach",
    ):
        words += ["-ex", command]
    text = run([*words, "-p", str(process.pid)], timeout=300).stdout
    stops = re.findall(r"dispatch-break: (triton_\w+) at kernel: its launch, in (\w+)", text)
    assert sorted(stops) == [
        ("triton_poi_fused_add_0", "cuLaunchKernelEx"),
        ("triton_red_fused_sum_1", "cuLaunchKernel"),
    ], text
    assert "if $rdi == 0x7200" in text
    assert "if $rsi == 0x7100" in text
    assert "no kernel triton_unused_2 is loaded" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "mm"], "'nowhere' is not a place to stop"),
        (["call"], "name the operators"),
        (["return", "mm", "--key", "CPU"], "no keyset"),
        (["call", "mm", "--key", "Metta"], "Metta"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    outcome = run([DISPATCH, "dispatch-break", *arguments, "--", sys.executable, SCRIPT, "linear"])
    assert outcome.status == 2, outcome
    assert said in outcome.stderr


def test_a_trace_in_the_users_gdb_leaves_nothing() -> None:
    """It starts the program by itself; afterwards only the user's own breakpoint is there."""
    outcome = gdb(
        [
            "set breakpoint pending on",
            "break no_such_function",
            "dispatch-trace aten::mm --limit 2",
            "info breakpoints",
            "maint info breakpoints",
            "dispatch-trace aten::mm",
            "info program",
        ],
        "linear",
        "--readnever",
        "-iex",
        "set auto-solib-add off",
    )
    assert "2 dispatches traced; ended: --limit 2" in outcome.stdout, outcome
    listing = outcome.stdout[outcome.stdout.index("ended: --limit 2") :]
    assert "no_such_function" in listing
    assert not re.search(r"^-\d+ +breakpoint", listing, re.MULTILINE), listing
    assert "catchpoint" not in listing
    assert "the process exited with status 7" in outcome.stdout


def test_children_keep_their_breakpoints_to_themselves() -> None:
    """gdb follows the parent; the child runs through the same code and ends as it wants."""
    words = ["dispatch-break", "call", "aten::mm", "--continue", "--", sys.executable, SCRIPT, "children"]
    outcome = run([DISPATCH, *words])
    assert outcome.status == 0, outcome
    assert outcome.stdout.count("aten::mm at call") == 2, outcome
    assert "exited with status 7" in outcome.stdout


def test_following_the_child() -> None:
    commands = ["set follow-fork-mode child", "dispatch-break call aten::mm --continue", "run"]
    outcome = gdb(commands, "children", *UNDEMANGLED)
    assert outcome.stdout.count("aten::mm at call") == 2, outcome  # one in the parent before, one in the child
    assert "exited with code 03" in outcome.stdout


def test_an_operator_that_does_not_exist_yet() -> None:
    """In a program that gdb starts: pending twice, for torch and for the operator; then real, then gone."""
    outcome = gdb(
        [
            "dispatch-break call late::twice",
            "run",
            "dispatch-break --list",
            "continue",
            "continue",
            "dispatch-break --delete",
            "maint info breakpoints",
        ],
        "linear",
        *UNDEMANGLED,
        script=LATE,
    )
    text = outcome.stdout
    assert "pending: set when torch is loaded and used" in text, outcome
    assert re.search(
        r"no operator 'late::twice' is registered in the target \(nothing of late:: is: .*\): waiting", text
    )
    assert text.count("dispatch-break: late::twice at call") == 2
    assert re.search(r"breakpoint \d+ at 0x\w+: late::twice call: its lookup, in c10::Dispatcher::callBoxed", text)
    assert "key AutogradMeta, kernel " in text
    assert "exited with code 07" in text
    listing = text[text.index("exited with code 07") :]
    assert not re.search(r"^-\d+ +breakpoint", listing, re.MULTILINE), listing


CONDITIONS = "conditions follow"


@pytest.fixture(scope="module")
def in_linear() -> Outcome:
    """One session for two tests, since a user's gdb reads torch's symbols for two seconds, six where it demangles them:
    torch is loaded when an operator that is never registered is asked for; then conditions are put on breakpoints."""
    return gdb(
        [
            "dispatch-break call aten::mm",
            "run",
            "dispatch-break call aten::nothin",
            "info breakpoints",
            "dispatch-break --list",
            "dispatch-break --delete",
            "maint info breakpoints",
            f"echo {CONDITIONS}\\n",
            "dispatch-break redispatch aten::mm.default --continue",
            "python n = str(gdb.breakpoints()[-1].number)",
            "python gdb.execute('condition ' + n + ' 0')",
            "python gdb.execute('delete ' + n)",
            "dispatch-break redispatch aten::mm.default",
            "python b = gdb.breakpoints()[-1]",
            "python b.condition = '$rsp != 0'",
            "python b.commands = 'continue'",
            "continue",
        ],
        "linear",
        *UNDEMANGLED,
    )


def test_an_operator_that_never_comes(in_linear: Outcome) -> None:
    """Accepted, visible, deletable."""
    text = in_linear.stdout
    assert "note: no operator 'aten::nothin' is registered in the target (did you mean" in text, in_linear
    assert re.search(r"^\d+ +breakpoint .*<_ZN3c104impl13OperatorEntry14registerSchemaE", text, re.MULTILINE), in_linear
    assert text.count("pending: set when aten::nothin is registered") == 2
    listing = text[text.index("breakpoints deleted") : text.index(CONDITIONS)]
    assert not re.search(r"^-\d+ +breakpoint", listing, re.MULTILINE), listing
    outcome = run([DISPATCH, "--json", "dispatch-break", "call", "aten::nothin", "--", sys.executable, LATE])
    assert outcome.status == 0, outcome
    assert outcome.stdout.startswith("{"), outcome
    assert "waiting until it is" in outcome.document["breaks"]["notes"][0]
    assert outcome.document["breaks"]["ending"]["status"] == 7


@pytest.mark.parametrize(
    ("arguments", "kernels"),
    [
        (["kernel", "late::twice", "--key", "Meta"], ["empty_like"]),
        (["boxed", "late::twice"], ["autograd_fallback", "<lambda>", "autograd_fallback", "empty_like"]),
        (["kernel", "aten::mm.default", "--key", "CPU"], ["at::(anonymous namespace)::wrapper_CPU_mm", "<lambda>"]),
    ],
)
def test_kernels_that_are_registered_later(arguments: list[str], kernels: list[str]) -> None:
    """The last one replaces a kernel of libtorch's by one of Python's."""
    outcome = run([DISPATCH, "dispatch-break", *arguments, "--continue", "--", sys.executable, LATE])
    assert outcome.status == 0, outcome
    kernel = r"^  key \w+, kernel (?:\(anonymous namespace\)::)?(.*?)(?: at /.*|)$"
    seen = re.findall(kernel, outcome.stdout, re.MULTILINE)
    assert seen == kernels, outcome
    assert "exited with status 7" in outcome.stdout


def test_meta_of_an_operator_of_ones_own() -> None:
    """It has no structured kernel: its kernel for Meta is meant, and waited for."""
    outcome = run([DISPATCH, "dispatch-break", "meta", "late::twice", "--", sys.executable, LATE])
    assert outcome.status == 0, outcome
    assert outcome.stdout.count("dispatch-break: late::twice at meta: ") == 1


def test_conditions(in_linear: Outcome) -> None:
    """With --continue gdb refuses a condition, and what to do instead was told; doing that works."""
    text = in_linear.stdout[in_linear.stdout.index(CONDITIONS) :]
    assert "note: gdb takes no condition (condition N ...) for breakpoints of --continue: use --key" in text
    assert "Only one stop condition allowed" in in_linear.stderr, in_linear
    assert text.count("aten::mm at redispatch") == 4, in_linear
    assert "exited with code 07" in text


def test_threads(tmp_path: Path) -> None:
    """All threads are traced, each with its own nesting; --thread chooses one."""
    script = tmp_path / "threads.py"
    script.write_text(
        f"{BRISK}\nimport threading, torch\n"
        "torch.set_num_threads(1)\n"
        "a = torch.ones(2, 2, requires_grad=True)\n"
        "def work():\n"
        "    for _ in range(5): torch.mm(a, a)\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "brisk.leave()\n"
    )
    outcome = run([DISPATCH, "--json", "dispatch-trace", "aten::mm.default", "--", sys.executable, script])
    assert outcome.status == 0, outcome
    events = [each for each in outcome.document["trace"]["events"] if each["step"] == "dispatch"]
    tids = {each["tid"] for each in events}
    assert len(tids) == 3
    for tid in tids:
        mine = [(each["event"], each["depth"]) for each in events if each["tid"] == tid]
        assert mine == [("call", 1), ("redispatch", 2)] * 5
    assert json.dumps(outcome.document["errors"]) == "[]"
    assert os.environ.get("XDG_CACHE_HOME")


def test_json_is_one_document_and_stops_are_told_beside_it() -> None:
    code = f"{BRISK}; import torch; a = torch.ones(2, 2); torch.mm(a, a); brisk.leave()"
    outcome = run(
        [DISPATCH, "--json", "dispatch-break", "kernel", "aten::mm", "--continue", "--", sys.executable, "-c", code]
    )
    assert outcome.status == 0, outcome
    assert outcome.document["command"] == "dispatch-break"
    assert "aten::mm at kernel" in outcome.stderr
