"""Operators and calls of every kind in a C++ program without Python, compiled in several ways: nothing wrong, nothing
missing without a word."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from support.installed.probing import PROBES
from support.programs import matrix
from support.programs.harness import DISPATCH, run
from support.programs.matrix import Matrix, Score

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.fixture(scope="module", params=matrix.IN_SUITE)
def program(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """The program, compiled in one way."""
    with matrix.running(request.param) as running:
        yield running


def test_every_pass(program: Matrix) -> None:
    """Operator, key, event and keyset of each pass are those that the program wrote down, or unknown; of the arguments
    of every kind none is wrong, without any symbol, too."""
    assert_right(program)


@pytest.mark.parametrize(("compiler", "way"), matrix.OTHERS)
def test_every_pass_in_other_ways(compiler: str, way: str) -> None:
    """The same of what other compilers and flags leave on the stack: old handles where the room for a result is now."""
    compiler = matrix.clang() if compiler == "clang++" else compiler
    if not compiler:
        pytest.skip("there is no clang++")
    with matrix.running(way, compiler) as program:
        assert_right(program)


def test_a_fallback_that_rewrites_its_stack_and_kernels_that_share_a_wrapper() -> None:
    """What a boxed kernel has put on its stack is no argument of its call; of kernels whose wrapper is one function,
    the one runs to which its functor points.

    An exception has left a kernel; ``callBoxedForDispatchKey`` has called one; classes that own what they hold are
    passed by the address of a copy; what a kernel with the stable ABI was given is in its wrapper's tuple."""
    with matrix.started(matrix.host(), matrix.build("O3-s-hidden", name="fallbacks")) as program:
        document = matrix.look(program)
        score = matrix.compare(program.truth, document)
        assert not score.wrong
        assert (score.found, score.right) == (11, 11), matrix.report("", score)
        (thread,) = [one for one in document["threads"] if one["tid"] == program.case("device")["tid"]]
        (inner, *outer) = [step["arguments"][0]["value"] for step in thread["dispatch"]]
        assert inner in (None, "f32[4] cpu")
        assert outer == [None, None]
        assert not any(thread["dispatch_doubt"] for thread in document["threads"])
        for name, given in GIVEN.items():
            (thread,) = [one for one in document["threads"] if one["tid"] == program.case(name)["tid"]]
            assert [one["value"] for one in thread["dispatch"][0]["arguments"]] == given


GIVEN = {
    "owners": [
        "f32[3] cpu",
        '"here"',
        '"a text that no string holds in itself"',
        "[4, 5]",
        "[f32[3] cpu, f32[3] cpu]",
        '"there"',
        "2.5",
        "[0.5, 1.5]",
        '["x", "y"]',
        "7",
        "[True, False]",
        "99",
    ],
    "stable": [
        "f32[3] cpu",
        "2.5",
        "7",
        "[4, 5]",
        "f32[3] cpu",
        "True",
        '"here"',
        '"a text that no string holds in itself"',
        "[f32[3] cpu]",
        "torch.float64",
    ],
}


def assert_right(program: Matrix) -> None:
    document = matrix.look(program)
    score = matrix.compare(program.truth, document)
    assert not score.wrong, matrix.report("", score)
    assert score.right >= 0.98 * score.passes, matrix.report("", score)
    assert_missing_is_said(score, document, program)
    shown = matrix.shown_arguments(program.truth, document)
    known = [(value, true) for value, true in shown if value is not None]
    assert [pair for pair in known if pair[0] != pair[1]] == []
    assert len(known) >= 0.9 * len(shown), shown


def assert_missing_is_said(score: Score, document: dict[str, Any], program: Matrix) -> None:
    """Where a pass is missing, and nowhere else."""
    doubted = {each["tid"] for each in document["threads"] if "may be missing" in (each["dispatch_doubt"] or "")}
    lacking = {program.case(missing.partition(":")[0])["tid"] for missing in score.missing}
    assert doubted == lacking


def test_recursions(program: Matrix) -> None:
    """Those that end are deep and blocked; those that do not end get the same arguments, or the same keyset, again."""
    document = program.document("dispatch-diagnose")
    runaway = {
        tid for found in document["findings"] if found["kind"] == "runaway-recursion" for tid in found["threads"]
    }
    assert runaway == {program.case(name)["tid"] for name in ("endless", "again")}
    blocked = [found["summary"] for found in document["findings"] if "zoo::countdown" in found["summary"]]
    assert any("levels deep" in text for text in blocked), blocked


@pytest.mark.parametrize("way", ["O3-s-hidden"])
def test_recursions_of_every_kind(way: str) -> None:
    """Twenty that end, blocked or running, 10 to 3,000 levels deep, and nine that do not."""
    with matrix.started(matrix.host(), matrix.build(way, name="recursions")) as program:
        score = matrix.compare_recursions(program.truth, program.document("dispatch-diagnose"))
    assert (score.finite, score.endless) == (20, 9)
    assert not score.alarms
    assert not score.missed


def test_a_backend_with_a_name_of_its_own(program: Matrix) -> None:
    """register_privateuse1_backend("npu"): devices have that name, keys have it, too, and it is accepted as input."""
    tid = str(program.case("device")["tid"])
    text = program.text("dispatch-bt", "--args", "--thread", tid)
    assert "key=[PrivateUse1 (npu)]" in text, text
    assert "f32[4] npu:0" in text or "a=?" in text, text
    (operator,) = program.document("dispatch-op", "zoo::plain", "--key", "npu")["operators"]
    assert [row["key"] for row in operator["table"]] == ["PrivateUse1"]
    assert "PrivateUse1 (npu)" in program.text("dispatch-keyset", "AutogradNPU,npu")


@pytest.mark.gdb
@pytest.mark.parametrize("way", ["O0-g", "O3-hidden"])
def test_kernels_are_stopped_at_however_they_are_entered(way: str) -> None:
    """PyTorch's autograd fallback enters by the boxed function, into which the compiler has inlined the kernel."""
    with matrix.running(way, only="loop") as looping:
        for operator, entry in (("zoo::plain", "CPU"), ("zoo::layered", "CPU"), ("zoo::lambda", "CPU")):
            words = ["--timeout", "60", "--json", "-p", str(looping.pid), "dispatch-break", "kernel", operator]
            outcome = run([DISPATCH, *words, "--key", entry])
            (request,) = outcome.document["breaks"]["requests"]
            hits = [one["hits"] for one in request["breakpoints"]]
            assert sum(hits) == 1, (operator, outcome)


@pytest.mark.gdb
@pytest.mark.parametrize(
    ("way", "where", "operator"),
    [
        ("O0-g", "return", "zoo::composite"),
        ("O3-hidden", "redispatch", "zoo::layered"),
        ("O3-s-hidden", "call", "zoo::plain"),
    ],
)
def test_the_programs_own_lookups_are_stopped_at(way: str, where: str, operator: str) -> None:
    """The dispatcher is inlined into the program's own functions, which may have no names."""
    with matrix.running(way, only="loop") as looping:
        words = ["--timeout", "90", "--json", "-p", str(looping.pid), "dispatch-break", where, operator]
        outcome = run([DISPATCH, *words], timeout=matrix.PATIENCE)
        (request,) = outcome.document["breaks"]["requests"]
        assert sum(one["hits"] for one in request["breakpoints"]) == 1, (operator, outcome)


@pytest.mark.gdb
def test_what_does_not_come_is_said_after_some_seconds() -> None:
    """gdb waits for the process then, and a thread of ours says it."""
    with matrix.running("O3-hidden", only="loop") as looping:
        words = [DISPATCH, "--timeout", "60", "-p", str(looping.pid), "dispatch-break", "kernel", "zoo::number"]
        with subprocess.Popen([*words, "--key", "CPU"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
    assert line.startswith("note: no stop in 5 s: 1 of 1 thread ran, and did not come here with that key: dispatch-top")


@pytest.mark.gdb
def test_values_of_the_programs_own_calls() -> None:
    """Their arguments are where the kernel begins: in a boxed stack below the autograd fallback, or in registers."""
    with matrix.running("O3-hidden", only="loop") as looping:
        words = ["--timeout", "90", "--json", "-p", str(looping.pid), "dispatch-values", "print", "--when", "before"]
        outcome = run([DISPATCH, *words, "zoo::plain", "zoo::layered", "--limit", "4"], timeout=matrix.PATIENCE)
    *calls, _ = [json.loads(line) for line in outcome.stdout.splitlines()]
    seen = {(call["op"], call["key"], call["arguments"][0]["tensor"]["short"]) for call in calls}
    assert seen == {("zoo::plain", "AutogradCPU", matrix.TENSOR), ("zoo::layered", "AutogradCPU", matrix.TENSOR)}, (
        outcome
    )


@pytest.fixture(scope="module")
def turning(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """A program that has every lookup inlined into the functions that make the calls: without symbols, or in which
    calls of the dispatcher go through slots, not stubs."""
    library = matrix.build(getattr(request, "param", "O3-s-hidden"), name="turns")
    with matrix.started(matrix.host(), library) as running:
        yield running


@pytest.mark.parametrize(
    ("turning", "engine", "limit"),
    [
        pytest.param("O3-s-hidden", "probes", "150", marks=PROBES),
        pytest.param("O2-no-plt", "breakpoints", "60", marks=pytest.mark.gdb),
    ],
    indirect=["turning"],
)
def test_traces_are_nested_as_the_program_says(turning: Matrix, engine: str, limit: str) -> None:
    """A call has ended where its caller goes on: what is called then is not inside of it."""
    words = ["--timeout", "90", "--json", "-p", str(turning.pid), "dispatch-trace", "--all", "--engine", engine]
    outcome = run([DISPATCH, *words, "--limit", limit], timeout=matrix.PATIENCE)
    calls = matrix.called(outcome.document["trace"]["events"])
    assert matrix.repeats(calls, turning.truth["turn"]), calls


@PROBES
def test_a_program_without_symbols_is_counted(turning: Matrix) -> None:
    """Operators of its own by calls of its own; what is not seen is counted, with the file that it is in."""
    section = turning.document("dispatch-top", "--limit", "1000")["top"]
    counts = {row["op"]: row["count"] for row in section["rows"] if row["event"] == "call"}
    assert counts["turns::leaf"] > counts["turns::both"] > 0
    assert not any("libturns" in each for each in section["unseen_in"])
    assert section["unseen"] == sum(int(each.split()[0]) for each in section["unseen_in"])


def test_a_backward_pass_on_a_devices_thread() -> None:
    """The thread that ends the chain is shown like the first one: its stack, and the node that it runs."""
    library = matrix.build("O2", name="chains")
    with matrix.started(matrix.host(), library) as hung:
        report = hung.document("dispatch-diagnose")
        text = hung.text("dispatch-diagnose")
    (end,) = [thread for thread in report["threads"] if thread["tid"] == hung.truth["last"]]
    assert hung.truth["last"] in report["verdict"]["threads"]
    assert "Stuck" in str(end["backward"]), end
    functions = [frame["function"] for frame in end["frames"]]
    assert any("never_comes_back" in function for function in functions), functions
    assert "never_comes_back" in text
    assert "node  torch::autograd::CppNode" in text
    (begin,) = [thread for thread in report["threads"] if thread["tid"] == hung.truth["first"]]
    assert begin["wait"]["owner"]["tid"] == hung.truth["last"]


def test_a_worker_of_parallel_for_that_does_not_come_back() -> None:
    """The operator's thread waits for it at OpenMP's barrier: the worker is shown with its stack."""
    library = matrix.build("O2", name="chains")
    with matrix.started(matrix.host(), library, only="parallel") as hung:
        report = hung.document("dispatch-diagnose")
    assert report["verdict"]["op"] == "chains::in_parallel"
    assert report["verdict"]["threads"][:2] == [hung.truth["first"], hung.truth["last"]]
    (end,) = [thread for thread in report["threads"] if thread["tid"] == hung.truth["last"]]
    assert any("never_comes_back" in frame["function"] for frame in end["frames"]), end
