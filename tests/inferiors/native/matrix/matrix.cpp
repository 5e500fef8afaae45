// Operators of every kind that a user's library has, and calls of every kind. tests/support/programs/matrix.py
// compiles it in several ways; the functions of a program without Python (host.cpp) start it.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/slice.h>
#include <c10/core/DeviceType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/op_registration/op_registration.h>
#ifdef AUTOGRAD_FUNCTION  // of all these headers, this one costs most
#include <torch/csrc/autograd/custom_function.h>
#endif
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/library.h>
#include <functional>
#include <memory>
#include <thread>
#include "account.h"

using account::enter;
using account::going;
using account::wait_here;
using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

auto find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

using One = Tensor(const Tensor&);
using Two = Tensor(const Tensor&, const Tensor&);

#define CPU(op, ks) enter("zoo::" op, "CPU", (ks).raw_repr(), "AutogradCPU")

// --- leaves: one for each kind of registration and of result ---

#define LEAF(name, Result, value)                        \
  Result name(DispatchKeySet ks, const Tensor& a) {      \
    CPU(#name, ks);                                      \
    wait_here();                                         \
    return value;                                        \
  }
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
LEAF(plain, Tensor, a)
LEAF(compile_time, Tensor, a)
LEAF(number, double, 1)
LEAF(integer, int64_t, 1)
LEAF(truth, bool, true)
LEAF(scalar, at::Scalar, 1)
LEAF(text, std::string, "x")
LEAF(pair, Pair, Pair(a, a))
LEAF(triple, Triple, Triple(a, a, a))
LEAF(list, std::vector<Tensor>, {a})
LEAF(integers, std::vector<int64_t>, {1})
LEAF(maybe, std::optional<Tensor>, a)
using Mixed = std::tuple<Tensor, int64_t, double>;
LEAF(mixed, Mixed, Mixed(a, 1, 2.0))
void nothing(DispatchKeySet ks, const Tensor&) {
  CPU("nothing", ks);
  wait_here();
}
Tensor& inplace(DispatchKeySet ks, Tensor& a) {
  CPU("inplace", ks);
  wait_here();
  return a;
}
Tensor& out(DispatchKeySet ks, const Tensor&, Tensor& b) {
  CPU("out", ks);
  wait_here();
  return b;
}
Tensor unkeyed(const Tensor& a) {  // its kernel is not told the keyset
  enter("zoo::unkeyed", "CPU", 0, "AutogradCPU");
  wait_here();
  return a;
}

struct Functor final : c10::OperatorKernel {
  explicit Functor(int more) : more(more) {}
  Tensor operator()(DispatchKeySet ks, const Tensor& a) {
    CPU("functor", ks);
    wait_here();
    return at::add(a, more);
  }
  int more;
};

void boxed(const OperatorHandle&, DispatchKeySet ks, Stack*) {
  CPU("boxed", ks);
  wait_here();
}

struct BoxedFunctor final : c10::OperatorKernel {
  void operator()(const OperatorHandle&, DispatchKeySet ks, Stack*) {
    CPU("boxed_functor", ks);
    wait_here();
    ++calls;
  }
  int calls = 0;
};

// --- arguments of every kind of the schema language ---

Tensor kinds(DispatchKeySet ks, const Tensor& a, const std::optional<Tensor>& b, const std::optional<Tensor>&,
             at::TensorList c, const c10::List<std::optional<Tensor>>&, int64_t d, std::optional<int64_t> e,
             std::optional<int64_t>, at::IntArrayRef f, at::OptionalIntArrayRef g) {
  CPU("kinds", ks);
  wait_here();
  return a;
}
using Kinds = Tensor(const Tensor&, const std::optional<Tensor>&, const std::optional<Tensor>&, at::TensorList,
                     const c10::List<std::optional<Tensor>>&, int64_t, std::optional<int64_t>, std::optional<int64_t>,
                     at::IntArrayRef, at::OptionalIntArrayRef);

Tensor numbers(DispatchKeySet ks, const Tensor& a, double b, std::optional<double> c, c10::ArrayRef<double> d, bool e,
               std::optional<bool> f, std::array<bool, 3> g, const at::Scalar& h, const std::optional<at::Scalar>& i,
               const at::Scalar& j) {
  CPU("numbers", ks);
  wait_here();
  return a;
}
using Numbers = Tensor(const Tensor&, double, std::optional<double>, c10::ArrayRef<double>, bool, std::optional<bool>,
                       std::array<bool, 3>, const at::Scalar&, const std::optional<at::Scalar>&, const at::Scalar&);

Tensor words(DispatchKeySet ks, const Tensor& a, c10::string_view b, std::optional<c10::string_view> c,
             at::ScalarType d, std::optional<at::ScalarType> e, at::Layout f, at::Device g, std::optional<at::Device> h,
             std::optional<at::MemoryFormat> i, c10::SymInt j, c10::SymIntArrayRef k) {
  CPU("words", ks);
  wait_here();
  return a;
}
using Words = Tensor(const Tensor&, c10::string_view, std::optional<c10::string_view>, at::ScalarType,
                     std::optional<at::ScalarType>, at::Layout, at::Device, std::optional<at::Device>,
                     std::optional<at::MemoryFormat>, c10::SymInt, c10::SymIntArrayRef);

// --- kernels that redispatch ---

#define BELOW(op, ks, guard)                                              \
  enter("zoo::" op, "AutogradCPU", (ks).raw_repr());                      \
  static auto handle = find("zoo::" op).typed<One>();                     \
  guard;                                                                  \
  going("redispatch");                                                    \
  return handle.redispatch(ks& c10::after_autograd_keyset, a);
Tensor layered_autograd(DispatchKeySet ks, const Tensor& a) { BELOW("layered", ks, at::AutoDispatchBelowAutograd guard) }
Tensor tail_autograd(DispatchKeySet ks, const Tensor& a) { BELOW("tail", ks, ) }
LEAF(layered, Tensor, a)
LEAF(tail, Tensor, a)
LEAF(over_boxed, Tensor, a)
LEAF(over_boxed_tail, Tensor, a)
LEAF(three, Tensor, a)
LEAF(over_lambda, Tensor, a)

void boxed_autograd(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  enter("zoo::over_boxed", "AutogradCPU", ks.raw_repr());
  at::AutoDispatchBelowAutograd guard;
  going("redispatchBoxed");
  op.redispatchBoxed(ks & c10::after_autograd_keyset, stack);
}
void boxed_tail_autograd(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  enter("zoo::over_boxed_tail", "AutogradCPU", ks.raw_repr());
  going("redispatchBoxed");
  op.redispatchBoxed(ks & c10::after_autograd_keyset, stack);
}
Tensor three_autograd(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::three", "AutogradCPU", ks.raw_repr());
  static auto handle = find("zoo::three").typed<One>();
  at::AutoDispatchBelowAutograd guard;
  going("redispatch");
  return handle.redispatch(ks & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutogradOther), a);
}
Tensor three_inplace(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::three", "ADInplaceOrView", ks.raw_repr());
  static auto handle = find("zoo::three").typed<One>();
  at::AutoDispatchBelowADInplaceOrView guard;
  going("redispatch");
  return handle.redispatch(ks & c10::after_ADInplaceOrView_keyset, a);
}

// --- composite kernels and calls from one operator to another ---

Tensor composite(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::composite", "AutogradCPU", ks.raw_repr());
  static auto handle = find("zoo::plain").typed<One>();
  going("call");
  return handle.call(a);
}
Tensor composite_boxed(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::composite_boxed", "AutogradCPU", ks.raw_repr());
  Stack stack{a};
  going("callBoxed");
  find("zoo::plain").callBoxed(&stack);
  return stack.back().toTensor();
}
Tensor chain(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::chain", "AutogradCPU", ks.raw_repr());
  at::AutoDispatchBelowAutograd guard;
  going("call");
  return at::add(find("zoo::chain2").typed<One>().call(a), 1);
}
Tensor chain2(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::chain2", "CPU", ks.raw_repr(), "AutogradCPU");
  going("call");
  return at::add(find("zoo::layered").typed<One>().call(a), 1);
}
int pick(int64_t n) { return static_cast<int>(n % 2); }
Tensor countdown(DispatchKeySet ks, const Tensor& a, int64_t n) {  // a recursion that ends
  CPU("countdown", ks);
  if (n == 0) {
    wait_here();
    return a;
  }
  static auto handle = find("zoo::countdown").typed<Tensor(const Tensor&, int64_t)>();
  going("call");
  return at::add(handle.call(a, n - 1), pick(n));
}
Tensor halving(DispatchKeySet ks, const Tensor& a) {  // one that ends, whose tensors get smaller
  CPU("halving", ks);
  if (a.numel() <= 1) {
    wait_here();
    return a;
  }
  static auto handle = find("zoo::halving").typed<One>();
  going("call");
  return at::add(handle.call(a.slice(0, 1)), 1);
}
Tensor endless(DispatchKeySet ks, const Tensor& a) {  // one that does not: it stops when the program is looked at
  CPU("endless", ks);
  static thread_local int depth = 0;
  if (++depth > 600) wait_here();
  static auto handle = find("zoo::endless").typed<One>();
  going("call");
  return at::add(handle.call(a), 1);
}
Tensor again(DispatchKeySet ks, const Tensor& a) {  // redispatches with its own keyset
  enter("zoo::again", "CPU", ks.raw_repr(), "AutogradCPU");
  static thread_local int depth = 0;
  if (++depth > 40) wait_here();
  static auto handle = find("zoo::again").typed<One>();
  going("redispatch");
  return at::add(handle.redispatch(ks, a), 1);
}
Tensor through_aten(DispatchKeySet ks, const Tensor& a) {
  CPU("through_aten", ks);
  going("call");
  return find("zoo::two").typed<Two>().call(at::mul(a, 2), a);
}
Tensor two(DispatchKeySet ks, const Tensor& a, const Tensor&) {
  CPU("two", ks);
  wait_here();
  return a;
}

#ifdef AUTOGRAD_FUNCTION
struct Twice : torch::autograd::Function<Twice> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& a) {
    at::AutoDispatchBelowAutograd guard;
    static auto handle = find("zoo::twice").typed<One>();
    going("call");
    return handle.call(a);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list g) {
    return g;
  }
};
Tensor twice_autograd(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::twice", "AutogradCPU", ks.raw_repr());
  return Twice::apply(a);
}
LEAF(twice, Tensor, a)
#endif

// --- a device of one's own ---

Tensor on_device() {
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), 16, c10::DataPtr(nullptr, at::Device(at::kPrivateUse1, 0)),
                              nullptr, false);
  auto keys = DispatchKeySet(c10::DispatchKey::PrivateUse1);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}
Tensor device_leaf(DispatchKeySet ks, const Tensor& a) {
  enter("zoo::plain", "PrivateUse1", ks.raw_repr(), "AutogradPrivateUse1");
  wait_here();
  return a;
}
void device_fallback(const OperatorHandle& op, DispatchKeySet ks, Stack*) {
  static thread_local std::string name;
  name = op.operator_name().name;
  enter(name.c_str(), "PrivateUse1", ks.raw_repr(), "AutogradPrivateUse1");
  wait_here();
}

// --- ABI-stable operators ---

torch::stable::Tensor stable(torch::stable::Tensor a) {
  enter("zoo::stable", "CPU", 0, "AutogradCPU");
  wait_here();
  return a;
}

}  // namespace

TORCH_LIBRARY(zoo, m) {
  for (auto name : {"plain", "compile_time", "unkeyed", "boxed", "boxed_functor", "lambda", "capturing",
                    "layered", "tail", "over_boxed", "over_boxed_tail", "over_lambda", "three", "composite",
                    "composite_boxed", "chain", "chain2", "endless", "halving", "again", "through_aten", "twice"})
    m.def((std::string(name) + "(Tensor a) -> Tensor").c_str());
  m.def("number(Tensor a) -> float");
  m.def("integer(Tensor a) -> int");
  m.def("truth(Tensor a) -> bool");
  m.def("scalar(Tensor a) -> Scalar");
  m.def("text(Tensor a) -> str");
  m.def("pair(Tensor a) -> (Tensor, Tensor)");
  m.def("triple(Tensor a) -> (Tensor, Tensor, Tensor)");
  m.def("mixed(Tensor a) -> (Tensor, int, float)");
  m.def("list(Tensor a) -> Tensor[]");
  m.def("integers(Tensor a) -> int[]");
  m.def("maybe(Tensor a) -> Tensor?");
  m.def("nothing(Tensor a) -> ()");
  m.def("inplace(Tensor(a!) a) -> Tensor(a!)");
  m.def("out(Tensor a, *, Tensor(b!) b) -> Tensor(b!)");
  m.def("two(Tensor a, Tensor b) -> Tensor");
  m.def("countdown(Tensor a, int n) -> Tensor");
  m.def("kinds(Tensor a, Tensor? b, Tensor? b2, Tensor[] c, Tensor?[] c2, int d, int? e, int? e2, int[] f, int[]? g)"
        " -> Tensor");
  m.def("numbers(Tensor a, float b, float? c, float[] d, bool e, bool? f, bool[3] g, Scalar h, Scalar? i, Scalar j)"
        " -> Tensor");
  m.def("words(Tensor a, str b, str? c, ScalarType d, ScalarType? e, Layout f, Device g, Device? h, MemoryFormat? i,"
        " SymInt j, SymInt[] k) -> Tensor");
}

TORCH_LIBRARY_IMPL(zoo, CPU, m) {
#define IMPL(name) m.impl(#name, &name)
  IMPL(plain);
  m.impl("compile_time", TORCH_FN(compile_time));
  IMPL(unkeyed);
  m.impl("boxed", torch::CppFunction::makeFromBoxedFunction<&boxed>());
  m.impl("boxed_functor", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedFunctor>()));
  auto lambda = [](DispatchKeySet ks, const Tensor& a) {
    CPU("lambda", ks);
    wait_here();
    return a;
  };
  m.impl("lambda", lambda);
  m.impl("capturing", [](DispatchKeySet ks, Tensor a) -> Tensor {
    CPU("capturing", ks);
    wait_here();
    return a;
  });
  IMPL(layered);
  IMPL(tail);
  IMPL(over_boxed);
  IMPL(over_boxed_tail);
  IMPL(over_lambda);
  IMPL(three);
  IMPL(chain2);
  IMPL(endless);
  IMPL(halving);
  IMPL(again);
  IMPL(through_aten);
#ifdef AUTOGRAD_FUNCTION
  IMPL(twice);
#endif
  IMPL(number);
  IMPL(integer);
  IMPL(truth);
  IMPL(scalar);
  IMPL(text);
  IMPL(pair);
  IMPL(triple);
  IMPL(mixed);
  IMPL(list);
  IMPL(integers);
  IMPL(maybe);
  IMPL(nothing);
  IMPL(inplace);
  IMPL(out);
  IMPL(two);
  IMPL(countdown);
  IMPL(kinds);
  IMPL(numbers);
  IMPL(words);
}

TORCH_LIBRARY_IMPL(zoo, Autograd, m) {
  m.impl("layered", &layered_autograd);
  m.impl("tail", &tail_autograd);
  m.impl("over_boxed", torch::CppFunction::makeFromBoxedFunction<&boxed_autograd>());
  m.impl("over_boxed_tail", torch::CppFunction::makeFromBoxedFunction<&boxed_tail_autograd>());
  m.impl("over_lambda", [](DispatchKeySet ks, const Tensor& a) {
    BELOW("over_lambda", ks, at::AutoDispatchBelowAutograd guard)
  });
  m.impl("three", &three_autograd);
#ifdef AUTOGRAD_FUNCTION
  m.impl("twice", &twice_autograd);
#endif
}

TORCH_LIBRARY_IMPL(zoo, CompositeImplicitAutograd, m) {
  IMPL(composite);
  IMPL(composite_boxed);
  IMPL(chain);
}

TORCH_LIBRARY_IMPL(zoo, ADInplaceOrView, m) { m.impl("three", &three_inplace); }
TORCH_LIBRARY_IMPL(zoo, PrivateUse1, m) { m.impl("plain", &device_leaf); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&device_fallback>()); }

STABLE_TORCH_LIBRARY_FRAGMENT(zoo, m) { m.def("stable(Tensor a) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(zoo, CPU, m) { m.impl("stable", TORCH_BOX(&stable)); }

static auto older = c10::RegisterOperators().op(
    "zoo::functor(Tensor a) -> Tensor", c10::RegisterOperators::options().kernel<Functor>(c10::DispatchKey::CPU, 2));

// --- the calls ---

namespace {

Tensor ones() { return at::ones({3}, at::TensorOptions().requires_grad(true)); }

template <class Result>
void typed(const char* name) {
  auto a = ones();
  auto handle = find(name).typed<Result(const Tensor&)>();
  going("call");
  handle.call(a);
}

void callBoxed(const char* name, Stack stack = {ones()}) {
  auto handle = find(name);
  going("callBoxed");
  handle.callBoxed(&stack);
}

DispatchKeySet cpu() { return DispatchKeySet(c10::DispatchKey::CPU); }

using Body = std::function<void()>;
std::vector<std::pair<const char*, Body>> cases() {
  std::vector<std::pair<const char*, Body>> found;
#define TYPED(name, Result) found.push_back({#name, [] { typed<Result>("zoo::" #name); }})
#define BOXED(name) found.push_back({#name "/boxed", [] { callBoxed("zoo::" #name); }})
  TYPED(plain, Tensor);
  TYPED(compile_time, Tensor);
  TYPED(unkeyed, Tensor);
  TYPED(functor, Tensor);
  TYPED(boxed, Tensor);
  TYPED(boxed_functor, Tensor);
  TYPED(lambda, Tensor);
  found.push_back({"capturing", [] {
                     auto handle = find("zoo::capturing").typed<Tensor(Tensor)>();
                     going("call");
                     handle.call(ones());
                   }});
  TYPED(number, double);
  TYPED(integer, int64_t);
  TYPED(truth, bool);
  TYPED(scalar, at::Scalar);
  TYPED(text, std::string);
  TYPED(pair, Pair);
  TYPED(triple, Triple);
  TYPED(mixed, Mixed);
  TYPED(list, std::vector<Tensor>);
  TYPED(integers, std::vector<int64_t>);
  TYPED(maybe, std::optional<Tensor>);
  TYPED(nothing, void);
  TYPED(layered, Tensor);
  TYPED(tail, Tensor);
  TYPED(over_boxed, Tensor);
  TYPED(over_boxed_tail, Tensor);
  TYPED(over_lambda, Tensor);
  TYPED(three, Tensor);
  TYPED(composite, Tensor);
  TYPED(composite_boxed, Tensor);
  TYPED(chain, Tensor);
  TYPED(through_aten, Tensor);
#ifdef AUTOGRAD_FUNCTION
  TYPED(twice, Tensor);
#endif
  TYPED(again, Tensor);
  TYPED(endless, Tensor);
  TYPED(stable, Tensor);
  BOXED(plain);
  BOXED(pair);
  BOXED(list);
  BOXED(functor);
  BOXED(boxed);
  BOXED(boxed_functor);
  BOXED(lambda);
  BOXED(layered);
  BOXED(tail);
  BOXED(over_boxed_tail);
  BOXED(chain);
  BOXED(stable);
  found.push_back({"inplace", [] {
                     auto a = at::ones({3});
                     auto handle = find("zoo::inplace").typed<Tensor&(Tensor&)>();
                     going("call");
                     handle.call(a);
                   }});
  found.push_back({"out", [] {
                     auto a = at::ones({3}), b = at::ones({3});
                     auto handle = find("zoo::out").typed<Tensor&(const Tensor&, Tensor&)>();
                     going("call");
                     handle.call(a, b);
                   }});
  found.push_back({"redispatch", [] {
                     auto a = ones();
                     auto handle = find("zoo::plain").typed<One>();
                     going("redispatch");
                     handle.redispatch(cpu(), a);
                   }});
  found.push_back({"redispatch/boxed", [] {
                     Stack stack{ones()};
                     auto handle = find("zoo::plain");
                     going("redispatchBoxed");
                     handle.redispatchBoxed(cpu(), &stack);
                   }});
  found.push_back({"below", [] {
                     at::AutoDispatchBelowAutograd guard;
                     typed<Tensor>("zoo::plain");
                   }});
  found.push_back({"inference", [] {
                     c10::InferenceMode guard;
                     auto a = at::ones({3});
                     auto handle = find("zoo::layered").typed<One>();
                     account::next_event = "call";
                     handle.call(a);
                   }});
  found.push_back({"countdown", [] {
                     auto a = ones();
                     auto handle = find("zoo::countdown").typed<Tensor(const Tensor&, int64_t)>();
                     going("call");
                     handle.call(a, 300);
                   }});
  found.push_back({"countdown-20", [] {
                     auto a = ones();
                     auto handle = find("zoo::countdown").typed<Tensor(const Tensor&, int64_t)>();
                     going("call");
                     handle.call(a, 20);
                   }});
  found.push_back({"halving", [] {
                     auto a = at::ones({150});
                     auto handle = find("zoo::halving").typed<One>();
                     going("call");
                     handle.call(a);
                   }});
  found.push_back({"kinds", [] {
                     auto a = ones();
                     std::vector<Tensor> many{a, a};
                     c10::List<std::optional<Tensor>> some;
                     some.push_back(a);
                     some.push_back(std::nullopt);
                     std::vector<int64_t> f{4, 5}, g{6};
                     auto handle = find("zoo::kinds").typed<Kinds>();
                     going("call");
                     handle.call(a, a, std::nullopt, many, some, 7, 8, std::nullopt, f, g);
                   }});
  found.push_back({"numbers", [] {
                     auto a = ones();
                     std::vector<double> d{1.5, 2.5};
                     auto handle = find("zoo::numbers").typed<Numbers>();
                     going("call");
                     handle.call(a, 0.5, 1.5, d, true, false, {true, false, true}, 3, 4.5, c10::complex<double>(1, -2));
                   }});
  found.push_back({"words", [] {
                     auto a = ones();
                     std::vector<c10::SymInt> k{2, 3};
                     auto handle = find("zoo::words").typed<Words>();
                     going("call");
                     handle.call(a, "here", "there", at::kFloat, at::kHalf, at::kStrided, at::Device(at::kCPU),
                                 at::Device(at::kCUDA, 1), at::MemoryFormat::ChannelsLast, 9, k);
                   }});
  found.push_back({"words/boxed", [] {
                     callBoxed("zoo::words", {ones(), "here", "there", at::kFloat, at::kHalf, at::kStrided,
                                              at::Device(at::kCPU), at::Device(at::kCUDA, 1),
                                              at::MemoryFormat::ChannelsLast, 9, std::vector<int64_t>{2, 3}});
                   }});
  found.push_back({"device", [] {
                     auto a = on_device();
                     auto handle = find("zoo::plain").typed<One>();
                     going("call");
                     handle.call(a);
                   }});
  found.push_back({"device/fallback", [] {
                     auto a = on_device();
                     auto handle = find("zoo::pair").typed<Pair(const Tensor&)>();
                     going("call");
                     handle.call(a);
                   }});
  found.push_back({"device/aten", [] {
                     auto a = on_device();
                     going("call");
                     account::next_falls_back = false;
                     at::AutoDispatchBelowAutograd guard;
                     at::nonzero(a);
                   }});
  return found;
}

void turn() {
  typed<Tensor>("zoo::plain");
  typed<Tensor>("zoo::layered");
  typed<Pair>("zoo::pair");
  typed<Tensor>("zoo::boxed");
  typed<Tensor>("zoo::lambda");
  typed<Tensor>("zoo::composite");
  callBoxed("zoo::tail");
  usleep(5000);
}

// Calls that come back, on this thread: for breakpoints and traces. Over and over, or ten turns for each file TRUTH.go.
void loop(const char* truth, bool by_tens) {
  account::blocking = false;
  FILE* out = std::fopen(truth, "w");
  std::fprintf(out, "{\"pid\": %d, \"cases\": []}\n", getpid());
  std::fclose(out);
  auto go = std::string(truth) + ".go";
  for (;;) {
    while (by_tens && access(go.c_str(), F_OK) != 0) usleep(5000);
    for (int count = 0; count < 10; ++count) turn();
    if (by_tens) std::rename(go.c_str(), (std::string(truth) + ".gone").c_str());
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int matrix_main(const char* truth, const char* wanted) {
  c10::register_privateuse1_backend("npu");
  if (std::string(wanted) == "loop" || std::string(wanted) == "tens") loop(truth, wanted[0] == 't');
  std::vector<std::unique_ptr<account::Case>> all;
  std::string only = wanted;
  for (auto& [name, body] : cases()) {
    if (!only.empty() && only != name) continue;
    all.push_back(std::make_unique<account::Case>());
    auto* one = all.back().get();
    one->name = name;
    std::thread([one, body = body] {
      account::mine = one;
      one->tid = syscall(SYS_gettid);
      body();
      std::fprintf(stderr, "%s came back\n", one->name);
    }).detach();
    for (int patience = 0; one->waits == 0 && patience < 20000; ++patience) usleep(500);
  }
  FILE* out = std::fopen(truth, "w");
  std::fprintf(out, "{\"pid\": %d, \"cases\": [", getpid());
  const char* comma = "\n";
  for (auto& one : all) {
    std::fprintf(out, "%s", comma);
    account::print(out, *one);
    comma = ",\n";
  }
  std::fprintf(out, "\n]}\n");
  std::fclose(out);
  for (;;) pause();
}
