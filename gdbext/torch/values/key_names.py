"""DispatchKeySet: key names, bits and dispatch table indices, by the layout's account of them.

A ``c10::DispatchKeySet`` is 64 bits: the low ``num_backends`` bits are backends (CPU, CUDA, … Meta), the bits above
them functionalities in ascending priority (Dense, …, AutogradFunctionality, …, PythonDispatcher). A functionality
that is "per backend" makes one runtime key with each backend of the set. Source: torch/include/c10/core/DispatchKey.h
and DispatchKeySet.h, 2.13.0; the scheme is the same since 1.12.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.numbers import integer
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError, LayoutError, UsageError, words_like
from gdbext.torch.assumed_symbols import BACKEND_IS_NAMED, BACKEND_NAME
from gdbext.torch.values.containers import string_reader


class RuntimeKey(NamedTuple):
    """One slot of the dispatch table: the key's name, its ``c10::DispatchKey`` value and the bits that select it."""

    name: str
    value: int
    bits: int


class KeysetTest(NamedTuple):
    """A test of a keyset: ``(keyset & mask) >> shift == value``."""

    mask: int
    shift: int
    value: int


PRIVATE_USE = "PrivateUse1"
"""The backend that a process may give a name of its own (torch.utils.rename_privateuse1_backend)."""


def renamed_backend(memory: Memory, symbolizer: Symbolizer, layout: Layout) -> Mapping[str, str]:
    """{PRIVATE_USE: the name that the process gave it}; {} if it gave none, or nothing can be read."""
    is_named, name = BACKEND_IS_NAMED.address(symbolizer), BACKEND_NAME.address(symbolizer)
    try:
        if not is_named or not name or not memory.u8(is_named):
            return {}
        return {PRIVATE_USE: string_reader(memory, layout).read(name, 256)}
    except GdbextError:
        return {}


def shown_key(key: str, backend: str) -> str:
    """``PrivateUse1 (npu)``: a key for people, with the process's name of PrivateUse1 ("" if it has none)."""
    return f"{key} ({backend})" if backend and key.endswith(PRIVATE_USE) else key


class KeyNames:
    """Everything about keysets of one torch build. Raises LayoutError if the enumeration makes no sense."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.key_names: tuple[str, ...] = tuple(layout.dispatch("key_names"))
        """``toString(DispatchKey)`` by value, as this build's libc10 answered it."""
        self.num_backends = layout.constant("num_backends")
        self.num_functionalities = layout.constant("num_functionality_keys")
        """Number of functionality keys, Undefined included; the highest one is this minus one."""
        if not (0 < self.num_backends <= 16 and 0 < self.num_functionalities + self.num_backends <= 64):
            raise LayoutError("the layout's dispatch keys do not fit in 64 bits")
        self.backend_mask = (1 << self.num_backends) - 1
        self.known_bits = (1 << (self.num_backends + self.num_functionalities - 1)) - 1
        """DispatchKeySet::FULL: every bit that means something."""
        components = layout.enum("c10::BackendComponent").items()
        # without InvalidBit (0) and the end mark
        backends = {value: name for name, value in components if value > 0 and not name.startswith("EndOf")}
        if sorted(backends) != list(range(1, len(backends) + 1)):
            raise LayoutError("the layout's BackendComponent enumeration has gaps")
        self.backends: tuple[str, ...] = tuple(backends[value] for value in sorted(backends))
        """Names of the backend bits in bit order ("CPUBit", …)."""
        self.alias_keys: tuple[str, ...] = tuple(layout.dispatch("runtime_keysets"))
        """Keys that kernels are registered under and that no keyset or table entry can hold."""
        self._build_slots(layout.dispatch("offsets_and_masks"), layout.dispatch("table_index"))

    def _build_slots(self, offsets_and_masks: Sequence[Sequence[int]], indices: Sequence[int]) -> None:
        """Set the runtime keys and their dispatch table slots. ``offsets_and_masks`` has, by functionality, its first
        slot and the mask of its backend bits; ``indices`` has the table index of each key by its value, -1 for none.
        Raises LayoutError if they disagree."""
        self._offsets = [offset for offset, _mask in offsets_and_masks]
        self._masks = [mask for _offset, mask in offsets_and_masks]
        values = {index: value for value, index in enumerate(indices) if index >= 0}
        slots: list[RuntimeKey] = []
        self._families: list[tuple[str, ...] | None] = []
        """The keys of each functionality by backend; None for one that is not per backend."""
        for functionality, (offset, mask) in enumerate(offsets_and_masks):
            bit = 1 << (self.num_backends + functionality - 1) if functionality else 0
            backends = [1 << index for index in range(self.num_backends)] if mask else [0]
            if offset != len(slots) or any(offset + number not in values for number in range(len(backends))):
                raise LayoutError(f"the layout's dispatch table has no slot for {self.key_names[functionality]}")
            family = [
                RuntimeKey(self.key_names[values[index]], values[index], bit | backend)
                for index, backend in enumerate(backends, offset)
            ]
            self._families.append(tuple(key.name for key in family) if mask else None)
            slots.extend(family)
        self.slots: tuple[RuntimeKey, ...] = tuple(slots)
        """Runtime keys in the order of ``OperatorEntry::dispatchTable_``; slot 0 is Undefined."""
        self.num_slots = len(slots)
        """``c10::num_runtime_entries``."""
        self.runtime_keys: tuple[str, ...] = tuple(key.name for key in slots)
        """The keys that have a slot in dispatch tables, in its order."""
        self._index_of_name = {name: index for index, name in enumerate(self.runtime_keys)}
        self.slot_of_value: dict[int, int] = {key.value: index for index, key in enumerate(slots)}
        """``c10::DispatchKey`` value to table slot."""

    def table_index(self, bits: int) -> int:
        """The slot of the dispatch table that a lookup with the keyset ``bits`` reads
        (``getDispatchTableIndexForDispatchKeySet``): for a per-backend functionality without a backend bit, that of its
        first backend. Raises BadData for a bit above the last functionality: PyTorch would read beyond its own array.
        """
        functionality = (bits >> self.num_backends).bit_length()
        if functionality >= self.num_functionalities:
            raise BadData(f"{bits:#x} is not a DispatchKeySet: bit {bits.bit_length() - 1} has no meaning")
        return self._offsets[functionality] + ((bits & self._masks[functionality]) >> 1).bit_length()

    def key_of_index(self, index: int) -> str:
        """The runtime key of a table slot. Raises BadData when there is no such slot."""
        if not 0 <= index < len(self.slots):
            raise BadData(f"dispatch table index {index} is out of range (0 to {len(self.slots) - 1})")
        return self.slots[index].name

    def index_of_key(self, name: str) -> int:
        """The table slot of a runtime key. Raises UsageError with the closest names for any other word."""
        index = self._index_of_name.get(self.own_name(name))
        if index is None:
            raise self._unknown(name)
        return index

    @property
    def backend(self) -> str:
        """The name that the process gave the backend PrivateUse1; "" if it gave none."""
        return self._layout.renamed.get(PRIVATE_USE, "")

    def own_name(self, name: str) -> str:
        """PyTorch's name of a key that may be written with the process's name of PrivateUse1: AutogradPrivateUse1 of
        "AutogradNPU" or of "AutogradPrivateUse1 (npu)"."""
        name = name.partition(" (")[0]  # as it is shown
        if name in self._index_of_name or name in self.backends or not self.backend:
            return name
        candidates = (key for key in (*self._index_of_name, *self.backends) if PRIVATE_USE in key)
        wanted = name.lower()
        return next((key for key in candidates if key.replace(PRIVATE_USE, self.backend).lower() == wanted), name)

    def selecting(self, name: str) -> tuple[KeysetTest, ...]:
        """Conditions that a keyset meets, all of them, exactly if its lookup reads the slot of the key ``name`` (see
        ``table_index``), for breakpoint conditions and probes. Raises UsageError for another word."""
        index = self.index_of_key(name)
        functionality = max(number for number, offset in enumerate(self._offsets) if offset <= index)
        everything = (1 << 64) - 1
        if not functionality:
            return (KeysetTest(everything, self.num_backends, 0),)
        highest = KeysetTest(everything, self.num_backends + functionality - 1, 1)
        mask, backend = self._masks[functionality], index - self._offsets[functionality]
        if not mask:
            return (highest,)
        return highest, KeysetTest(mask, max(1, backend), int(backend > 0))

    def decode(self, bits: int) -> tuple[str, ...]:
        """The runtime keys of the keyset ``bits`` in the order in which PyTorch prints them: by rising priority, then
        by backend. As in ``DispatchKeySet::iterator``, a per-backend functionality is skipped if the set has no
        backend. Bits beyond the last functionality are left out; see ``stray``."""
        present = [index for index in range(self.num_backends) if bits >> index & 1]
        names: list[str] = []
        rest = (bits & self.known_bits) >> self.num_backends
        while rest:
            functionality = (rest & -rest).bit_length()
            rest &= rest - 1
            family = self._families[functionality]
            if family is None:
                names.append(self.slots[self._offsets[functionality]].name)
            else:
                names.extend([family[index] for index in present])
        return tuple(names)

    def text(self, bits: int) -> str:
        """The set as ``str(torch._C.DispatchKeySet)`` prints it, a renamed backend with its own name behind the key."""
        keys = self.decode(bits)
        if any(key.endswith(PRIVATE_USE) for key in keys):
            keys = tuple(shown_key(key, self.backend) for key in keys)
        return f"DispatchKeySet({', '.join(keys)})"

    def stray(self, bits: int) -> int:
        """The bits that mean nothing in this build (a real keyset has none)."""
        return bits & ~self.known_bits

    def building_blocks(self, bits: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(functionalities by rising priority, backends) of the keyset ``bits``, as named in DispatchKey.h."""
        functionalities = tuple(
            self.key_names[value]
            for value in range(1, self.num_functionalities)
            if bits >> (self.num_backends + value - 1) & 1
        )
        return functionalities, tuple(name for index, name in enumerate(self.backends) if bits >> index & 1)

    def highest_key(self, bits: int) -> str:
        """The runtime key of the highest priority (``highestPriorityTypeId``); "Undefined" for an empty set, and like
        "AutogradUndefined" for a per-backend functionality without a backend. Raises BadData for a bit above the last
        functionality."""
        key = self.slots[self.table_index(bits)]
        is_per_backend = self._masks[(bits >> self.num_backends).bit_length()] != 0
        return self.key_names[key.value - 1] if is_per_backend and not bits & self.backend_mask else key.name

    def can_be_keyset(self, bits: int) -> bool:
        """True if a call can have the keyset ``bits``: it has only known bits, or none (no tensor argument, nothing
        included). Backends without any functionality are a small number rather: no tensor has them alone."""
        if bits & ~self.known_bits or 0 < bits <= self.backend_mask:
            return False
        return (bits >> self.num_backends).bit_length() < self.num_functionalities

    def looks_computed(self, bits: int) -> bool:
        """True if ``bits`` can be a keyset that the dispatcher computed, not just a word with such bits.

        Backends come from tensors, and a tensor has a dense, sparse, quantized or nested functionality besides its
        backend; what TLS includes has no backend. So there are backend bits exactly if there is such a functionality.
        """
        if not bits >> self.num_backends or not self.can_be_keyset(bits):
            return False
        return bool(bits & self.backend_mask) == bool(bits & self._tensor_functionalities)

    @cached_property
    def default_included(self) -> int:
        """The keys that every thread includes at its start (c10/core/DispatchKeySet.h). Raises LayoutError."""
        return self._layout.constant("keyset.default_included_set")

    @cached_property
    def _tensor_functionalities(self) -> int:
        """Per-backend functionalities that a tensor itself has (c10/core/DispatchKey.h, FORALL_FUNCTIONALITY_KEYS), by
        a runtime key of each; autograd is the one that tensors do not have alone."""
        names = ("CPU", "QuantizedCPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU")
        bits = reduce(or_, (self.bits_of(name) for name in names if name in self._index_of_name), 0)
        return bits & ~self.backend_mask

    def bits_of(self, name: str) -> int:
        """The bits of ``DispatchKeySet(name)``, for a runtime key, a functionality ("Dense") or a backend ("CPUBit").
        Raises UsageError with the closest names, also for an alias key, which no keyset can hold."""
        name = self.own_name(name)
        index = self._index_of_name.get(name)
        if index is not None:
            return self.slots[index].bits
        if name in self.backends:
            return 1 << self.backends.index(name)
        functionalities = self.key_names[1 : self.num_functionalities]
        if name in functionalities:
            return 1 << (self.num_backends + functionalities.index(name))
        raise self._unknown(name)

    def minus(self, bits: int, other: int) -> int:
        """``bits`` without the functionalities of ``other``; backends stay (``DispatchKeySet::operator-``)."""
        return bits & (self.backend_mask | ~other) & 0xFFFF_FFFF_FFFF_FFFF

    def full_after(self, name: str) -> int:
        """The bits of all keys of lower priority than the key ``name``, and PythonDispatcher's if that exists
        (``DispatchKeySet(FULL_AFTER, key)``)."""
        functionality = (self.bits_of(name) >> self.num_backends).bit_length()
        bits = (1 << (self.num_backends + functionality - 1)) - 1
        if "PythonDispatcher" in self._index_of_name:
            bits |= self.bits_of("PythonDispatcher")
        return bits

    def parse(self, text: str) -> int:
        """The bits of a keyset as users write it: ``Meta,AutogradMeta``, ``DispatchKeySet(Meta, AutogradMeta)`` or
        ``0x1000018000``. Raises UsageError: no key, an unknown name, a number of more than 64 bits."""
        body = text.strip()
        wrapped = re.fullmatch(r"(?:[\w:.]*\.|c10::)?DispatchKeySet\s*\((.*)\)", body, re.DOTALL)
        if wrapped:
            body = wrapped.group(1).strip()
            if not body:
                return 0
        if not body:
            raise UsageError("no keyset is given", help=_EXAMPLES)
        words = [word for word in re.split(r"[\s,|;+]+", body.strip("[]{}")) if word]
        if not words:
            raise UsageError(f"{text!r} names no key", help=_EXAMPLES)
        return reduce(or_, map(self._parse_word, words))

    def _parse_word(self, word: str) -> int:
        """The bits of one name or number. Raises UsageError."""
        if re.match(r"^-?\d", word):
            try:
                number = integer(word, 0)
            except ValueError:
                raise UsageError(f"{word!r} is not a number", help=_EXAMPLES) from None
            if not 0 <= number < 1 << 64:
                raise UsageError(f"{word} does not fit in the 64 bits of a DispatchKeySet", help=_EXAMPLES)
            return number
        name = re.sub(r"^(?:[\w:.]*(?:DispatchKey|BackendComponent)(?:::|\.))", "", word)
        return self.bits_of(name)

    def _unknown(self, name: str) -> UsageError:
        """The error for a word that names no runtime key, with the closest names."""
        if name in self.alias_keys:
            return UsageError(
                f"{name} is an alias key: kernels are registered under it, but no keyset or table entry holds it",
                help="name the runtime keys, for example AutogradCPU, or see the registrations: dispatch-op OPERATOR",
            )
        words = (*self.backends, *self.key_names[: self.num_functionalities], *self._index_of_name)
        pool = {word.lower(): word for word in words}
        close = [pool[low] for low in words_like(name.lower(), pool, 4)]
        hint = f"did you mean {', '.join(close)}?" if close else _EXAMPLES
        return UsageError(f"there is no dispatch key {name!r}", help=hint)


_EXAMPLES = "write key names, like Meta,AutogradMeta, or bits, like 0x1000018000"


class Extractor(NamedTuple):
    """A ``c10::DispatchKeyExtractor``: masks for keys whose kernel is a fallthrough in this operator."""

    non_fallthrough: int
    """Keyset of all keys whose entry is not a fallthrough."""
    per_backend: Sequence[int]
    """The same for each backend, in bit order."""
    by_backend: bool
    """``requiresBitsetPerBackend_``: the backends differ, so ``per_backend`` counts."""
    reverse_arguments: int
    """Bit i: the i-th argument from the last is a tensor or a list of tensors and contributes its keys."""

    def mask(self, keys: KeyNames, keyset: int) -> int:
        """The bits of the keys that do not fall through in a call with ``keyset`` (after TLS)."""
        if not self.by_backend:
            return self.non_fallthrough
        # getBackendIndex: the highest backend, counted from CPU = 0 (also when there is none)
        return self.per_backend[((keyset & keys.backend_mask) >> 1).bit_length()]
