// Built -O3 -flto, with frame pointers: other places for the same values.
#include <torch/library.h>
#define NAMESPACE gdbext_dispatch_paths_o3
#include "dispatch_paths.h"
