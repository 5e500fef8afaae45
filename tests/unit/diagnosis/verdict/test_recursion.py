"""Repetitions, and runaway redispatch, which is found with any period; honest nesting is not."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.verdict import recursion
from gdbext.engine.repetitions import Repetition, fold, longest
from support.fakes.analysis_facts import step
from support.programs.work import lines_run


def equal(positions, period):
    """All arguments were read, and are the same at each level."""
    return len(positions) % period == 0


def redispatches(count):
    return [step("my::op", level=i * 3, bits=0x10, event="redispatchBoxed") for i in range(count)]


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_group_of_operators(period):
    steps = [step(f"my::op{i % period}", i, bits=0x10 + i % period) for i in range(1000)]
    around = [step("aten::empty", 0, 1), *steps, step("aten::linear", 2000, 7)]
    assert recursion.detect(around) is None, "nothing is known of the arguments"
    found = recursion.detect(around, same_arguments=equal)
    assert (len(found.group), found.depth) == (period, 1000 // period)


def test_a_redispatch_with_the_same_keyset():
    """It may be unknown in some frames."""
    steps = redispatches(40)
    steps[::7] = [each._replace(keyset=None) for each in steps[::7]]
    found = recursion.detect([*steps, step("my::op", 200, 0x30)])
    assert (found.innermost.op, found.depth, len(found.group)) == ("my::op", 40, 1)
    assert found.innermost.keyset is not None


def test_thousands_of_steps_in_linear_time():
    steps = [step(f"my::op{i % 3}", i, bits=i % 3) for i in range(9_000)]
    found = []
    assert lines_run(lambda: found.append(recursion.detect(steps, overflown=True))) < 20 * len(steps)
    assert found[0].depth == 3_000


TREE = [step("my::tree", i * 10, 0x10) for i in range(3000)]
AUTOGRAD = [
    step("aten::mm", 0, 0x1, "CPU", "redispatch"),
    step("aten::mm", 3, 0x11, "ADInplaceOrView", "redispatch"),
    step("aten::mm", 6, 0x111, "AutogradCPU"),
]
SHRINKING = [step("aten::mm", i, (1 << i) - 1, event="redispatch") for i in range(1, 60)]
VMAP = [step("aten::mm", i, 0x100 if i % 2 else 0x200) for i in range(60)]
MODULES = [step("my::block", i * 4, 0x10) for i in range(30)]
OTHERS = [step(f"aten::op{i}", 100 + i, i) for i in range(200)]
HALF = [step("my::op", i, 0x10) for i in range(60)]


@pytest.mark.parametrize(
    ("steps", "more", "is_found"),
    [
        (AUTOGRAD * 3, {}, False),
        (SHRINKING, {"overflown": True}, False),
        (VMAP, {}, False),
        (MODULES, {"python_levels": list(range(1, 200, 4))}, False),
        (redispatches(30), {"python_levels": [level + 1 for level in range(0, 90, 3)]}, False),
        # Arguments that differ or cannot be read prove nothing.
        *((TREE, more, False) for more in ({}, {"python_levels": list(range(5, 30000, 10))})),
        *((TREE, {"same_arguments": equal, "complete": complete}, complete) for complete in (True, False)),
        (TREE, {"overflown": True, "complete": False}, True),
        # A stack overflow needs fewer repetitions, but most of the stack.
        *((HALF, {"overflown": overflown}, overflown) for overflown in (True, False)),
        ([*HALF, *OTHERS], {"overflown": True}, False),
    ],
)
def test_honest_nesting_is_normal(steps, more, is_found):
    assert (recursion.detect(steps, **more) is not None) is is_found


def through_python(period, turns, frames):
    """Operators that call each other ``turns`` times each; a call is two passes and ``frames`` Python frames."""
    calls = [number % period for number in range(period * turns)]
    steps = [
        step(f"my::op{call}", 20 * at + pass_, 0x10 + pass_, event="redispatch" if pass_ == 0 else "call")
        for at, call in enumerate(calls)
        for pass_ in range(2)
    ]
    return steps, [20 * at + 10 for at in range(len(calls)) for _ in range(frames)]


def test_two_python_operators_that_call_each_other_and_how_deep_where_nothing_runs_away():
    """What counts are the frames, however many operators share them."""
    group, times = recursion.longest_repetition([*TREE[:20], step("aten::mm", 500, 0x1)])
    assert ([each.op for each in group], times) == (["my::tree"], 20)
    assert recursion.longest_repetition(TREE[:5]) == ((), 0)
    found = recursion.detect(*through_python(period=2, turns=32, frames=5), same_arguments=equal)
    assert (len(found.group), found.depth) == (4, 32)
    assert "320 Python frames" in found.why


@pytest.mark.parametrize(("period", "turns", "frames"), [(1, 50, 5), (2, 25, 5), (14, 2, 10), (1, 140, 2)])
def test_some_python_nesting_is_normal(period, turns, frames):
    assert recursion.detect(*through_python(period, turns, frames), same_arguments=equal) is None


def test_the_longest_with_its_smallest_period_and_all_in_a_row():
    for items, period, expected in (
        ("xxababababyy", 64, Repetition(2, 2, 4)),
        ("aaaaaaaa", 64, Repetition(0, 1, 8)),
        ("abcabcabc", 3, Repetition(0, 3, 3)),
        *((items, period, None) for items, period in (("abcdefgh", 64), ("", 64), ("abcabcabc", 2))),
    ):
        assert longest(items, period) == expected
    for items, expected in {
        "": [],
        "abc": [(0, 3, 1)],
        "aab": [(0, 3, 1)],
        "aaab": [(0, 1, 3), (3, 1, 1)],
        "xababab": [(0, 1, 1), (1, 2, 3)],
        "aaabbb": [(0, 1, 3), (3, 1, 3)],
        "abababa": [(0, 2, 3), (6, 1, 1)],
        "aabaabaab": [(0, 3, 3)],
    }.items():
        assert [tuple(found) for found in fold(items)] == expected


@pytest.mark.parametrize("different", [7, 1000])
def test_bytes_and_numbers_give_the_same(different):
    """Up to 256 different items are compared as bytes, more of them one by one."""
    head = [f"once {number}" for number in range(different)]
    assert list(fold([*head, *"abc" * 5])) == [Repetition(0, different, 1), Repetition(different, 3, 5)]
    assert longest([*head, *"abc" * 5], 8) == Repetition(different, 3, 5)


@pytest.mark.parametrize("different", [3, 20_000])
def test_a_deep_stack_in_linear_time(different):
    items = [number % different for number in range(20_000)]
    assert lines_run(lambda: list(fold(items))) < 3 * len(items)
