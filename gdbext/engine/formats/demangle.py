"""C++ names for people: the Itanium demangler that every libstdc++ and libc++abi carries, through ctypes, where it is
safe to call.

References multiply: each may stand for all that came before it, so 200 bytes can stand for gigabytes, and no demangler
in C stops half-way. Most names are settled by counting their references; the others are parsed (mangled_name.py).

ctypes, the library and that parser together take 4 ms, a twentieth of a look, and looks ask for the same few names
again and again. So a file of the cache has names with their texts.
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.cache import cache_folder
from gdbext.engine import libc
from gdbext.engine.formats.mangled_name import printed_size
from gdbext.engine.formats.symbol_cache import kept_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from re import Match

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
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name
    kept = kept_texts(cache_folder(), "demangled")
    text = kept.text(raw)
    if text is None:
        text = _demangled(name, raw)
        if text is None:
            return name
        kept.keep(raw, text)
    return text.decode("utf-8", "surrogateescape")


def _demangled(name: str, raw: bytes) -> bytes | None:
    demangler = _load()
    return demangler(raw) if demangler and b"\0" not in raw and fits(name, _MOST_WORK) else None


@lru_cache(maxsize=1)
def _load() -> Callable[[bytes], bytes | None] | None:
    """The demangler, looked for once (ctypes is imported only now: it costs milliseconds)."""
    found = (_demangler_of(library) for library in _LIBRARIES)
    return next((demangler for demangler in found if demangler), None)


def _demangler_of(library: str) -> Callable[[bytes], bytes | None] | None:
    """``char* abi::__cxa_demangle(const char*, char*, size_t*, int* status)`` of that library (<cxxabi.h>)."""
    try:
        function = ctypes.CDLL(library).__cxa_demangle
        free, length_of = libc.function("free"), libc.function("strnlen")
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


_MOST_OF_EACH, _STANDARD = 20, 80
"""The values of EACH and STANDARD of mangled_expressions.py, which is not imported for most names."""
_REFERENCE = re.compile("[ST][0-9A-Z]*_")
"""A substitution or a parameter of a template, by its end: no two have the same."""
_PARAMETER = re.compile("T[0-9A-Z]*_")
_REPEATED = re.compile("[CD][0-9I]|s[ZP]")
"""Constructors and destructors, which repeat a name, and the length and the elements of a pack."""
_EXPANSION = re.compile("Dp|sp")
"""Pack expansions: their pattern is printed for each element of the pack."""
_MOST_REFERENCES = 100


def fits(name: str, most: int) -> bool:
    """True if at most ``most`` characters stand for the name, for certain."""
    if counted_size(name) <= most:
        return True
    return printed_size(name) <= most


def counted_size(name: str) -> int:
    """Each reference at most doubles all before it; each pack expansion is as long as the name has arguments, and is
    one of a pack only if it has a parameter. Letters of identifiers may be counted as references, too."""
    plain = _MOST_OF_EACH * (len(name) + 4) + _STANDARD * name.count("S")
    references, repeated = [*_REFERENCE.finditer(name)], len(_REPEATED.findall(name))
    if len(references) <= _MOST_REFERENCES and not _PARAMETER.search(name):
        return plain + _substituted_size(references) << repeated
    expansions = len(_EXPANSION.findall(name)) if _PARAMETER.search(name) else 0
    return int((plain << len(references) + repeated) * (len(name) + 1) ** expansions)


def _substituted_size(references: Sequence[Match[str]]) -> int:
    """Characters that the references of a name stand for, where all are substitutions. A component is before the
    references to it, and in it are references to those with smaller numbers only: it is not larger than all of these
    before it, and what is written out before it.

    The beginning of a reference may be the end of an identifier: of S1S_ the number is 0 or 65.
    """
    sizes, plain, end = [0] * _NUMBERED, 4 * _MOST_OF_EACH, 0
    total = 0
    for each in references:
        start, end = end, each.end()
        plain += _MOST_OF_EACH * (end - start) + _STANDARD * each.string.count("S", start, end)
        most, number = _numbers(each.group())
        size = plain + sum(sizes[:most])
        sizes[number] += size
        total += size
    return total


_NUMBERED = 256
"""Components that are told apart by their numbers: of a name there are a hundred, and all others count as referred to
by any reference with such a number."""


@lru_cache(maxsize=4096)
def _numbers(reference: str) -> tuple[int, int]:
    """(numbers below this one are meant at most, the least number of the component) of what may be a reference."""
    most, number = _number(reference[1:-1]), _number(reference[reference.rindex("S") + 1 : -1])
    return (most if most < _NUMBERED else _NUMBERED), min(number, _NUMBERED - 1)


def _number(sequence: str) -> int:
    """The number of a component (Itanium C++ ABI, <seq-id>)."""
    return int(sequence.lstrip("0")[:8] or "0", 36) + 1 if sequence else 0
