"""The structures of PyTorch's settings that are read: its context, callbacks, the profiler, generators, allocators.

As in torch/structures.py, each class has the name of a C++ class and the members that are read. Sources:
ATen/Context.h, ATen/record_function.h, torch/csrc/profiler/orchestration/observer.h, c10/util/ThreadLocalDebugInfo.h,
ATen/core/MT19937RNGEngine.h, ATen/CPUGeneratorImpl.h, ATen/cuda/CUDAGeneratorImpl.h, c10/core/AllocatorConfig.h,
c10/core/CachingDeviceAllocator.h and c10/cuda/CUDAAllocatorConfig.h of 2.0 to 2.15.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import F64, I32, I64, U8, U32, U64, BitField, Flag, Inner, Link, Place, Struct


class Context(Struct, of="at::Context"):
    """PyTorch's global settings; those that have an accessor are read through it (torch/state/setting_sources.py)."""

    enabled_cudnnSDP = BitField()
    float32_matmul_precision = BitField()
    allow_tf32_cudnn = BitField()
    benchmark_limit_cudnn = BitField()
    allow_fp16_reduction_cublas = BitField()
    allow_bf16_reduction_cublas = BitField()
    allow_fp16_accumulation_cublas = BitField()
    deterministic_mkldnn = BitField()
    allow_tf32_onednn = BitField()
    enabled_nnpack = BitField()
    linalg_preferred_backend = BitField()
    fp32_precision = Place()


class PrecisionEntry(
    Struct, of="at::Context::fp32_precision.entry", cpp="decltype(at::Context::fp32_precision)::value_type"
):
    """An entry of its table of precisions since 2.10: backend, operation, precision."""

    backend = BitField("first.first")
    operation = BitField("first.second")
    precision = BitField("second")


class RecordFunctionCallback(Struct, of="at::RecordFunctionCallback"):
    start_ = U64()
    end_ = U64()
    sampling_prob_ = F64()
    scopes_ = Place()


class RecordFunctionEntry(Struct, of="at::RecordFunctionCallbacksEntry"):
    callback_ = Inner(lambda: RecordFunctionCallback)
    enabled_ = Flag()


class ProfilerConfig(Struct, of="torch::profiler::impl::ProfilerConfig"):
    state = BitField()
    report_input_shapes = Flag()
    profile_memory = Flag()
    with_stack = Flag()
    with_flops = Flag()
    with_modules = Flag()


class ProfilerState(Struct, of="torch::profiler::impl::ProfilerStateBase"):
    config_ = Inner(lambda: ProfilerConfig)


class DebugInfo(Struct, of="c10::ThreadLocalDebugInfo"):
    """A chain of objects that go along with a thread."""

    info_ = U64()
    parent_info_ = U64()


class AllocatorConfig(Struct, of="c10::CachingAllocator::AcceleratorAllocatorConfig"):
    """The settings of any accelerator's allocator, since 2.9; every other member is read as well."""

    last_allocator_settings_ = Place()
    roundup_power2_divisions_ = Place()


class CudaAllocatorConfig(Struct, of="c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig"):
    """The settings of CUDA's allocator, those of the other one until 2.8."""

    m_last_allocator_settings = Place()
    m_roundup_power2_divisions = Place()


class MersenneData(Struct, of="at::mt19937_data_pod", cpp=""):
    """The numbers of the Mersenne twister (ATen/core/MT19937RNGEngine.h)."""

    seed_ = U64()
    left_ = I32()
    seeded_ = U8()
    next_ = U32()
    state_ = Place()


class MersenneEngine(Struct, of="at::mt19937_engine", cpp=""):
    data_ = Inner(lambda: MersenneData)


class CpuGeneratorImpl(Struct, of="at::CPUGeneratorImpl"):
    """The generator (ATen/CPUGeneratorImpl.h), with the second numbers of pairs: optional ones."""

    engine_ = Inner(lambda: MersenneEngine)
    next_double_normal_sample_ = Place()
    next_float_normal_sample_ = Place()


class CudaGeneratorState(Struct, of="at::CUDAGeneratorState"):
    """The numbers that the generator of a device counts (ATen/cuda/CUDAGeneratorImpl.h)."""

    seed_ = U64()
    philox_offset_per_thread_ = U64()


class CudaGeneratorImpl(Struct, of="at::CUDAGeneratorImpl"):
    state_ = Link(lambda: CudaGeneratorState)


class AllocatorCounts(
    Struct,
    of="c10::CachingAllocator::Stat",
    cpp="decltype(c10::CachingDeviceAllocator::DeviceStats::allocation)::value_type",
):
    """One number of the statistics, now and over time."""

    current = I64()
    peak = I64()
    allocated = I64()
    freed = I64()


class AllocatorStatistics(Struct, of="c10::CachingDeviceAllocator::DeviceStats"):
    """The statistics of a device: all members are read that are counts, arrays of such by pool, or numbers."""
