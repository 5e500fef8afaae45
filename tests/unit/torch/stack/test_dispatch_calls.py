"""Grouping of frames into passes through the dispatcher, by roles alone."""

from __future__ import annotations

from gdbext.torch.stack.dispatch_calls import DispatchCall, group
from gdbext.torch.stack.roles import FunctionRole, Role

PLAIN = FunctionRole(Role.PLAIN)
CALL = FunctionRole(Role.OPERATOR, "call", "mm", "_ZN2at4_ops2mm4callERKNS_6TensorES4_")
BOXING = FunctionRole(Role.BOXING)
LOOKUP = FunctionRole(Role.LOOKUP)
ENTERING = FunctionRole(Role.ENTERING)
UNBOXED = FunctionRole(Role.UNBOXED_KERNEL)
BODY = FunctionRole(Role.BOXED_BODY)


def passes(
    *innermost_first: FunctionRole, pointer: tuple[int, ...] = (), signals: tuple[int, ...] = ()
) -> list[DispatchCall]:
    """``pointer``: the levels whose call to the next inner frame goes through a pointer."""
    return group(innermost_first, frozenset(signals), lambda level: level in pointer)


def test_a_kernel_that_left_by_a_tail_call_is_the_next_operators_frame() -> None:
    inner, outer = passes(UNBOXED, CALL, CALL, PLAIN, pointer=(1, 2))
    assert (outer.level, outer.kernel) == (2, 1)
    assert (inner.level, inner.kernel) == (1, 0)


def test_a_wrapper_around_a_lambda_hosts_what_the_lambda_calls() -> None:
    """The lambda is inlined into its wrapper: the wrapper holds no pointer to it, and what it calls is a kernel."""
    mangled = "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail31WrapFunctionIntoRuntimeFunctor_IZ4initvE3$_0"
    inner, outer = passes(
        PLAIN, UNBOXED, FunctionRole(Role.UNBOXED_KERNEL, mangled=mangled), CALL, PLAIN, pointer=(2, 3)
    )
    assert (inner.level, inner.hosted, inner.kernel) == (2, True, 1)
    assert (outer.level, outer.kernel) == (3, 2)


def test_a_hosted_boxing_layer_opens_a_pass_at_its_caller() -> None:
    (found,) = passes(BODY, BOXING, PLAIN, PLAIN, pointer=(1,))
    assert (found.level, found.hosted, found.kernel, found.header) == (2, True, 0, [2, 1])


def test_lookup_entering_and_helpers_are_no_kernels() -> None:
    (looking,) = passes(LOOKUP, CALL, PLAIN)
    assert (looking.kernel, looking.detail) == (None, Role.LOOKUP)
    (entering,) = passes(PLAIN, ENTERING, CALL, PLAIN, pointer=(1,))
    assert (entering.kernel, entering.detail) == (None, Role.ENTERING)
    (helper,) = passes(PLAIN, PLAIN, CALL, PLAIN)
    assert (helper.kernel, helper.helpers) == (None, [1])
    (nameless,) = passes(PLAIN, CALL, PLAIN, pointer=(1,))
    assert nameless.kernel == 0, "known by the call through a pointer"


def test_a_signal_handler_is_no_part_of_the_interrupted_pass() -> None:
    inner, outer = passes(UNBOXED, CALL, PLAIN, PLAIN, CALL, pointer=(1,), signals=(3,))
    assert (outer.level, outer.kernel, outer.helpers) == (4, None, [3])
    assert (inner.level, inner.kernel) == (1, 0)


def test_a_layer_whose_caller_is_not_on_the_stack_is_no_pass() -> None:
    """The stack ended early: what hosts the dispatcher cannot be known."""
    for outermost in (BOXING, LOOKUP, UNBOXED, BODY):
        assert passes(PLAIN, outermost, pointer=(1, 2)) == []
