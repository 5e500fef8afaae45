"""The wants from the headers of torch.distributed: a table of its own, in a translation unit of its own.

These headers need others that wheels do not ship (gloo's, nlohmann's), and a build without them must still give the
rest of a layout: where they do not compile, all of this is absent, and a type that they lack is absent alone. Measured
with -fno-access-control.

What is wanted from the headers of NCCL's process group, which only wheels for CUDA have any use for.

They need CUDA's and NCCL's headers, which wheels do not ship. Stubs take their place, and that of the headers of
PyTorch's that wrap them: ProcessGroupNCCL keeps streams, events and communicators in maps and behind pointers, so that
nothing of what these are has a part in where its own members lie. Measured with -fno-access-control.
"""

from __future__ import annotations

from pathlib import Path

from gdbext.engine.layouts.declarations import wanted
from gdbext.torch.distributed import group_structures
from gdbext.torch.distributed.group_structures import NCCL
from gdbext.torch.measure.wants import Wants

_C10D = "torch/csrc/distributed/c10d"
HEADERS = (
    "c10/core/Event.h",
    "torch/csrc/profiler/combined_traceback.h",
    f"{_C10D}/debug.h",
    f"{_C10D}/FlightRecorder.hpp",
    f"{_C10D}/ProcessGroup.hpp",
    f"{_C10D}/ProcessGroupGloo.hpp",
    f"{_C10D}/PrefixStore.hpp",
    f"{_C10D}/TCPStore.hpp",
    f"{_C10D}/FileStore.hpp",
    f"{_C10D}/HashStore.hpp",
)

_LIBRARY = "\n".join(f"#include <{name}>" for name in ("map", "memory", "string", "tuple", "unordered_map", "vector"))
_BEYOND = {
    "c10d::ProcessGroup::deviceTypeToBackend_.node": (
        "std::__detail::_Hash_node<decltype(c10d::ProcessGroup::deviceTypeToBackend_)::value_type, false>"
    ),
    **dict.fromkeys(
        (
            "c10d::Backend",
            "c10d::Backend::Options",
            "c10d::ProcessGroupGloo::SendWork",
            "c10d::ProcessGroupGloo::RecvWork",
            "c10d::Work",
            "c10d::Store",
            "c10d::HashStore",
        ),
        "",
    ),
}
"""Types that are measured besides those that readers declare."""

ENUMS = {"c10d::OpType": "", "c10d::ProcessGroup::BackendType": "", "c10d::DebugLevel": ""}

# Enough of gloo (which wheels do not ship) for the class ProcessGroupGloo, which holds gloo's objects by pointer.
_GLOO = """#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>
namespace gloo {
class Algorithm {};
class IoException;
class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer;
}
namespace rendezvous {
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout{30000};
  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}
}
"""
# 2.1's wheels lack one of their own headers, too; a CapturedTraceback holds no Frame, only what it is symbolised to.
_UNWIND = """#pragma once
#include <cstdint>
#include <string>
#include <vector>
namespace torch { namespace unwind { struct Frame { std::string filename, funcname; uint64_t lineno; }; } }
"""
_GLOO_HEADERS = ("algorithm.h", "common/error.h", "context.h", "rendezvous/store.h", "transport/device.h")


def write_stubs(folder: Path) -> None:
    """Write what stands for headers that wheels lack below ``folder``, which the compiler searches last."""
    unwind = folder / "torch/csrc/profiler/unwind/unwind.h"
    unwind.parent.mkdir(parents=True)
    unwind.write_text(_UNWIND)
    for header in _GLOO_HEADERS:
        path = folder / "gloo" / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_GLOO if header == "context.h" else "#include <gloo/context.h>\n")


def wants() -> Wants:
    """The table, with one guarded #include for each header."""
    includes = "\n".join(f"#if __has_include(<{h}>)\n#include <{h}>\n#endif" for h in HEADERS)
    return Wants(f"#define USE_C10D_GLOO 1\n{includes}\n{_LIBRARY}", {**_BEYOND, **wanted(group_structures)}, ENUMS)


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
    "ncclCommAbort",
    "ncclCommDeregister",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommGetAsyncError",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommRegister",
    "ncclCommSplit",
    "ncclRedOpCreatePreMulSum",
    "ncclRedOpDestroy",
)
_STAND_INS = (
    "ATen/cuda/CUDAContext.h",
    "ATen/cuda/CUDAEvent.h",
    "ATen/cuda/MemPool.h",
    "c10/cuda/CUDACachingAllocator.h",
    "c10/cuda/CUDAGuard.h",
    "c10/cuda/CUDAStream.h",
    "c10/cuda/CUDAEvent.h",
    "torch/csrc/cuda/nccl.h",
    f"{_C10D}/cuda/CUDAEventCache.hpp",
    f"{_C10D}/intra_node_comm.hpp",
    f"{_C10D}/symm_mem/intra_node_comm.hpp",
)


def write_nccl_stubs(folder: Path) -> None:
    """Write what stands for all of these below ``folder``, which the compiler searches first."""
    _write(folder / "cuda_runtime_api.h", _CUDA)
    _write(folder / "nccl.h", "\n".join([_NCCL, *(f"CALLED({name});" for name in _CALLED), ""]))
    for header in _STAND_INS:
        _write(folder / header, "#include <cuda_runtime_api.h>\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nccl_wants() -> Wants:
    """Return what is measured of NCCL's process groups."""
    return Wants(
        f"#define USE_C10D_NCCL 1\n#include <{_C10D}/ProcessGroupNCCL.hpp>",
        dict.fromkeys((each.OF for each in NCCL), ""),
    )
