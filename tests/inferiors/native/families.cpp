// Deadlocks through other things than two mutexes: joins, OpenMP teams, stdio streams, the loader's lock. No torch.
#include "helpers.h"

#include <cstdio>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

namespace {

void take_gil() { PyGILState_Release(PyGILState_Ensure()); }

void* wants_gil(void*) {
  take_gil();
  return nullptr;
}

FILE* stream() {
  static FILE* file = std::fopen("/dev/null", "w");
  return file;
}

void region(void*) {
  if (gettid() != getpid()) take_gil();
}

}  // namespace

extern "C" {

// For PyDLL, with the GIL: joins a thread that wants it.
void gil_join(void) {
  pthread_t thread;
  pthread_create(&thread, nullptr, wants_gil, nullptr);
  helpers::announce();
  pthread_join(thread, nullptr);
}

// For PyDLL, with the GIL: a parallel region of two threads, the second of which wants it.
void gil_openmp(const char* runtime) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  auto parallel = reinterpret_cast<Parallel>(dlsym(dlopen(runtime, RTLD_NOW | RTLD_NOLOAD), "GOMP_parallel"));
  helpers::announce();
  parallel(region, nullptr, 2, 0);
}

// For CDLL: lets the other thread have the GIL until it holds its lock.
void wait_for_other(void) { helpers::wait_flag(0); }

// Takes the stream's lock, meets the other party, then wants the GIL.
void stream_then_gil(void) {
  flockfile(stream());
  helpers::set_flag(0);
  helpers::wait_flag(1);
  take_gil();
}

// For PyDLL, with the GIL: wants the stream's lock.
void gil_then_stream(void) {
  helpers::set_flag(1);
  helpers::announce();
  std::fputs("", stream());
  std::fputc('x', stream());
}

// The constructor of the other library calls this, with the loader's lock held.
void loading(void) {
  helpers::set_flag(0);
  helpers::wait_flag(1);
}

// Loads a library whose constructor wants the GIL, with the loader's lock held.
void load_then_gil(const char* path) {
  dlopen(path, RTLD_NOW);
}

// For PyDLL, with the GIL: wants the loader's lock.
void gil_then_load(const char* path) {
  helpers::set_flag(1);
  helpers::announce();
  dlopen(path, RTLD_NOW);
}

}  // extern "C"
