// For LD_PRELOAD: a thread that throws a C++ exception after arming us stays there, as under "catch throw".
#include "helpers.h"

#include <dlfcn.h>

namespace {
thread_local bool armed = false;
}

extern "C" {

void arm_block_throw(void) { armed = true; }

[[noreturn]] void __cxa_throw(void* object, void* type, void (*destructor)(void*)) {
  if (armed) {
    helpers::announce();
    for (;;) pause();
  }
  using Throw = void (*)(void*, void*, void (*)(void*));
  reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"))(object, type, destructor);
  __builtin_unreachable();
}

}  // extern "C"
