// Built -O0 -g: Dispatcher::call, lookup, KernelFunction::call and callBoxed become functions of this library, with DWARF.
#include <unistd.h>

#include <cstring>

#include <torch/library.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <c10/core/DispatchKeySet.h>

extern "C" volatile int types_are_there;
volatile int types_are_there = 0;

namespace {

using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

Tensor mm_typed(const Tensor& a, const Tensor& b) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  return handle.typed<Tensor(const Tensor&, const Tensor&)>().call(a, b);
}

Tensor mm_boxed(const Tensor& a, const Tensor& b) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  Stack stack{a, b};
  handle.callBoxed(&stack);
  return stack.back().toTensor();
}

// An autograd kernel that redispatches by hand, unboxed and boxed, to the CPU kernel below it.
Tensor layered_autograd(DispatchKeySet ks, const Tensor& a, const Tensor& b) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("gdbext_debug::layered", "");
  auto typed = handle.typed<Tensor(const Tensor&, const Tensor&)>();
  return typed.redispatch(ks & c10::after_autograd_keyset, a, b);
}

void layered_boxed_autograd(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  op.redispatchBoxed(ks & c10::after_autograd_keyset, stack);
}

// A local variable of each type that the debuggers' summaries are for.
Tensor types(const Tensor& a) {
  DispatchKeySet keyset = a.key_set();
  c10::DispatchKey key = c10::DispatchKey::AutogradCPU;
  OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  auto typed = handle.typed<Tensor(const Tensor&, const Tensor&, const c10::Scalar&)>();
  c10::OperatorName name = handle.operator_name();
  c10::FunctionSchema schema = handle.schema();
  auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(&mm_boxed);
  c10::KernelFunction no_kernel;
  Tensor integers = at::arange(6, at::kLong).view({2, 3}), undefined, moved = a;
  Tensor kept = std::move(moved);
  c10::TensorImpl& implementation = *a.unsafeGetTensorImpl();
  c10::Storage storage = integers.storage(), no_storage;
  c10::Scalar whole(-42), real(2.5), truth(true), complex(c10::complex<double>(1, -2));
  c10::Device device(c10::DeviceType::CUDA, 1);
  c10::ScalarType dtype = integers.scalar_type();
  caffe2::TypeMeta meta = a.dtype();
  c10::SymInt symint(7);
  std::vector<Tensor> both{a, integers};
  at::IntArrayRef sizes = integers.sizes(), empty;
  at::TensorList tensors = both;
  c10::SmallVector<int64_t, 5> small{4, 5, 6};
  c10::SmallVector<c10::ScalarType, 2> small_elements{at::kFloat, at::kBool, at::kHalf};
  c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> pointer = a.getIntrusivePtr();
  c10::intrusive_ptr<c10::StorageImpl> storage_pointer = storage.getWeakStorageImpl().lock();
  c10::intrusive_ptr<c10::StorageImpl> null;
  c10::List<Tensor> list({a, integers});
  c10::Dict<std::string, int64_t> dict;
  dict.insert("one", 1);
  dict.insert("two", 2);
  std::vector<c10::IValue> ivalues{
      c10::IValue(), 5, 0.5, true, "text", a, device, c10::complex<double>(3, 4), list, dict,
      c10::ivalue::Tuple::create(1, "two"), c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, 2, 3, 4})};
  c10::IValue nested(ivalues.at(10));
  alignas(16) unsigned char garbage[256];
  std::memset(garbage, a.dim() ? 0x5a : 0, sizeof garbage);
  types_are_there = 1;
  for (;;) pause();
}

}  // namespace

TORCH_LIBRARY(gdbext_debug, m) {
  m.def("types(Tensor a) -> Tensor");
  m.def("mm_typed(Tensor a, Tensor b) -> Tensor");
  m.def("mm_boxed(Tensor a, Tensor b) -> Tensor");
  m.def("layered(Tensor a, Tensor b) -> Tensor");
  m.def("layered_boxed(Tensor a, Tensor b) -> Tensor");
}

TORCH_LIBRARY_IMPL(gdbext_debug, CompositeImplicitAutograd, m) {
  m.impl("mm_typed", &mm_typed);
  m.impl("mm_boxed", &mm_boxed);
  m.impl("types", &types);
}

TORCH_LIBRARY_IMPL(gdbext_debug, Autograd, m) {
  m.impl("layered", &layered_autograd);
  m.impl("layered_boxed", torch::CppFunction::makeFromBoxedFunction<&layered_boxed_autograd>());
}

TORCH_LIBRARY_IMPL(gdbext_debug, CPU, m) {
  m.impl("layered", &mm_typed);
  m.impl("layered_boxed", &mm_boxed);
}
