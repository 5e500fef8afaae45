"""Where PyTorch keeps its global settings, by the names of its functions and variables, and how Python sets them.

A member of ``at::Context`` has no place that is known beforehand; its accessor has a name, and is nothing but a load
from that place. Sources, all 2.13.0: aten/src/ATen/Context.{h,cpp}, CPUGeneratorImpl.cpp, ParallelOpenMP.cpp,
ParallelThreadPoolNative.cpp, c10/core/DefaultDtype.cpp, torch/csrc/autograd/anomaly_mode.cpp.
"""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record
from gdbext.model.sections.settings_section import DEFAULT, SettingValue

CPU, C10 = "libtorch_cpu.so", "libc10.so"


class Kind(Enum):
    """What the bytes of a setting mean."""

    FLAG = "a bool"
    NUMBER = "an unsigned number"
    THREADS = "a number of threads, negative as long as nobody has set it"
    DTYPE = "a c10::ScalarType"


class Owner(Record):
    """An object that a function keeps in a static variable: ``guard`` is set once it is there."""

    variable: str
    guard: str
    is_pointer: bool
    """The variable is a smart pointer to the object."""
    made_by: str


CONTEXT = Owner(
    "_ZZN2at13globalContextEvE14globalContext_", "_ZGVZN2at13globalContextEvE14globalContext_", False,
    "at::globalContext()",
)  # fmt: skip
GENERATOR = Owner(
    "_ZZN2at6detail22getDefaultCPUGeneratorEvE15default_gen_cpu",
    "_ZGVZN2at6detail22getDefaultCPUGeneratorEvE15default_gen_cpu", True, "the default generator",
)  # fmt: skip


class SettingSource(Record):
    """``symbol`` is the accessor of a member of ``owner``, or, without one, a variable in ``library``.

    ``statement`` is the Python that sets it, with the names of settings in braces; "" where that of another one does.
    """

    name: str
    symbol: str
    kind: Kind
    default: SettingValue
    statement: str
    owner: Owner | None = CONTEXT
    library: str = CPU


_CUDNN = "torch.backends.cudnn."
_SDP = "torch.backends.cuda.enable_"
SETTINGS = (
    SettingSource(
        "deterministic_algorithms", "_ZNK2at7Context23deterministicAlgorithmsEv", Kind.FLAG, False,
        "torch.use_deterministic_algorithms({deterministic_algorithms}, "
        "warn_only={deterministic_algorithms_warn_only})"),
    SettingSource(
        "deterministic_algorithms_warn_only", "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv", Kind.FLAG, False,
        ""),
    SettingSource(
        "fill_uninitialized_memory", "_ZNK2at7Context36deterministicFillUninitializedMemoryEv", Kind.FLAG, True,
        "torch.utils.deterministic.fill_uninitialized_memory = {fill_uninitialized_memory}"),
    SettingSource("seed", "_ZNK2at16CPUGeneratorImpl12current_seedEv", Kind.NUMBER, None,
                  "torch.manual_seed({seed})", GENERATOR),  # a random one as long as nobody sets it
    SettingSource("default_dtype", "_ZN3c10L27default_dtype_as_scalartypeE", Kind.DTYPE, "torch.float32",
                  "torch.set_default_dtype({default_dtype})", None, C10),
    SettingSource("num_threads", "_ZN2at12_GLOBAL__N_111num_threadsE", Kind.THREADS, DEFAULT,
                  "torch.set_num_threads({num_threads})", None),
    SettingSource("num_interop_threads", "_ZN2at12_GLOBAL__N_119num_interop_threadsE", Kind.THREADS, DEFAULT,
                  "torch.set_num_interop_threads({num_interop_threads})", None),
    SettingSource(
        "anomaly_mode", "_ZN5torch8autograd11AnomalyMode8_enabledE", Kind.FLAG, False,
        "torch.autograd.set_detect_anomaly({anomaly_mode}, check_nan={anomaly_check_nan})", None),
    SettingSource("anomaly_check_nan", "_ZN5torch8autograd11AnomalyMode10_check_nanE", Kind.FLAG, True, "", None),
    SettingSource("cudnn_enabled", "_ZNK2at7Context16userEnabledCuDNNEv", Kind.FLAG, True,
                  _CUDNN + "enabled = {cudnn_enabled}"),
    SettingSource("cudnn_deterministic", "_ZNK2at7Context18deterministicCuDNNEv", Kind.FLAG, False,
                  _CUDNN + "deterministic = {cudnn_deterministic}"),
    SettingSource("cudnn_benchmark", "_ZNK2at7Context14benchmarkCuDNNEv", Kind.FLAG, False,
                  _CUDNN + "benchmark = {cudnn_benchmark}"),
    SettingSource("mkldnn_enabled", "_ZNK2at7Context17userEnabledMkldnnEv", Kind.FLAG, True,
                  "torch.backends.mkldnn.set_flags({mkldnn_enabled})"),
    SettingSource("flash_sdp", "_ZNK2at7Context19userEnabledFlashSDPEv", Kind.FLAG, True,
                  _SDP + "flash_sdp({flash_sdp})"),
    SettingSource("mem_efficient_sdp", "_ZNK2at7Context26userEnabledMemEfficientSDPEv", Kind.FLAG, True,
                  _SDP + "mem_efficient_sdp({mem_efficient_sdp})"),
    SettingSource("math_sdp", "_ZNK2at7Context18userEnabledMathSDPEv", Kind.FLAG, True,
                  _SDP + "math_sdp({math_sdp})"),
)  # fmt: skip
THREADS_IN_USE = -2
"""CONSUMED of ParallelThreadPoolNative.cpp: the pool exists, and has its size by itself."""
