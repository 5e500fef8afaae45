"""The variables of Python frames against what the program itself says of them; whose variable dispatch-tensor finds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.programs.harness import Inferior, Start

pytestmark = pytest.mark.torch


def document(process: Inferior, *words: str) -> Any:
    return process.dispatch(*words, debugger="none", check=False).document


def variables_of(found: Any) -> dict[str, dict[str, str]]:
    frames = [frame for thread in found["threads"] for frame in thread["python_frames"]]
    return {
        frame["function"]: {each["name"]: each["text"] for each in frame["variables"]}
        for frame in frames
        if "variables" in frame
    }


def test_variables_of_the_users_frames(inferior: Start) -> None:
    process = inferior("frame-variables")
    found = document(process, "dispatch-bt", "--locals", "--args")
    variables = variables_of(found)
    assert variables["scale_cpu"] == process.truth["variables"]
    assert variables["train"] == {"step": "7", "loss": "f32[8, 16] cpu"}
    assert variables["<module>"]["never"] == "<lock held>"
    assert set(variables) == {"scale_cpu", "train", "<module>"}
    kernel = next(step for thread in found["threads"] for step in thread["dispatch"] if step["key"] == "CPU")
    assert {each["name"]: (each["value"], each["confidence"]) for each in kernel["arguments"]} == {
        "x": ("f32[8, 16] cpu", "inferred"),
        "by": ("2.5", "inferred"),
        "dims": ("[1, 2]", "inferred"),
        "fast": ("True", "inferred"),
    }
    check_the_verdict(process)
    check_whose_they_are(process)


def check_the_verdict(process: Inferior) -> None:
    shown = variables_of(document(process))
    assert list(shown) == ["scale_cpu"]
    true = process.truth["variables"]
    assert {name: true[name] for name in shown["scale_cpu"]} == shown["scale_cpu"]
    assert len(shown["scale_cpu"]) == 12
    text = process.dispatch(debugger="none", json=False).stdout
    assert "        x = f32[8, 16] cpu, by = 2.5" in text
    assert re.search(r" \d+ more \(.*dispatch-bt --locals\)", text)
    assert "(x=f32[8, 16] cpu, by=2.5, dims=[1, 2], fast=True)  as the kernel's frame has them now" in text


def check_whose_they_are(process: Inferior) -> None:
    def tensor(*words: str) -> Any:
        return document(process, "dispatch-tensor", "--py", *words)

    place = tensor("x")["tensor"]["whose"]
    assert place.endswith(" (scale_cpu)")
    assert "/frame_variables.py:" in place
    assert tensor("loss")["tensor"]["whose"].endswith(" (train)")
    assert tensor("loss", "--frame", "train")["tensor"]["address"] == tensor("x")["tensor"]["address"]
    assert tensor("x", "--frame", "0")["tensor"]["whose"] == place
    assert "no Python variable 'x'" in tensor("x", "--frame", "train")["errors"][0]["what"]
    assert "0 (scale_cpu)" in tensor("x", "--frame", "nowhere")["errors"][0]["why"]
    assert tensor("zzzz")["errors"][0]["help"].startswith("available: x, weight, loss, by, dims")
