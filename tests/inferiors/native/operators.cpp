// Operators as a user's extension registers them, -O2: kernels that wait, lock, crash and never stop redispatching.
#include "helpers.h"

#include <pthread.h>
#include <torch/library.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <thread>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

pthread_mutex_t* mutex_at(int64_t address) { return reinterpret_cast<pthread_mutex_t*>(address); }

// --- plain kernels ---------------------------------------------------------------------------------------------

Tensor plain(const Tensor& x) { return at::empty_like(x); }

void boxed(const OperatorHandle&, Stack* stack) {
  Tensor x = stack->back().toTensor();
  stack->back() = at::empty_like(x);
}

// --- kernels that wait ------------------------------------------------------------------------------------------

pthread_mutex_t lost_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t lost_condvar = PTHREAD_COND_INITIALIZER;

void wait_for_nobody() {
  pthread_mutex_lock(&lost_mutex);
  for (;;) pthread_cond_wait(&lost_condvar, &lost_mutex);
}

Tensor wait_unboxed(const Tensor& x, bool tell) {
  if (tell) helpers::announce();
  wait_for_nobody();
  return x;
}

void wait_boxed(const OperatorHandle&, Stack* stack) {
  if (stack->back().toBool()) helpers::announce();
  wait_for_nobody();
}

Tensor lock_one(const Tensor& x, int64_t mutex, bool tell) {
  if (tell) helpers::announce();
  pthread_mutex_lock(mutex_at(mutex));
  pthread_mutex_unlock(mutex_at(mutex));
  return x;
}

// Takes one mutex, meets the others, takes the next; whoever is last to arrive has told the world.
Tensor lock_in_order(const Tensor& x, int64_t mine, int64_t next, int64_t count) {
  pthread_mutex_lock(mutex_at(mine));
  helpers::meet(0, static_cast<int>(count));
  helpers::announce();
  pthread_mutex_lock(mutex_at(next));
  return x;
}

Tensor lock_then_gil(const Tensor& x, int64_t mutex, int64_t mine, int64_t theirs) {
  pthread_mutex_lock(mutex_at(mutex));
  helpers::set_flag(static_cast<int>(mine));
  helpers::wait_flag(static_cast<int>(theirs));
  PyGILState_Release(PyGILState_Ensure());
  pthread_mutex_unlock(mutex_at(mutex));
  return x;
}

Tensor crash(const Tensor& x, int64_t address) {
  *reinterpret_cast<volatile int*>(address) = 1;
  return x;
}

// A thread of the kernel's own, in which nobody catches what it throws.
Tensor crash_in_thread(const Tensor& x, c10::string_view message) {
  std::thread([text = std::string(message.data(), message.size())] { TORCH_CHECK(false, text); }).join();
  return x;
}

// Nobody catches what the dispatcher throws: cpu_only has no kernel for the tensor.
Tensor miss_kernel_in_thread(const Tensor& x) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gdbext_test::cpu_only", "").typed<Tensor(const Tensor&)>();
  std::thread([op, x] { op.call(x); }).join();
  return x;
}

// --- a handle whose initialiser wants the GIL -------------------------------------------------------------------

auto handle_under_gil() {
  helpers::set_flag(1);
  helpers::wait_flag(2);
  int state = PyGILState_Ensure();
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("gdbext_test::plain", "").typed<Tensor(const Tensor&)>();
  PyGILState_Release(state);
  return handle;
}

Tensor call_through_static_handle(const Tensor& x) {
  static auto op = handle_under_gil();
  return op.call(x);
}

// --- redispatch that does not shrink ----------------------------------------------------------------------------

std::atomic<long> depth{0};
std::atomic<long> limit{0};
std::atomic<unsigned long> keyset{0};

void stop_at_limit(DispatchKeySet ks) {
  keyset.store(ks.raw_repr());
  if (depth.fetch_add(1) + 1 == limit.load()) {
    helpers::announce();
    wait_for_nobody();
  }
}

// A kernel of one operator, and a fallback for all of them: both hand on the keyset that they were given.
void same_keyset_again(const OperatorHandle& op, DispatchKeySet ks, Stack* stack) {
  stop_at_limit(ks);
  op.redispatchBoxed(ks, stack);
}

}  // namespace

// --- for ctypes ---------------------------------------------------------------------------------------------------

extern "C" {

// For PyDLL: the caller holds the GIL and waits for the guard.
void call_handle_with_gil(void) {
  helpers::wait_flag(1);
  helpers::set_flag(2);
  helpers::announce();
  call_through_static_handle(Tensor());
}

// For PyDLL: the caller holds the GIL and waits for the mutex.
void lock_with_gil(pthread_mutex_t* mutex, int mine, int theirs) {
  helpers::wait_flag(theirs);
  helpers::set_flag(mine);
  helpers::announce();
  pthread_mutex_lock(mutex);
  pthread_mutex_unlock(mutex);
}

pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t second_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t third_mutex = PTHREAD_MUTEX_INITIALIZER;

void announce(void) { helpers::announce(); }
void set_depth_limit(long value) { limit.store(value); }
long reached_depth(void) { return depth.load(); }
unsigned long recorded_keyset(void) { return keyset.load(); }

// The fallback below is reached only by threads that ask for it.
void include_generic_mode(void) { c10::impl::tls_set_dispatch_key_included(DispatchKey::TESTING_ONLY_GenericMode, true); }

}  // extern "C"

TORCH_LIBRARY(gdbext_test, m) {
  m.def("plain(Tensor x) -> Tensor");
  m.def("boxed(Tensor x) -> Tensor");
  m.def("cpu_only(Tensor x) -> Tensor");
  m.def("wait_unboxed(Tensor x, bool tell) -> Tensor");
  m.def("wait_boxed(Tensor x, bool tell) -> Tensor");
  m.def("lock_one(Tensor x, int mutex, bool tell) -> Tensor");
  m.def("lock_in_order(Tensor x, int mine, int next, int count) -> Tensor");
  m.def("lock_then_gil(Tensor x, int mutex, int mine, int theirs) -> Tensor");
  m.def("guarded(Tensor x) -> Tensor");
  m.def("crash(Tensor x, int address) -> Tensor");
  m.def("crash_in_thread(Tensor x, str message) -> Tensor");
  m.def("miss_kernel_in_thread(Tensor x) -> Tensor");
  m.def("never_shrinks(Tensor x) -> Tensor");
  m.def("gil_guard(Tensor x) -> Tensor");  // its kernel is Python, given by the inferior
  m.def("gil_mutex(Tensor x) -> Tensor");  // likewise
}

TORCH_LIBRARY_IMPL(gdbext_test, CompositeExplicitAutograd, m) {
  m.impl("plain", &plain);
  m.impl("miss_kernel_in_thread", &miss_kernel_in_thread);
  m.impl("boxed", torch::CppFunction::makeFromBoxedFunction<&boxed>());
}

TORCH_LIBRARY_IMPL(gdbext_test, CPU, m) {
  m.impl("cpu_only", &plain);
  m.impl("wait_unboxed", &wait_unboxed);
  m.impl("wait_boxed", torch::CppFunction::makeFromBoxedFunction<&wait_boxed>());
  m.impl("lock_one", &lock_one);
  m.impl("lock_in_order", &lock_in_order);
  m.impl("lock_then_gil", &lock_then_gil);
  m.impl("guarded", &call_through_static_handle);
  m.impl("crash", &crash);
  m.impl("crash_in_thread", &crash_in_thread);
  m.impl("never_shrinks", torch::CppFunction::makeFromBoxedFunction<&same_keyset_again>());
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&same_keyset_again>());
}
