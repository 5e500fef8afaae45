"""Calls of the C library that Python's modules lack: prctl(2), capset(2), system calls by their numbers."""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from typing import Any


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def function(name: str) -> Any:
    """A function as a new object, so that the caller may set its argument types. Raises AttributeError."""
    return _library()[name]


def last_error(doing: str = "") -> OSError:
    """The error of this thread's last call (errno(3)); ``doing`` is its text (default: strerror's)."""
    number = ctypes.get_errno()
    return OSError(number, doing or os.strerror(number))


def prctl(option: int, value: int = 0) -> bool:
    """prctl(2); False if the kernel refuses it."""
    return bool(function("prctl")(option, value, 0, 0, 0) == 0)


def limit_capabilities(kept: int) -> None:
    """Give up all capabilities of the calling thread but the bits of ``kept``, which are effective and permitted
    (capset(2)). Raises OSError."""
    low, high = kept & 0xFFFFFFFF, kept >> 32
    # _LINUX_CAPABILITY_VERSION_3 (linux/capability.h): two words each of effective, permitted and inheritable ones
    header, sets = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", low, low, 0, high, high, 0)
    if function("capset")(header, sets) != 0:
        raise last_error("the capabilities cannot be given up")
