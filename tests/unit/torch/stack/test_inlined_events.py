"""Frames grouped into passes by their roles; calls told from redispatches by the code that leads to the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.process.code_reader import FunctionInstructions
from gdbext.engine.process.symbolizer import Function
from gdbext.torch.assumed_symbols import KERNEL_FOR_KEY, LOOKUP
from gdbext.torch.stack.dispatch_calls import DispatchCall, group
from gdbext.torch.stack.inlined_events import InlinedDispatchEvents, backward_reach, offset_in_entry
from gdbext.torch.stack.roles import FunctionRole, Role

START, ASKS, OTHER, THROWS = 0x1000, 0x9000, 0xA000, 0xB000
BY_POINTER = b"\xff\xd0"  # call *%rax
NOP, RETURN = b"\x90", b"\xc3"
TEST = b"\x48\x85\xc0"  # test %rax,%rax
LOADS_UNBOXED = b"\x48\x8b\x43\x10"  # mov 0x10(%rbx),%rax
SHIFT = b"\x48\xc1\xe8\x10"  # shr $16,%rax
LOADS_OWN = b"\x48\x8b\x44\x24\x10"  # mov 0x10(%rsp),%rax


def call(at: int, target: int) -> bytes:
    return b"\xe8" + (target - at - 5).to_bytes(4, "little", signed=True)


def short_jump(condition: bool, distance: int) -> bytes:
    return (b"\x74" if condition else b"\xeb") + distance.to_bytes(1, "little", signed=True)


def code_of(*parts: bytes | int) -> bytes:
    """Parts in a row; a number is a direct call of that address."""
    code = b""
    for part in parts:
        code += part if isinstance(part, bytes) else call(START + len(code), part)
    return code


def decoded(code: bytes) -> FunctionInstructions:
    return FunctionInstructions(tuple(ARCHITECTURE.decode(code, START)), frozenset())


def reach_of(code: bytes, site: int) -> Any:
    return backward_reach(ARCHITECTURE, decoded(code), START + site, ASKS.__eq__, THROWS.__eq__)


FIRST = code_of(ASKS, NOP, BY_POINTER)


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        (code_of(NOP, ASKS, NOP, BY_POINTER), True),
        (code_of(NOP, OTHER, NOP, BY_POINTER), False),
        (FIRST, True),
        (FIRST + code_of(NOP, NOP, BY_POINTER), False),  # a redispatch after a call in the same function
        (code_of(short_jump(True, 5), ASKS, BY_POINTER), None),  # ways that disagree
        (code_of(short_jump(True, 1), RETURN, ASKS, BY_POINTER), True),  # a way that ends in a return
        # What reports that there is no kernel stands anywhere in a function, often right before the call of one.
        (code_of(short_jump(True, 7), ASKS, short_jump(False, 5), THROWS, BY_POINTER), True),
        (code_of(short_jump(True, 7), ASKS, short_jump(False, 5), OTHER, BY_POINTER), None),
    ],
)
def test_a_call_asks_for_the_kernel_right_before(code: bytes, is_call: bool | None) -> None:
    assert reach_of(code + RETURN, len(code)).is_call is is_call
    assert reach_of(code + NOP + RETURN, len(code) + 1) is None, "no call there"


def test_whether_there_is_an_unboxed_function_is_asked_before_arguments_are_boxed() -> None:
    for load, distance, boxes in (
        (LOADS_UNBOXED, 0, True),
        (LOADS_OWN, 0, False),
        (LOADS_UNBOXED, 6, None),  # long before a jump it proves nothing: with -flto, stores stand between
        *((load, 6, False) for load in (b"\x48\x8d\x43\x10", b"\x48\x89\x43\x10")),  # lea, and a store
    ):
        code = code_of(ASKS, load, *[NOP] * distance, TEST, short_jump(True, 0), BY_POINTER, RETURN)
        assert reach_of(code, len(code) - 1).tests_unboxed is boxes


def test_the_table_where_the_index_counts_from_the_64th_entry_before() -> None:
    """clang folds a constant of the index into the offset."""
    members = {0xF8: 0, 0x108: 16, 0xF8 + 64 * 40: 0, 0x108 + 64 * 40: 16, 0xF0: None, 0x120: None, None: None}
    assert {offset: offset_in_entry(offset, range(0xF8, 0xF8 + 40)) for offset in members} == members


def events_of(names: dict[int, tuple[str, ...]], words: dict[int, int], **sites: Any) -> InlinedDispatchEvents:
    """In a process with these names and words of memory, and what is known of its code."""
    memory: Any = SimpleNamespace(architecture=ARCHITECTURE, try_read=lambda *_: RETURN, try_u64=words.get)
    named: Any = SimpleNamespace(names_at=lambda address: names.get(address, ()), address_of=lambda *_: 0)
    known: Any = SimpleNamespace(function_at=lambda _: None, **sites)
    return InlinedDispatchEvents(memory, named, known, 16)


def test_a_lookup_that_is_called_through_the_slot_of_an_import() -> None:
    """Code compiled with -fno-plt calls what it imports like this: call *slot(%rip)."""
    slot = START + 6 + 0x100
    call_slot = b"\xff\x15" + (0x100).to_bytes(4, "little")
    events = events_of({OTHER: LOOKUP.examples}, {slot: OTHER}, decoded=lambda _: decoded(call_slot + RETURN))
    module: Any = type("NamedModule", (), {"name": "ops.so"})
    assert events._dispatches(Function(START, 16, (), module))


@pytest.mark.parametrize("looks", [(OTHER,), (SHIFT,)])
def test_a_function_that_calls_the_kernel_of_a_named_key_and_others_too(looks: tuple[bytes | int, ...]) -> None:
    """Only the call whose kernel comes from the function that gives a key's kernel is one of a named key."""
    first = code_of(ASKS, BY_POINTER)
    second = first + code_of(NOP)
    second += call(START + len(second), THROWS) + BY_POINTER
    code = second
    for part in looks:
        code += part if isinstance(part, bytes) else call(START + len(code), part)
    code += BY_POINTER + RETURN
    names = {OTHER: LOOKUP.examples, THROWS: KERNEL_FOR_KEY.examples}
    sites: dict[str, Any] = dict.fromkeys(("code", "decoded"), lambda *_: decoded(code))
    events = events_of(names, {}, function=lambda *_: SimpleNamespace(start=START), **sites)

    def is_for_key(size: int) -> bool:
        stack: Any = SimpleNamespace(frames=[SimpleNamespace(pc=START + size)], function=lambda _: None)
        call: Any = SimpleNamespace(mangled="", is_inlined=True, header=[0])
        return events.is_for_key(stack, call)

    assert [is_for_key(len(each)) for each in (first, second, code[:-1])] == [False, True, False]


CALL = FunctionRole(Role.OPERATOR, "call", "mm", "_ZN2at4_ops2mm4callERKNS_6TensorES4_")
PLAIN, BOXING, LOOKING = map(FunctionRole, (Role.PLAIN, Role.BOXING, Role.LOOKUP))
ENTERING, UNBOXED, BODY = map(FunctionRole, (Role.ENTERING, Role.UNBOXED_KERNEL, Role.BOXED_BODY))


def passes(*innermost_first: FunctionRole, pointer: Sequence[int] = (), signal: int = -1) -> list[DispatchCall]:
    """``pointer``: the levels whose call to the next inner frame goes through a pointer."""
    return group(innermost_first, frozenset([signal]), lambda level: level in pointer)


WRAPPER = "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail31WrapFunctionIntoRuntimeFunctor_IZ4initvE3$_0"
"""The lambda is inlined into it: it holds no pointer to that, and what it calls is a kernel."""
HOST = FunctionRole(Role.UNBOXED_KERNEL, mangled=WRAPPER)


def test_passes() -> None:
    """Where the stack ended early, what hosts the dispatcher cannot be known."""
    for frames, pointer, signal, levels in (
        ((UNBOXED, CALL, CALL, PLAIN), (1, 2), -1, [(1, 0, False, []), (2, 1, False, [])]),  # it left by a tail call
        ((PLAIN, UNBOXED, HOST, CALL, PLAIN), (2, 3), -1, [(2, 1, True, []), (3, 2, False, [])]),
        ((BODY, BOXING, PLAIN, PLAIN), (1,), -1, [(2, 0, True, [])]),  # a boxing layer, hosted by its caller
        ((UNBOXED, CALL, PLAIN, PLAIN, CALL), (1,), 3, [(1, 0, False, []), (4, None, False, [3])]),
        *(((PLAIN, outermost), (1, 2), -1, []) for outermost in (BOXING, LOOKING, UNBOXED, BODY)),
    ):
        found = passes(*frames, pointer=pointer, signal=signal)
        assert [(each.level, each.kernel, each.is_inlined, each.helpers) for each in found] == levels


def test_lookup_entering_and_helpers_are_no_kernels() -> None:
    for frames, role in (((LOOKING,), Role.LOOKUP), ((PLAIN, ENTERING), Role.ENTERING)):
        (found,) = passes(*frames, CALL, PLAIN, pointer=(1,))
        assert (found.kernel, found.detail) == (None, role)
    (helper,) = passes(PLAIN, PLAIN, CALL, PLAIN)
    assert (helper.kernel, helper.helpers) == (None, [1])
    (nameless,) = passes(PLAIN, CALL, PLAIN, pointer=(1,))
    assert nameless.kernel == 0, "known by the call through a pointer"
    (inlined,) = passes(BODY, BOXING, PLAIN, PLAIN, pointer=(1,))
    assert inlined.header == [2, 1]
