"""settings: PyTorch's global settings, and what it says of them itself.

Argument ``changed``: each is set to another value. ``script`` FILE: as the program FILE sets them, printed as JSON.
"""

from __future__ import annotations

import json
import sys

import torch
import truth


def say():
    """By PyTorch's own functions, under the names of the report."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_algorithms_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
        "seed": torch.initial_seed(),
        "default_dtype": str(torch.get_default_dtype()),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "anomaly_mode": torch.is_anomaly_enabled(),
        "anomaly_check_nan": torch.is_anomaly_check_nan_enabled(),
        "cudnn_enabled": cudnn.enabled,
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "mkldnn_enabled": torch._C._get_mkldnn_enabled(),
        "flash_sdp": cuda.flash_sdp_enabled(),
        "mem_efficient_sdp": cuda.mem_efficient_sdp_enabled(),
        "math_sdp": cuda.math_sdp_enabled(),
    }


def change():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(2**63 + 1234)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_num_threads(3)
    torch.set_num_interop_threads(5)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.set_flags(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


kind = sys.argv[1] if len(sys.argv) > 1 else ""
if kind == "script":
    exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"), {})
    print(json.dumps(say()))
else:
    if kind == "changed":
        change()
    truth.thread("main", waits="any")
    truth.note(verdict="idle", settings=say())
    truth.ready()
    sys.stdin.read()
