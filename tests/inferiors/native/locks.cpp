// Ways to wait for ever, for ctypes: CDLL calls them without the GIL, PyDLL with it. No torch here.
#include "helpers.h"

#include <condition_variable>
#include <ctime>
#include <mutex>
#include <pthread.h>
#include <semaphore.h>

extern "C" {

pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t second_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t third_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t recursive_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
pthread_mutex_t error_check_mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t condvar = PTHREAD_COND_INITIALIZER;
pthread_mutex_t condvar_mutex = PTHREAD_MUTEX_INITIALIZER;
sem_t semaphore;
pthread_barrier_t barrier;
pthread_once_t once = PTHREAD_ONCE_INIT;
std::mutex cxx_mutex;
std::condition_variable cxx_condvar;

void announce(void) { helpers::announce(); }
void set_flag(int flag) { helpers::set_flag(flag); }
void wait_flag(int flag) { helpers::wait_flag(flag); }
void meet(int flag, int count) { helpers::meet(flag, count); }

void lock(pthread_mutex_t* mutex) { pthread_mutex_lock(mutex); }
void unlock(pthread_mutex_t* mutex) { pthread_mutex_unlock(mutex); }

// For PyDLL: holds the GIL, meets the other party, tells the world, then asks for the mutex.
void gil_then_lock(pthread_mutex_t* mutex, int mine, int theirs) {
  helpers::wait_flag(theirs);
  helpers::set_flag(mine);
  helpers::announce();
  pthread_mutex_lock(mutex);
  pthread_mutex_unlock(mutex);
}

// Takes one mutex, meets the others, takes the next: a cycle of `count` threads.
void lock_in_order(pthread_mutex_t* mine, pthread_mutex_t* next, int flag, int count) {
  pthread_mutex_lock(mine);
  helpers::meet(flag, count);
  pthread_mutex_lock(next);
}

void spin(void) {
  static volatile unsigned long turns;
  for (;;) turns = turns + 1;
}

void read_lock(void) { pthread_rwlock_rdlock(&rwlock); }
void write_lock(void) { pthread_rwlock_wrlock(&rwlock); }

void wait_condvar(void) {
  pthread_mutex_lock(&condvar_mutex);
  for (;;) pthread_cond_wait(&condvar, &condvar_mutex);
}

void wait_cxx_condvar(void) {
  std::unique_lock<std::mutex> guard(cxx_mutex);
  for (;;) cxx_condvar.wait(guard);
}

// A timed wait that begins again for ever, as polling loops do.
void wait_condvar_timed(long milliseconds) {
  pthread_mutex_lock(&condvar_mutex);
  for (;;) {
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += milliseconds % 1000 * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&condvar, &condvar_mutex, &until);
  }
}

void wait_semaphore(void) {
  sem_init(&semaphore, 0, 0);
  while (sem_wait(&semaphore) != 0) {}
}

void wait_barrier(int count) {
  pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(count));
  pthread_barrier_wait(&barrier);
}

static void sleep_for_ever(void) {
  helpers::set_flag(helpers::FLAG_ONCE);
  for (;;) pause();
}
void hold_once(void) { pthread_once(&once, sleep_for_ever); }
void wait_once(void) {
  helpers::wait_flag(helpers::FLAG_ONCE);
  pthread_once(&once, sleep_for_ever);
}

static void* pause_for_ever(void*) {
  for (;;) pause();
  return nullptr;
}
pthread_t joined;
void wait_join(void) {
  pthread_create(&joined, nullptr, pause_for_ever, nullptr);
  pthread_join(joined, nullptr);
}

int in_guard;
static int guarded_initialiser(void) {
  helpers::set_flag(helpers::FLAG_GUARD);
  for (;;) pause();
  return 1;
}
// Two callers: the first one runs the initialiser of the static for ever, the second waits for its guard.
void hold_static_guard(void) {
  static int value = guarded_initialiser();
  in_guard = value;
}
void wait_static_guard(void) {
  helpers::wait_flag(helpers::FLAG_GUARD);
  hold_static_guard();
}

}  // extern "C"
