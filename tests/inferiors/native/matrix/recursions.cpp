// Recursions, each on a thread of its own: those that end (their levels' arguments differ), and those that do not. All
// have stopped somewhere, or run on there. The program says which is which, and how deep each is.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <pthread.h>
#include <torch/library.h>
#include <functional>
#include <memory>
#include "account.h"

using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

thread_local int64_t depth = 0, limit = 0;
thread_local bool spins = false;
std::atomic<int64_t> spun{0};

auto find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }
template <class Signature>
auto typed(const char* name) {
  return find(name).typed<Signature>();
}

__attribute__((noinline)) void bottom() {
  account::mine->waits = 1;
  for (;;)
    if (spins) ++spun;
    else pause();
}
bool too_deep() { return ++depth >= limit; }

using One = Tensor(const Tensor&);
using Counted = Tensor(const Tensor&, int64_t);
using Boxes = Tensor(const Tensor&, at::IntArrayRef);
using Fraction = Tensor(const Tensor&, double);
using Text = Tensor(const Tensor&, c10::string_view);

// --- they end: an argument gets nearer to it ---

Tensor down(const char* next, const Tensor& a, int64_t n) {
  ++depth;
  if (n == 0) bottom();
  return at::add(typed<Counted>(next).call(a, n - 1), 1);
}
Tensor countdown(const Tensor& a, int64_t n) { return down("deep::countdown", a, n); }
Tensor ping(const Tensor& a, int64_t n) { return down("deep::pong", a, n); }
Tensor pong(const Tensor& a, int64_t n) { return down("deep::ping", a, n); }
Tensor one_of_three(const Tensor& a, int64_t n) { return down("deep::two_of_three", a, n); }
Tensor two_of_three(const Tensor& a, int64_t n) { return down("deep::three_of_three", a, n); }
Tensor three_of_three(const Tensor& a, int64_t n) { return down("deep::one_of_three", a, n); }
Tensor composite(const Tensor& a, int64_t n) { return down("deep::composite", a, n); }
Tensor through_box(const Tensor& a, int64_t n) {
  ++depth;
  if (n == 0) bottom();
  Stack stack{a, n - 1};
  find("deep::through_box").callBoxed(&stack);
  return at::add(stack.back().toTensor(), 1);
}
Tensor halving(const Tensor& a) {
  ++depth;
  if (a.numel() <= 1) bottom();
  return at::add(typed<One>("deep::halving").call(a.slice(0, 1)), 1);
}
Tensor growing(const Tensor& a) {
  if (++depth; a.numel() >= limit) bottom();
  return at::add(typed<One>("deep::growing").call(at::cat({a, a.slice(0, 0, 1)})), 1);
}
Tensor iterating(const Tensor& a) {  // a new tensor of the same size at each level: it ends where it has converged
  if (too_deep()) bottom();
  return at::add(typed<One>("deep::iterating").call(at::add(a, 1)), 1);
}
Tensor boxes(const Tensor& a, at::IntArrayRef left) {
  ++depth;
  if (left.empty()) bottom();
  return at::add(typed<Boxes>("deep::boxes").call(a, left.slice(1)), 1);
}
Tensor fraction(const Tensor& a, double step) {
  if (too_deep()) bottom();
  return at::add(typed<Fraction>("deep::fraction").call(a, step / 2), 1);
}
Tensor text(const Tensor& a, c10::string_view rest) {
  ++depth;
  if (rest.empty()) bottom();
  return at::add(typed<Text>("deep::text").call(a, rest.substr(1)), 1);
}
Tensor tree(const Tensor& a, int64_t n) {
  ++depth;
  if (n == 0 && depth > limit) bottom();
  if (n == 0) return a;
  auto handle = typed<Counted>("deep::tree");
  return at::add(handle.call(a, n - 1), handle.call(a, n - 1));
}
Tensor layered(const Tensor& a, int64_t n) { return down("deep::layered", a, n); }
Tensor layered_autograd(DispatchKeySet ks, const Tensor& a, int64_t n) {
  return at::add(typed<Counted>("deep::layered").redispatch(ks & c10::after_autograd_keyset, a, n), 1);
}

// --- they do not end ---

Tensor again(const char* next, const Tensor& a) {
  if (too_deep()) bottom();
  return at::add(typed<One>(next).call(a), 1);
}
Tensor endless(const Tensor& a) { return again("deep::endless", a); }
Tensor tick(const Tensor& a) { return again("deep::tock", a); }
Tensor tock(const Tensor& a) { return again("deep::tick", a); }
Tensor rock(const Tensor& a) { return again("deep::paper", a); }
Tensor paper(const Tensor& a) { return again("deep::scissors", a); }
Tensor scissors(const Tensor& a) { return again("deep::rock", a); }
Tensor implicit(const Tensor& a) { return again("deep::implicit", a); }
Tensor same_number(const Tensor& a, int64_t n) {
  if (too_deep()) bottom();
  return at::add(typed<Counted>("deep::same_number").call(a, n), 1);
}
Tensor boxed_again(const Tensor& a) {
  if (too_deep()) bottom();
  Stack stack{a};
  find("deep::boxed_again").callBoxed(&stack);
  return at::add(stack.back().toTensor(), 1);
}
Tensor own_key(DispatchKeySet ks, const Tensor& a) {
  if (too_deep()) bottom();
  return at::add(typed<One>("deep::own_key").redispatch(ks, a), 1);
}
void own_key_boxed(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  if (too_deep()) bottom();
  op.redispatchBoxed(ks, stack);
  ++depth;
}

}  // namespace

TORCH_LIBRARY(deep, m) {
  for (auto name : {"countdown", "ping", "pong", "one_of_three", "two_of_three", "three_of_three", "composite",
                    "through_box", "tree", "layered", "same_number"})
    m.def((std::string(name) + "(Tensor a, int n) -> Tensor").c_str());
  for (auto name : {"halving", "growing", "iterating", "endless", "tick", "tock", "rock", "paper", "scissors",
                    "implicit", "boxed_again", "own_key", "own_key_boxed"})
    m.def((std::string(name) + "(Tensor a) -> Tensor").c_str());
  m.def("boxes(Tensor a, int[] left) -> Tensor");
  m.def("fraction(Tensor a, float step) -> Tensor");
  m.def("text(Tensor a, str rest) -> Tensor");
}
#define IMPL(name) m.impl(#name, &name);
TORCH_LIBRARY_IMPL(deep, CPU, m) {
  IMPL(countdown) IMPL(ping) IMPL(pong) IMPL(one_of_three) IMPL(two_of_three) IMPL(three_of_three) IMPL(through_box)
  IMPL(tree) IMPL(layered) IMPL(same_number) IMPL(halving) IMPL(growing) IMPL(iterating) IMPL(endless) IMPL(tick)
  IMPL(tock) IMPL(rock) IMPL(paper) IMPL(scissors) IMPL(boxed_again) IMPL(own_key) IMPL(boxes) IMPL(fraction) IMPL(text)
  m.impl("own_key_boxed", torch::CppFunction::makeFromBoxedFunction<&own_key_boxed>());
}
TORCH_LIBRARY_IMPL(deep, CompositeImplicitAutograd, m) { IMPL(composite) IMPL(implicit) }
TORCH_LIBRARY_IMPL(deep, Autograd, m) { m.impl("layered", &layered_autograd); }

namespace {

struct Recursion {
  const char* name;
  bool ends;
  int64_t limit;
  bool spins;
  std::function<void()> body;
  account::Case* place = new account::Case{};
};

Tensor ones(int64_t n = 3) { return at::ones({n}); }
template <class... Arguments>
std::function<void()> call(const char* name, Arguments... arguments) {
  return [=] { typed<Tensor(const Tensor&, Arguments...)>(name).call(ones(), arguments...); };
}

std::vector<Recursion> recursions() {
  auto tensors = [](const char* name, int64_t size) { return [=] { typed<One>(name).call(ones(size)); }; };
  auto many = [] { typed<Boxes>("deep::boxes").call(ones(), std::vector<int64_t>(100, 1)); };
  auto long_text = [] { typed<Text>("deep::text").call(ones(), std::string(120, 'x')); };
  return {
      {"countdown-10", true, 0, false, call<int64_t>("deep::countdown", 10)},
      {"countdown-100", true, 0, false, call<int64_t>("deep::countdown", 100)},
      {"countdown-300", true, 0, false, call<int64_t>("deep::countdown", 300)},
      {"countdown-1000", true, 0, false, call<int64_t>("deep::countdown", 1000)},
      {"countdown-3000", true, 0, false, call<int64_t>("deep::countdown", 3000)},
      {"running-50", true, 0, true, call<int64_t>("deep::countdown", 50)},
      {"running-1000", true, 0, true, call<int64_t>("deep::countdown", 1000)},
      {"two-400", true, 0, false, call<int64_t>("deep::ping", 400)},
      {"three-900", true, 0, false, call<int64_t>("deep::one_of_three", 900)},
      {"composite-200", true, 0, false, call<int64_t>("deep::composite", 200)},
      {"boxed-200", true, 0, false, call<int64_t>("deep::through_box", 200)},
      {"halving-20", true, 0, false, tensors("deep::halving", 20)},
      {"halving-500", true, 0, false, tensors("deep::halving", 500)},
      {"growing-150", true, 150, false, tensors("deep::growing", 1)},
      {"iterating-200", true, 200, false, tensors("deep::iterating", 3)},
      {"list-100", true, 0, false, many},
      {"float-300", true, 300, false, call<double>("deep::fraction", 1.0)},
      {"text-120", true, 0, false, long_text},
      {"tree-12", true, 100, false, call<int64_t>("deep::tree", 12)},
      {"layered-150", true, 0, false, call<int64_t>("deep::layered", 150)},
      {"endless", false, 600, false, tensors("deep::endless", 3)},
      {"endless-running", false, 2000, true, tensors("deep::endless", 3)},
      {"two", false, 600, false, tensors("deep::tick", 3)},
      {"three", false, 600, false, tensors("deep::rock", 3)},
      {"implicit", false, 600, false, tensors("deep::implicit", 3)},
      {"same-number", false, 600, false, call<int64_t>("deep::same_number", 7)},
      {"boxed", false, 600, false, tensors("deep::boxed_again", 3)},
      {"own-key", false, 40, false, tensors("deep::own_key", 3)},
      {"own-key-boxed", false, 40, false, tensors("deep::own_key_boxed", 3)},
  };
}

void* run(void* given) {
  auto* one = static_cast<Recursion*>(given);
  account::mine = one->place;
  limit = one->limit;
  spins = one->spins;
  one->place->tid = syscall(SYS_gettid);
  one->body();
  std::fprintf(stderr, "%s came back\n", one->name);
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int matrix_main(const char* truth, const char*) {
  auto* all = new std::vector<Recursion>;
  *all = recursions();
  FILE* out = std::fopen(truth, "w");
  std::fprintf(out, "{\"pid\": %d, \"cases\": [", getpid());
  const char* comma = "";
  for (auto& one : *all) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64ul << 20);
    pthread_t thread;
    pthread_create(&thread, &attributes, run, &one);
    for (int patience = 0; one.place->waits == 0 && patience < 20000; ++patience) usleep(500);
    std::fprintf(out, "%s\n{\"name\": \"%s\", \"tid\": %ld, \"ends\": %s}", comma, one.name, one.place->tid,
                 one.ends ? "true" : "false");
    comma = ",";
  }
  std::fprintf(out, "\n]}\n");
  std::fclose(out);
  for (;;) pause();
}
