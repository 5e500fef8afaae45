// Built as a user builds an extension: -O2.
#include <torch/library.h>
#define NAMESPACE gdbext_dispatch_paths
#include "dispatch_paths.h"
