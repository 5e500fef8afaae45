"""scripts/lib/planted_faults.py: which faults a source allows, and how they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.source.script_module import load

planted = load("lib/planted_faults")


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("(a) * (  # times +\n b)", {"(a) + (  # times +\n b)"}),
        ("f(not(a), -b)", {"f((a), -b)", "f(not(a), b)"}),
        ("a < b", {"a <= b", "a >= b"}),
        ("'ünï', d and c", {"'ünï_', d and c", "'ünï', d or c"}),
        ("a = 0xff, True", {"a = 0x100, True", "a = 0xff, False"}),
        ("if c or d:\n e()", {"if not (c or d):\n e()", "if c and d:\n e()"}),
        ("def f() -> bool:\n return a.b", {"def f() -> bool:\n return None", "def f() -> bool:\n return not a.b"}),
        ("class A:\n a: Literal['b'] = c\n 'An attribute.'", set()),
        ("raise A('a sentence', f'{b + 1} more')", set()),
    ],
)
def test_each_fault_is_one_small_edit(source: str, faults: set[str]) -> None:
    data = source.encode()
    found = [planted.Fault("a.py", place, text) for place in planted.find_places(data) for text in place.replacements]
    assert all(fault.is_sound(data) for fault in found)
    assert {fault.apply(data).decode() for fault in found} == faults


def test_small_packages_are_drawn_as_often_as_large_ones(tmp_path: Path) -> None:
    for name, text in (("large", "a = 1\n" * 60), ("small", "a = 1\n" * 20), ("empty", "")):
        (tmp_path / "gdbext" / name).mkdir(parents=True)
        (tmp_path / "gdbext" / name / "a.py").write_text(text)
    drawn = list(planted.drawn_faults(tmp_path, 1))
    assert len({(fault.file, fault.place) for fault in drawn}) == len(drawn) == 80
    assert 12 < sum("small" in fault.file for fault in drawn[:40]) <= 20
    assert drawn == list(planted.drawn_faults(tmp_path, 1)) != list(planted.drawn_faults(tmp_path, 2))
