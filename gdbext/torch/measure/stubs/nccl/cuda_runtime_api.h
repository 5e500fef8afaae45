#pragma once
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
