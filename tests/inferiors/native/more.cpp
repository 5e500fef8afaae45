// Hangs through native locks that are entered again, crosswise, or by a callback; for ctypes' CDLL. No torch.
#include "helpers.h"

#include <link.h>
#include <mutex>
#include <pthread.h>
#include <unistd.h>

namespace {

std::mutex mutex;
std::once_flag first_flag, second_flag;
pthread_once_t again = PTHREAD_ONCE_INIT;
pthread_mutex_t inheriting[2];

void enter_again() { pthread_once(&again, enter_again); }

// Inlined into two functions, so that waiter and initialiser are never in the same one.
__attribute__((always_inline)) inline int shared_static() {
  static int value = [] {
    helpers::meet(1, 2);
    mutex.lock();
    return 1;
  }();
  return value;
}

int in_order;

__attribute__((noinline)) int late_static(bool before) {
  if (before) {
    helpers::set_flag(2);
    for (;;) pause();
  }
  static int value = [] {
    helpers::set_flag(3);
    for (;;) pause();
    return 1;
  }();
  return value;
}

}  // namespace

extern "C" {

void priority_inheritance(int me) {
  if (me == 0) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    for (auto& each : inheriting) pthread_mutex_init(&each, &attributes);
    helpers::set_flag(4);
  }
  helpers::wait_flag(4);
  pthread_mutex_lock(&inheriting[me]);
  helpers::meet(5, 2);
  pthread_mutex_lock(&inheriting[1 - me]);
}

void once_again(int) { enter_again(); }

void call_once_cross(int me) {
  if (me == 0) {
    std::call_once(first_flag, [] { helpers::meet(6, 2); std::call_once(second_flag, [] {}); });
  } else {
    std::call_once(second_flag, [] { helpers::meet(6, 2); std::call_once(first_flag, [] {}); });
  }
}

// The first one has the mutex and waits for the static, whose initialiser the second one runs, and wants the mutex.
void static_and_mutex_first() {
  mutex.lock();
  helpers::meet(1, 2);
  in_order = shared_static();
}
void static_and_mutex_second() { in_order = shared_static() + 1; }
void static_and_mutex(int me) { me == 0 ? static_and_mutex_first() : static_and_mutex_second(); }

// Thread 0 waits for the static, thread 1 initialises it, thread 2 is in the same function before the static.
void static_late(int me) {
  if (me == 1) helpers::wait_flag(2);
  if (me == 0) helpers::wait_flag(3);
  in_order = late_static(me == 2);
}

// The second one has the loader's lock and wants the mutex, in a callback of dl_iterate_phdr.
void loader_callback(int me) {
  if (me == 0) {
    mutex.lock();
    helpers::meet(7, 2);
    dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 0; }, nullptr);
  } else {
    dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { helpers::meet(7, 2); mutex.lock(); return 0; }, nullptr);
  }
}

}  // extern "C"
