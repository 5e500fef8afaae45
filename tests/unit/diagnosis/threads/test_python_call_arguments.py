"""Arguments that PyTorch leaves out for ``__torch_dispatch__``, and stack slots that a function has reused."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.threads.python_call_arguments import _default
from gdbext.engine.arch.argument_places import may_write_slot
from gdbext.engine.process.memory import Memory
from gdbext.torch.registry.schema import keyword_arguments, schema_defaults
from support.fakes.fake_target import FakeTarget

ARGUMENTS = "Tensor(a!) self, int[2] stride=1, Scalar b=1., str? c=None, *, ScalarType? dtype=None, int n=-1"
SCHEMA = f"a::f.x({ARGUMENTS}) -> Tensor"


def test_defaults_and_keywords_of_a_schema() -> None:
    assert schema_defaults(SCHEMA) == {"stride": "1", "b": "1.", "c": "None", "dtype": "None", "n": "-1"}
    assert keyword_arguments(SCHEMA) == {"dtype", "n"}
    assert keyword_arguments("a::f(Tensor a) -> (Tensor, Tensor)") == frozenset()


@pytest.mark.parametrize(
    ("kind", "default", "text"),
    [
        ("int[2]", "1", "[1, 1]"),
        ("int[]", "[]", "[]"),
        ("Scalar", "1.", "1.0"),
        ("Scalar", "2", "2"),
        ("float", "1", "1.0"),
        ("float?", "None", "None"),
        ("bool", "True", "True"),
        ("str", '"none"', '"none"'),
        ("ScalarType", "6", None),
        ("int", "", None),
    ],
)
def test_texts_of_defaults(kind: str, default: str, text: str | None) -> None:
    value = _default(kind, default)
    assert (value.text if value else None) == text


CFA = 0x7FFE00001000
PROLOGUE = b"\x55\x48\x89\xe5"  # push %rbp; mov %rsp, %rbp


@pytest.mark.parametrize(
    ("body", "offset", "written"),
    [
        (b"\x48\x89\x45\x10", 0, True),  # mov %rax, 0x10(%rbp)
        (b"\x48\x89\x45\x10", 8, False),
        (b"\x48\x89\x44\x24\x18", 8, True),  # mov %rax, 0x18(%rsp)
        (b"\x48\x89\x45\xf8", 0, False),  # mov %rax, -8(%rbp)
    ],
)
def test_arguments_on_the_stack_belong_to_the_called_function(body: bytes, offset: int, written: bool) -> None:
    architecture = Memory(FakeTarget({})).architecture
    code = [*architecture.decode(PROLOGUE + body + b"\x90", 0x1000)]
    registers = {architecture.frame_pointer: CFA - 16}
    assert may_write_slot(architecture, code, code[-1].address, offset, CFA, registers) is written
    assert may_write_slot(architecture, code, 0x2000, offset, CFA, registers), "code that does not lead there"
