// A backward pass on a device's own thread, of which one node does not come back; or ("parallel") an operator whose
// parallel_for has a worker that does not. The program says on which thread the chain of waits begins, and on which it
// ends.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <thread>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

std::atomic<long> first{0}, last{0};

__attribute__((noinline)) void never_comes_back() {
  last = syscall(SYS_gettid);
  for (;;) pause();
}

Tensor on_device() {
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), 16,
                              c10::DataPtr(nullptr, at::Device(at::kPrivateUse1, 0)), nullptr, false);
  auto keys = c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1});
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}

struct Stuck : torch::autograd::Function<Stuck> {
  static Tensor forward(AutogradContext*, const Tensor&) { return on_device(); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    never_comes_back();
    return gradients;
  }
};

void backward() {
  auto a = on_device();
  a.set_requires_grad(true);
  auto result = Stuck::apply(a);
  result.backward(on_device());
}

Tensor in_parallel(const Tensor& a) {
  at::parallel_for(0, 4, 1, [](int64_t begin, int64_t) {
    if (begin != 0 && last == 0) never_comes_back();
  });
  return a;
}

void parallel() {
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, at::Device(at::kCPU)), nullptr, false);
  auto a = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKey::CPU, caffe2::TypeMeta::Make<float>());
  at::set_num_threads(2);
  c10::Dispatcher::singleton().findSchemaOrThrow("chains::in_parallel", "").typed<Tensor(const Tensor&)>().call(a);
}

}  // namespace

TORCH_LIBRARY(chains, m) { m.def("in_parallel(Tensor a) -> Tensor"); }
TORCH_LIBRARY_IMPL(chains, CPU, m) { m.impl("in_parallel", &in_parallel); }

extern "C" __attribute__((visibility("default"))) int matrix_main(const char* truth, const char* wanted) {
  c10::register_privateuse1_backend("npu");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  std::thread([=] {
    first = syscall(SYS_gettid);
    wanted[0] == 'p' ? parallel() : backward();
  }).detach();
  while (last == 0) usleep(1000);
  FILE* out = std::fopen(truth, "w");
  std::fprintf(out, "{\"pid\": %d, \"cases\": [], \"first\": %ld, \"last\": %ld}\n", getpid(), first.load(), last.load());
  std::fclose(out);
  for (;;) pause();
}
