// A backend whose fallback puts CPU tensors in the place of its own and goes on with the CPU's kernel, and an operator
// two of whose kernels have one type, so that their wrappers are one function.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/library.h>
#include <functional>
#include <memory>
#include <thread>
#include "account.h"

using account::enter;
using account::going;
using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

using One = Tensor(const Tensor&);
auto find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

Tensor leaf(DispatchKeySet ks, const Tensor& a) {
  enter("falls::leaf", "CPU", ks.raw_repr(), "AutogradCPU");
  account::wait_here();
  return a;
}
void to_cpu(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  enter("falls::leaf", "PrivateUse1", ks.raw_repr(), "AutogradPrivateUse1");
  for (auto& value : *stack) value = at::ones({4});
  going("redispatchBoxed");
  op.redispatchBoxed(DispatchKeySet(c10::DispatchKey::CPU), stack);
}
Tensor twin_cpu(DispatchKeySet ks, const Tensor& a) {
  enter("falls::twin", "CPU", ks.raw_repr());
  account::wait_here();
  return a;
}
Tensor twin_meta(DispatchKeySet ks, const Tensor& a) {
  enter("falls::twin", "Meta", ks.raw_repr());
  going("redispatch");
  return at::add(find("falls::twin").typed<One>().redispatch(DispatchKeySet(c10::DispatchKey::CPU), a), 1);
}

// Left by an exception: its guard's call stands in rarely run code, which g++ puts elsewhere.
struct Guard {
  const Tensor& a;
  ~Guard() {
    at::AutoDispatchBelowAutograd below;
    going("call");
    find("falls::leaf").typed<One>().call(a);
  }
};
Tensor unwound(DispatchKeySet ks, const Tensor& a) {
  enter("falls::unwound", "CPU", ks.raw_repr(), "AutogradCPU");
  Guard guard{a};
  if (a.numel() > 1) throw std::runtime_error("unwound");
  return a;
}

// Arguments that own what they hold: the caller's copies are what is passed.
using Strings = std::vector<std::string>;
using Owners = Tensor(const Tensor&, std::string, const std::string&, std::vector<int64_t>, const std::vector<Tensor>&,
                      std::optional<std::string>, at::Scalar, c10::List<double>, Strings, std::optional<at::Scalar>,
                      c10::List<bool>, int64_t);
Tensor owners(const Tensor& a, std::string, const std::string&, std::vector<int64_t>, const std::vector<Tensor>&,
              std::optional<std::string>, at::Scalar, c10::List<double>, Strings, std::optional<at::Scalar>,
              c10::List<bool>, int64_t) {
  enter("falls::owners", "CPU", 0, "AutogradCPU");
  account::wait_here();
  return a;
}

// Optionals and lists of the stable ABI: only its wrapper's tuple has them while the kernel runs.
using Stable = torch::stable::Tensor;
Stable stable(Stable a, std::optional<double>, std::optional<int64_t>, std::vector<int64_t>, std::optional<Stable>, bool,
              std::string, const std::optional<std::string>&, const std::vector<Stable>&, torch::headeronly::ScalarType) {
  enter("falls::stable", "CPU", 0, "AutogradCPU");
  account::wait_here();
  return a;
}

// A kernel that owns its array of StableIValues: a result is in the place of the first argument while it goes on.
void overwrites(StableIValue* stack, uint64_t, uint64_t) {
  enter("falls::overwrites", "CPU", 0, "AutogradCPU");
  auto a = torch::stable::detail::to<Stable>(stack[0]);
  auto result = at::ones({2, 3});
  AtenTensorHandle handle;
  aoti_torch_new_tensor_handle(reinterpret_cast<AtenTensorHandle>(&result), &handle);
  stack[0] = torch::stable::detail::from(handle);
  account::wait_here();
}

// A boxed kernel that has taken its argument, and given its result.
void gives_early(const OperatorHandle&, DispatchKeySet ks, Stack* stack) {
  enter("falls::gives_early", "CPU", ks.raw_repr(), "AutogradCPU");
  stack->pop_back();
  stack->emplace_back(at::ones({2, 3}));
  account::wait_here();
}

Tensor on_device() {
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), 16, c10::DataPtr(nullptr, at::Device(at::kPrivateUse1, 0)),
                              nullptr, false);
  auto keys = DispatchKeySet(c10::DispatchKey::PrivateUse1);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}

void call(const char* name, const Tensor& a) {
  auto handle = find(name).typed<One>();
  going("call");
  handle.call(a);
}

}  // namespace

TORCH_LIBRARY(falls, m) {
  m.def("leaf(Tensor a) -> Tensor");
  m.def("twin(Tensor a) -> Tensor");
  m.def("unwound(Tensor a) -> Tensor");
  m.def("overwrites(Tensor a, int b) -> Tensor");
  m.def("gives_early(Tensor a) -> Tensor");
  m.def("owners(Tensor a, str b, str c, int[] d, Tensor[] e, str? f, Scalar g, float[] h, str[] i, Scalar? j, bool[] k,"
        " int l) -> Tensor");
  m.def("stable(Tensor a, float? b, int? c, int[] d, Tensor? e, bool f, str g, str? h, Tensor[] i, ScalarType j)"
        " -> Tensor");
}
TORCH_LIBRARY_IMPL(falls, CPU, m) {
  m.impl("leaf", &leaf);
  m.impl("twin", &twin_cpu);
  m.impl("unwound", &unwound);
  m.impl("owners", &owners);
  m.impl("gives_early", torch::CppFunction::makeFromBoxedFunction<&gives_early>());
}
STABLE_TORCH_LIBRARY_IMPL(falls, CPU, m) {
  m.impl("stable", TORCH_BOX(&stable));
  m.impl("overwrites", &overwrites);
}
TORCH_LIBRARY_IMPL(falls, Meta, m) { m.impl("twin", &twin_meta); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&to_cpu>()); }

extern "C" __attribute__((visibility("default"))) int matrix_main(const char* truth, const char*) {
  static account::Case cases[] = {{"device"}, {"twin"}, {"unwound"}, {"for key"}, {"owners"}, {"stable"},
                                  {"overwrites"}, {"gives_early"}};
  std::function<void()> bodies[] = {
      [] { call("falls::leaf", on_device()); },
      [] {
        at::AutoDispatchBelowAutograd guard;
        call("falls::twin", at::empty({3}, at::TensorOptions().device(at::kMeta)));
      },
      [] {
        try {
          call("falls::unwound", at::ones({3}));
        } catch (const std::runtime_error&) {
        }
      },
      [] {  // the kernel of a key that is not the highest one of the keyset
        Stack stack{at::ones({3})};
        account::next_event = "callBoxed";
        find("falls::leaf").callBoxedForDispatchKey(c10::DispatchKey::CPU, stack);
      },
      [] {
        auto a = at::ones({3});
        auto handle = find("falls::owners").typed<Owners>();
        at::AutoDispatchBelowAutograd below;
        going("call");
        handle.call(a, "here", "a text that no string holds in itself", {4, 5}, {a, a}, "there", 2.5,
                    c10::List<double>({0.5, 1.5}), {"x", "y"}, 7, c10::List<bool>({true, false}), 99);
      },
      [] {
        auto a = at::ones({3});
        Stack stack{a, 2.5, 7, std::vector<int64_t>{4, 5}, a, true, "here", "a text that no string holds in itself",
                    c10::List<Tensor>({a}), at::kDouble};
        at::AutoDispatchBelowAutograd below;
        going("callBoxed");
        find("falls::stable").callBoxed(&stack);
      },
      [] {
        Stack stack{at::ones({4, 5}), 7};
        going("callBoxed");
        find("falls::overwrites").callBoxed(&stack);
      },
      [] {
        Stack stack{at::ones({4, 5})};
        going("callBoxed");
        find("falls::gives_early").callBoxed(&stack);
      },
  };
  FILE* out = std::fopen((std::string(truth) + ".part").c_str(), "w");
  std::fprintf(out, "{\"pid\": %d, \"cases\": [", getpid());
  for (int number = 0; number < 8; ++number) {
    auto* one = &cases[number];
    std::thread([one, body = bodies[number]] {
      account::mine = one;
      one->tid = syscall(SYS_gettid);
      body();
    }).detach();
    for (int patience = 0; one->waits == 0 && patience < 20000; ++patience) usleep(500);
    account::print(out, *one);
    std::fputs(number < 7 ? ",\n" : "\n]}\n", out);
  }
  std::fclose(out);
  std::rename((std::string(truth) + ".part").c_str(), truth);
  for (;;) pause();
}
