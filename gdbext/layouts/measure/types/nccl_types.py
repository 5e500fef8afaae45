"""What is wanted from the headers of NCCL's process group, which only wheels for CUDA have any use for.

They need CUDA's and NCCL's headers, which wheels do not ship. Stubs take their place, and that of the headers of
PyTorch's that wrap them: ProcessGroupNCCL keeps streams, events and communicators in maps and behind pointers, so that
nothing of what these are has a part in where its own members lie. Measured with -fno-access-control.
"""

from __future__ import annotations

from pathlib import Path

from gdbext.layouts.measure.types.wants import Wants

_C10D = "torch/csrc/distributed/c10d"
MEMBERS = {
    "c10d::ProcessGroupNCCL": ("workMetaList_", "pgStatus_", "seqCollective_"),
    "c10d::ProcessGroupStatus": ("lastEnqueuedSeq", "lastStartedSeq", "lastCompletedSeq"),
    "c10d::ProcessGroupNCCL::WorkNCCL": ("seq_", "opType_", "opTimeout_", "workStartTime_"),
}
"""What is read of each class."""

_CUDA = """#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
enum cudaError_t { cudaSuccess };
namespace c10::cuda {
class CUDAStream {
  c10::Stream stream_;
};
class CUDAEvent {};
struct MemPool {};
struct OptionalCUDAGuard {
  template <class... Arguments> OptionalCUDAGuard(Arguments&&...);
};
namespace CUDACachingAllocator {
struct TraceEntry;
struct SegmentInfo;
struct SnapshotInfo;
}
}
namespace at::cuda {
using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;
using c10::cuda::MemPool;
using c10::cuda::OptionalCUDAGuard;
}
namespace c10d {
namespace intra_node_comm {
class IntraNodeComm : public c10::intrusive_ptr_target {};
}
using intra_node_comm::IntraNodeComm;
}
"""
_NCCL = """#pragma once
#include <cuda_runtime_api.h>
#define NCCL_MAJOR 2
#define NCCL_MINOR 27
#define NCCL_PATCH 3
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 27, 3)
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_CONFIG_INITIALIZER {}
typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow* ncclWindow_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int blocking, splitShare; const char *netName, *commName; } ncclConfig_t;
enum ncclResult_t {
  ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
  ncclRemoteError, ncclInProgress
};
enum ncclDataType_t {
  ncclInt8, ncclChar, ncclUint8, ncclInt32, ncclInt, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclHalf,
  ncclFloat32, ncclFloat, ncclFloat64, ncclDouble, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2
};
enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
#define CALLED(name) template <class... Arguments> ncclResult_t name(Arguments&&...)
"""
_CALLED = (
    "ncclCommAbort", "ncclCommDeregister", "ncclCommDestroy", "ncclCommFinalize", "ncclCommGetAsyncError",
    "ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommRegister", "ncclCommSplit",
    "ncclRedOpCreatePreMulSum", "ncclRedOpDestroy",
)  # fmt: skip
_STAND_INS = (
    "ATen/cuda/CUDAContext.h", "ATen/cuda/CUDAEvent.h", "ATen/cuda/MemPool.h", "c10/cuda/CUDACachingAllocator.h",
    "c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h", "c10/cuda/CUDAEvent.h", "torch/csrc/cuda/nccl.h",
    f"{_C10D}/cuda/CUDAEventCache.hpp", f"{_C10D}/intra_node_comm.hpp", f"{_C10D}/symm_mem/intra_node_comm.hpp",
)  # fmt: skip


def write_stubs(folder: Path) -> None:
    """Write what stands for all of these below ``folder``, which the compiler searches first."""
    _write(folder / "cuda_runtime_api.h", _CUDA)
    _write(folder / "nccl.h", "\n".join([_NCCL, *(f"CALLED({name});" for name in _CALLED), ""]))
    for header in _STAND_INS:
        _write(folder / header, "#include <cuda_runtime_api.h>\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def wants() -> Wants:
    """The table."""
    return Wants(f"#define USE_C10D_NCCL 1\n#include <{_C10D}/ProcessGroupNCCL.hpp>", dict.fromkeys(MEMBERS, ""))
