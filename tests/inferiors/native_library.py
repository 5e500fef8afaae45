"""Loads the native helpers (native/*.cpp) that the harness has built into the folder named by GDBEXT_NATIVE."""

from __future__ import annotations

import ctypes
import os


def load(name, keep_gil=False):
    """The library as ctypes sees it; ``keep_gil`` calls its functions with the GIL held."""
    return (ctypes.PyDLL if keep_gil else ctypes.CDLL)(_path(name))


def load_operators(name):
    """Load a library that registers operators, and return its path."""
    import torch

    torch.ops.load_library(_path(name))
    return _path(name)


def address(library, name):
    """Absolute address of an exported function or object, as hexadecimal text."""
    return f"{ctypes.cast(getattr(library, name), ctypes.c_void_p).value:#x}"


def _path(name):
    return os.path.join(os.environ["GDBEXT_NATIVE"], f"lib{name}.so")
