"""C++ names for people: the Itanium demangler that every libstdc++ and libc++abi carries, through ctypes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_NAME_LIMIT = 1 << 16
"""Longer names (bytes) are left as they are; the longest in libtorch has 1,466."""
_PREFIXES = ("_Z", "_GLOBAL_")
"""Anything else would be read as a type: __cxa_demangle turns "i" into "int"."""


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ declaration that a mangled name stands for, as ``c++filt -i`` prints it.

    Clone suffixes appear as " [clone .isra.0]". The name itself where it is not mangled, cannot be demangled, or
    there is no demangler on this machine. Never raises. libstdc++ itself gives up on names of more than 1,024 bytes;
    a name made for it can still expand to gigabytes, as in every debugger that uses this demangler.
    """
    if not name.startswith(_PREFIXES) or len(name) > _NAME_LIMIT:
        return name
    demangler = _load()
    if demangler is None:
        return name
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name
    if b"\0" in raw:
        return name
    text = demangler(raw)
    return name if text is None else text.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _load() -> Callable[[bytes], bytes | None] | None:
    """The demangler, looked for once (ctypes is imported only now: it costs milliseconds)."""
    found = (_demangler_of(library) for library in _LIBRARIES)
    return next((demangler for demangler in found if demangler is not None), None)


def _demangler_of(library: str) -> Callable[[bytes], bytes | None] | None:
    """``char* abi::__cxa_demangle(const char*, char*, size_t*, int* status)`` of that library (<cxxabi.h>)."""
    try:
        import ctypes

        function = ctypes.CDLL(library).__cxa_demangle
        free = ctypes.CDLL(None).free
    except (ImportError, OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]
    status = ctypes.c_int()
    reference = ctypes.pointer(status)
    string_at = ctypes.string_at

    def run(name: bytes) -> bytes | None:
        address = function(name, None, None, reference)
        if not address:
            return None
        try:
            return string_at(address) if status.value == 0 else None
        finally:
            free(address)

    return run
