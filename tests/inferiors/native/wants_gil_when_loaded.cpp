// A library whose constructor wants the GIL, after it has said (to families.cpp) that it runs.
#include "helpers.h"

#include <dlfcn.h>
#include <string>

__attribute__((constructor)) static void initialise() {
  // families is loaded locally by ctypes, so it says where its function is.
  const char* where = std::getenv("GDBEXT_LOADING");
  if (where != nullptr) reinterpret_cast<void (*)()>(std::stoul(where, nullptr, 16))();
  PyGILState_Release(PyGILState_Ensure());
}
