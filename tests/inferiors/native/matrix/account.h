// The program's own account: each kernel writes down the pass that led to it, and the innermost one waits.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

namespace account {

using c10::DispatchKeySet;

struct Pass {
  const char* op;
  const char* key;
  const char* event;
  unsigned long keyset;  // 0: not told to the kernel
};

struct Case {
  const char* name;
  long tid = 0;
  std::vector<Pass> passes;
  std::atomic<int> waits{0};
};

inline thread_local Case* mine = nullptr;
inline thread_local const char* next_event = "?";
inline thread_local bool next_falls_back = false;
inline bool blocking = true;

// What the caller is about to do. PyTorch's autograd fallback lies on the way of calls that have autograd's key.
inline void going(const char* event) {
  next_event = event;
  bool entering = event[0] == 'c';
  next_falls_back = entering && !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
}

// A kernel was entered. `fallback`: the key whose fallback of PyTorch's stands before it where nothing else does.
inline void enter(const char* op, const char* key, unsigned long keyset, const char* fallback = nullptr) {
  if (mine == nullptr) return;
  if (fallback != nullptr && next_falls_back) {
    mine->passes.push_back({op, fallback, next_event, 0});
    next_event = "redispatchBoxed";
  }
  mine->passes.push_back({op, key, next_event, keyset});
  next_event = "?";
  next_falls_back = false;
}

__attribute__((noinline)) inline void wait_here() {
  if (mine == nullptr || !blocking) return;
  mine->waits = 1;
  for (;;) pause();
}

inline void print(FILE* out, const Case& one) {
  std::fprintf(out, "{\"name\": \"%s\", \"tid\": %ld, \"passes\": [", one.name, one.tid);
  const char* comma = "";
  for (auto pass = one.passes.rbegin(); pass != one.passes.rend(); ++pass) {
    std::fprintf(out, "%s{\"op\": \"%s\", \"key\": \"%s\", \"event\": \"%s\", \"keyset\": \"%#lx\"}", comma, pass->op,
                 pass->key, pass->event, pass->keyset);
    comma = ", ";
  }
  std::fprintf(out, "]}");
}

}  // namespace account
