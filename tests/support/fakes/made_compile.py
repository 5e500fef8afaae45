"""What dispatch-compile reports, made by hand: for golden texts and documents."""

from __future__ import annotations

from gdbext.torch.compile.compile_section import (
    Compilation,
    CompiledCode,
    CompiledKernel,
    CompileFrame,
    CompileLock,
    CompilePool,
    CompileSection,
    CompilingProcess,
    CompilingThread,
    FrameState,
    GraphBreak,
    GuardFailures,
    Resumption,
    SourcePlace,
)

AGAIN = Compilation("1/1", "step", "train.py", 8, "1/0: n == 1\nUser stack trace:", None, None, False, True)
REASON = "backend='x' raised:\nRuntimeError: no\nmore"
FAILED = Compilation("2/0", "lo\x1bss", "train.py", 20, None, "BackendCompilerFailed", REASON, True, False)
USED = CompileSection(
    imported=True,
    enabled=True,
    disabled_by="",
    counters={"frames": {"total": 4, "ok": 3}, "stats": {"unique_graphs": 3}},
    graph_breaks=(GraphBreak("Failed to trace builtin operator\n  Explanation: print", 2),),
    resumptions=(Resumption("step", 9, "train.py", 2), Resumption("loss", 21, None, 1)),
    compilations=(Compilation("0/0", "step", "train.py", 8, None, None, None, None, True), AGAIN, FAILED),
    recompiles=(AGAIN,),
    failures=(FAILED,),
    codes=(CompiledCode("step", "train.py", 8, 2), *[CompiledCode("f", "f.py", None, 1)] * 11),
    frames=(
        CompileFrame(
            7,
            0,
            FrameState.COMPILED,
            "step",
            "train.py",
            9,
            "__compiled_fn_1_0a2d9dcf_da3d_4572_b706_5e8df09fdf86",
            "0/0",
            SourcePlace("step", "train.py", 8, exact=False),
        ),
        CompileFrame(
            10,
            0,
            FrameState.COMPILED,
            "call",
            "/c/ab.py",
            105,
            "1_inference",
            None,
            SourcePlace("lo\x1bss", "train.py", 21),
            "[y], Original ATen: [aten.sin]",
        ),
        CompileFrame(7, 1, FrameState.EAGER, "<module>", "train.py", 30),
        CompileFrame(8, 0, FrameState.COMPILING, "_compile", "torch/_dynamo/convert_frame.py", None),
    ),
    now=(CompilingThread(8, "Inductor", "loss", "train.py", 20), CompilingThread(9, "", "", None, None)),
    processes=(
        CompilingProcess(12, "cc1plus", "cc1plus -O3 kernel.cpp", "runs", 11, "kernel.cpp"),
        CompilingProcess(
            13, "python", "python compile_worker", "in wait4", 7, "", CompilingThread(13, "Triton", "k", "k.py", 2)
        ),
    ),
    pools=(CompilePool(15, 13, 1), CompilePool(16, None, None)),
    guard_failures=(GuardFailures("step", "train.py", 8, ("1/0: n == 1", "1/0: n == 2\nmore")),),
    locks=(CompileLock("/c/locks/ab.lock", (7, 11), (44,)), CompileLock("/c/locks/cd.lock", (7,), ())),
    kernels=(
        CompiledKernel("cpp_fused_add_relu_0", ("add", "relu"), "/c/ab.cpp", "/c/ab.so", "/c/cd.py", "[relu, add]"),
    ),
    settings={"suppress_errors": True, "recompile_limit": 16},
    inductor_settings={"cpp.threads": 1, "decompose_mem_bound_mm": (1, "x")},
    unshown_settings=("post_grad_custom_post_pass",),
    thread_settings={9: {"verbose": True}},
    truncated=("300 compilations, truncated at 256",),
    problems=("torch._dynamo.utils has no counters in this release",),
)
_NOTHING = (True, None, "", {}, (), (), (), (), (), (), (), (), (), {})
IMPORTED = CompileSection(*_NOTHING)
UNUSED = CompileSection(False, *_NOTHING[1:])
UNKNOWN = CompileSection(*_NOTHING, known=False, problems=("what torch.compile did: torch 2.0 was not compared",))
DISABLED = CompileSection(True, False, "TORCHDYNAMO_DISABLE=1", *_NOTHING[3:])
