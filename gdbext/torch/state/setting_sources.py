"""The global settings of PyTorch: how they are reported, where each is in memory, and how Python sets it.

The offset of a member of ``at::Context`` is not known beforehand; its accessor has a name, and is nothing but a load
from that offset. Sources, all 2.13.0: aten/src/ATen/Context.{h,cpp}, CPUGeneratorImpl.cpp, ParallelOpenMP.cpp,
ParallelThreadPoolNative.cpp, record_function.cpp, SavedTensorHooks.cpp, c10/core/DefaultDtype.cpp, AllocatorConfig.cpp,
c10/util/ThreadLocalDebugInfo.cpp, torch/csrc/autograd/anomaly_mode.cpp; of libgomp, MKL and OpenBLAS their own symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Union

from gdbext.engine.layouts.declarations import Member
from gdbext.engine.vocabulary import Section
from gdbext.torch.assumed_symbols import C10, C10_CUDA, CPU, CUDA, INTRAOP_THREADS
from gdbext.torch.state.setting_structures import Context
from gdbext.torch.torch_symbol import TorchSymbol

SettingValue = Union[bool, int, float, str, None, tuple["SettingValue", ...], Mapping[str, "SettingValue"]]
DEFAULT = "default"
"""The value if it was never set, and the libraries below choose."""
NOT_SHOWN = "(not shown)"
"""The value of an option that is set to an object of another kind."""


class Setting(NamedTuple):
    """One setting of PyTorch."""

    name: str
    value: SettingValue
    """None if it is unknown."""
    default: SettingValue = None
    """PyTorch's default; None if there is none, or it depends on the machine."""
    unknown: str = ""
    """The reason why the value is unknown."""

    @property
    def is_changed(self) -> bool:
        """True if it was set to something else than PyTorch's default."""
        return self.value is not None and self.default is not None and self.value != self.default


@dataclass(frozen=True)
class SettingsSection(Section):
    """All settings."""

    name: ClassVar[str] = "settings"
    only_member: ClassVar[str] = "values"
    settings: tuple[Setting, ...]
    environment: Mapping[str, str]
    """Environment variables that PyTorch and the libraries below it read when they start."""
    script: str | None = None
    """The path of the Python script that sets them again, if one was requested."""
    cpu_state: bytes | None = None
    """The bytes of torch.get_rng_state(); None if unknown."""
    main_tid: int | None = None
    """The thread whose own settings the script sets; those of other threads are comments in it."""

    @property
    def values(self) -> dict[str, SettingValue]:
        """Name of a setting → its value; None if it is unknown."""
        return {setting.name: setting.value for setting in self.settings}


OLDEST = "2.0.0"


class Kind(Enum):
    """The meaning of the bytes of a setting."""

    FLAG = "a bool"
    NUMBER = "an unsigned number"
    THREADS = "a number of threads, negative until it is set"
    DTYPE = "a c10::ScalarType"
    NAME = "an enumerator, as Python writes it: in small letters"


class StaticOwner(NamedTuple):
    """An object with settings that a function has in a static variable."""

    variable: str
    """The symbol of the variable."""
    is_pointer: bool
    """The variable is a smart pointer to the object."""
    description: str
    library: str = CPU
    first: str = OLDEST
    """The first release that has it, of 2.0.0 to 2.15.0 (scripts/check_releases.py)."""

    @property
    def guard(self) -> str:
        """The symbol of the byte that is set once the object is made."""
        return f"_ZGV{self.variable[2:]}"


CONTEXT = StaticOwner("_ZZN2at13globalContextEvE14globalContext_", is_pointer=False, description="at::globalContext()")
GENERATOR = StaticOwner("_ZZN2at6detail22getDefaultCPUGeneratorEvE15default_gen_cpu", True, "the default generator")


class SettingSource(NamedTuple):
    """Where one setting is in memory, and how Python sets it."""

    name: str
    symbol: str
    """The accessor of a member of ``owner``, or, without one, a variable in ``library``; "" if ``member`` has it."""
    kind: Kind
    default: SettingValue
    statement: str
    """The Python that sets it, with the names of settings in braces; "" if another setting's statement does."""
    owner: StaticOwner | None = CONTEXT
    library: str = CPU
    member: Member[int] | None = None
    """A member of at::Context by the layout."""
    enumeration: str = ""
    """The C++ enumeration with the names of its values."""
    first: str = OLDEST
    """The first release that has the symbol."""


def _setting(
    name: str, symbol: str, kind: Kind, default: SettingValue, statement: str, owner: StaticOwner | None = None
) -> SettingSource:
    """A setting in the variable ``symbol``, or in a member of ``owner`` that the accessor ``symbol`` loads; ``{}`` in
    ``statement`` stands for its name in braces."""
    return SettingSource(name, symbol, kind, default, statement.replace("{", f"{{{name}", 1), owner)


def _member(
    name: str, member: Member[int], default: SettingValue, statement: str, kind: Kind = Kind.FLAG, enumeration: str = ""
) -> SettingSource:
    """A setting in a member of at::Context that has no accessor."""
    source = _setting(name, "", kind, default, statement, CONTEXT)
    return source._replace(member=member, enumeration=enumeration)


def _flag(name: str, accessor: str, default: bool, statement: str, first: str = OLDEST) -> SettingSource:
    """A flag of at::Context by the name of its accessor."""
    symbol = f"_ZNK2at7Context{len(accessor)}{accessor}Ev"
    return _setting(name, symbol, Kind.FLAG, default, statement, CONTEXT)._replace(first=first)


REDUCED = (True, True)
SEED_ACCESSOR = "_ZNK2at16CPUGeneratorImpl12current_seedEv"
_BACKENDS = "torch.backends."
_SDP = f"{_BACKENDS}cuda.enable_"
_MATMUL = f"{_BACKENDS}cuda.matmul.allow_"
_ANOMALY_MODE = "_ZN5torch8autograd11AnomalyMode"
SETTINGS = (
    _flag(
        "deterministic_algorithms",
        "deterministicAlgorithms",
        False,
        "torch.use_deterministic_algorithms({}, warn_only={deterministic_algorithms_warn_only})",
    ),
    _flag("deterministic_algorithms_warn_only", "deterministicAlgorithmsWarnOnly", False, ""),
    _flag(
        "fill_uninitialized_memory",
        "deterministicFillUninitializedMemory",
        True,
        "torch.utils.deterministic.fill_uninitialized_memory = {}",
        first="2.2.0",
    ),
    # a random one as long as it is not set
    _setting("seed", SEED_ACCESSOR, Kind.NUMBER, None, "torch.manual_seed({})", GENERATOR),
    _setting(
        "default_dtype",
        "_ZN3c10L27default_dtype_as_scalartypeE",
        Kind.DTYPE,
        "torch.float32",
        "torch.set_default_dtype({})",
    )._replace(library=C10),
    _setting("num_threads", INTRAOP_THREADS.names[0], Kind.THREADS, DEFAULT, "torch.set_num_threads({})"),
    _setting(
        "num_interop_threads",
        "_ZN2at12_GLOBAL__N_119num_interop_threadsE",
        Kind.THREADS,
        DEFAULT,
        "torch.set_num_interop_threads({})",
    ),
    _setting(
        "anomaly_mode",
        f"{_ANOMALY_MODE}8_enabledE",
        Kind.FLAG,
        default=False,
        statement="torch.autograd.set_detect_anomaly({}, check_nan={anomaly_check_nan})",
    ),
    _setting("anomaly_check_nan", f"{_ANOMALY_MODE}10_check_nanE", Kind.FLAG, default=True, statement=""),
    _flag("cudnn_enabled", "userEnabledCuDNN", True, f"{_BACKENDS}cudnn.enabled = {{}}"),
    _flag("cudnn_deterministic", "deterministicCuDNN", False, f"{_BACKENDS}cudnn.deterministic = {{}}"),
    _flag("cudnn_benchmark", "benchmarkCuDNN", False, f"{_BACKENDS}cudnn.benchmark = {{}}"),
    _flag("mkldnn_enabled", "userEnabledMkldnn", True, f"{_BACKENDS}mkldnn.set_flags({{}})"),
    _flag("flash_sdp", "userEnabledFlashSDP", True, f"{_SDP}flash_sdp({{}})"),
    _flag("mem_efficient_sdp", "userEnabledMemEfficientSDP", True, f"{_SDP}mem_efficient_sdp({{}})"),
    _flag("math_sdp", "userEnabledMathSDP", True, f"{_SDP}math_sdp({{}})"),
    _member("cudnn_sdp", Context.enabled_cudnnSDP, True, f"{_SDP}cudnn_sdp({{}})"),
    _member(
        "float32_matmul_precision",
        Context.float32_matmul_precision,
        "highest",
        "torch.set_float32_matmul_precision({!r})",
        Kind.NAME,
        "at::Float32MatmulPrecision",
    ),
    _member("cudnn_allow_tf32", Context.allow_tf32_cudnn, True, "torch._C._set_cudnn_allow_tf32({})"),
    _member(
        "cudnn_benchmark_limit",
        Context.benchmark_limit_cudnn,
        10,
        'if hasattr(torch._C, "_cuda_set_cudnn_benchmark_limit"):\n    torch._C._cuda_set_cudnn_benchmark_limit({})',
        Kind.NUMBER,
    ),
    *(
        _member(
            f"cublas_{dtype}_reduction",
            member,
            REDUCED,
            f"{_MATMUL}{dtype}_reduced_precision_reduction = {{}}",
            Kind.NAME,
            "at::CuBLASReductionOption",
        )
        for dtype, member in (
            ("fp16", Context.allow_fp16_reduction_cublas),
            ("bf16", Context.allow_bf16_reduction_cublas),
        )
    ),
    _member(
        "cublas_fp16_accumulation", Context.allow_fp16_accumulation_cublas, False, f"{_MATMUL}fp16_accumulation = {{}}"
    ),
    _member("mkldnn_deterministic", Context.deterministic_mkldnn, False, "torch._C._set_mkldnn_deterministic({})"),
    _member("mkldnn_allow_tf32", Context.allow_tf32_onednn, False, "torch._C._set_onednn_allow_tf32({})"),
    _member(
        "nnpack_enabled",
        Context.enabled_nnpack,
        True,
        'if hasattr(torch.backends, "nnpack"):\n    torch.backends.nnpack.set_flags({})',
    ),
    _member(
        "linalg_library",
        Context.linalg_preferred_backend,
        "default",
        f"{_BACKENDS}cuda.preferred_linalg_library({{!r}})",
        Kind.NAME,
        "at::LinalgBackend",
    ),
)
REDUCTIONS = {
    "AllowReducedPrecisionWithSplitK": REDUCED,
    "DisallowReducedPrecisionAllowSplitK": (False, True),
    "DisallowReducedPrecisionDisallowSplitK": (False, False),
}
"""at::CuBLASReductionOption as Python has it: (reduced precision is allowed, split-K is)."""
THREADS_IN_USE = -2
"""CONSUMED of ParallelThreadPoolNative.cpp: the pool exists, and has its size by itself."""
INTEROP_POOL = StaticOwner("_ZZN2at12_GLOBAL__N_18get_poolEvE4pool", is_pointer=True, description="the inter-op pool")
CALLBACKS = "_ZZN2at12_GLOBAL__N_121GlobalCallbackManager3getEvE7manager"
CALLBACKS_VECTOR = 8
"""GlobalCallbackManager: a version (8 bytes), the vector of callbacks, a mutex; the same in 2.6 to 2.15."""

_OF_A_THREAD = "of a thread, among the settings"


def _guard_of(variable: TorchSymbol) -> TorchSymbol:
    """The guard of a function's thread-local variable: a byte that is set once it is constructed in a thread."""
    names = tuple(f"_ZGV{name[2:]}" for name in variable.names)
    return variable._replace(names=names, purpose="tells whether the thread has one")


THREAD_CALLBACKS = TorchSymbol(
    ("_ZZN2at12_GLOBAL__N_120LocalCallbackManager3getEvE7manager",),
    CPU,
    "a thread's RecordFunctionTLS",
    f"callbacks of RecordFunction {_OF_A_THREAD}",
)
THREAD_CALLBACKS_GUARD = _guard_of(THREAD_CALLBACKS)
SAVED_TENSOR_HOOKS = TorchSymbol(
    ("_ZN2at12_GLOBAL__N_13tlsE",), CPU, "a thread's SavedTensorDefaultHooksTLS", f"saved-tensor hooks {_OF_A_THREAD}"
)
DEBUG_INFO = TorchSymbol(
    ("_ZZNK3c10L14tls_debug_infoMUlvE_clEvE3var", "_ZZNK3c10UlvE_clEvE3var"),  # by a newer compiler, and an older one
    C10,
    "a thread's c10::ThreadLocalDebugInfo, a chain",
    f"the profiler {_OF_A_THREAD}",
)
DEBUG_INFO_GUARD = _guard_of(DEBUG_INFO)
GLOBAL_PROFILER = StaticOwner(
    "_ZZN5torch8profiler4impl18GlobalStateManagerINS1_17ProfilerStateBaseEE9singletonEvE10singleton_",
    is_pointer=True,
    description="the profiler of all threads",
)
PROFILER_STATES = (
    "KinetoThreadLocalState",
    "ProfilerLegacyThreadLocalState",
    "NVTXThreadLocalState",
    "ITTThreadLocalState",
    "PrivateUse1ThreadLocalState",
)
"""Classes that derive from ProfilerStateBase, among those of a chain of debug info (torch/csrc/autograd/
profiler_kineto.cpp, profiler_legacy.cpp, torch/csrc/profiler/standalone/*.cpp)."""

# --- libraries below PyTorch ---

OPENMP, OPENBLAS = "libgomp", "openblas"
"""Parts of the names of such libraries."""
OPENMP_THREADS = "omp_get_max_threads"
MKL_THREADS, MKL_DYNAMIC, MKL_READY = "__mkl_num_threads", "__mkl_dynamic", "__threads_env_NOT_readed"
"""Variables of oneMKL 2024.2, which is a part of libtorch_cpu.so: 0 or less threads as long as nobody has set them; the
last one is set once MKL has read its environment."""
OPENBLAS_THREADS, OPENBLAS_READY = "blas_cpu_number", "blas_num_threads"
"""driver/others/blas_server.c, 0.3.x: the number in use, and one that is 0 until it was found out."""

# --- allocators ---

ALLOCATOR = StaticOwner(
    "_ZZN3c1016CachingAllocator26AcceleratorAllocatorConfig8instanceEvE8instance",
    is_pointer=False,
    description="the allocators' settings",
    library=C10,
    first="2.9.0",
)
CUDA_ALLOCATOR = StaticOwner(
    "_ZZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig8instanceEvE10s_instance",
    is_pointer=True,
    description="CUDA's allocator's settings",
    library=C10_CUDA,
    first="2.2.0",
)
CUDA_GENERATORS = TorchSymbol(
    (
        "_ZN2at4cuda6detail12_GLOBAL__N_117default_gens_cudaE",
        "_ZN2at4cuda6detail12_GLOBAL__N_1L17default_gens_cudaE",
    ),  # static, 2.6
    CUDA,
    "a vector of at::Generator, one for each device (ATen/cuda/CUDAGeneratorImpl.cpp)",
    "seeds and offsets of CUDA devices",
)
CUDA_ALLOCATOR_IN_USE = TorchSymbol(
    ("_ZN3c104cuda20CUDACachingAllocator9allocatorE",),
    C10_CUDA,
    "a pointer to the allocator that CUDA's tensors come from",
    "the statistics of CUDA's allocator",
)
CUDA_STATISTICS = TorchSymbol(
    ("_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator14getDeviceStatsEa",),
    C10_CUDA,
    "returns a device's statistics; loads the vector of devices",
    "the statistics of CUDA's allocator",
    first="2.3.0",
)


def _stream_variable(name: str, purpose: str, first: str = OLDEST) -> TorchSymbol:
    """A variable of c10/cuda/CUDAStream.cpp, which is static in 2.6."""
    names = tuple(f"_ZN3c104cuda12_GLOBAL__N_1{static}{len(name)}{name}E" for static in ("", "L"))
    return TorchSymbol(names, C10_CUDA, purpose, "which of PyTorch's streams a thread waits for", first=first)


CUDA_STREAMS = _stream_variable("streams", "the streams of PyTorch's pools (c10/cuda/CUDAStream.cpp)", "2.1.0")
CUDA_STREAM_COUNTERS = _stream_variable(
    "priority_counters", "a counter for each of those pools, whose size proves that of the other array", "2.1.0"
)
CUDA_CURRENT_STREAMS = _stream_variable("current_streams", "a thread's current streams, a number for each device")
CUDA_DEVICE_COUNT = _stream_variable("num_gpus", "how many devices there are")
NATIVE_CUDA_ALLOCATOR = "NativeCachingAllocator"
"""PyTorch's own (PYTORCH_ALLOC_CONF=backend:native), by its vtable."""
