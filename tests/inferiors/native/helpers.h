// What every native helper needs: publishing the truth, and meeting other threads without a lock of its own.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

namespace helpers {

constexpr int FLAGS = 16;
constexpr int FLAG_ONCE = 14, FLAG_GUARD = 15;
inline std::atomic<int> flags[FLAGS];

inline void set_flag(int flag) { flags[flag].store(1); }

// Sleeps in between, so that whoever has to set the flag gets a processor.
inline void wait_flag(int flag) {
  while (flags[flag].load() == 0) usleep(500);
}

// Counts the threads that arrive; returns once `count` have.
inline void meet(int flag, int count) {
  flags[flag].fetch_add(1);
  while (flags[flag].load() < count) usleep(500);
}

// Publishes what inferiors/truth.py staged; needs no GIL.
inline void announce() {
  const char* path = std::getenv("GDBEXT_READY");
  if (path != nullptr) std::rename((std::string(path) + ".tmp").c_str(), path);
}

}  // namespace helpers

// CPython's API, declared here so that no Python headers are needed and one build serves every interpreter.
extern "C" int PyGILState_Ensure(void);
extern "C" void PyGILState_Release(int);
