"""openmp-limit: libgomp wants more threads than the program may have, and ends it (pytorch/pytorch issue 193859)."""

import native_library
import truth

native = native_library.load("openmp_limit")
truth.main_ready(verdict="idle")
native.limit_threads()
native.run_in_parallel(64)
