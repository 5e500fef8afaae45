"""Demangles C++ names with the Itanium demangler of libstdc++ or libc++abi, called through ctypes.

A reference may stand for everything before it, so a name of 200 bytes can stand for gigabytes of text, and no demangler
in C stops half-way. Counting references bounds the text of most names; the others are parsed (mangled_name.py). ctypes,
the library and that parser take 4 ms, and most inspections ask for the same few names: a cache file keeps their texts.
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.cache import cache_folder
from gdbext.engine import libc
from gdbext.engine.formats.mangled_name import LONGEST_BUILTIN, LONGEST_STANDARD, printed_size
from gdbext.engine.formats.symbol_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from re import Match

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_NAME_LIMIT = 1 << 16  # longer names (bytes) are left as they are; the longest in libtorch has 1,466
_SIZE_LIMIT = 1 << 26
"""Most characters that a name may stand for by counted_size, which is often twenty times too large: for names in
libtorch it is at most 15,041,072."""
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
        if demangler and b"\0" not in raw and (counted_size(name) <= _SIZE_LIMIT or printed_size(name) <= _SIZE_LIMIT):
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
        address = function(name, None, None, reference)
        if not address:
            return None
        try:
            length = length_of(address, _TEXT_LIMIT + 1)
            return string_at(address, length) if status.value == 0 and length <= _TEXT_LIMIT else None
        finally:
            free(address)

    return run


_REFERENCE = re.compile("[ST][0-9A-Z]*_")  # a substitution or a parameter of a template
_PARAMETER = re.compile("T[0-9A-Z]*_")
_REPEATED = re.compile("[CD][0-9I]|s[ZP]")
"""Constructors and destructors, which repeat a name; the length and the elements of a pack."""
_EXPANSION = re.compile("Dp|sp")  # pack expansions: their pattern is printed for each element of the pack
_MAX_REFERENCES = 100
_NUMBERED = 256
"""Components that are counted separately (a name has a hundred); the last number stands for all higher ones."""


def counted_size(name: str) -> int:
    """An upper bound of printed_size that needs no parser: each reference at most doubles everything before it, each
    pack expansion has at most as many elements as the name has characters. Letters of identifiers may be counted as
    references, too."""
    plain = LONGEST_BUILTIN * (len(name) + 4) + LONGEST_STANDARD * name.count("S")
    references, repeated = [*_REFERENCE.finditer(name)], len(_REPEATED.findall(name))
    has_parameter = _PARAMETER.search(name)
    if len(references) <= _MAX_REFERENCES and not has_parameter:
        return plain + _substituted_size(references) << repeated
    expansions = len(_EXPANSION.findall(name)) if has_parameter else 0
    return int((plain << len(references) + repeated) * (len(name) + 1) ** expansions)


def _substituted_size(references: Sequence[Match[str]]) -> int:
    """Most characters that the references of a name stand for, if all are substitutions. A component precedes the
    references to it and refers only to components with smaller numbers: so it is at most as large as all references
    to those before it, plus the literal text before it."""
    sizes, plain, end = [0] * _NUMBERED, 4 * LONGEST_BUILTIN, 0
    total = 0
    for reference in references:
        start, end = end, reference.end()
        plain += LONGEST_BUILTIN * (end - start) + LONGEST_STANDARD * reference.string.count("S", start, end)
        below, number = _component_numbers(reference.group())
        size = plain + sum(sizes[:below])
        sizes[number] += size
        total += size
    return total


@lru_cache(maxsize=4096)
def _component_numbers(reference: str) -> tuple[int, int]:
    """(upper bound of the component numbers that a reference may mean, exclusive; the lowest of them). The beginning of
    a reference may be the end of an identifier: S1S_ means component 0 or 65."""
    texts = (reference[1:-1], reference[reference.rindex("S") + 1 : -1])
    # <seq-id>: base 36, none for the first component
    below, number = (int(text.lstrip("0")[:8] or "0", 36) + 1 if text else 0 for text in texts)
    return min(below, _NUMBERED), min(number, _NUMBERED - 1)
