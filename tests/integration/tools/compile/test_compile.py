"""dispatch-compile against what torch._dynamo says of itself: breaks, recompilations, failures, threads at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.programs.harness import Inferior
from support.programs.ways import Look
from support.truth import compile_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]
look_once = Look("live", "none")


def report_of(look: Look, process: Inferior) -> dict[str, Any]:
    found: dict[str, Any] = look(process, "dispatch-compile")["compile"]
    return found


def test_a_program_with_all_kinds(inferior: GetInferior, look: Look) -> None:
    process = inferior("compiled")
    report, said = report_of(look, process), process.truth["said"]
    assert (report["imported"], report["enabled"], report["problems"]) == (True, True, [])
    assert report["counters"] == said["counters"]
    assert sum(each["times"] for each in report["graph_breaks"]) == said["breaks"] > 0
    assert [each["recompile_reason"] for each in report["recompiles"]] == said["recompiles"]
    assert len(said["recompiles"]) == 3
    failures = [[each["function"], each["fail_type"], each["fail_reason"]] for each in report["failures"]]
    assert failures == said["failures"]
    assert [each["suppressed"] for each in report["failures"]] == [True]
    compilations = [[each["compile_id"], each["function"], each["line"]] for each in report["compilations"]]
    assert compilations == said["compilations"]
    assert sorted([each["function"], each["line"]] for each in report["codes"]) == said["codes"]
    assert report["settings"] == {"suppress_errors": True}
    _check_threads(process, report)


def _check_threads(process: Inferior, report: dict[str, Any]) -> None:
    """One is inside of a compiled function, one inside of the compiler, the main thread in neither."""
    states: dict[int, dict[str, str]] = {}
    for frame in report["frames"]:
        states.setdefault(frame["tid"], {}).setdefault(frame["function"].rpartition(".")[2], frame["state"])
    assert set(states) == {process.tid("runner"), process.tid("compiler"), process.tid("triton")}
    runner, compiler = states[process.tid("runner")], states[process.tid("compiler")]
    assert (runner["runs"], runner["target"]) == ("compiled", "eager")
    assert (compiler["slow_backend"], compiler["_compile"], compiler["target"]) == ("compiling", "compiling", "eager")
    assert [(each["tid"], each["function"], each["stage"]) for each in report["now"]] == [
        (process.tid("compiler"), "is_compiled", "TorchDynamo"),
        (process.tid("triton"), "settled", "Triton"),
    ]
    _check_origins(process, [each for each in report["frames"] if each["state"] == "compiled"])


def _check_origins(process: Inferior, frames: list[dict[str, Any]]) -> None:
    """The graph's function stands at the tangent, two lines below the first one of "runs"; bytecode has that one."""
    first = process.truth["runs_line"]
    found = {each["function"]: (each["source"]["line"] - first, each["source"]["exact"]) for each in frames}
    assert found == {"forward": (2, True), "runs": (0, False)}
    assert {each["source"]["function"] for each in frames} == {"runs"}
    assert {each["source"]["file"].rpartition("/")[2] for each in frames} == {"compiled.py"}
    ids = [number for number, function, _ in process.truth["said"]["compilations"] if function == "runs"]
    assert {each["compile_id"] for each in frames} == set(ids)
    assert len({each["graph"] for each in frames if each["graph"].startswith("__compiled_fn_")}) == 1


def test_a_program_says_the_same(inferior: GetInferior) -> None:
    """Options of all kinds, where nothing is cached by context variables any more, and one that is disabled; all other
    programs, other releases and cores: scripts/measure_compile.py."""
    for program in ("options", "disabled"):
        process = inferior("compile-programs", program, env=compile_truth.ENVIRONMENTS.get(program))
        assert compile_truth.compare(program, process, core=False) == {}
    assert process.truth["said"]["settings"] == {"disable": True}


def test_one_that_never_compiled(inferior: GetInferior) -> None:
    process = inferior("settings", "unchanged")
    report = report_of(look_once, process)
    assert (report["imported"], report["enabled"], report["counters"]) == (False, None, {})
