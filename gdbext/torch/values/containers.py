"""Reads libstdc++'s and ska's containers out of the target: std::string, std::list, std::vector, flat_hash_map.

Nothing read here is trusted: every count has a cap, every link is checked both ways, and a container that does not
hold together raises BadData that says how.
"""

from __future__ import annotations

import struct
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData, MemoryFault
from gdbext.torch.values.value_structures import Optional, OptionalArrayRef, String, UnorderedMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory


class OptionalShape(NamedTuple):
    """Offsets in bytes from the start of the optional."""

    value: int
    engaged: int
    """The flag (a bool) for whether there is a value."""


def has_own_optional(layout: Layout) -> bool:
    """Torch before 2.2 has ``c10::optional`` (c10/util/Optional.h), whose flag is in front of the value.

    Its optional ArrayRef is two words and has no flag: without a value, the address is 0 and the length 1.
    """
    return layout.has_struct(OptionalArrayRef.OF) and OptionalArrayRef.shape(layout).size == 16


def optional_shape(layout: Layout, inner: str) -> OptionalShape:
    """The shape of an optional ``inner``. Raises LayoutError.

    libstdc++'s ``std::optional`` has the value first; ``c10::optional`` of torch before 2.2 (c10/util/Optional.h)
    is a class of its own, with the flag in front.
    """
    names = (f"optional<{inner}>", f"c10::optional<{inner}>")
    shape = layout.struct(next((name for name in names if layout.has_struct(name)), f"std::optional<{inner}>"))
    own = Optional.init_.path in shape.fields
    value, engaged = (Optional.storage_, Optional.init_) if own else (Optional.value_of, Optional.is_engaged)
    return OptionalShape(shape.offset(value.path), shape.offset(engaged.path))


STRING_LIMIT = 1 << 16
"""Bytes. No string of the dispatcher (names, schemas, "registered at" lines) comes near it."""
_TREE_DEPTH = 64
"""Links from the root of a red-black tree: more than any tree in memory needs."""

_TWO_WORDS = struct.Struct("<QQ")


def has_cxx11_abi(layout: Layout) -> bool:
    """True if the build has the new ABI of the standard library (``_GLIBCXX_USE_CXX11_ABI``). Raises LayoutError."""
    return String.shape(layout).size == 32


def string_reader(memory: Memory, layout: Layout) -> StringReader:
    """The reader of strings of the build that the layout describes. Raises LayoutError."""
    return StringReader(memory, has_cxx11_abi(layout))


class StringReader:
    """Reads ``std::string`` of one ABI. ``size`` is ``sizeof(std::string)``: 32 (CXX11) or 8 (the old, counted one)."""

    def __init__(self, memory: Memory, cxx11: bool = True) -> None:
        self._memory = memory
        self._cxx11 = cxx11
        self.size = 32 if cxx11 else 8

    def read(self, address: int, limit: int = STRING_LIMIT) -> str:
        """The text of the string object at ``address``. Raises MemoryFault, BadData."""
        return self.parse(self._memory.read(address, self.size), 0, address, limit)

    def parse(self, raw: bytes, offset: int, address: int, limit: int = STRING_LIMIT) -> str:
        """The text of the string object at ``address``, whose bytes ``raw`` has at ``offset``. Raises as ``read``."""
        if self._cxx11:
            data, length = _TWO_WORDS.unpack_from(raw, offset)
        else:
            data = address = int.from_bytes(raw[offset : offset + 8], "little")
            length = self._memory.u64(data - 24)
        if length > limit:
            raise BadData(f"the string at {address:#x} claims {length} bytes")
        if self._cxx11 and data == address + 16:
            if length > 15:
                raise BadData(f"the string at {address:#x} claims {length} bytes in its 15-byte buffer")
            return raw[offset + 16 : offset + 16 + length].decode("utf-8", "backslashreplace")
        return self._memory.read(data, length).decode("utf-8", "backslashreplace") if length else ""

    def may_be(self, text: str, raw: bytes, offset: int, address: int) -> bool:
        """The object whose bytes are at ``raw[offset:]`` can have that text. Only the object is read: of a long text
        its length, of one of the old ABI nothing."""
        if not self._cxx11:
            return True
        data, length = _TWO_WORDS.unpack_from(raw, offset)
        wanted = text.encode("utf-8", "backslashreplace")
        if data == address + 16:
            return length <= 15 and raw[offset + 16 : offset + 16 + length] == wanted
        return bool(length == len(wanted))


def list_items(memory: Memory, header: int, limit: int, sized: bool = True) -> list[int]:
    """Addresses of the elements of the ``std::list`` at ``header``, in order.

    A node is (next, previous, element); the header of the CXX11 ABI (``sized``) ends with the size. Raises BadData
    when the links do not agree with each other, when there are more than ``limit`` elements or when the size in the
    header differs: then the list is being changed, or this is not a list. Raises MemoryFault.
    """
    first, last = _TWO_WORDS.unpack(memory.read(header, 16))
    items: list[int] = []
    node, previous = first, header
    while node != header:
        if len(items) >= limit:
            raise BadData(f"the list at {header:#x} has more than {limit} elements")
        following, back = _TWO_WORDS.unpack(memory.read(node, 16))
        if back != previous:
            raise BadData(f"the list at {header:#x} is broken at {node:#x}: its neighbors do not point at each other")
        items.append(node + 16)
        node, previous = following, node
    if last != previous:
        raise BadData(f"the list at {header:#x} does not end where its header says")
    if sized and memory.u64(header + 16) != len(items):
        raise BadData(f"the list at {header:#x} has {len(items)} elements and claims {memory.u64(header + 16)}")
    return items


def vector_span(memory: Memory, address: int, element: int, limit: int = 1 << 16) -> tuple[int, int]:
    """(first element's address, number of elements) of a ``std::vector`` whose elements have ``element`` bytes. Raises
    BadData, MemoryFault."""
    begin, end, capacity = memory.words(address, 3)
    count, rest = divmod(end - begin, element)
    if not begin <= end <= capacity or rest or count > limit:
        raise BadData(f"the vector at {address:#x} is invalid ({begin:#x} to {end:#x})")
    return begin, count


def hash_entries(memory: Memory, layout: Layout, address: int, words: int, limit: int) -> list[tuple[int, ...]]:
    """The first ``words`` words (key, value) of each element of the ``std::unordered_map`` or ``_set`` at ``address``.

    Its elements are a list, each behind a link, and without a hash if keys are pointers or integers
    (bits/hashtable_policy.h of libstdc++). Raises BadData when list and number of elements disagree, MemoryFault,
    LayoutError.
    """
    count = memory.u64(address + UnorderedMap.elements.field(layout).offset)
    if count > limit:
        raise BadData(f"the hash table at {address:#x} claims {count} elements")
    elements: list[tuple[int, ...]] = []
    node = memory.u64(address + UnorderedMap.first.field(layout).offset)
    while node and len(elements) < count:
        node, *element = memory.words(node, words + 1)
        elements.append(tuple(element))
    if node or len(elements) != count:
        raise BadData(f"the hash table at {address:#x} does not have the {count} elements that it claims")
    return elements


def tree_nodes(memory: Memory, address: int, limit: int) -> list[int]:
    """Addresses of the nodes of the ``std::map`` or ``std::set`` at ``address``, in order; values follow their links.

    The object is an empty comparison (8 bytes with padding), a header node (color, parent, left, right) and the number
    of nodes; bits/stl_tree.h of libstdc++. Raises BadData when the tree does not hold together, MemoryFault.
    """
    root, count = memory.u64(address + 16), memory.u64(address + 40)
    if count > limit:
        raise BadData(f"the map at {address:#x} claims {count} elements")
    nodes: list[int] = []
    path: list[int] = []
    node = root
    while (node or path) and len(nodes) < count and len(path) <= _TREE_DEPTH:
        while node and len(path) <= _TREE_DEPTH:
            path.append(node)
            node = memory.u64(node + 16)
        nodes.append(path.pop())
        node = memory.u64(nodes[-1] + 24)
    if node or path or len(nodes) != count:
        raise BadData(f"the map at {address:#x} is broken: {len(nodes)} elements of {count} were found")
    return nodes


class MapEntry(NamedTuple):
    """One occupied slot: the value's address and its bytes."""

    address: int
    raw: bytes


class FlatMap(NamedTuple):
    """The header of a ``ska::flat_hash_map`` (``sherwood_v3_table``)."""

    entries: int
    slots: int
    shift: int
    max_lookups: int
    elements: int


def read_map_header(memory: Memory, address: int) -> FlatMap:
    """The header at ``address``, checked. Raises BadData, MemoryFault.

    Members: entries, num_slots_minus_one, hash_policy.shift, max_lookups, _max_load_factor, num_elements; all bases
    are empty (c10/util/flat_hash_map.h, unchanged from torch 1.3 to 2.13).
    """
    entries, last_slot, shift, lookups, _load, elements = struct.unpack("<QQbbxxfQ", memory.read(address, 32))
    slots = last_slot + 1
    if slots & last_slot or slots > 1 << 20:  # the operator table of torch 2.13 has 8,192
        raise _corrupt(address, f"it claims {slots} slots")
    if not 3 <= lookups <= 64 or not 0 <= shift <= 63 or elements > slots:
        raise _corrupt(address, f"it claims {elements} elements, {lookups} lookups, shift {shift}")
    if slots > 1 and shift != 64 - last_slot.bit_length():
        raise _corrupt(address, f"it claims {slots} slots with shift {shift}")
    return FlatMap(entries, slots, shift, lookups, elements)


class MapSlots:
    """The occupied slots of a map, in memory order. Of thousands, a reader needs one word each, and few whole."""

    def __init__(self, first: int, stride: int, raw: bytes, used: Sequence[int]) -> None:
        self._first = first
        self._stride = stride
        self._raw = raw
        self._used = used

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[MapEntry]:
        return map(self.at, self._used)

    def at(self, slot: int) -> MapEntry:
        """The entry in the slot of that number."""
        start = slot * self._stride
        return MapEntry(self._first + start + 8, self._raw[start : start + self._stride][8:])

    def by_word(self, offset: int) -> dict[int, int]:
        """The word at that offset of each value → its slot."""
        unpack, stride = struct.Struct("<Q").unpack_from, self._stride
        if stride % 8 or offset % 8:
            return {unpack(self._raw, slot * stride + 8 + offset)[0]: slot for slot in self._used}
        words = memoryview(self._raw).cast("Q")[(8 + offset) // 8 :: stride // 8].tolist()
        return {words[slot]: slot for slot in self._used}


def map_slots(memory: Memory, address: int, value_size: int) -> MapSlots:
    """The occupied slots of the ``ska::flat_hash_map`` at ``address``, in memory order, from one read.

    A slot is an int8 distance from the wanted slot (-1: empty), padding to 8, the value of ``value_size`` bytes.
    Raises BadData when the header or the slots do not hold together, MemoryFault.
    """
    header = read_map_header(memory, address)
    stride = 8 + value_size
    if not header.elements:
        return MapSlots(header.entries, stride, b"", ())
    # overflow slots follow the hashed ones, then an end mark
    size = (header.slots - 1 + header.max_lookups) * stride
    try:
        raw = memory.read(header.entries, size)
    except MemoryFault as fault:
        raise _corrupt(address, f"its slots at {header.entries:#x} are unreadable") from fault
    distances = raw[::stride]
    is_used = bytes(distance < 0x80 for distance in range(256))
    used = list(compress(range(len(distances)), distances.translate(is_used)))
    if len(used) != header.elements:
        raise _corrupt(address, f"{len(used)} slots are used, {header.elements} elements claimed")
    if max(map(distances.__getitem__, used)) > header.max_lookups or any(
        distances[index] > index for index in used[: header.max_lookups]
    ):
        raise _corrupt(address, "an element is farther from its slot than any lookup searches")
    return MapSlots(header.entries, stride, raw, used)


def check_hashed(memory: Memory, address: int, value_size: int, entries: list[MapEntry], key_size: int) -> None:
    """Check a map whose hash is the key itself (an enumeration). Raises BadData, MemoryFault.

    Every key must be as far from its wanted slot as its distance says, so a damaged or half-moved entry is noticed.
    """
    header = read_map_header(memory, address)
    stride = 8 + value_size
    for entry in entries:
        index = (entry.address - 8 - header.entries) // stride
        key = int.from_bytes(entry.raw[:key_size], "little")
        # 2**64 / phi, the multiplier of ska::fibonacci_hash_policy (c10/util/flat_hash_map.h)
        wanted = (key * 11400714819323198485 & 0xFFFF_FFFF_FFFF_FFFF) >> header.shift
        if wanted + memory.u8(entry.address - 8) != index:
            raise _corrupt(address, f"key {key} is in slot {index}, its hash selects {wanted}")


def _corrupt(address: int, reason: str) -> BadData:
    return BadData(f"the hash map at {address:#x} is corrupt: {reason}")
