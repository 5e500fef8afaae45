"""For programs that a debugger starts once for each test and that end soon: what they pay for beside their work.

Imported before torch. ``import torch`` collects garbage for a sixth of its time; numpy's OpenBLAS starts threads that
spin; the first Python kernel for Meta imports sympy, of which ``torch._check`` wants one function; and it takes as long
as that to take torch apart at the end. None of this dispatches an operator. Together half of what such a program costs.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import types


class _SymbolicShapes(types.ModuleType):
    """In the place of the module, until anybody wants more of it than torch._check does."""

    expect_true = staticmethod(bool)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def leave(status=0):
    """End the program at once, or as any other ends where its last argument is "ordinarily"."""
    if sys.argv[-1] == "ordinarily":
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


gc.disable()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_shapes = _SymbolicShapes("torch.fx.experimental.symbolic_shapes")
sys.modules.setdefault(_shapes.__name__, _shapes)
