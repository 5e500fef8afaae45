"""What dispatch-compile reports, made by hand: for golden texts and documents."""

from __future__ import annotations

from gdbext.torch.compile import compile_section as made

AGAIN = made.Compilation("1/1", "step", "train.py", 8, "1/0: n == 1\nUser stack trace:", None, None, False, True)
REASON = "backend='x' raised:\nRuntimeError: no\nmore"
FAILED = made.Compilation("2/0", "lo\x1bss", "train.py", 20, None, "BackendCompilerFailed", REASON, True, False)
GRAPH, ATEN = "__compiled_fn_1_0a2d9dcf_da3d_4572_b706_5e8df09fdf86", "[y], Original ATen: [aten.sin]"
STEP, LOSS = made.SourcePlace("step", "train.py", 8, exact=False), made.SourcePlace("lo\x1bss", "train.py", 21)
TRITON = made.CompilingThread(13, "Triton", "k", "k.py", 2)
KERNEL_FILES = ("/c/ab.cpp", "/c/ab.so", "/c/cd.py", "[relu, add]")
USED = made.CompileSection(
    imported=True,
    enabled=True,
    disabled_by="",
    counters={"frames": {"total": 4, "ok": 3}, "stats": {"unique_graphs": 3}},
    graph_breaks=(made.GraphBreak("Failed to trace builtin operator\n  Explanation: print", 2),),
    resumptions=(made.Resumption("step", 9, "train.py", 2), made.Resumption("loss", 21, None, 1)),
    compilations=(made.Compilation("0/0", "step", "train.py", 8, None, None, None, None, True), AGAIN, FAILED),
    recompiles=(AGAIN,),
    failures=(FAILED,),
    codes=(made.CompiledCode("step", "train.py", 8, 2), *[made.CompiledCode("f", "f.py", None, 1)] * 11),
    frames=(
        made.CompileFrame(7, 0, made.FrameState.COMPILED, "step", "train.py", 9, GRAPH, "0/0", STEP),
        made.CompileFrame(10, 0, made.FrameState.COMPILED, "call", "/c/ab.py", 105, "1_inference", None, LOSS, ATEN),
        made.CompileFrame(7, 1, made.FrameState.EAGER, "<module>", "train.py", 30),
        made.CompileFrame(8, 0, made.FrameState.COMPILING, "_compile", "torch/_dynamo/convert_frame.py", None),
    ),
    now=(made.CompilingThread(8, "Inductor", "loss", "train.py", 20), made.CompilingThread(9, "", "", None, None)),
    processes=(
        made.CompilingProcess(12, "cc1plus", "cc1plus -O3 kernel.cpp", "runs", 11, "kernel.cpp"),
        made.CompilingProcess(13, "python", "python compile_worker", "in wait4", 7, "", TRITON),
    ),
    pools=(made.CompilePool(15, 13, 1), made.CompilePool(16, None, None)),
    guard_failures=(made.GuardFailures("step", "train.py", 8, ("1/0: n == 1", "1/0: n == 2\nmore")),),
    locks=(made.CompileLock("/c/locks/ab.lock", (7, 11), (44,)), made.CompileLock("/c/locks/cd.lock", (7,), ())),
    kernels=(made.CompiledKernel("cpp_fused_add_relu_0", ("add", "relu"), *KERNEL_FILES),),
    settings={"suppress_errors": True, "recompile_limit": 16},
    inductor_settings={"cpp.threads": 1, "decompose_mem_bound_mm": (1, "x")},
    unshown_settings=("post_grad_custom_post_pass",),
    thread_settings={9: {"verbose": True}},
    truncated=("300 compilations, truncated at 256",),
    problems=("torch._dynamo.utils has no counters in this release",),
)
_NOTHING = (True, None, "", {}, (), (), (), (), (), (), (), (), (), {})
IMPORTED = made.CompileSection(*_NOTHING)
UNUSED = made.CompileSection(False, *_NOTHING[1:])
UNKNOWN = made.CompileSection(*_NOTHING, known=False, problems=("what torch.compile did: torch 2.0 was not compared",))
DISABLED = made.CompileSection(True, False, "TORCHDYNAMO_DISABLE=1", *_NOTHING[3:])
