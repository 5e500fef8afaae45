"""The thread-local state that takes part in dispatch: included and excluded keys, modes, autocast, functorch.

Each variable is found by its symbol and read from the thread's block of its module. Sources, all 2.13.0:
c10/core/impl/LocalDispatchKeySet.h, c10/core/AutogradState.{h,cpp}, c10/core/impl/PythonDispatcherTLS.cpp,
c10/core/impl/TorchDispatchModeTLS.h, ATen/autocast_mode.cpp, ATen/SequenceNumber.cpp, ATen/PythonTorchFunctionTLS.h,
ATen/functorch/DynamicLayer.cpp, ATen/functorch/Interpreter.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import BitField, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.vocabulary import json_member
from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.torch import assumed_symbols
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.state.thread_variable import ThreadVariables, VariablesOfThread
from gdbext.torch.structures import SafePyObject
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.key_names import KeyNames
from gdbext.torch.values.value_text import python_name

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal


@dataclass(frozen=True)
class AutogradFlags:
    """``c10::AutogradState``; the defaults are those of a thread that never changed it (AutogradState.cpp).

    None is a flag that this version of PyTorch does not have.
    """

    grad_mode: bool | None = True
    inference_mode: bool | None = False
    forward_ad: bool | None = True
    multithreading: bool | None = True
    view_replay: bool | None = False


@dataclass(frozen=True)
class Autocast:
    """Autocast of one device: on when its key is not excluded; ``dtype`` as in torch.float16, None where unknown."""

    enabled: bool
    dtype: str | None


@dataclass(frozen=True)
class FunctorchLayer:
    """One interpreter of functorch's stack; ``transform`` is "Vmap", "Grad", "Jvp" or "Functionalize"."""

    transform: str
    level: int


@dataclass(frozen=True)
class PythonMode:
    """A mode on a Python mode stack: its class, and for an infrastructure mode its kind ("FAKE", "PROXY", …)."""

    name: str
    infra: str | None = None


@dataclass(frozen=True)
class DispatchState:
    """The state of one thread; a member that could not be read is None and ``problems`` says why."""

    included_set: Internal[DispatchKeySet | None]
    excluded_set: Internal[DispatchKeySet | None]
    autograd: Inline[AutogradFlags]
    """All None where they could not be read."""
    autocast: Mapping[str, Autocast] | None
    """Name of a device → its autocast."""
    autocast_cache: bool | None
    autocast_nesting: int | None
    functorch: tuple[FunctorchLayer, ...] | None
    """The levels of functorch, outermost first."""
    python_dispatcher: bool | None
    python_modes: tuple[PythonMode, ...] | None
    """Infrastructure modes, then the user's from the outermost to the innermost."""
    torch_function: str | None
    """The limit of ``__torch_function__``: "enabled", "subclasses disabled" or "all disabled"."""
    torch_function_modes: tuple[str, ...] | None
    sequence_number: int | None
    """The next number of autograd's nodes in this thread."""
    problems: Internal[tuple[str, ...]]

    @json_member(after="")
    def included(self) -> tuple[str, ...] | None:
        """The included keys."""
        return self.included_set.keys if self.included_set else None

    @json_member(after="included")
    def excluded(self) -> tuple[str, ...] | None:
        """The excluded keys."""
        return self.excluded_set.keys if self.excluded_set else None

    @json_member(after="excluded")
    def included_bits(self) -> Hexadecimal | None:
        """The included keys as bits."""
        return self.included_set.bits if self.included_set else None

    @json_member(after="included_bits")
    def excluded_bits(self) -> Hexadecimal | None:
        """The excluded keys as bits."""
        return self.excluded_set.bits if self.excluded_set else None


_SHARED_POINTER = 16
"""Bytes of a ``std::shared_ptr``."""

_T = TypeVar("_T")


class DispatchStateReader:
    """Reads the state of any thread by its thread pointer. Raises LayoutError at construction."""

    def __init__(
        self,
        memory: Memory,
        layout: Layout,
        symbolizer: Symbolizer,
        keys: KeyNames,
        python_type: Callable[[int], str | None] | None = None,
    ) -> None:
        """``python_type`` returns the class name of the Python object at an address, None if that cannot be read."""
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._symbolizer = symbolizer
        self._keys = keys
        self._python_type = python_type
        self._variables = ThreadVariables(memory, symbolizer)
        self._default_included = layout.constant("keyset.default_included_set")
        self._default_excluded = layout.constant("keyset.default_excluded_set")

    def read(self, thread_pointer: int) -> DispatchState:
        """The state of the thread with that thread pointer (the address of its control block). Raises nothing: a member
        that cannot be read is None, and ``problems`` says why."""
        problems: list[str] = []
        thread = self._variables.of(thread_pointer)

        def attempt(what: str, reader: Callable[[], _T]) -> _T | None:
            """The result of ``reader``; None, with a sentence on ``what`` in ``problems``, if it raises."""
            try:
                return reader()
            except GdbextError as error:
                problems.append(f"{what}: {error.what}")
                return None

        symbols, constant = assumed_symbols, thread.read_constant
        keysets = attempt("included and excluded keys", lambda: self.keysets(thread_pointer))
        types = attempt("types of autocast", lambda: self._autocast_types(thread)) if keysets else None
        functions = attempt("__torch_function__ state", lambda: self._torch_function(thread))
        return DispatchState(
            included_set=DispatchKeySet.of_bits(keysets[0], self._keys) if keysets else None,
            excluded_set=DispatchKeySet.of_bits(keysets[1], self._keys) if keysets else None,
            autograd=attempt("autograd state", lambda: self._autograd(thread)) or AutogradFlags(*[None] * 5),
            autocast=attempt("autocast", lambda: self._autocast(keysets[1], types or b"")) if keysets else None,
            autocast_cache=attempt("autocast cache", lambda: constant(symbols.AUTOCAST_CACHE, 1) != b"\0"),
            autocast_nesting=attempt(
                "autocast nesting", lambda: int.from_bytes(constant(symbols.AUTOCAST_NESTING, 4), "little", signed=True)
            ),
            functorch=attempt("functorch", lambda: self._functorch(thread)),
            python_dispatcher=attempt("Python dispatcher", lambda: any(constant(symbols.PYTHON_DISPATCHER, 8))),
            python_modes=attempt("Python modes", lambda: self._python_modes(thread)),
            torch_function=functions[0] if functions else None,
            torch_function_modes=functions[1] if functions else None,
            sequence_number=attempt(
                "sequence number", lambda: int.from_bytes(thread.read(symbols.SEQUENCE_NUMBER, 8), "little")
            ),
            problems=tuple(problems),
        )

    def keysets(self, thread_pointer: int) -> tuple[int, int]:
        """(included, excluded): the bits of both thread-local keysets of the thread with that thread pointer. Raises
        BadData, ThreadLocalUnknown, MemoryFault."""
        # PODLocalDispatchKeySet has both exclusive-ored with their defaults, so that zero means the default
        raw = self._variables.of(thread_pointer).read_constant(assumed_symbols.KEYSETS, 16)
        included, excluded = struct.unpack("<QQ", raw)
        return included ^ self._default_included, excluded ^ self._default_excluded

    def _autograd(self, thread: VariablesOfThread) -> AutogradFlags:
        """The flags of a thread; their defaults if it never changed one."""
        state, layout = structures.AutogradState, self._layout
        raw = thread.read(assumed_symbols.AUTOGRAD_STATE, state.size(self._space))
        if not raw:
            return AutogradFlags()

        def flag(*members: BitField) -> bool | None:
            """The flag by the first of these names that this version has; torch 2.0 misspells one."""
            present = next((member for member in members if member.is_in(layout)), None)
            return bool(present.of(layout, raw)) if present else None

        return AutogradFlags(
            flag(state.grad_mode_),
            flag(state.inference_mode_),
            flag(state.fw_grad_mode_),
            flag(state.multithreading_enabled_, state.mulithreading_enabled_),
            flag(state.view_replay_enabled_),
        )

    def _autocast_types(self, thread: VariablesOfThread) -> bytes:
        """The ScalarTypes that autocast casts to: one byte for each ``c10::DeviceType``, by its value."""
        count = self._layout.enum("c10::DeviceType").get("COMPILE_TIME_MAX_DEVICE_TYPES", 0)
        return thread.read_constant(assumed_symbols.AUTOCAST_DTYPE, count)

    def _autocast(self, excluded: int, types: bytes) -> dict[str, Autocast]:
        """Name of a device ("cuda") → its autocast. ``excluded`` are the bits of the thread's excluded keys, ``types``
        the bytes of ``_autocast_types``."""
        devices = self._layout.enum("c10::DeviceType")
        scalar_types = self._layout.dispatch("scalar_types")
        autocasts = {}
        for slot in self._keys.slots:
            device = slot.name[8:] if slot.name.startswith("Autocast") else ""
            if device in devices:
                number = types[devices[device]] if devices[device] < len(types) else len(scalar_types)
                dtype = python_name(scalar_types[number][0]) if number < len(scalar_types) - 1 else None
                autocasts[device.lower()] = Autocast(not excluded & slot.bits, dtype)
        return autocasts

    def _functorch(self, thread: VariablesOfThread) -> tuple[FunctorchLayer, ...]:
        """The levels of functorch, outermost first, in a FuncTorchTLS: a vtable, a std::vector<DynamicLayer>, two
        flags."""
        pointer = int.from_bytes(thread.read(assumed_symbols.FUNCTORCH, 8), "little")
        if not pointer:
            return ()
        vtable = assumed_symbols.FUNCTORCH_VTABLE.address(self._symbolizer)
        if not vtable or self._memory.u64(pointer) != vtable + 16:
            raise BadData(f"the object at {pointer:#x} is not a FuncTorchTLS")
        layer = structures.DynamicLayer
        first, count = vector_span(self._memory, pointer + 8, layer.size(self._space), 4096)
        kinds = {number: name for name, number in self._layout.enum("at::functorch::TransformType").items()}
        layers = []
        for transform in (item.interpreter_ for item in layer.array(self._space, first, count)):
            number = transform.type_
            if number not in kinds:
                raise BadData(f"the functorch layer at {transform.address:#x} is of an unknown kind ({number})")
            layers.append(FunctorchLayer(kinds[number], transform.level_))
        return tuple(layers)

    def _python_modes(self, thread: VariablesOfThread) -> tuple[PythonMode, ...]:
        """Infrastructure modes, then the user's from the outermost to the innermost."""
        structures.DispatchModes.shape(self._layout)
        state = thread.address(assumed_symbols.DISPATCH_MODES)
        if not state:
            return ()
        modes = structures.DispatchModes(self._space, state)
        infra = []
        if modes.has(structures.DispatchModes.infra_modes_):  # one optional for each key; torch 2.0 has none of them
            keys = sorted(self._layout.enum("c10::impl::TorchDispatchModeKey").items(), key=lambda item: item[1])[:-1]
            size = structures.DispatchModes.infra_modes_.field(self._layout).size // max(1, len(keys))
            for index, (name, _value) in enumerate(keys):
                optional = modes.infra_modes_ + index * size
                if self._memory.u8(optional + _SHARED_POINTER):
                    infra.append(PythonMode(self._class_of(self._memory.u64(optional)), name))
        return (*infra, *map(PythonMode, map(self._class_of, self._holders(modes.stack_))))

    def _torch_function(self, thread: VariablesOfThread) -> tuple[str, tuple[str, ...]]:
        """The limit of ``__torch_function__``, and its mode stack from the outermost to the innermost."""
        structures.FunctionModes.shape(self._layout)
        states = ("enabled", "subclasses disabled", "all disabled")
        state = thread.address(assumed_symbols.TORCH_FUNCTION)
        if not state:
            return states[0], ()
        modes = structures.FunctionModes(self._space, state)
        number = modes.disabled_state_
        if number >= len(states):
            raise BadData(f"there is no __torch_function__ state {number}")
        return states[number], tuple(map(self._class_of, self._holders(modes.stack_)))

    def function_modes(self, thread_pointer: int) -> tuple[int, ...]:
        """Addresses of the Python objects on the stack of __torch_function__ modes, outermost first, of the thread with
        that thread pointer. Raises LayoutError, BadData, ThreadLocalUnknown, MemoryFault."""
        state = self._variables.of(thread_pointer).address(assumed_symbols.TORCH_FUNCTION)
        if not state:
            return ()
        holders = self._holders(structures.FunctionModes(self._space, state).stack_)
        return tuple(SafePyObject(self._space, holder).data_ for holder in holders)

    def _holders(self, vector: int) -> Iterator[int]:
        """Addresses of the ``c10::SafePyObject``s that the ``std::vector`` of shared pointers at ``vector`` points
        to."""
        first, count = vector_span(self._memory, vector, _SHARED_POINTER, 4096)
        return (self._memory.u64(first + index * _SHARED_POINTER) for index in range(count))

    def _class_of(self, holder: int) -> str:
        """The class name of the Python object in the ``c10::SafePyObject`` at ``holder``, for people."""
        try:
            address = SafePyObject(self._space, holder).data_
        except MemoryFault:
            return "a Python object that cannot be read"
        name = self._python_type(address) if self._python_type else None
        return name or f"the Python object at {address:#x}"
