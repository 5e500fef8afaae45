"""Demangles C++ names with the Itanium demangler of libstdc++ or libc++abi, called through ctypes.

A reference may stand for everything before it, so a name of 200 bytes can stand for gigabytes of text, and no demangler
in C stops half-way: the length of the text is bounded first. ctypes, the library and mangled_name.py take 4 ms, and
most inspections ask for the same few names: a cache file keeps their texts.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.cache import cache_folder
from gdbext.engine import libc
from gdbext.engine.formats.mangled_name import LONGEST_BUILTIN, LONGEST_STANDARD, printed_size
from gdbext.engine.formats.symbol_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_NAME_LIMIT = 1 << 16  # longer names (bytes) are left as they are; the longest in libtorch has 1,466
_SIZE_LIMIT = 1 << 26  # most characters that printed_size may give; it is often twenty times too large
_TEXT_LIMIT = 1 << 16  # most characters of a demangled name; the longest of libtorch has some thousand


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ declaration that a mangled name stands for, as ``c++filt -i`` prints it; clone suffixes appear as
    " [clone .isra.0]". Returns ``name`` itself if it is not mangled, cannot be demangled, stands for too much text, or
    this machine has no demangler. Never raises.
    """
    # __cxa_demangle would read anything else as a type: it turns "i" into "int".
    if not name.startswith(("_Z", "_GLOBAL_")) or len(name) > _NAME_LIMIT:
        return name
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name
    cached = text_cache(cache_folder(), "demangled")
    text = cached.text(raw)
    if text is None:
        demangler = _load()
        if demangler and b"\0" not in raw and _is_bounded(name):
            text = demangler(raw)
        if text is None:
            return name
        cached.keep(raw, text)
    return text.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _load() -> Callable[[bytes], bytes | None] | None:
    """``char* abi::__cxa_demangle(const char*, char*, size_t*, int* status)`` (<cxxabi.h>) of the first library that
    has it."""
    for library in _LIBRARIES:
        try:
            function = ctypes.CDLL(library).__cxa_demangle
            free, length_of = libc.function("free"), libc.function("strnlen")
            break
        except (ImportError, OSError, AttributeError):
            continue
    else:
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
        """The demangled name; None if it cannot be demangled or is too long."""
        address = function(name, None, None, reference)
        if not address:
            return None
        try:
            length = length_of(address, _TEXT_LIMIT + 1)
            return string_at(address, length) if status.value == 0 and length <= _TEXT_LIMIT else None
        finally:
            free(address)

    return run


def _is_bounded(name: str) -> bool:
    """True if the name surely stands for at most _SIZE_LIMIT characters. Most need no parser: each substitution (S),
    template parameter (T), constructor (C) and destructor (D) at most doubles all text before it, and letters of
    identifiers may be counted as such, too. Only for packs there is no such limit."""
    plain = LONGEST_BUILTIN * (len(name) + 4) + LONGEST_STANDARD * name.count("S")
    has_pack = any(code in name for code in ("Dp", "sp", "sP", "sZ"))
    is_short = not has_pack and plain << sum(map(name.count, "STCD")) <= _SIZE_LIMIT
    return is_short or printed_size(name) <= _SIZE_LIMIT
