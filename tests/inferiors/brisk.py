"""For programs that a debugger starts once for each test and that end soon: what they pay for beside their work.

Imported before torch. ``import torch`` collects garbage for a sixth of its time; numpy's OpenBLAS starts threads that
spin; and at the end torch is taken apart for half a second. None of this dispatches an operator.
"""

import gc
import os
import sys


def leave(status=0):
    """End the program at once, or as any other ends where its last argument is "ordinarily"."""
    if sys.argv[-1] == "ordinarily":
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


gc.disable()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
