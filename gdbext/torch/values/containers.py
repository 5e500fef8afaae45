"""Reads libstdc++'s and ska's containers out of the target: std::string, std::list, std::vector, flat_hash_map.

Nothing read here is trusted: every count has a cap, every link is checked both ways, and a container that does not
hold together raises BadData that says how.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, MemoryFault
from gdbext.torch.values.value_structures import Optional, OptionalArrayRef, String, UnorderedMap


class OptionalShape(NamedTuple):
    """Offsets, in bytes from the start of an optional, of its value and of the flag (a bool) that it has one."""

    value: int
    engaged: int


def has_own_optional(layout: Layout) -> bool:
    """True for torch before 2.2, which has ``c10::optional`` (c10/util/Optional.h) instead of ``std::optional``. Its
    optional ArrayRef is two words without a flag: the address is 0 and the length 1 if there is no value."""
    return layout.has_struct(OptionalArrayRef.OF) and OptionalArrayRef.shape(layout).size == 16


def optional_shape(layout: Layout, inner: str) -> OptionalShape:
    """The shape of an optional of the C++ type ``inner``: a ``std::optional`` begins with the value, a
    ``c10::optional`` of torch before 2.2 (c10/util/Optional.h) with the flag. Raises LayoutError."""
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
        """True if the string object at ``address``, whose bytes ``raw`` has at ``offset``, can have that text. No other
        memory is read: only the length of a long text is compared, and nothing in the old ABI."""
        if not self._cxx11:
            return True
        data, length = _TWO_WORDS.unpack_from(raw, offset)
        wanted = text.encode("utf-8", "backslashreplace")
        if data == address + 16:
            return length <= 15 and raw[offset + 16 : offset + 16 + length] == wanted
        return bool(length == len(wanted))


def list_items(memory: Memory, header: int, limit: int, sized: bool = True) -> list[int]:
    """Addresses of the elements of the ``std::list`` at ``header``, in order. Raises MemoryFault, and BadData if links
    or size contradict each other (a thread is changing the list, or this is none) or there are more than ``limit``.

    A node is (next, previous, element); the header of the CXX11 ABI (``sized``) ends with the size.
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
    """(address of the first element, number of elements) of the ``std::vector`` at ``address``, whose elements have
    ``element`` bytes each. Raises BadData, also for more than ``limit`` elements, and MemoryFault."""
    begin, end, capacity = memory.words(address, 3)
    count, rest = divmod(end - begin, element)
    if not begin <= end <= capacity or rest or count > limit:
        raise BadData(f"the vector at {address:#x} is invalid ({begin:#x} to {end:#x})")
    return begin, count


def hash_entries(memory: Memory, layout: Layout, address: int, words: int, limit: int) -> list[tuple[int, ...]]:
    """The first ``words`` words (key, value) of each element of the ``std::unordered_map`` or ``_set`` at ``address``,
    ``limit`` elements at most. Raises BadData if its links and its size disagree, MemoryFault, LayoutError.

    Elements are a singly linked list, without hashes if keys are pointers or integers (bits/hashtable_policy.h).
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
    """Addresses of the nodes of the ``std::map`` or ``std::set`` at ``address``, in order of their keys, ``limit`` at
    most. Raises BadData if links and size disagree, MemoryFault.

    The object is an empty comparison (8 bytes with padding), a header node (color, parent, left, right) and the number
    of nodes (bits/stl_tree.h). An element follows its node's four words.
    """
    node, count = memory.u64(address + 16), memory.u64(address + 40)
    if count > limit:
        raise BadData(f"the map at {address:#x} claims {count} elements")
    nodes: list[int] = []
    path: list[int] = []
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
    """The value (a key-value pair) in one occupied slot: its address and its bytes."""

    address: int
    raw: bytes


class FlatMap(NamedTuple):
    """The header of a ``ska::flat_hash_map`` (``sherwood_v3_table``)."""

    entries: int
    """Address of the first slot."""
    slots: int
    """Number of slots that hashes select, a power of two."""
    shift: int
    """Bits by which a product is shifted to get a slot's index."""
    max_lookups: int
    """Slots that a lookup searches at most."""
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
    """The occupied slots of a map, in memory order; each is parsed when it is needed, since most never are."""

    def __init__(self, first: int, stride: int, raw: bytes, used: Sequence[int]) -> None:
        """``raw`` are the bytes of all slots, of ``stride`` bytes each, from the address ``first`` on; ``used`` are the
        indices of the occupied ones."""
        self._first = first
        self._stride = stride
        self._raw = raw
        self._used = used

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[MapEntry]:
        return map(self.at, self._used)

    def at(self, slot: int) -> MapEntry:
        """The entry in the slot of that index."""
        start = slot * self._stride
        return MapEntry(self._first + start + 8, self._raw[start : start + self._stride][8:])

    def by_word(self, offset: int) -> dict[int, int]:
        """The word at that offset in each value → index of its slot."""
        unpack, stride = struct.Struct("<Q").unpack_from, self._stride
        if stride % 8 or offset % 8:
            return {unpack(self._raw, slot * stride + 8 + offset)[0]: slot for slot in self._used}
        words = memoryview(self._raw).cast("Q")[(8 + offset) // 8 :: stride // 8].tolist()
        return {words[slot]: slot for slot in self._used}


def map_slots(memory: Memory, address: int, value_size: int) -> MapSlots:
    """The occupied slots of the ``ska::flat_hash_map`` at ``address``, from one read. Raises BadData if header and
    slots contradict each other, MemoryFault.

    A slot is an int8 distance from the slot that the hash selects (-1: empty), padding, the value of ``value_size``
    bytes.
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
    """Check that each of the ``entries`` of the ``ska::flat_hash_map`` at ``address`` is as far from the slot that its
    hash selects as its distance says, so that a damaged or half-moved entry is noticed. The hash must be the key itself
    (an enumerator of ``key_size`` bytes). Raises BadData, MemoryFault."""
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
    """The error for a ``ska::flat_hash_map`` whose parts contradict each other."""
    return BadData(f"the hash map at {address:#x} is corrupt: {reason}")
