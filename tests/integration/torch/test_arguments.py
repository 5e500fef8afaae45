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

OVERWRITTEN = {
    "aten::nll_loss_forward weight",
    "aten::upsample_bilinear2d scales_h",
    "aten::upsample_bilinear2d scales_w",
}
"""Arguments whose registers or stack slots the compiled callers have used for something else since."""


def found_arguments(process: Inferior) -> dict[str, dict[str, Argument]]:
    """Role of a thread → the arguments of the outermost frame of its operator."""
    with ProcTarget(process.pid) as target:
        session = Session(target)
        reporter = ArgumentReporter(session)
        threads = {thread.tid: thread for thread in target.threads()}
        found = {}
        for role, facts in process.truth["threads"].items():
            frames = reporter.frames(session.threads.of(threads[facts["tid"]]).stack)
            outermost = next(frame for frame in reversed(frames) if frame.qualified == facts["op"])
            found[role] = {argument.name: argument for argument in outermost.arguments}
        return found


def test_arguments_of_every_kind(inferior: Callable[..., Inferior]) -> None:
    """What a fallback of PyTorch's has rewritten is no argument: a conjugate tensor's copy, the slice of a batch, what
    functorch has wrapped are other tensors than were given."""
    process = inferior("operator-arguments")
    found = found_arguments(process)
    assert len(found) >= 19
    wrong: dict[str, Any] = {}
    unknown = set()
    for role, facts in process.truth["threads"].items():
        for name, text in facts["arguments"].items():
            argument = found[role][name]
            if argument.text == "":
                unknown.add(f"{facts['op']} {name}")
            elif argument.text != text:
                wrong[f"{role} {name}"] = (argument, text)
    assert wrong == {}
    assert unknown <= OVERWRITTEN
    rewritten = {role: facts["address"] for role, facts in process.truth["threads"].items() if "address" in facts}
    assert len(rewritten) == 4
    for role, address in rewritten.items():
        assert all(each.address == address for each in found[role]["_args"].tensors), role


def test_the_text_shows_them(inferior: Callable[..., Inferior]) -> None:
    """The ``*_args`` of a kernel in Python is not the argument of that name."""
    process = inferior("operator-arguments")
    outcome = process.dispatch("dispatch-bt", "--args", "--all", debugger="none", json=False)
    assert "(tensors=[f32[3, 4] meta, f32[3, 4] meta], dim=1)" in outcome.stdout
    assert "_args=(" not in outcome.stdout
