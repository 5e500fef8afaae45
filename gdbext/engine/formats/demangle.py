"""C++ names for people: the Itanium demangler that every libstdc++ and libc++abi carries, through ctypes, where it is
safe to call.

References multiply: each may stand for all that came before it, so 200 bytes can stand for gigabytes, and no demangler
in C stops half-way. Most names are settled by counting their references; the others are parsed (mangled_name.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_NAME_LIMIT = 1 << 16
"""Longer names (bytes) are left as they are; the longest in libtorch has 1,466."""
_MOST_WORK = 1 << 26
"""Characters that a name may stand for by the bound of demangle.py, which is often twenty times too large: of a
name in libtorch it is at most 15,041,072."""
_LONGEST_TEXT = 1 << 16
"""Characters that are shown; the longest of libtorch has some thousand."""
_PREFIXES = ("_Z", "_GLOBAL_")
"""Anything else would be read as a type: __cxa_demangle turns "i" into "int"."""


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ declaration that a mangled name stands for, as ``c++filt -i`` prints it.

    Clone suffixes appear as " [clone .isra.0]". The name itself where it is not mangled, cannot be demangled, stands
    for more text than anybody reads, or there is no demangler on this machine. Never raises. libstdc++ itself gives up
    on names of more than 1,024 bytes, but of 275 bytes it makes gigabytes: so the demangler is asked only where it
    will end.
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
    if b"\0" in raw or not fits(name, _MOST_WORK):
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
        free, length_of = ctypes.CDLL(None).free, ctypes.CDLL(None).strnlen
    except (ImportError, OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]
    length_of.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    length_of.restype = ctypes.c_size_t
    status = ctypes.c_int()
    reference = ctypes.pointer(status)
    string_at = ctypes.string_at

    def run(name: bytes) -> bytes | None:
        address = function(name, None, None, reference)
        if not address:
            return None
        try:
            length = length_of(address, _LONGEST_TEXT + 1)
            return string_at(address, length) if status.value == 0 and length <= _LONGEST_TEXT else None
        finally:
            free(address)

    return run


_MOST_OF_EACH = 20
"""The value of EACH of mangled_expressions.py, which is not imported for a short name."""
_MULTIPLIERS = "STCDZ"
"""Substitutions, parameters of templates, constructors and packs (Dp, sZ) have one of these letters."""


def fits(name: str, most: int) -> bool:
    """True if at most ``most`` characters stand for the name, for certain."""
    if counted_size(name) <= most:
        return True
    from gdbext.engine.formats.mangled_name import printed_size

    return printed_size(name) <= most


def counted_size(name: str) -> int:
    """Each reference at most doubles all before it; each pack expansion is as long as the name has arguments."""
    doubling = sum(map(name.count, _MULTIPLIERS))
    expansions = name.count("Dp") + name.count("sp")
    return int(_MOST_OF_EACH * (len(name) + 4) * 2**doubling * (len(name) + 1) ** expansions)
