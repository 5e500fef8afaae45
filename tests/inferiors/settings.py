"""settings: how PyTorch is set, and what it says of that itself. Argument: the program, one of the functions.

``script`` FILE: as the program FILE sets them, printed as JSON. Older releases lack some of the functions.
"""

import contextlib
import ctypes
import hashlib
import json
import re
import sys

import torch
import truth
from config_truth import changed
from torch_truth import FunctionMode, Mode

C = torch._C
hooks, drawn, observers, profiled = [], 0, [], {}
"""What no function of PyTorch tells: the saved-tensor hooks that were pushed, the numbers that were drawn, …"""
open_contexts = contextlib.ExitStack()


def say():
    return {**existing(FLAGS), **say_precision(), **say_libraries(), **say_others(), "threads": [say_thread()]}


def existing(functions):
    found = {}
    for name, function in functions.items():
        with contextlib.suppress(AttributeError, RuntimeError):  # mixed old and new functions of precision
            found[name] = function()
    return found


cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
FLAGS = {
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_algorithms_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
    "seed": torch.initial_seed,
    "default_dtype": lambda: str(torch.get_default_dtype()),
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
    "anomaly_mode": torch.is_anomaly_enabled,
    "anomaly_check_nan": torch.is_anomaly_check_nan_enabled,
    "cudnn_enabled": lambda: cudnn.enabled,
    "cudnn_deterministic": lambda: cudnn.deterministic,
    "cudnn_benchmark": lambda: cudnn.benchmark,
    "mkldnn_enabled": C._get_mkldnn_enabled,
    "mkldnn_deterministic": lambda: C._get_mkldnn_deterministic(),
    "nnpack_enabled": lambda: C._get_nnpack_enabled(),
    "flash_sdp": cuda.flash_sdp_enabled,
    "mem_efficient_sdp": cuda.mem_efficient_sdp_enabled,
    "math_sdp": cuda.math_sdp_enabled,
    "cudnn_sdp": lambda: cuda.cudnn_sdp_enabled(),
    "linalg_library": lambda: cuda.preferred_linalg_library().name.lower(),
    "cublas_fp16_reduction": C._get_cublas_allow_fp16_reduced_precision_reduction,
    "cublas_bf16_reduction": C._get_cublas_allow_bf16_reduced_precision_reduction,
    "cublas_fp16_accumulation": lambda: C._get_cublas_allow_fp16_accumulation(),
    "cudnn_benchmark_limit": lambda: C._cuda_get_cudnn_benchmark_limit(),
    "cudnn_allow_tf32": C._get_cudnn_allow_tf32,
    "float32_matmul_precision": C._get_float32_matmul_precision,
    "default_device": lambda: torch.get_default_device().type,
    "dynamo": lambda: say_configuration("torch._dynamo.config"),
    "inductor": lambda: say_configuration("torch._inductor.config"),
}


def say_precision():
    if not hasattr(C, "_get_fp32_precision_getter"):
        return {}
    kinds = [("generic", "all")]
    kinds += [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "conv", "matmul", "rnn")]
    return {"float32_precision": {f"{one}.{two}": C._get_fp32_precision_getter(one, two) for one, two in kinds}}


def say_libraries():
    text = torch.__config__.parallel_info()
    found = {
        "openmp_threads": int(re.search(r"omp_get_max_threads\(\) : (\d+)", text)[1]),
        "mkl_threads": int(re.search(r"mkl_get_max_threads\(\) : (\d+)", text)[1]),
    }
    for path in {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}:
        found["openblas_threads"] = ctypes.CDLL(path).scipy_openblas_get_num_threads64_()
    return found


def say_others():
    state = bytes(torch.get_rng_state().tolist())
    generator = {"device": "cpu", "seed": torch.initial_seed(), "drawn": drawn}
    return {
        "generators": [{**generator, "state_sha256": hashlib.sha256(state).hexdigest()}],
        "allocator_settings": getattr(C, "_accelerator_getAllocatorSettings", str)(),
        "global_callbacks": len(observers),
    }


def say_configuration(name):
    if name not in sys.modules:
        return {}
    options, others = changed(sys.modules[name])
    return {**options, **dict.fromkeys(others, "(not shown)")}


def say_autocast():
    kinds = [kind for kind in ("cpu", "cuda", "xpu") if torch.is_autocast_enabled(kind)]
    return {kind: str(torch.get_autocast_dtype(kind)).partition(".")[2] for kind in kinds}


def say_thread():
    """Of the main thread, what is not as in a new one."""
    function_modes = torch.overrides._get_current_function_mode_stack()
    dispatch_modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    found = {
        "grad_mode": (torch.is_grad_enabled(), True),
        "inference_mode": (torch.is_inference_mode_enabled(), False),
        "forward_ad": (C._is_fwd_grad_enabled(), True),
        "multithreading": (C._is_multithreading_enabled(), True),
        "autocast": (say_autocast(), {}),
        "autocast_cache": (torch.is_autocast_cache_enabled(), True),
        "torch_function_modes": ([type(each).__name__ for each in function_modes], []),
        "torch_dispatch_modes": ([type(each).__name__ for each in dispatch_modes], []),
        "saved_tensor_hooks": (hooks, []),
        "saved_tensor_hooks_disabled": (
            C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None, False),
        "profiler": (C._autograd._profiler_enabled() and profiled, False),
    }
    return {name: value for name, (value, new) in found.items() if value != new}


# --- programs ------------------------------------------------------------------------------------


def call(owner, function, *arguments):
    if hasattr(owner, function):
        getattr(owner, function)(*arguments)


def unchanged():
    pass


def old_precision():
    torch.set_float32_matmul_precision("medium")
    cudnn.allow_tf32 = False
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    cuda.matmul.allow_bf16_reduced_precision_reduction = False
    call(C, "_set_cublas_allow_fp16_accumulation", True)
    call(C, "_cuda_set_cudnn_benchmark_limit", 7)


def new_precision():
    """Since 2.9: by backend and operation."""
    cuda.matmul.allow_tf32 = True
    for precision in (
        ("generic", "all", "tf32"), ("mkldnn", "all", "ieee"), ("mkldnn", "conv", "bf16"), ("cuda", "rnn", "ieee"),
    ):
        call(C, "_set_fp32_precision_setter", *precision)


def autocast():
    for kind, dtype in (("cpu", torch.float16), ("cuda", torch.bfloat16)):
        torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_enabled(kind, True)
    torch.set_autocast_cache_enabled(False)
    torch.set_grad_enabled(False)
    open_contexts.enter_context(torch.autograd.set_multithreading_enabled(False))


def pack(tensor):
    return tensor


def contexts():
    """A profiler of this thread, an observer of all threads, modes, more pairs of saved-tensor hooks than a block of a
    deque has room for, and threads at work, so that the number of inter-op threads is that of the pool."""
    global drawn
    torch.set_num_interop_threads(4)
    torch.jit.wait(torch.jit.fork(torch.rand, 3))
    drawn = 3
    open_contexts.enter_context(torch.inference_mode())
    profiled.update(state="KINETO", report_input_shapes=True, profile_memory=True, with_stack=False, with_flops=False,
                    with_modules=False)
    open_contexts.enter_context(torch.profiler.profile(record_shapes=True, profile_memory=True))
    observers.append(torch.profiler.ExecutionTraceObserver().register_callback("trace.json"))
    observers[0].start()
    for _ in range(20):
        open_contexts.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, call))
        hooks.append(["pack", "call"])
    open_contexts.enter_context(FunctionMode())
    open_contexts.enter_context(Mode())
    torch.set_default_device("meta")


def everything():
    """What can be set again by a script. Of a normal distribution the second number of a pair is left."""
    global drawn
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_default_dtype(torch.bfloat16)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    cudnn.enabled, cudnn.deterministic, cudnn.benchmark = False, True, True
    torch.backends.mkldnn.set_flags(False)
    call(C, "_set_mkldnn_deterministic", True)
    call(getattr(torch.backends, "nnpack", None), "set_flags", False)
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        call(cuda, f"enable_{kind}_sdp", False)
    torch.set_num_threads(3)
    torch.set_num_interop_threads(5)
    old_precision()
    new_precision()
    autocast()
    dynamo.suppress_errors = dynamo.verbose = inductor.max_autotune = True
    inductor.cpp.threads = 1
    inductor.post_grad_fusion_options = {"normalization_pass": {"level": 2}}
    name = "_accelerator_setAllocatorSettings"
    name = name if hasattr(C, name) else "_cuda_cudaCachingAllocator_set_allocator_settings"
    call(C, name, "max_split_size_mb:100,garbage_collection_threshold:0.5")
    torch.manual_seed(2**63 + 1234)
    torch.rand(1000)
    torch.normal(0.0, 1.0, (3,), dtype=torch.float64)
    drawn = 1000 + 2 * 2 * 2
    torch.set_default_device("meta")


if sys.argv[1] == "script":
    exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"), {})
    print(json.dumps(say()))
else:
    globals()[sys.argv[1].replace("-", "_")]()
    truth.main_ready(verdict="idle", torch=torch.__version__, settings=say())
    sys.stdin.read()
