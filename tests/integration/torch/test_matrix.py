"""Operators and calls of every kind in a C++ program without Python, compiled in several ways."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.installed.probing import PROBES
from support.programs import matrix
from support.programs.harness import DISPATCH, Outcome, run
from support.programs.matrix import Matrix

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.fixture(scope="module", params=matrix.IN_SUITE)
def program(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    with matrix.running(request.param) as running:
        yield running


def command(looking_at: Matrix, *words: str) -> Outcome:
    asked = [DISPATCH, "--timeout", "90", "--json", "-p", str(looking_at.pid), *words]
    return run(asked, timeout=matrix.PATIENCE)


def test_every_pass(program: Matrix) -> None:
    """Passes and arguments are those that the program wrote down, or unknown. Where a pass is missing, it is said."""
    document = matrix.look(program)
    score = matrix.compare(program.truth, document)
    assert not score.wrong, score
    assert score.right >= 0.98 * score.passes, score
    doubted = {each["tid"] for each in document["threads"] if "may be missing" in (each["dispatch_doubt"] or "")}
    assert doubted == {program.case(missing.partition(":")[0])["tid"] for missing in score.missing}
    shown = matrix.shown_arguments(program.truth, document)
    known = [(value, true) for value, true in shown if value is not None]
    assert [pair for pair in known if pair[0] != pair[1]] == []
    assert len(known) >= 0.9 * len(shown), shown
    (stable, *_) = next(
        each["dispatch"] for each in document["threads"] if each["tid"] == program.case("stable")["tid"]
    )
    function = stable["kernel"]["function"]
    assert function == "(anonymous namespace)::stable" or re.fullmatch(r"libmatrix\S*\.so\+0x[0-9a-f]+", function)
    assert all(one["confidence"] == "inferred" for one in stable["arguments"])


OWNED = '"a text that no string holds in itself"'
GIVEN = {
    "owners": 'f32[3] cpu|"here"|' + OWNED + '|[4, 5]|[f32[3] cpu, f32[3] cpu]|"there"|2.5|[0.5, 1.5]|["x", "y"]|7|'
    "[True, False]|99",
    "stable": 'f32[3] cpu|2.5|7|[4, 5]|f32[3] cpu|True|"here"|' + OWNED + "|[f32[3] cpu]|torch.float64",
}


def test_a_fallback_that_rewrites_its_stack_and_kernels_that_share_a_wrapper() -> None:
    """What a boxed kernel has put on its stack is no argument of its call; of kernels whose wrapper is one function,
    the one runs to which its functor points; what a kernel with the stable ABI was given is in its wrapper's tuple. A
    result that was written over an argument is never shown as that."""
    with matrix.started(matrix.host(), matrix.build("O3-s-hidden", name="fallbacks")) as program:
        document = matrix.look(program)
        score = matrix.compare(program.truth, document)
        assert not score.wrong
        assert (score.found, score.right) == (15, 15), score
        steps = {one["tid"]: one["dispatch"] for one in document["threads"]}
        inner, *outer = [step["arguments"][0]["value"] for step in steps[program.case("device")["tid"]]]
        assert inner in (None, "f32[4] cpu")
        assert outer == [None, None]
        assert not any(thread["dispatch_doubt"] for thread in document["threads"])
        for name, given in GIVEN.items():
            (kernel, *_) = steps[program.case(name)["tid"]]
            assert "|".join(one["value"] for one in kernel["arguments"]) == given
        for name in ("overwrites", "gives_early"):
            for step in steps[program.case(name)["tid"]]:
                assert step["arguments"][0]["value"] in (None, "f32[4, 5] cpu"), step


def test_recursions_of_every_kind() -> None:
    """Twenty that end, blocked or running, 10 to 3,000 levels deep, and nine that do not."""
    with matrix.started(matrix.host(), matrix.build("O3-s-hidden", name="recursions")) as program:
        document = program.document("dispatch-diagnose")
        score = matrix.compare_recursions(program.truth, document)
    assert (score.finite, score.endless, score.alarms, score.missed) == (20, 9, [], [])
    assert any("levels deep" in found["summary"] for found in document["findings"])


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
@pytest.mark.parametrize(
    ("way", "words"),
    [
        *(("O3-hidden", ("kernel", f"zoo::{name}", "--key", "CPU")) for name in ("layered", "lambda")),
        ("O0-g", ("return", "zoo::composite")),
        ("O3-hidden", ("redispatch", "zoo::layered")),
        ("O3-s-hidden", ("call", "zoo::plain")),
    ],
)
def test_kernels_and_the_programs_own_lookups_are_stopped_at(way: str, words: tuple[str, ...]) -> None:
    """The autograd fallback enters by the boxed function, into which the compiler has inlined the kernel."""
    with matrix.running(way, only="loop") as looping:
        outcome = command(looping, "dispatch-break", *words)
    (request,) = outcome.document["breaks"]["requests"]
    assert sum(one["hits"] for one in request["breakpoints"]) == 1, outcome


@pytest.fixture(scope="module")
def turning(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """Every lookup is inlined into the functions that make the calls: without symbols, or called through slots."""
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
    outcome = command(turning, "dispatch-trace", "--all", "--engine", engine, "--limit", limit)
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


@pytest.mark.parametrize("only", ["", "parallel"])
def test_the_thread_that_ends_the_chain_is_shown(only: str) -> None:
    """A backward pass on a device's thread; a worker of parallel_for, for which the operator's thread waits."""
    with matrix.started(matrix.host(), matrix.build("O2", name="chains"), only=only) as hung:
        report = hung.document("dispatch-diagnose")
        text = hung.text("dispatch-diagnose")
    threads = {thread["tid"]: thread for thread in report["threads"]}
    end = threads[hung.truth["last"]]
    assert any("never_comes_back" in frame["function"] for frame in end["frames"]), end
    if only:
        assert report["verdict"]["op"] == "chains::in_parallel"
        assert report["verdict"]["threads"][:2] == [hung.truth["first"], hung.truth["last"]]
        return
    assert hung.truth["last"] in report["verdict"]["threads"]
    assert "Stuck" in str(end["backward"]), end
    assert "never_comes_back" in text
    assert "node  torch::autograd::CppNode" in text
    assert threads[hung.truth["first"]]["wait"]["owner"]["tid"] == hung.truth["last"]
