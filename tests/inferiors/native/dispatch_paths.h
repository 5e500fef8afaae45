// Operators whose kernels write down their keyset and wait, in every form that a kernel can have. NAMESPACE is the
// library's own; each .cpp that includes this is compiled with other options.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <c10/core/DispatchKeySet.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define OPERATOR(name) TEXT(NAMESPACE) "::" name

using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

struct Record {
  const char* path;
  long tid;
  unsigned long keyset;
};
static Record records_[256];
static std::atomic<int> count_{0};
static thread_local const char* path_ = "?";

extern "C" {
int records() { return count_; }
const char* record_path(int index) { return records_[index].path; }
long record_tid(int index) { return records_[index].tid; }
unsigned long record_keyset(int index) { return records_[index].keyset; }
void set_path(const char* name) { path_ = strdup(name); }
}

__attribute__((noinline)) static void wait_here(DispatchKeySet keyset) {
  static std::atomic<int> next{0};
  records_[next++] = {path_, syscall(SYS_gettid), keyset.raw_repr()};
  ++count_;
  for (;;) pause();
}

namespace {

using One = Tensor(const Tensor&);
using Many = Tensor(const Tensor&, const std::optional<Tensor>&, int64_t, double, c10::SymInt, c10::string_view,
                    at::TensorList, const at::Scalar&, at::IntArrayRef, bool, int64_t, int64_t);

auto find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

Tensor leaf_cpu(DispatchKeySet keyset, const Tensor& a) {
  wait_here(keyset);
  return a;
}

Tensor leaf_autograd(DispatchKeySet keyset, const Tensor& a) {
  static auto handle = find(OPERATOR("leaf")).typed<One>();
  at::AutoDispatchBelowAutograd guard;
  return handle.redispatch(keyset & c10::after_autograd_keyset, a);
}

Tensor tail_autograd(DispatchKeySet keyset, const Tensor& a) {  // no guard: it may leave by a tail call
  static auto handle = find(OPERATOR("tail")).typed<One>();
  return handle.redispatch(keyset & c10::after_autograd_keyset, a);
}

void boxed_autograd(const OperatorHandle& op, DispatchKeySet keyset, Stack* stack) {
  at::AutoDispatchBelowAutograd guard;
  op.redispatchBoxed(keyset & c10::after_autograd_keyset, stack);
}

void boxed_tail_autograd(const OperatorHandle& op, DispatchKeySet keyset, Stack* stack) {
  op.redispatchBoxed(keyset & c10::after_autograd_keyset, stack);
}

void boxed_leaf(const OperatorHandle&, DispatchKeySet keyset, Stack* stack) {
  wait_here(keyset);
  stack->back() = 1;
}

struct Functor : c10::OperatorKernel {
  int calls = 0;
  void operator()(const OperatorHandle&, DispatchKeySet keyset, Stack* stack) {
    ++calls;
    wait_here(keyset);
    stack->back() = calls;
  }
};

Tensor many_cpu(DispatchKeySet keyset, const Tensor& a, const std::optional<Tensor>&, int64_t, double, c10::SymInt,
                c10::string_view, at::TensorList, const at::Scalar&, at::IntArrayRef, bool, int64_t, int64_t) {
  wait_here(keyset);
  return a;
}

Tensor many_autograd(DispatchKeySet keyset, const Tensor& a, const std::optional<Tensor>& b, int64_t c, double d,
                     c10::SymInt e, c10::string_view f, at::TensorList g, const at::Scalar& h, at::IntArrayRef i,
                     bool j, int64_t k, int64_t l) {  // more arguments than registers
  static auto handle = find(OPERATOR("many")).typed<Many>();
  at::AutoDispatchBelowAutograd guard;
  return handle.redispatch(keyset & c10::after_autograd_keyset, a, b, c, d, e, f, g, h, i, j, k, l);
}

void nothing(DispatchKeySet keyset, const Tensor&) { wait_here(keyset); }

double number(DispatchKeySet keyset, const Tensor&) {
  wait_here(keyset);
  return 1;
}

std::tuple<Tensor, Tensor> pair(DispatchKeySet keyset, const Tensor& a) {
  wait_here(keyset);
  return {a, a};
}

std::vector<Tensor> list(DispatchKeySet keyset, at::TensorList) {
  wait_here(keyset);
  return {};
}

Tensor factory(DispatchKeySet keyset, int64_t n) {
  wait_here(keyset);
  return at::ones({n});
}

struct Waiter {
  DispatchKeySet keyset;
  ~Waiter() { wait_here(keyset); }
};

Tensor thrower(DispatchKeySet keyset, const Tensor&) {  // waits while an exception is in flight
  Waiter waiter{keyset};
  throw std::runtime_error("in flight");
}

Tensor composite(const Tensor& a) {
  static auto handle = find(OPERATOR("leaf")).typed<One>();
  return handle.call(a);
}

Tensor composite_boxed(const Tensor& a) {
  auto handle = find(OPERATOR("leaf"));
  Stack stack{a};
  handle.callBoxed(&stack);
  return stack.back().toTensor();
}

void thread_typed(Tensor a) {
  path_ = "thread_typed";
  static auto handle = find(OPERATOR("leaf")).typed<One>();
  handle.call(a);
}

void thread_boxed(Tensor a) {
  path_ = "thread_boxed";
  Stack stack{a, c10::IValue(), 1, 2.0, 3, "x", std::vector<Tensor>{a}, at::Scalar(1), std::vector<int64_t>{1},
              true, 7, 8};
  find(OPERATOR("many")).callBoxed(&stack);
}

void thread_factory() {
  path_ = "thread_factory";
  find(OPERATOR("factory")).typed<Tensor(int64_t)>().call(3);
}

Tensor begin(const Tensor& a) {  // threads that Python knows nothing of
  std::thread(thread_typed, a).detach();
  std::thread(thread_boxed, a).detach();
  std::thread(thread_factory).detach();
  return a;
}

}  // namespace

TORCH_LIBRARY(NAMESPACE, m) {
  for (auto name : {"leaf", "tail", "boxed", "boxed_tail", "thrower", "composite", "composite_boxed", "lambda", "begin"})
    m.def((std::string(name) + "(Tensor a) -> Tensor").c_str());
  m.def("many(Tensor a, Tensor? b, int c, float d, SymInt e, str f, Tensor[] g, Scalar h, int[] i, bool j, int k, int l)"
        " -> Tensor");
  m.def("boxed_leaf(Tensor a) -> int");
  m.def("functor(Tensor a) -> int");
  m.def("nothing(Tensor a) -> ()");
  m.def("number(Tensor a) -> float");
  m.def("pair(Tensor a) -> (Tensor, Tensor)");
  m.def("list(Tensor[] a) -> Tensor[]");
  m.def("factory(int n) -> Tensor");
}

TORCH_LIBRARY_IMPL(NAMESPACE, CPU, m) {
  m.impl("leaf", TORCH_FN(leaf_cpu));
  for (auto name : {"tail", "boxed", "boxed_tail"}) m.impl(name, &leaf_cpu);
  m.impl("lambda", [](DispatchKeySet keyset, const Tensor& a) {
    wait_here(keyset);
    return a;
  });
  m.impl("boxed_leaf", torch::CppFunction::makeFromBoxedFunction<&boxed_leaf>());
  m.impl("functor", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Functor>()));
  m.impl("many", &many_cpu);
  m.impl("nothing", &nothing);
  m.impl("number", &number);
  m.impl("pair", &pair);
  m.impl("list", &list);
  m.impl("thrower", &thrower);
}

TORCH_LIBRARY_IMPL(NAMESPACE, CompositeImplicitAutograd, m) {
  m.impl("composite", &composite);
  m.impl("composite_boxed", &composite_boxed);
  m.impl("begin", &begin);
}

TORCH_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) { m.impl("factory", &factory); }

TORCH_LIBRARY_IMPL(NAMESPACE, Autograd, m) {
  m.impl("leaf", &leaf_autograd);
  m.impl("tail", &tail_autograd);
  m.impl("boxed", torch::CppFunction::makeFromBoxedFunction<&boxed_autograd>());
  m.impl("boxed_tail", torch::CppFunction::makeFromBoxedFunction<&boxed_tail_autograd>());
  m.impl("many", &many_autograd);
  m.impl("functor", torch::CppFunction::makeFallthrough());
  m.impl("lambda", [](DispatchKeySet keyset, const Tensor& a) {
    static auto handle = find(OPERATOR("lambda")).typed<One>();
    at::AutoDispatchBelowAutograd guard;
    return handle.redispatch(keyset & c10::after_autograd_keyset, a);
  });
}
