"""Which frames are compiled, which are the compiler's, and in which part of it a thread is."""

from __future__ import annotations

import pytest

from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.tools.compile import graph_breaks, resumptions
from gdbext.tools.compile.compiled_frames import stage, states
from gdbext.torch.compile.compile_section import Compilation, FrameState, GraphBreak, Resumption

SITE = "/site-packages/torch/"
COMPILED, COMPILING, EAGER = FrameState.COMPILED, FrameState.COMPILING, FrameState.EAGER


def frame(function: str, file: str, code: int = 1) -> PythonFrame:
    return PythonFrame(function, file, 3, 0x1000, code)


USER = frame("step", "train.py")
COMPILE = frame("_compile", f"{SITE}_dynamo/convert_frame.py")

TRITON = frame("compile", "/site-packages/triton/compiler/compiler.py")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([USER], [EAGER]),
        ([USER._replace(code=9), USER], [COMPILED, EAGER]),
        ([frame("forward", "<eval_with_key>.12"), USER._replace(code=9)], [COMPILED, COMPILED]),
        ([frame("call", "/tmp/torchinductor_me/ab/cab.py"), USER], [COMPILED, EAGER]),
        ([frame("call", f"/mnt/own/cache/q2/cq2{'x7' * 24}z.py"), USER], [COMPILED, EAGER]),
        ([frame("call", f"/mnt/own/cache/q2/cq3{'x7' * 24}z.py"), USER], [EAGER, EAGER]),
        ([frame("wrapper", f"{SITE}_functorch/_aot_autograd/subclass_codegen.py:codegen(wrapper)")], [COMPILED]),
        ([frame("make_cubin", "/site-packages/triton/backends/nvidia/compiler.py"), TRITON], [COMPILING, COMPILING]),
        ([frame("trace", f"{SITE}_dynamo/symbolic_convert.py"), COMPILE, USER], [COMPILING, COMPILING, EAGER]),
        # a graph that the compiler itself runs, while it propagates fake tensors
        ([frame("forward", "<eval_with_key>.3"), COMPILE], [COMPILING, COMPILING]),
        ([COMPILE, USER, COMPILE, USER], [COMPILING, COMPILING, COMPILING, EAGER]),
        ([frame("Backend.compile_fx", f"{SITE}_inductor/compile_fx.py"), USER], [COMPILING, EAGER]),
        # wrappers that compiled code goes through are no compiler
        ([frame("compile_wrapper", f"{SITE}_dynamo/eval_frame.py"), USER], [EAGER, EAGER]),
        ([frame("_compile", "train.py"), frame("compile_fx", "train.py")], [EAGER, EAGER]),
    ],
)
def test_states_of_frames(frames: list[PythonFrame], expected: list[FrameState]) -> None:
    assert states(frames, {9}) == expected


def test_the_part_of_the_compiler_is_that_of_the_innermost_frame_of_torch() -> None:
    inductor, aot = frame("f", f"{SITE}_inductor/graph.py"), frame("f", f"{SITE}_functorch/aot_autograd.py")
    assert stage([USER, inductor, aot, COMPILE]) == "Inductor"
    assert stage([aot, COMPILE]) == "AOTAutograd"
    assert stage([COMPILE]) == "TorchDynamo"
    assert stage([USER]) == ""


def test_graph_breaks_and_where_code_goes_on() -> None:
    counters = {
        "graph_break": {"rare": 1, "often": 5},
        "resumes": {"torch_dynamo_resume_in_step_at_9": 2, "torch_dynamo_resume_in_<lambda>_at_30": 1, "other": 7},
    }
    recorded = Compilation("1/0", "torch_dynamo_resume_in_step_at_9", "train.py", 9, None, None, None, None, True)
    assert graph_breaks(counters) == (GraphBreak("often", 5), GraphBreak("rare", 1))
    assert resumptions(counters, (recorded,)) == (
        Resumption("step", 9, "train.py", 2),
        Resumption("<lambda>", 30, None, 1),
    )
    assert (graph_breaks({}), resumptions({}, ())) == ((), ())
