"""Loads the native helpers (native/*.cpp) that the harness has built into the folders named by GDBEXT_NATIVE."""

import ctypes
import os


def load(name, keep_gil=False):
    """The library as ctypes sees it; ``keep_gil`` calls its functions with the GIL held."""
    return (ctypes.PyDLL if keep_gil else ctypes.CDLL)(path(name))


def load_operators(name):
    import torch

    torch.ops.load_library(path(name))
    return path(name)


def address(library, name):
    """Absolute address of an exported function or object, as hexadecimal text."""
    return f"{ctypes.cast(getattr(library, name), ctypes.c_void_p).value:#x}"


def path(name):
    folders = os.environ["GDBEXT_NATIVE"].split(os.pathsep)
    paths = [os.path.join(folder, f"lib{name}.so") for folder in folders]
    return next(each for each in paths if os.path.exists(each))
