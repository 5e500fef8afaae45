// A program without Python: host TRUTH-FILE LIBRARY [CASE]. It loads the library of operators and starts its calls.
#include <dlfcn.h>
#include <cstdio>

int main(int, char** arguments) {
  void* library = dlopen(arguments[2], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  auto start = reinterpret_cast<int (*)(const char*, const char*)>(dlsym(library, "matrix_main"));
  return start(arguments[1], arguments[3] == nullptr ? "" : arguments[3]);
}
