"""Calls compiled code: a kernel as Inductor's generated Python does, one as its C++ does, and functions of AOTInductor.

Started by dispatch-values; the tensors before and after each call go to the file that is named, as lists.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import brisk
import native_library
import torch


class Pointer:
    """A tensor's elements as an argument; no frame of Python is left when the function is called."""

    @classmethod
    def from_param(cls, tensor):
        return ctypes.c_void_p(tensor.data_ptr())


class Handle:
    """An AtenTensorHandle: where an at::Tensor is, which is the address of its TensorImpl."""

    @classmethod
    def from_param(cls, tensor):
        slot = ctypes.c_void_p(tensor._cdata)
        slots.append(slot)
        return ctypes.c_void_p(ctypes.addressof(slot))


slots = []
calls = []


def lists(**tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


cpp_fused_mul_add_0 = native_library.load("inductor_kernel").kernel
cpp_fused_mul_add_0.argtypes = [Pointer, Pointer, Pointer, ctypes.c_long]
""" as the generated file has it:
cpp_fused_mul_add_0 = async_compile.cpp_pybinding(['const float*', 'float*', 'float*', 'const int64_t'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* in_out_ptr0,
                       float* out_ptr0,
                       const int64_t ks0)
{
"""
shims = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
shims.aoti_torch_cpu_mm_out.argtypes = [Handle, Handle, Handle]
shims.aoti_torch_cpu_cat.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]


def call(arg0_1, buf0, buf1, s77):
    cpp_fused_mul_add_0(arg0_1, buf0, buf1, s77)


arg, inout, out = torch.arange(6.0).view(2, 3), torch.full((2, 3), 2.0), torch.zeros(2, 3)
before = lists(arg0_1=arg, buf0=inout, buf1=out)
call(arg, inout, out, 6)
calls.append({"op": "cpp_fused_mul_add_0", "before": before, "after": lists(arg0_1=arg, buf0=inout, buf1=out)})

a, b, c = torch.randn(2, 3), torch.randn(3, 2), torch.zeros(2, 2)
before = lists(out=c, self=a, mat2=b)
shims.aoti_torch_cpu_mm_out(c, a, b)
calls.append({"op": "aoti_torch_cpu_mm_out", "before": before, "after": lists(out=c, self=a, mat2=b)})

pair = [Handle.from_param(each) for each in (a, a)]
handles, result = (ctypes.c_void_p * 2)(*[each.value for each in pair]), ctypes.c_void_p()
shims.aoti_torch_cpu_cat(handles, 2, -1, ctypes.addressof(result))
joined = torch.cat([a, a], -1)
calls.append({
    "op": "aoti_torch_cpu_cat",
    "before": {"tensors.0": a.tolist(), "tensors.1": a.tolist()},
    "after": {"tensors.0": a.tolist(), "tensors.1": a.tolist(), "result0": joined.tolist()},
})
model = native_library.load("inductor_model")
source, weight, scaled = torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 3)
held = [Handle.from_param(each).value for each in (source, scaled, weight)]
model.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_double]
before = lists(arg0_1=source, weight=weight, buf0=scaled)
model.run(
    (ctypes.c_void_p * 2)(*held[:2]),
    (ctypes.c_void_p * 2)(source.data_ptr(), scaled.data_ptr()),
    (ctypes.c_void_p * 2)(held[2], weight.data_ptr()),
    6,
    0.5,
)
calls.append({"op": "cpp_fused_scale_1", "before": before, "after": lists(arg0_1=source, weight=weight, buf0=scaled)})
with open(sys.argv[1], "w") as stream:
    json.dump(calls, stream)
brisk.leave()
