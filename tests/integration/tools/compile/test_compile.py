"""dispatch-compile against what torch._dynamo says of itself: breaks, recompilations, failures, threads at work."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs.harness import Inferior, Start
from support.truth import compile_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb]


@pytest.mark.parametrize("program", ["breaks", "recompiles", "failed", "disabled", "options"])
def test_a_program_says_the_same(inferior: Start, program: str) -> None:
    """In "options" nothing is cached by context variables any more. All programs, other releases and cores:
    scripts/measure_compile.py."""
    process = inferior("compile-programs", program, env=compile_truth.ENVIRONMENTS.get(program))
    assert compile_truth.compare(program, process, core=program == "breaks") == {}


def test_threads_in_compiled_code_and_in_compilers(inferior: Start) -> None:
    process = inferior("compile-programs", "threads")
    report = process.dispatch("dispatch-compile", debugger="none").document["compile"]
    assert compile_truth.differences("threads", report, process.truth["said"]) == {}
    states: dict[int, dict[str, str]] = {}
    for frame in report["frames"]:
        states.setdefault(frame["tid"], {}).setdefault(frame["function"].rpartition(".")[2], frame["state"])
    runner, compiler = states[process.tid("runner")], states[process.tid("compiler")]
    assert process.tid("main") not in states
    assert runner["runs"] == "compiled"
    assert (compiler["slow_backend"], compiler["_compile"]) == ("compiling", "compiling")
    assert runner["<lambda>"] == compiler["<lambda>"] == "eager"
    assert [(each["tid"], each["function"], each["stage"]) for each in report["now"]] == [
        (process.tid("compiler"), "again", "TorchDynamo"),
        (process.tid("triton"), "again", "Triton"),
    ]
    check_origins(process, report)


def check_origins(process: Inferior, report: dict[str, Any]) -> None:
    """The graph's function stands at the tangent, two lines below the first one of "runs"; bytecode has that one."""
    frames = [each for each in report["frames"] if each["state"] == "compiled"]
    first = process.truth["runs_line"]
    found = {each["function"]: (each["source"]["line"] - first, each["source"]["exact"]) for each in frames}
    assert found == {"forward": (2, True), "runs": (0, False)}
    assert {each["source"]["function"] for each in frames} == {"runs"}
    assert {each["source"]["file"].rpartition("/")[2] for each in frames} == {"compile_programs.py"}
    ids = {number for number, function, _ in process.truth["said"]["compilations"] if function == "runs"}
    assert {each["compile_id"] for each in frames} == ids
    assert len({each["graph"] for each in frames if each["graph"].startswith("__compiled_fn_")}) == 1


def test_one_that_never_compiled(inferior: Start) -> None:
    report = inferior("settings", "unchanged").dispatch("dispatch-compile", debugger="none").document["compile"]
    assert (report["imported"], report["enabled"], report["counters"]) == (False, None, {})
