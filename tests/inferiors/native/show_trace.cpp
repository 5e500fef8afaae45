// The oracle of dispatch-trace: PyTorch's own TORCH_SHOW_DISPATCH_TRACE, which release wheels are built without.
// Preloaded, these definitions take the place of libtorch's own at::_ops functions (calls go through the PLT), with the
// dispatcher's inline functions compiled as a debug build has them.
#define HAS_TORCH_SHOW_DISPATCH_TRACE
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>

namespace at::_ops {

template <class Op>
c10::TypedOperatorHandle<typename Op::schema> handle() {
  return c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name).template typed<typename Op::schema>();
}

#define BINARY(OP)                                                                            \
  Tensor OP::call(const Tensor& a, const Tensor& b) {                                         \
    static auto op = handle<OP>();                                                            \
    return op.call(a, b);                                                                     \
  }                                                                                           \
  Tensor OP::redispatch(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b) {         \
    static auto op = handle<OP>();                                                            \
    return op.redispatch(keys, a, b);                                                         \
  }

BINARY(mm)
BINARY(matmul)

Tensor linear::call(const Tensor& input, const Tensor& weight, const ::std::optional<Tensor>& bias) {
  static auto op = handle<linear>();
  return op.call(input, weight, bias);
}
Tensor linear::redispatch(
    c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight, const ::std::optional<Tensor>& bias) {
  static auto op = handle<linear>();
  return op.redispatch(keys, input, weight, bias);
}

Tensor t::call(const Tensor& self) {
  static auto op = handle<t>();
  return op.call(self);
}
Tensor t::redispatch(c10::DispatchKeySet keys, const Tensor& self) {
  static auto op = handle<t>();
  return op.redispatch(keys, self);
}

Tensor transpose_int::call(const Tensor& self, int64_t first, int64_t second) {
  static auto op = handle<transpose_int>();
  return op.call(self, first, second);
}
Tensor transpose_int::redispatch(c10::DispatchKeySet keys, const Tensor& self, int64_t first, int64_t second) {
  static auto op = handle<transpose_int>();
  return op.redispatch(keys, self, first, second);
}

Tensor& add__Tensor::call(Tensor& self, const Tensor& other, const Scalar& alpha) {
  static auto op = handle<add__Tensor>();
  return op.call(self, other, alpha);
}
Tensor& add__Tensor::redispatch(
    c10::DispatchKeySet keys, Tensor& self, const Tensor& other, const Scalar& alpha) {
  static auto op = handle<add__Tensor>();
  return op.redispatch(keys, self, other, alpha);
}

}  // namespace at::_ops
