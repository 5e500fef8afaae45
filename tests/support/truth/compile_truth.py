"""What dispatch-compile reports of a program of tests/inferiors/compile_programs.py against what that says itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from support.programs import harness

PROGRAMS = ("training", "breaks", "recompiles", "failed", "disabled", "by-environment", "options", "threads")
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "by-environment": {"TORCHDYNAMO_DISABLE": "1"},
    "options": {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"},
}
DISABLED = {"disabled": "torch._dynamo.config.disable", "by-environment": "TORCHDYNAMO_DISABLE=1"}


@contextlib.contextmanager
def started(program: str, python: str = "venv") -> Iterator[harness.Inferior]:
    with harness.started("compile-programs", program, python=python, env=ENVIRONMENTS.get(program)) as process:
        yield process


def compare(program: str, process: harness.Inferior, core: bool) -> dict[str, tuple[Any, Any]]:
    report = process.dispatch("dispatch-compile", debugger="none", core=core).document["compile"]
    return differences(program, report, process.truth["said"])


def differences(program: str, report: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is reported otherwise than the program says: (ours, theirs) by name."""
    more = {"problems": [], "imported": True, "known": True, "disabled_by": DISABLED.get(program, "")}
    ours, theirs = _ours(report), {**said, **more}
    del theirs["torch"], theirs["python"]
    return {name: (ours[name], value) for name, value in theirs.items() if ours[name] != value}


def _ours(report: Mapping[str, Any]) -> dict[str, Any]:
    compilations = report["compilations"]
    return {
        **report,
        "graph_breaks": {each["reason"]: each["times"] for each in report["graph_breaks"]},
        "recompile_reasons": [each["recompile_reason"] for each in compilations if each["recompile_reason"]],
        "recompiled": [each["compile_id"] for each in report["recompiles"]],
        "failures": [[each["function"], each["fail_type"], each["fail_reason"]] for each in report["failures"]],
        "compilations": [[each["compile_id"], each["function"], each["line"]] for each in compilations],
        "codes": sorted([each["function"], each["line"]] for each in report["codes"]),
        "kernels": sorted([each["name"], each["library"]] for each in report["kernels"]),
        "guard_failures": sorted(
            [each["function"], each["line"], each["reasons"]] for each in report["guard_failures"]
        ),
    }
