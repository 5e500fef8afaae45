"""dispatch-bt --args: arguments of every kind, boxed and unboxed, against what each thread wrote down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.torch.stack import Argument
from support.programs.harness import Inferior

pytestmark = [pytest.mark.torch]


def found_arguments(process: Inferior) -> dict[str, dict[str, Argument]]:
    """Role of a thread → the arguments of the outermost frame of its operator."""
    target = ProcTarget(process.pid)
    try:
        session = Session(target)
        reporter = ArgumentReporter(session)
        roles = {facts["tid"]: role for role, facts in process.truth["threads"].items()}
        found = {}
        for thread in target.threads():
            if thread.tid in roles:
                frames = reporter.frames(session.threads.of(thread).stack)
                op = process.truth["threads"][roles[thread.tid]]["op"]
                outermost = next(frame for frame in reversed(frames) if frame.qualified == op)
                found[roles[thread.tid]] = {argument.name: argument for argument in outermost.arguments}
        return found
    finally:
        target.close()


def test_arguments_of_every_kind(inferior: Callable[..., Inferior]) -> None:
    process = inferior("operator-arguments")
    found = found_arguments(process)
    assert len(found) == len(process.truth["threads"]) >= 40
    wrong: dict[str, Any] = {}
    counts: dict[bool, list[bool]] = {True: [], False: []}
    for role, facts in process.truth["threads"].items():
        for name, text in facts["arguments"].items():
            argument = found[role][name]
            counts[argument.type.startswith("Tensor")].append(argument.text == text)
            if argument.text not in ("", text):
                wrong[f"{role} {name}"] = (argument, text)
    assert wrong == {}
    shown = {role: [each.short for each in found[role].values()] for role in found}
    assert sum(counts[True]) >= 0.95 * len(counts[True]), shown
    assert sum(counts[False]) >= 0.9 * len(counts[False]), shown


def test_what_a_fallback_of_torchs_has_rewritten_is_no_argument(inferior: Callable[..., Inferior]) -> None:
    """A conjugate tensor's copy, the slice of a batch, what functorch has wrapped: other tensors than were given."""
    process = inferior("operator-arguments")
    found = found_arguments(process)
    cases = {role: facts for role, facts in process.truth["threads"].items() if "address" in facts}
    assert len(cases) == 4
    wrong = {
        role: one
        for role, facts in cases.items()
        for one in found[role]["_args"].tensors
        if one.address != facts["address"]
    }
    assert wrong == {}


def test_the_text_shows_them(inferior: Callable[..., Inferior]) -> None:
    """The ``*_args`` of a kernel in Python is not the argument of that name."""
    process = inferior("operator-arguments")
    outcome = process.dispatch("dispatch-bt", "--args", "--all", debugger="none", json=False)
    assert "(tensors=[f32[3, 4] meta, f32[3, 4] meta], dim=1)" in outcome.stdout
    assert "_args=(" not in outcome.stdout
