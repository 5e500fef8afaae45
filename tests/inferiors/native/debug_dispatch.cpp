// Built -O0 -g: Dispatcher::call, lookup, KernelFunction::call and callBoxed become functions of this library, with DWARF.
#include <torch/library.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

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

}  // namespace

TORCH_LIBRARY(gdbext_debug, m) {
  m.def("mm_typed(Tensor a, Tensor b) -> Tensor");
  m.def("mm_boxed(Tensor a, Tensor b) -> Tensor");
  m.def("layered(Tensor a, Tensor b) -> Tensor");
  m.def("layered_boxed(Tensor a, Tensor b) -> Tensor");
}

TORCH_LIBRARY_IMPL(gdbext_debug, CompositeImplicitAutograd, m) {
  m.impl("mm_typed", &mm_typed);
  m.impl("mm_boxed", &mm_boxed);
}

TORCH_LIBRARY_IMPL(gdbext_debug, Autograd, m) {
  m.impl("layered", &layered_autograd);
  m.impl("layered_boxed", torch::CppFunction::makeFromBoxedFunction<&layered_boxed_autograd>());
}

TORCH_LIBRARY_IMPL(gdbext_debug, CPU, m) {
  m.impl("layered", &mm_typed);
  m.impl("layered_boxed", &mm_boxed);
}
