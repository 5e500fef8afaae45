"""Calls operators and compiled code, and writes down what each was given and returned. Started by dispatch-values.

Arguments: ``operators`` or ``compiled``, and the file for the calls in order, each with its tensors as lists. Compiled:
a kernel as Inductor's generated Python calls it, one as its C++ does, and functions of AOTInductor.
"""

import ctypes
import json
import os
import sys

import brisk
import native_library
import torch

torch.manual_seed(3)
calls = []


def lists(**tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def call(op, function, *arguments, names, results=("result0",)):
    """Call it, with copies of what goes in and comes out."""
    given = lists(**dict(zip(names, arguments)))
    returned = function(*arguments)
    found = returned if isinstance(returned, (tuple, list)) else (returned,)
    calls.append({"op": op, "before": given, "after": lists(**dict(zip(results, found)))})


def operators():
    a, b, c = torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 4)
    call("aten::mm", torch.mm, a, b, names=("self", "mat2"))
    call("aten::mm", torch.ops.aten.mm.default, a, b, names=("self", "mat2"))
    call("aten::add_", lambda x, y: x.add_(y, alpha=2), c.clone(), a, names=("self", "other"))
    call("aten::max", lambda x: torch.max(x, 1), a, names=("self",), results=("values", "indices"))
    call("aten::cat", lambda x, y: torch.cat([x, y], 0), a, c, names=("tensors.0", "tensors.1"))
    call("aten::split", lambda x: torch.split(x, 2, 1), a, names=("self",), results=("result0.0", "result0.1"))
    call("aten::layer_norm", lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), a, torch.ones(4),
         names=("input", "weight"))
    torch.nan_to_num(a, nan=0.5, neginf=-2.5)
    torch.nn.functional.batch_norm(a, None, None, training=True, momentum=0.125, eps=1e-4)


class Pointer:
    """A tensor's elements as an argument; no frame of Python is left when the function is called."""

    @classmethod
    def from_param(cls, tensor):
        return ctypes.c_void_p(tensor.data_ptr())


class Handle:
    """An AtenTensorHandle: where an at::Tensor is, which is the address of its TensorImpl."""

    @classmethod
    def from_param(cls, tensor):
        slots.append(ctypes.c_void_p(tensor._cdata))
        return ctypes.c_void_p(ctypes.addressof(slots[-1]))


slots: list = []


def pointers(*values):
    return (ctypes.c_void_p * len(values))(*values)


""" as the generated file has it:
cpp_fused_mul_add_0 = async_compile.cpp_pybinding(['const float*', 'float*', 'float*', 'const int64_t'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* in_out_ptr0,
                       float* out_ptr0,
                       const int64_t ks0)
{
"""


def run_kernel(arg0_1, buf0, buf1, s77):
    cpp_fused_mul_add_0(arg0_1, buf0, buf1, s77)


def record(op, function, *arguments, **tensors):
    before = lists(**tensors)
    function(*arguments)
    calls.append({"op": op, "before": before, "after": lists(**tensors)})


def compiled():
    global cpp_fused_mul_add_0
    cpp_fused_mul_add_0 = native_library.load("inductor_kernel").kernel
    cpp_fused_mul_add_0.argtypes = [Pointer, Pointer, Pointer, ctypes.c_long]
    shims = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    shims.aoti_torch_cpu_mm_out.argtypes = [Handle, Handle, Handle]
    shims.aoti_torch_cpu_cat.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    arg, inout, out = torch.arange(6.0).view(2, 3), torch.full((2, 3), 2.0), torch.zeros(2, 3)
    record("cpp_fused_mul_add_0", run_kernel, arg, inout, out, 6, arg0_1=arg, buf0=inout, buf1=out)
    a, b, c = torch.randn(2, 3), torch.randn(3, 2), torch.zeros(2, 2)
    record("aoti_torch_cpu_mm_out", shims.aoti_torch_cpu_mm_out, c, a, b, out=c, self=a, mat2=b)
    handles, result = pointers(*[Handle.from_param(a).value for _ in range(2)]), ctypes.c_void_p()
    pair = {"tensors.0": a, "tensors.1": a}
    record("aoti_torch_cpu_cat", shims.aoti_torch_cpu_cat, handles, 2, -1, ctypes.addressof(result), **pair)
    calls[-1]["after"]["result0"] = torch.cat([a, a], -1).tolist()
    model = native_library.load("inductor_model")
    source, weight, scaled = torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 3)
    held = [Handle.from_param(each).value for each in (source, scaled, weight)]
    model.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_double]
    inputs, buffers = pointers(*held[:2]), pointers(source.data_ptr(), scaled.data_ptr())
    constants = pointers(held[2], weight.data_ptr())
    tensors = {"arg0_1": source, "weight": weight, "buf0": scaled}
    record("cpp_fused_scale_1", model.run, inputs, buffers, constants, 6, 0.5, **tensors)


{"operators": operators, "compiled": compiled}[sys.argv[1]]()
with open(sys.argv[2], "w") as stream:
    json.dump(calls, stream)
brisk.leave()
