"""The wants of PyTorch's headers for its settings: a table of its own, in a translation unit of its own.

Some of these headers need CUDA's, which nobody needs to have: they get stand-ins. Where they do not compile, all of
this is absent, and the rest of the layout is not. Measured with -fno-access-control.

Where the nodes of autograd keep the tensors that they saved: the members of each generated class, measured.

torch/csrc/autograd/generated/Functions.h (tools/autograd/templates/Functions.h of PyTorch) declares them; every wheel
has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gdbext.engine.layouts.measure.types.wants import Wants

HEADERS = (
    "ATen/CPUGeneratorImpl.h", "ATen/Context.h", "ATen/record_function.h", "c10/core/AllocatorConfig.h",
    "c10/core/CachingDeviceAllocator.h", "c10/util/ThreadLocalDebugInfo.h",
    "torch/csrc/profiler/orchestration/observer.h",
)  # fmt: skip
_OF_CUDA = ("ATen/cuda/CUDAGeneratorImpl.h", "c10/cuda/CUDAAllocatorConfig.h")
_CUDA_BUILD = "c10/cuda/impl/cuda_cmake_macros.h"
"""Only wheels for CUDA have it, and every header of c10/cuda needs it."""

_STATS = "c10::CachingDeviceAllocator::DeviceStats"
STRUCTS = {
    "at::Context": "",
    "at::Context::fp32_precision.entry": "decltype(at::Context::fp32_precision)::value_type",
    "at::CPUGeneratorImpl": "",
    "at::CUDAGeneratorImpl": "",
    "at::CUDAGeneratorState": "",
    "at::RecordFunctionCallback": "",
    "at::RecordFunctionCallbacksEntry": "",
    "c10::ThreadLocalDebugInfo": "",
    "torch::profiler::impl::ProfilerStateBase": "",
    "torch::profiler::impl::ProfilerConfig": "",
    _STATS: "",
    "c10::CachingAllocator::Stat": f"decltype({_STATS}::allocation)::value_type",
    "c10::CachingAllocator::AcceleratorAllocatorConfig": "",
    "c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig": "",
}

ENUMS = {
    "at::Float32MatmulPrecision": "",
    "at::Float32Backend": "",
    "at::Float32Op": "",
    "at::Float32Precision": "",
    "at::LinalgBackend": "",
    "at::BlasBackend": "",
    "at::CuBLASReductionOption": "",
    "torch::profiler::impl::ProfilerState": "",
}

# Enough of CUDA's headers for classes that hold its objects by pointer, and for inline functions that copy.
_CUDA = """#pragma once
#include <stddef.h>
typedef int cudaError_t;
typedef int cudaError;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
enum { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum cudaMemcpyKind { cudaMemcpyHostToHost = 0 };
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaStreamGetPriority(cudaStream_t, int*);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1,
                               cudaStreamCaptureStatusInvalidated = 2 };
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*);
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
"""
_CUDA_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h")


def write_stubs(folder: Path) -> None:
    """Write what stands for CUDA's headers into ``folder``, which the compiler searches last."""
    folder.mkdir(parents=True, exist_ok=True)
    for header in _CUDA_HEADERS:
        (folder / header).write_text(_CUDA)


def wants() -> Wants:
    """The table, with one guarded #include for each header."""
    includes = [_include(header) for header in HEADERS]
    of_cuda = "\n".join(map(_include, _OF_CUDA))
    includes.append(f"#if __has_include(<{_CUDA_BUILD}>)\n{of_cuda}\n#endif")
    return Wants("\n".join(includes), STRUCTS, ENUMS)


def _include(header: str) -> str:
    return f"#if __has_include(<{header}>)\n#include <{header}>\n#endif"


HEADER = "torch/csrc/autograd/generated/Functions.h"
_NAMESPACE = "torch::autograd::generated"
_CLASS = re.compile(r"^struct TORCH_API (\w+) : public \w+ \{(.*?)^\};", re.S | re.M)
_MEMBER = re.compile(r"^  (SavedVariable|std::vector<SavedVariable>) (\w+);", re.M)
_LIST = "[]"
"""The suffix of the name of a member that is a vector."""
_PYTHON_HEADER = "torch/csrc/autograd/python_function.h"
_PYTHON_MEMBERS = {"THPFunction.saved_variables[]": "__builtin_offsetof(THPFunction, saved_variables)"}
"""Members that a torch.autograd.Function saves."""


def saved_member_wants(header: str) -> Wants:
    """One constant for each member of the header's classes."""
    includes = f"#include <{HEADER}>\n#include <{_PYTHON_HEADER}>\n"
    return Wants(includes, {}, {}, {**members(header), **_PYTHON_MEMBERS})


def members(header: str) -> dict[str, str]:
    """ "Class.member" to the C++ expression of its offset; of a vector "Class.member[]"."""
    found = {}
    for declared in _CLASS.finditer(header):
        for member in _MEMBER.finditer(declared[2]):
            suffix = _LIST if member[1] != "SavedVariable" else ""
            expression = f"__builtin_offsetof({_NAMESPACE}::{declared[1]}, {member[2]})"
            found[f"{declared[1]}.{member[2]}{suffix}"] = expression
    return found
