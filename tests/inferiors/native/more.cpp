// Waits for native locks, taken crosswise or entered again; for ctypes' CDLL. No torch.
#include "helpers.h"

#include <pthread.h>
#include <unistd.h>

namespace {

pthread_once_t again = PTHREAD_ONCE_INIT;
pthread_mutex_t inheriting[2];

void enter_again() { pthread_once(&again, enter_again); }

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

// Thread 0 waits for the static, thread 1 initialises it, thread 2 is in the same function before the static.
void static_late(int me) {
  if (me == 1) helpers::wait_flag(2);
  if (me == 0) helpers::wait_flag(3);
  in_order = late_static(me == 2);
}

}  // extern "C"
