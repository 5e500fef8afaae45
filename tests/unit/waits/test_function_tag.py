"""What the names of functions tell."""

from __future__ import annotations

from gdbext.waits.function_tag import FunctionTag, tags_of

POP = "_ZN5torch8autograd10ReadyQueue3popEv"


def test_a_name_inside_a_template_argument_is_no_tag():
    assert tags_of([f"_ZSt6invokeIM{POP[2:]}EvE"]) == frozenset()
    assert tags_of([POP]) == {FunctionTag.AUTOGRAD_POP}
    assert tags_of(["_ZN2at4implL12metaFallbackERKN3c1014OperatorHandleE"]) == {FunctionTag.NO_KERNEL}
