"""What Inductor's generated Python, its kernels' names and AOTInductor's headers say, and what was compiled again."""

from __future__ import annotations

from gdbext.torch.compile.compile_section import Compilation, recompilations
from gdbext.torch.compile.generated_kernels import (
    Parameter,
    called_kernel,
    cpp_arguments,
    cpp_parameters,
    fused_operators,
    is_only_written,
    kernel_parameters,
    launched_before,
    pointed_dtype,
    shim_signatures,
)

GENERATED = """
cpp_fused_add_mul_relu_0 = async_compile.cpp_pybinding(['const float*', 'const float*', 'float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0)
{
}
''')

cpp_fused_lost_1 = async_compile.cpp_pybinding(['const float*'], r'''''')

cpp_fused_sum_2 = async_compile.cpp_pybinding(['float*', 'const int64_t'], r'''
extern "C"  void  kernel(float* in_out_ptr0,
                       const int64_t ks0)
{
"""


def test_the_line_that_calls_a_kernel_whose_parameters_are_those_of_its_own_source() -> None:
    line = "        cpp_fused_add_mul_relu_0(arg0_1, buf3, s77)"
    assert called_kernel(line) == ("cpp_fused_add_mul_relu_0", ("arg0_1", "buf3", "s77"))
    for other in ("buf1 = empty_strided_cpu((8, 8), (8, 1), torch.float32)", "extern_kernels.mm(arg0_1, out=buf1)"):
        assert called_kernel(other) is None
    three = ("const float* in_ptr0", "const float* in_ptr1", "float* out_ptr0")
    assert kernel_parameters(GENERATED, "cpp_fused_add_mul_relu_0") == three
    assert kernel_parameters(GENERATED, "cpp_fused_sum_2") == ("float* in_out_ptr0", "const int64_t ks0")
    assert kernel_parameters(GENERATED, "cpp_fused_lost_1") == kernel_parameters(GENERATED, "cpp_fused_sum") == ()
    written = [is_only_written(each) for each in ("float* out_ptr0", "float* in_out_ptr0", "Tensor")]
    assert written == [True, False, False]


CALLING = """
extern "C"  void  cpp_fused_add_0(const float* in_ptr0,
                       bfloat16* out_ptr0,
                       const int64_t ks0);
class AOTInductorModelKernels { void* cpp_fused_add_0{nullptr}; };
    cpp_fused_add_0((const float*)(arg0_1.data_ptr()), (bfloat16*)(buf1.data_ptr()), 2L*s77);
    cpp_fused_mul_1((const float*)(buf1.data_ptr()));
    cpp_fused_mul_1((const float*)(buf2.data_ptr()));
"""


def test_calls_and_parameters_where_the_calling_code_is_cpp() -> None:
    parameters = cpp_parameters(CALLING, "cpp_fused_add_0")
    assert parameters == ("const float* in_ptr0", "bfloat16* out_ptr0", "const int64_t ks0")
    assert list(map(pointed_dtype, parameters)) == ["float32", "bfloat16", ""]
    assert cpp_arguments(CALLING, "cpp_fused_add_0") == ("arg0_1", "buf1", "")
    assert cpp_arguments(CALLING, "cpp_fused_mul_1") == ()  # which of both calls is not known
    assert cpp_parameters(CALLING, "cpp_fused_mul_1") == ()


def test_signatures_of_shims() -> None:
    header = """
    // AOTITorchError aoti_torch_old(AtenTensorHandle self);
    AOTI_TORCH_EXPORT AOTITorchError aoti_torch_get_data_ptr(
        AtenTensorHandle tensor,
        void** ret_data_ptr // returns borrowed reference
    );
    AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_cat(const AtenTensorHandle* tensors, int64_t tensors_len_,
        int64_t dim, AtenTensorHandle* ret0);
    """
    found = shim_signatures([header])
    pointer = (Parameter("AtenTensorHandle", "tensor"), Parameter("void**", "ret_data_ptr"))
    assert found["aoti_torch_get_data_ptr"] == pointer
    assert found["aoti_torch_cpu_cat"][0] == Parameter("const AtenTensorHandle*", "tensors")
    assert [each.is_result for each in found["aoti_torch_cpu_cat"]] == [False, False, False, True]
    assert len(found) == 2


LAUNCHES = """
def call(args):
    arg0_1, = args
    with torch.cuda._DeviceGuard(0):
        buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_add_0.run(arg0_1, buf0, 8, grid=grid(8), stream=stream0)
        extern_kernels.mm(buf0, buf0, out=buf1)
        triton_red_fused_sum_1.run(buf1, buf2, 1, 8, stream=stream0)
        buf3 = buf2.item()
        triton_poi_fused_mul_2.run(buf2, buf4, 8, stream=stream0)
"""


def test_the_kernels_that_were_launched_before_a_line() -> None:
    lines = [line.strip() for line in LAUNCHES.split("\n")]
    at_item = lines.index("buf3 = buf2.item()") + 1
    names = ("triton_red_fused_sum_1", "extern_kernels.mm", "triton_poi_fused_add_0")
    launched = tuple((name, at_item - before) for before, name in enumerate(names, 1))
    assert launched_before(lines, at_item) == launched
    assert launched_before(lines, at_item, 1) == launched[:1]
    assert launched_before(lines, 4) == (), "nothing was launched yet"
    assert launched_before(lines, 10_000)[0] == ("triton_poi_fused_mul_2", at_item + 1)
    assert launched_before([], 7) == ()
    branches = "def call(args):|if args:|triton_a_0.run(x)|else:|triton_b_1.run(x)|triton_c_2.run(x)|y"
    assert launched_before(branches.split("|"), 7) == (), "they may not have been"
    assert launched_before(branches.split("|")[1:], 6) == (), "no function begins there"


OPERATORS = frozenset({"add", "relu", "native_layer_norm", "native", "layer", "_softmax", "threshold_backward", "sum"})


def test_the_operators_in_a_name() -> None:
    for kernel, fused in {
        "cpp_fused_add_relu_0": ("add", "relu"),
        "cpp_fused_native_layer_norm_relu_12": ("native_layer_norm", "relu"),
        "cpp_fused__softmax_1": ("_softmax",),
        "cpp_fused_add__softmax_threshold_backward_3": ("add", "_softmax", "threshold_backward"),
        "triton_poi_fused_add_relu_0": ("add", "relu"),
        **dict.fromkeys(("cpp_fused_add_unheard_of_0", "cpp_fused_0", "step"), ()),
    }.items():
        assert fused_operators(kernel, OPERATORS) == fused, kernel


def test_what_was_compiled_again_without_a_recorded_reason() -> None:
    def compilation(number: str | None, reason: str | None = None) -> Compilation:
        return Compilation(number, "f", "f.py", 1, reason, None, None, None, True)

    first = [compilation(each) for each in ("0/0", "10/0", "!0/2/0", "1/0_1", None)]
    again = [*(compilation(each) for each in ("0/1", "12/10", "!0/2/1", "1/2_3")), compilation(None, "0/0: n == 1")]
    assert recompilations((*first, *again)) == tuple(again)
