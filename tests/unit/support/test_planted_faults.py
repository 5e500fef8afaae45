"""scripts/lib/planted_faults.py: which faults a source allows, and how they are drawn."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest

from support.source.script_module import load

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    return load("lib/planted_faults")


def changed(planted: ModuleType, source: str) -> set[str]:
    """The source with each of its faults."""
    data = source.encode()
    faults = [planted.Fault("a.py", place, text) for place in planted.find_places(data) for text in place.replacements]
    assert all(fault.is_sound(data) for fault in faults)
    return {fault.apply(data).decode() for fault in faults}


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a + b", {"a - b"}),
        ("(a) * (  # times +\n b)", {"(a) + (  # times +\n b)"}),
        ("a << b | c", {"a >> b | c", "a << b & c"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("f(not(a), -b, ~c)", {"f((a), -b, ~c)", "f(not(a), b, ~c)", "f(not(a), -b, c)"}),
        ("a //= b", {"a *= b"}),
        ("a < b", {"a <= b", "a >= b"}),
        ("a == b is  not c", {"a != b is  not c", "a == b is c"}),
        ("a not in b", {"a in b"}),
        ("a is (not b)", {"a is not (not b)", "a is (b)"}),
        ("'ünï', b'ö' and c".replace("b'ö'", "d"), {"'ünï_', d and c", "'ünï', d or c"}),
        (
            "a = 1, 0xff, 2.5, True",
            {
                "a = 2, 0xff, 2.5, True",
                "a = 1, 0x100, 2.5, True",
                "a = 1, 0xff, 3.5, True",
                "a = 1, 0xff, 2.5, False",
            },
        ),
        ("a = '', rb'x\\d', None, ...", {"a = '_', rb'x\\d', None, ...", "a = '', rb'x\\d_', None, ..."}),
        ("if a:\n b()", {"if not a:\n b()"}),
        (
            "if not a:\n b()\nelif c or d:\n e()",
            {
                "if a:\n b()\nelif c or d:\n e()",
                "if not a:\n b()\nelif not (c or d):\n e()",
                "if not a:\n b()\nelif c and d:\n e()",
            },
        ),
        ("while (\n a\n): b()", {"while (\n not a\n): b()"}),
        ("a if b else c", {"a if not b else c"}),
        ("[a for a in b if c]", {"[a for a in b if not c]"}),
        ("def f():\n return a", {"def f():\n return None"}),
        ("def f() -> bool:\n return a.b", {"def f() -> bool:\n return None", "def f() -> bool:\n return not a.b"}),
        ("def f():\n return None", {"def f():\n return 1"}),
        ("def f() -> bool:\n return False", {"def f() -> bool:\n return True"}),
        ("def f(a=1, *, b=True): ...", {"def f(a=2, *, b=True): ...", "def f(a=1, *, b=False): ..."}),
    ],
)
def test_each_fault_is_one_small_edit(planted: ModuleType, source: str, faults: set[str]) -> None:
    assert changed(planted, source) == faults


@pytest.mark.parametrize(
    "source",
    [
        '"""A module."""',
        "class A:\n a: int\n 'An attribute.'\n def f(self):\n  '''Text'''",
        "a: Literal['b'] = c",
        "def f(a: 'b', *c: 'd') -> 'e': ...",
        "A = Callable[['b'], Union['c', d]]",
        "a = cast('b', c)\nT = TypeVar('T')",
        "TYPE_CHECKING = False",
        "if TYPE_CHECKING:\n a = 1",
        "_log.debug('%d', a + 1)",
        "__all__ = ['a']",
        "add(help='a', metavar='B')",
        "@dataclass(frozen=True)\nclass A: ...",
        "raise A('a sentence', f'{b + 1} more')",
        "'a' 'b' + c",
        "a = 'b' 'c'",
        "def f():\n return",
    ],
)
def test_what_cannot_matter_stays(planted: ModuleType, source: str) -> None:
    assert changed(planted, source) == set()


def test_a_branch_for_the_run_is_no_annotation(planted: ModuleType) -> None:
    source = "if typing.TYPE_CHECKING:\n a = 1\nelse:\n a = {}"
    assert changed(planted, source.format(2)) == {source.format(3)}


def test_it_shows_the_lines_that_change(planted: ModuleType) -> None:
    source = b"a = 1\nif (\n    a\n    or b\n):\n    pass\n"
    branch = next(place for place in planted.find_places(source) if place.kind == "branch")
    fault = planted.Fault("a.py", branch, branch.replacements[0])
    assert branch.line == 3
    assert fault.before_and_after(source) == ("a or b", "not (a or b)")
    last = planted.Fault("a.py", planted.find_places(b"a = 1")[0], "2")
    assert last.before_and_after(b"a = 1") == ("a = 1", "a = 2")


def test_a_fault_that_does_not_compile_or_changes_nothing_is_not_sound(planted: ModuleType) -> None:
    place = planted.find_places(b"a = 1")[0]
    soundness = {text: planted.Fault("a.py", place, text).is_sound(b"a = 1") for text in ("2", "01", "0x1")}
    assert soundness == {"2": True, "01": False, "0x1": False}


def test_small_packages_are_drawn_as_often_as_large_ones(planted: ModuleType, tmp_path: Path) -> None:
    for name, text in (("large", "a = 1\n" * 60), ("small", "a = 1\n" * 20), ("empty", "")):
        (tmp_path / "gdbext" / name).mkdir(parents=True)
        (tmp_path / "gdbext" / name / "a.py").write_text(text)
    drawn = list(planted.drawn_faults(tmp_path, 1))
    assert len({(fault.file, fault.place) for fault in drawn}) == len(drawn) == 80
    assert 12 < sum("small" in fault.file for fault in drawn[:40]) <= 20
    assert drawn == list(planted.drawn_faults(tmp_path, 1)) != list(planted.drawn_faults(tmp_path, 2))


def test_it_draws_from_the_given_folders_and_files_alone(planted: ModuleType) -> None:
    only = ("gdbext/torch/stack", "gdbext/errors.py")
    drawn = list(itertools.islice(planted.drawn_faults(ROOT, 3, only), 20))
    assert {fault.file.startswith("gdbext/torch/stack/") for fault in drawn} == {True, False}
    assert all(fault.file.startswith(only) for fault in drawn)
