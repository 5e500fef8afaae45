// A library whose constructor wants the GIL.
#include "helpers.h"

__attribute__((constructor)) static void initialise() { PyGILState_Release(PyGILState_Ensure()); }
